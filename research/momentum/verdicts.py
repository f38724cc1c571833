"""Prints which trends of SMoFi's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m research.momentum.verdicts [REPORTS]      (the folder with momentum_table, ...; default: reports)

Run it from the root of the repository. Accuracy is the best of a run's rounds, as in SMoFi's paper; R and T are rounds
and time to 90 % of FedAvg's best, which is splitfed_v1 averaging every round. The rule is that of research/trends.py.
"""

import numpy as np

from research.trends import Comparison, Figures, Table, Trends, chain, judged, one_against, print_verdicts

SMOFI = {"SMoFi": "smofi"}
FEDAVG = {"FedAvg": "splitfed_v1, round"}
PLUG_INS = {"FedAvgM": "fedavgm"}
FRAMEWORKS = {
    "MergeSFL": "mergesfl, mean",
    "V2": "splitfed_v2, random_sweep",
    "V1 (epoch)": "splitfed_v1, epoch",
    "V1 (step)": "splitfed_v1, step",
}
RIVALS = FEDAVG | PLUG_INS | FRAMEWORKS
EVERYTHING = RIVALS | SMOFI
MORE = {"SMoFi": "smofi, fedavg", "SlowMo": "slowmo", "FedNAG": "fednag"}
"""Names in momentum/plugins."""
HOSTS = FEDAVG | {"FedProx": "fedprox", "FedNAR": "fednar"}


def accuracy(table: Table, names: dict[str, str]) -> Figures:
    """Best accuracy of all rounds, in percent."""
    return table("best_accuracy", names)


def rounds(table: Table, names: dict[str, str]) -> Figures:
    """Rounds to the target (R)."""
    return table("rounds_to_accuracy", names, scale=1)


def minutes(table: Table, names: dict[str, str]) -> Figures:
    """Minutes to the target (T)."""
    return table("time_to_accuracy_s", names, scale=1 / 60)


def pairs(ours: Figures, sign: str, theirs: Figures) -> list[Comparison]:
    """Comparisons `ours sign theirs` of the first ones, the second ones, and so on."""
    return [Comparison(one, sign, other) for one, other in zip(ours.items(), theirs.items(), strict=True)]


def last_of_those_that_reach(name: str, late: Figures) -> list[Comparison] | str:
    """Comparisons `name >` every other whose median reaches the target."""
    reaching = {called: figure for called, figure in late.items() if np.isfinite(np.median(figure))}
    return one_against(name, ">", reaching) if name in reaching else f"not judged: {name} misses the target"


def named(*called: str) -> dict[str, str]:
    """Names of variants of the table, by their short names."""
    return {one: EVERYTHING[one] for one in called}


def table_trends(table: Table) -> dict[str, list[Comparison] | str]:
    """Trends (a) to (g), from Tables 1 and 2."""
    everyone = named("SMoFi", *RIVALS)
    order = named("SMoFi", "MergeSFL", "V2", "V1 (epoch)", "FedAvg", "V1 (step)")
    return {
        "(a) SMoFi is the most accurate": one_against("SMoFi", ">", accuracy(table, everyone)),
        "(b) SMoFi needs the fewest rounds": one_against("SMoFi", "<", rounds(table, everyone)),
        "(d) V1 averaging every step is the least accurate": one_against("V1 (step)", "<", accuracy(table, EVERYTHING)),
        "(e) accuracy of the split frameworks": chain(
            accuracy(table, order), ">", "~", ">", ">", ">", margin=table.margin(2)
        ),
        "(f) V2 needs the most time of the frameworks that get there": last_of_those_that_reach(
            "V2", minutes(table, named("SMoFi", *FRAMEWORKS))
        ),
        "(g) SMoFi needs less time than FedAvg and FedAvgM": one_against(
            "SMoFi", "<", minutes(table, named("SMoFi", "FedAvg", *PLUG_INS))
        ),
    }


def plugin_trends(plugins: Table) -> dict[str, list[Comparison] | str]:
    """Trends (a) to (c) and (g) against the other plug-ins and hosts, from Table 1."""
    fused = {f"SMoFi on {host}": f"smofi, {host.lower()}" for host in HOSTS}
    return {
        "(a) SMoFi is the most accurate: other plug-ins": one_against("SMoFi", ">", accuracy(plugins, MORE)),
        "(b) SMoFi needs the fewest rounds: other plug-ins": one_against("SMoFi", "<", rounds(plugins, MORE)),
        "(c) SMoFi beats each host, accuracy": pairs(accuracy(plugins, fused), ">", accuracy(plugins, HOSTS)),
        "(c) SMoFi beats each host, rounds": pairs(rounds(plugins, fused), "<", rounds(plugins, HOSTS)),
        "(g) SMoFi needs less time: other plug-ins": one_against("SMoFi", "<", minutes(plugins, MORE)),
    }


def contrast_trends(table: Table) -> dict[str, list[Comparison] | str]:
    """Contrasts of our own, each in a run of its own: few mini-batches a round, a small rate, another network."""
    names = {"SMoFi": "smofi", "FedAvg": "splitfed_v1", "FedAvgM": "fedavgm"}
    what = table.folder.name.removeprefix("momentum_")
    return {f"(k) SMoFi is more accurate, too: {what}": one_against("SMoFi", ">", accuracy(table, names))}


def ablation_trends(table: Table, ablation: Table) -> dict[str, list[Comparison] | str]:
    """Trend (h), from the ablation."""
    smofi = accuracy(table, named("SMoFi"))
    parts = accuracy(ablation, {"no fusion": "fusion=false", "no global momentum": "server_momentum=0.0"})
    return {"(h) fusion and global momentum help": one_against("SMoFi", ">", smofi | parts)}


def staleness_trends(staleness: Table) -> dict[str, list[Comparison] | str]:
    """Trend (h), from the sweep over alpha on unequal clients; in the ablation all finish at the same time."""
    usual = accuracy(staleness, {"alpha -0.1": "staleness=-0.1"})
    flat = accuracy(staleness, {"alpha 0": "staleness=0.0"})
    steep = accuracy(staleness, {"alpha -10": "staleness=-10.0"})
    comparisons = pairs(usual, ">", flat) + pairs(usual, ">=", steep)
    return {"(h) staleness: alpha -0.1 is better than 0, no worse than -10": comparisons}


def cut_trends(table: Table, cuts: Table) -> dict[str, list[Comparison] | str]:
    """Trend (i), from the appendix; FedAvg, with which SMoFi is compared, does not depend on the cut."""
    shallow = accuracy(table, {"conv1": EVERYTHING["SMoFi"]})
    deeper = accuracy(cuts, {"conv2": "conv2", "fc1": "fc1"})
    return {"(i) a shallower cut is more accurate": chain(shallow | deeper, ">", ">")}


def skew_trends(skew: Table) -> dict[str, list[Comparison] | str]:
    """Trend (j), from the appendix."""
    name = "(j) SMoFi is more accurate than FedAvg on other partitions"
    smofi = accuracy(skew, {"Dir .5: SMoFi": "smofi", "IID: SMoFi": "iid, smofi"})
    fedavg = accuracy(skew, {"Dir .5: FedAvg": "splitfed_v1", "IID: FedAvg": "iid, splitfed_v1"})
    return {name: pairs(smofi, ">", fedavg)}


TRENDS: Trends = [
    (table_trends, ["table"]), (plugin_trends, ["plugins"]), (contrast_trends, ["one_epoch"]),
    (contrast_trends, ["slow"]), (contrast_trends, ["resnet"]), (ablation_trends, ["table", "ablation"]),
    (staleness_trends, ["staleness"]), (cut_trends, ["table", "cuts"]), (skew_trends, ["skew"]),
]  # fmt: skip
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(
        judged("momentum", TRENDS), "accuracy in percent, R in rounds, T in minutes; [seeds that reach the target]"
    )


if __name__ == "__main__":
    main()
