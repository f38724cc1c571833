"""Prints which trends of KoReA-SFL's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m scenarios.replay.verdicts [REPORTS]      (the folder with replay_table, ...; default: reports)

Run it from the root of the repository. The rule is that of scenarios/trends.py. Accuracy is the median of a run's last
five rounds, its spread their standard deviation. SFL is splitfed_v1 averaging every round, which equals FL, so the
paper's SFL ~ FL is not tested. The last trend is not in the paper: the time to 90 % of SFL's best accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.trends import Claim, Figures, Table, chain, print_verdicts, reports_folder

ACCURACY = "accuracy"
KOREA, SFL = "korea, window_ratio, p0=0.2", "splitfed_v1"
ABLATION = {"adaptive": KOREA, "fixed": "korea, fixed, p0=0.2", "no replay": "korea, off", "SFL": SFL}
SKEWED = {f"Dir {alpha}": f"alpha=0{alpha}" for alpha in (".1", ".3", ".5")}
PARTITIONS = SKEWED | {"IID": "iid"}
PARTICIPANTS = {"5 clients": "participation=0.05", "20": "participation=0.2", "50": "participation=0.5"}


def of(method: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Names of one method's variants, by setting."""
    return {called: f"{setting}, {method}" for called, setting in settings.items()}


def pairs(ours: Figures, sign: str, theirs: Figures) -> list[Claim]:
    """Comparisons `KoReA sign SFL` in every setting."""
    return [Claim((f"{where}: KoReA", ours[where]), sign, ("SFL", theirs[where])) for where in ours]


def comparison_trends(tables: Mapping[str, Table]) -> dict[str, list[Claim]]:
    """Trends (a) to (d), from Table 1, and (i) and (j), from bytes and time to the target."""

    def figures(method: str, key: str, scale: float = 100) -> Figures:
        return {
            f"{data}, {where}": figure
            for data, table in tables.items()
            for where, figure in table(key, of(method, PARTITIONS), scale).items()
        }

    def compared(sign: str, key: str, scale: float = 100) -> list[Claim]:
        return pairs(figures(KOREA, key, scale), sign, figures(SFL, key, scale))

    korea, sfl = figures(KOREA, ACCURACY), figures(SFL, ACCURACY)
    gains, losses = [], []
    for data in tables:
        skewed = [f"{data}, {where}" for where in SKEWED]
        gains += chain({where: korea[where] - sfl[where] for where in skewed}, ">", ">")
        ours, theirs = ({data: found[f"{data}, IID"] - found[skewed[0]]} for found in (korea, sfl))
        losses += pairs(ours, "<", theirs)
    return {
        "(a) KoReA is more accurate than SFL": pairs(korea, ">", sfl),
        "(b) its gain grows with the skew": gains,
        "(c) its curves are smoother": compared("<", "accuracy_spread"),
        "(d) it loses less from IID to Dir .1": losses,
        "(i) it needs fewer bytes to 90 % of SFL's best": compared("<", "bytes_to_accuracy", 1e-9),
        "(j) not in the paper: it needs less time to 90 % of SFL's best": compared("<", "time_to_accuracy_s", 1 / 60),
    }


def ablation_trends(table: Table) -> dict[str, list[Claim]]:
    """Trend (e), from Table 2."""
    claims = []
    for where, setting in PARTITIONS.items():
        names = {f"{where}: {called}": f"{setting}, {method}" for called, method in ABLATION.items()}
        claims += chain(table(ACCURACY, names), ">=", ">", ">")
    return {"(e) adaptive >= fixed > no replay > SFL": claims}


def proportion_trends(table: Table, proportions: Table) -> dict[str, list[Claim]]:
    """Trend (f); diminishing returns compare the gains of two equal steps, from 0.1 to 0.3 and from 0.3 to 0.5."""
    names = {p: f"p0={p}" for p in ("0.5", "0.3", "0.1", "0.05")}
    found = proportions(ACCURACY, names) | table(ACCURACY, {"0.2": f"{SKEWED['Dir .1']}, {ABLATION['fixed']}"})
    falling = dict(sorted(found.items(), reverse=True))
    steps = {"from 0.1 to 0.3": found["0.3"] - found["0.1"], "from 0.3 to 0.5": found["0.5"] - found["0.3"]}
    return {
        "(f) the more is replayed, the better": [
            *chain(falling, ">=", ">=", ">=", ">="), *chain({p: found[p] for p in ("0.5", "0.05")}, ">")
        ],
        "(f) with diminishing returns": chain(steps, ">"),
    }  # fmt: skip


def cut_trends(table: Table, cuts: Table) -> dict[str, list[Claim]]:
    """Trend (g)."""
    found = cuts(ACCURACY, {cut: cut for cut in ("stem", "block2", "block3")})
    found |= table(ACCURACY, of(KOREA, {"block1": SKEWED["Dir .1"]}))
    order = {cut: found[cut] for cut in ("stem", "block1", "block2", "block3")}
    return {"(g) the larger the server's part, the better": chain(order, ">", ">", ">")}


def participation_trends(participation: Table) -> dict[str, list[Claim]]:
    """Trend (h); ten clients are in (a)."""
    korea, sfl = (participation(ACCURACY, of(method, PARTICIPANTS)) for method in (KOREA, SFL))
    return {"(h) KoReA is more accurate than SFL, however many take part": pairs(korea, ">", sfl)}


def main() -> None:
    """Print a Markdown table."""
    reports = reports_folder()
    table, fashion, proportions, cuts, participation = (
        Table(reports / f"replay_{name}") for name in ("table", "fashion", "proportions", "cuts", "participation")
    )
    found = comparison_trends({"CIFAR-10": table, "Fashion-MNIST": fashion}) | ablation_trends(table)
    found |= proportion_trends(table, proportions) | cut_trends(table, cuts) | participation_trends(participation)
    print_verdicts(
        found, "accuracy and spread in percent or points, bytes in GB, time in minutes; [seeds that get there]"
    )


if __name__ == "__main__":
    main()
