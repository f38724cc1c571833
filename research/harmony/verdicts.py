"""Prints which trends of HARMONY's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m research.harmony.verdicts [REPORTS]      (the folder with harmony_table, ...; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py. Accuracy is the mean over clients on
their own test sets, each at its best threshold (an upper bound: docs/methods/exit_metrics.md); rho is the number of
test samples of labels that a client has not seen, for each sample of its own labels.
"""

from functools import partial

from research.harmony.answered import RHOS, Answered
from research.trends import Comparison, Figures, Trends, chain, judged, one_against, print_verdicts

HARMONY = "harmony, inner_steps=3, inner_lr=0.01"
RIVALS = {
    "SplitFed": "splitfed_v1",
    "multi-exit": "multiexit",
    "SplitGP .9": "splitgp, lambda_pers=0.9",
    "SplitGP .2": "splitgp, lambda_pers=0.2",
    "SplitGP .2 + FT": "splitgp, lambda_pers=0.2, ft_steps=3, ft_lr=0.01",
}
"""Those of the paper's Table 2."""
CONTROLS = {f"multi-exit + FT {n}": f"splitgp, lambda_pers=0.0, ft_steps={n}, ft_lr=0.01" for n in (3, 10)}
"""Those that it lacks: multi-exit with a final adaptation."""
METHODS = RIVALS | CONTROLS | {"HARMONY": HARMONY}
WITHOUT = {"without alignment": f"{HARMONY}, csa_weight=0.0"}
RAW = {"raw alignment": f"{HARMONY}, csa_weight=1.0, csa_l2norm=false"}
EQUAL = {"equal depths": "splitgp, lambda_pers=0.2, cut=2"}
MARGIN, FLAT = 2, 5
"""Points by which as good may be behind, and within which SplitFed is flat; fixed before the runs."""


def table_trends(data: str, table: Answered) -> dict[str, list[Comparison]]:
    """Trends of Table 2, for one data set; of the methods that were run."""
    run = set(table.variants["name"])
    methods = {name: of for name, of in METHODS.items() if of in run}
    by_rho = {rho: table.accuracy(methods, rho) for rho in RHOS}
    own, most = by_rho[0.0], by_rho[0.8]
    rivals, controls = ([name for name in these if name in methods] for these in (RIVALS, CONTROLS))
    falling = []
    for name in [name for name in methods if name != "SplitFed"]:
        falling += chain({f"{name} at rho {rho:g}": by_rho[rho][name] for rho in RHOS}, *[">"] * (len(RHOS) - 1))
    found = {
        f"{data} (a) accuracy falls with rho for all methods with exits": falling,
        f"{data} (c) lambda .9 is better on own labels (rho 0)": _pair("SplitGP .9", ">", "SplitGP .2", own),
        f"{data} (c) and worse on others (rho .8)": _pair("SplitGP .9", "<", "SplitGP .2", most),
        f"{data} (d) HARMONY is as good as lambda .9 on own labels": chain(
            {name: own[name] for name in ("SplitGP .9", "HARMONY")}, "~<=", margin=MARGIN
        ),
        f"{data} (e) HARMONY is best of the paper's methods where most is unseen (rho .8)": [
            each for name in rivals for each in _pair("HARMONY", ">", name, most)
        ],
        f"{data} (f) with exits at most a third is offloaded on own labels": _offloading(table, methods),
        f"{data} (l) not in the paper: HARMONY is better than multi-exit with a final adaptation, rho .8": [
            each for name in controls for each in _pair("HARMONY", ">", name, most)
        ],
        f"{data} (l) and on own labels": [each for name in controls for each in _pair("HARMONY", ">", name, own)],
    }
    if "SplitFed" in methods:
        flat = {f"SplitFed at rho {rho:g}": by_rho[rho]["SplitFed"] for rho in (0.0, 0.8)}
        found[f"{data} (b) SplitFed is flat in rho"] = chain(flat, "~", margin=FLAT)
    if "SplitGP .2 + FT" in methods:
        tuned = "SplitGP .2 + FT", "SplitGP .2"
        found[f"{data} (g) fine-tuning raises accuracy on own labels"] = _pair(tuned[0], ">", tuned[1], own)
        found[f"{data} (g) and lowers it on others (rho .8)"] = _pair(tuned[0], "<", tuned[1], most)
    return found


def ablation_trends(table: Answered, ablation: Answered) -> dict[str, list[Comparison]]:
    """Trends of equal depths and of the ablation of Fig. 4."""
    own, most = (
        table.accuracy({"HARMONY": HARMONY, "SplitGP .2": RIVALS["SplitGP .2"]}, rho)
        | ablation.accuracy(WITHOUT | RAW | EQUAL, rho)
        for rho in (0.0, 0.8)
    )
    return {
        "(h) depths that differ cost SplitGP accuracy on others (rho .8)": _pair(
            "SplitGP .2", "<", "equal depths", most
        ),
        "(i) alignment helps on others (rho .8)": _pair("HARMONY", ">", "without alignment", most),
        "(i) not in the paper: and on own labels": _pair("HARMONY", ">", "without alignment", own),
        "(m) not in the paper: normalised embeddings are better than raw ones, rho .8": _pair(
            "HARMONY", ">", "raw alignment", most
        ),
    }


def drift_trends(drift: Answered) -> dict[str, list[Comparison]]:
    """Trends of Table 5."""
    methods = {name: METHODS[name] for name in ("multi-exit", "SplitGP .9", "SplitGP .2", "HARMONY")}
    without, with_drift = (
        drift.accuracy({name: f"out_of_client, drift={moved}, {of}" for name, of in methods.items()})
        for moved in ("false", "true")
    )
    falls = [Comparison((f"{name}, drift", with_drift[name]), "<", (name, without[name])) for name in methods]
    return {
        "(j) drift costs every method accuracy": falls,
        "(j) and lambda .9 the most": one_against(
            "SplitGP .9", ">", {name: without[name] - with_drift[name] for name in methods}
        ),
        "(j) HARMONY is best under drift": one_against("HARMONY", ">", with_drift),
    }


def _pair(one: str, sign: str, other: str, figures: Figures) -> list[Comparison]:
    return [Comparison((one, figures[one]), sign, (other, figures[other]))]


def _offloading(table: Answered, methods: dict[str, str]) -> list[Comparison]:
    """Comparisons of the offloaded share with a third, in percent."""
    shares = 100 * table.at(0.0)["offload_probability"]
    offloaded = {name: shares[of].to_numpy() for name, of in methods.items() if name != "SplitFed"}
    return [Comparison((name, share), "<", ("a third", 0 * share + 100 / 3)) for name, share in offloaded.items()]


TRENDS: Trends = [
    (partial(table_trends, "Fashion-MNIST"), ["table"]),
    (partial(table_trends, "50 clients"), ["fifty"]),
    (partial(table_trends, "CIFAR-10"), ["cifar10"]),
    (ablation_trends, ["table", "ablation"]),
    (drift_trends, ["drift"]),
]
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(judged("harmony", TRENDS, Answered), "percent or points")


if __name__ == "__main__":
    main()
