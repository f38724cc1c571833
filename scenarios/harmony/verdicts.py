"""Prints which trends of HARMONY's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m scenarios.harmony.verdicts [REPORTS]      (the folder with harmony_table, ...; default: reports)

Run it from the root of the repository. The rule is that of scenarios/trends.py. Accuracy is the mean over clients on
their own test sets, each at its best threshold (an upper bound: docs/methods/exit_metrics.md); rho is the number of
test samples of labels that a client has not seen, for each sample of its own labels.
"""

from __future__ import annotations

from scenarios.harmony.answered import RHOS, Answered
from scenarios.trends import Claim, Figures, chain, one_against, print_verdicts, reports_folder

HARMONY = "harmony, inner_steps=3, inner_lr=0.01"
GP = {"SplitGP .9": "splitgp, lambda_pers=0.9", "SplitGP .2": "splitgp, lambda_pers=0.2"}
PLAIN = {"SplitFed": "splitfed_v1", "multi-exit": "multiexit"}
METHODS = {**PLAIN, **GP, "HARMONY": HARMONY}
TUNED = {"SplitGP .2 + FT": "splitgp, lambda_pers=0.2, ft_steps=5, ft_lr=0.05"}
EQUAL = {"equal depths": "splitgp, lambda_pers=0.2, cut=2"}
ABLATION = {"without alignment": f"{HARMONY}, csa_weight=0.0", "without crossing": f"{HARMONY}, cross_batch=false"}


def table_trends(data: str, table: Answered, methods: dict[str, str]) -> dict[str, list[Claim]]:
    """Trends of Table 2, for one data set."""
    by_rho = {rho: table.accuracy(methods, rho) for rho in RHOS}
    own, most = by_rho[0.0], by_rho[0.8]
    with_exits = [name for name in own if name != "SplitFed"]
    falling = []
    for name in with_exits:
        falling += chain({f"{name} at rho {rho:g}": by_rho[rho][name] for rho in RHOS}, *[">"] * (len(RHOS) - 1))
    flat = chain({f"SplitFed at rho {rho:g}": by_rho[rho]["SplitFed"] for rho in (0.0, 0.8)}, "~", tie=5)
    return {
        f"{data} (a) accuracy falls with rho for all methods with exits": falling,
        f"{data} (b) SplitFed is flat in rho": flat,
        f"{data} (c) lambda .9 is better on own labels (rho 0)": _pair("SplitGP .9", ">", "SplitGP .2", own),
        f"{data} (c) and worse on others (rho .8)": _pair("SplitGP .9", "<", "SplitGP .2", most),
        f"{data} (d) HARMONY is as good as lambda .9 on own labels": _pair("HARMONY", ">=", "SplitGP .9", own),
        f"{data} (e) HARMONY is best where most is unseen (rho .8)": one_against("HARMONY", ">", most),
        f"{data} (f) with exits at most a third is offloaded on own labels": _offloading(table, methods),
    }


def fashion_trends(table: Answered) -> dict[str, list[Claim]]:
    """Trends of fine-tuning, equal depths, and the ablation of Fig. 4."""
    own, most = (table.accuracy(METHODS | TUNED | EQUAL | ABLATION, rho) for rho in (0.0, 0.8))
    return {
        "(g) fine-tuning raises accuracy on own labels": _pair("SplitGP .2 + FT", ">", "SplitGP .2", own),
        "(g) and lowers it on others (rho .8)": _pair("SplitGP .2 + FT", "<", "SplitGP .2", most),
        "(h) depths that differ cost SplitGP accuracy on others (rho .8)": _pair(
            "SplitGP .2", "<", "equal depths", most
        ),
        "(i) alignment helps on others (rho .8)": _pair("HARMONY", ">", "without alignment", most),
        "(i) crossing batches helps on others (rho .8)": _pair("HARMONY", ">", "without crossing", most),
    }


def drift_trends(drift: Answered) -> dict[str, list[Claim]]:
    """Trends of Table 5."""
    methods = {name: METHODS[name] for name in ("multi-exit", "SplitGP .9", "SplitGP .2", "HARMONY")}
    without, with_drift = (
        drift.accuracy({name: f"out_of_client, drift={moved}, {of}" for name, of in methods.items()})
        for moved in ("false", "true")
    )
    falls = [Claim((f"{name}, drift", with_drift[name]), "<", (name, without[name])) for name in methods]
    return {
        "(j) drift costs every method accuracy": falls,
        "(j) and lambda .9 the most": one_against(
            "SplitGP .9", ">", {name: without[name] - with_drift[name] for name in methods}
        ),
        "(j) HARMONY is best under drift": one_against("HARMONY", ">", with_drift),
    }


def _pair(one: str, sign: str, other: str, figures: Figures) -> list[Claim]:
    return [Claim((one, figures[one]), sign, (other, figures[other]))]


def _offloading(table: Answered, methods: dict[str, str]) -> list[Claim]:
    """Comparisons of the offloaded share with a third of SplitFed's, in percent."""
    shares = 100 * table.at(0.0)["offload_probability"]
    third = shares[methods["SplitFed"]].to_numpy() / 3
    return [
        Claim((name, shares[of].to_numpy()), "<", ("a third", third))
        for name, of in methods.items()
        if name != "SplitFed"
    ]


def long_trends(long: Answered) -> dict[str, list[Claim]]:
    """Trends of the main claim after three times as many rounds."""
    methods = GP | {"HARMONY": HARMONY}
    own, most = (long.accuracy(methods, rho) for rho in (0.0, 0.8))
    return {
        "(k) after 150 rounds HARMONY is best where most is unseen (rho .8)": one_against("HARMONY", ">", most),
        "(k) and as good as lambda .9 on own labels": _pair("HARMONY", ">=", "SplitGP .9", own),
    }


def main() -> None:
    """Print a Markdown table."""
    reports = reports_folder()
    runs = {name: Answered(reports / f"harmony_{name}") for name in ("table", "cifar10", "drift", "long")}
    found = table_trends("Fashion-MNIST", runs["table"], METHODS) | fashion_trends(runs["table"])
    found |= table_trends("CIFAR-10", runs["cifar10"], METHODS)
    drift = drift_trends(runs["drift"]) if runs["drift"].exists else {"(j) under drift": "not run"}
    long = long_trends(runs["long"]) if runs["long"].exists else {"(k) after 150 rounds": "not run"}
    print_verdicts(found | drift | long, "percent or points")


if __name__ == "__main__":
    main()
