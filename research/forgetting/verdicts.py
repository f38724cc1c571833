"""Prints which trends of Hydra's paper hold in the runs of this folder's scenarios, with the numbers.

    python -m research.forgetting.verdicts [REPORTS]      (the folder with forgetting_table1, ...; default: reports)

Run it from the root of the repository. The rule is that of research/trends.py; figures are percent or points.
"""

import numpy as np
import pandas as pd

from research.trends import Comparison, Figures, Table, Trends, alike, chain, judged, one_against, print_verdicts

ACCURACY, GAP, TRANSFER = "accuracy", "performance_gap", "backward_transfer"
CYCLIC = {f"phi {phi}": f"phi={phi}, hydra_code" for phi in (1, 5, 10)}
ORDERS = CYCLIC | {"random": "random_job"}
RIVALS = {
    "Hydra": "hydra", "MergeSFL": "mergesfl", "V1": "splitfed_v1", "SplitNN": "splitnn", "multi-head": "multihead",
    "V3": "splitfed_v3",
}  # fmt: skip
"""In the order of the paper's accuracies."""
MARGIN, GAP_MARGIN = 2, 5
"""Points of accuracy and of PG that are no effect, in runs with new seeds."""
BY_GAP = ("Hydra", "V1", "MergeSFL", "V3", "multi-head", "SplitNN")


def against(ours: Figures, sign: str, theirs: Figures) -> list[Comparison]:
    """Comparisons `Hydra sign V2` in every setting."""
    return [Comparison((f"{where}: Hydra", ours[where]), sign, ("V2", theirs[where])) for where in ours]


def of(method: str, settings: dict[str, str]) -> dict[str, str]:
    """Names of one method's variants, by setting."""
    return {called: f"{method}, {name}" for called, name in settings.items()}


def places(table: Table, name: str) -> np.ndarray:
    """Accuracy by place in the cyclic order, in percent, shape (seeds, L): median of the last five rounds."""
    labels = pd.read_parquet(table.folder / "labels.parquet")
    labels = labels[(labels["variant"] == name) & (labels["round"] > labels["round"].max() - 5)]
    by_place = labels.pivot_table(index="seed", columns="position", values="accuracy", aggfunc="median")
    return np.asarray(100 * by_place)


def stretch_trends(table: Table, names: dict[str, str], where: str = "") -> dict[str, list[Comparison]]:
    """Trends (a), of V2's variants with growing phi."""
    last_place: list[Comparison] = []
    for called, name in names.items():
        by_place = {f"{called}: place {place}": known for place, known in enumerate(places(table, name).T, 1)}
        last_place += one_against(list(by_place)[-1], ">", by_place)
    return {
        f"(a) the last place is known best (V2{where})": last_place,
        f"(a) PG grows with phi (V2{where})": chain(table(GAP, names), "<", "<"),
    }


def order_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (a), (b) and (e), from Table 1."""
    return stretch_trends(table, of("splitfed_v2", CYCLIC)) | {
        "(b) BW: random > cyclic (V2)": one_against("random", ">", table(TRANSFER, of("splitfed_v2", ORDERS))),
        "(e) Hydra is more accurate than V2": against(
            table(ACCURACY, of("hydra", ORDERS)), ">", table(ACCURACY, of("splitfed_v2", ORDERS))
        ),
        "(e) Hydra has a smaller PG than V2": against(
            table(GAP, of("hydra", ORDERS)), "<", table(GAP, of("splitfed_v2", ORDERS))
        ),
        "(e) Hydra does not mind phi, accuracy": alike(table(ACCURACY, of("hydra", CYCLIC)), table.margin(MARGIN)),
        "(e) Hydra does not mind phi, PG": alike(table(GAP, of("hydra", CYCLIC)), table.margin(GAP_MARGIN)),
    }


def long_stretch_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (a) once more, with stretches of as many images as in the paper."""
    return stretch_trends(table, {f"phi {phi}": f"phi={phi}" for phi in (1, 5, 10)}, ", batches of 64")


def cut_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (c) and (d), from Fig. 3."""
    iid = table(ACCURACY, {"V2": "splitfed_v2, p=0.1, cut=1", "V1": "splitfed_v1, p=0.1"})
    skewed = table(ACCURACY, {"V1": "splitfed_v1, p=0.8", "V2": "splitfed_v2, p=0.8, cut=1"})
    cuts = table(ACCURACY, {f"cut {cut}": f"splitfed_v2, p=0.8, cut={cut}" for cut in (1, 3, 4)})
    return {
        "(c) IID: V2 >= V1": chain(iid, ">="),
        "(c) 80 %-DL: V1 > V2": chain(skewed, ">"),
        "(d) a deeper cut is more accurate (V2, 80 %-DL)": chain(cuts, "<", "<"),
    }


def skew_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trend (i), and (e) for other partitions, from Table 2."""
    skews = {
        "sharding": "sharding, p=0.8, dominants=2, phi=1",
        "Dir .3": "dirichlet, alpha=0.3",
        "Dir .1": "dirichlet, alpha=0.1",
    }
    v2, hydra = of("splitfed_v2", skews), of("hydra", skews)
    return {
        "(e) Hydra is more accurate than V2, partitions": against(table(ACCURACY, hydra), ">", table(ACCURACY, v2)),
        "(e) Hydra has a smaller PG than V2, partitions": against(table(GAP, hydra), "<", table(GAP, v2)),
        "(i) PG grows from sharding to Dir .1 (V2)": chain(table(GAP, v2), "<", "<"),
        "(i) PG grows from sharding to Dir .1 (Hydra)": chain(table(GAP, hydra), "<", "<"),
    }


def rival_trends(table: Table, names: dict[str, str], where: str = "") -> dict[str, list[Comparison]]:
    """Trend (f), from Table 3."""
    by_gap = {called: names[called] for called in BY_GAP}
    return {
        f"(f) accuracy of the rivals{where}": chain(table(ACCURACY, names), ">=", ">", ">", ">", ">"),
        f"(f) PG of the rivals{where}": chain(
            table(GAP, by_gap), "<", "<", "~", "<", "<", margin=table.margin(GAP_MARGIN)
        ),
        f"(f) Hydra is the most accurate{where}": one_against("Hydra", ">", table(ACCURACY, names)),
        f"(f) Hydra has the smallest PG{where}": one_against("Hydra", "<", table(GAP, names)),
    }


def heads_in_order(accuracies: Figures, gaps: Figures, where: str = "") -> dict[str, list[Comparison]]:
    """Trend (g), of figures with falling numbers of heads."""
    return {
        f"(g) more heads are more accurate{where}": chain(accuracies, ">", ">", ">"),
        f"(g) more heads have a smaller PG{where}": chain(gaps, "<", "<", "<"),
    }


def head_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trends (g) and (h), from Table 4."""
    heads = {f"{n} heads": f"hydra, superclass, uniform, num_heads={n}" for n in (10, 5, 2)} | {"none": "splitfed_v2"}
    sizes = {"large": "hydra, superclass, uniform, num_heads=10, cut2=2", "small": heads["10 heads"]}
    return heads_in_order(table(ACCURACY, heads), table(GAP, heads)) | {
        "(h) large heads have no smaller PG": chain(table(GAP, sizes), ">=")
    }


def night_trends(night: Table) -> dict[str, list[Comparison]]:
    """Trends (a), (b), (e) and (f) with MobileNetV1."""
    where = ", MobileNetV1"
    names = {called: f"{method}, random_job" for called, method in RIVALS.items()}
    both = {"Hydra": names["Hydra"], "V2": "splitfed_v2, random_job"}
    return stretch_trends(night, of("splitfed_v2", CYCLIC), where) | rival_trends(night, names, where) | {
        f"(b) BW: random > cyclic (V2{where})": one_against("random", ">", night(TRANSFER, of("splitfed_v2", ORDERS))),
        f"(e) Hydra is more accurate than V2{where}": chain(night(ACCURACY, both), ">"),
        f"(e) Hydra has a smaller PG than V2{where}": chain(night(GAP, both), "<"),
    }  # fmt: skip


def night_long_trends(table: Table) -> dict[str, list[Comparison]]:
    """Trend (c) with MobileNetV1 and 60 rounds."""
    accuracies = table(ACCURACY, {"V1": "splitfed_v1", "V2": "splitfed_v2"})
    return {"(c) 80 %-DL: V1 > V2, MobileNetV1, 60 rounds": chain(accuracies, ">")}


def night_head_trends(night: Table, heads: Table) -> dict[str, list[Comparison]]:
    """Trends (g) and (h) with MobileNetV1; V2 in the same order is the one without heads."""
    where = ", MobileNetV1"
    names = {f"{n} heads": f"num_heads={n}" for n in (10, 5, 2)}
    none = {"none": "splitfed_v2, phi=10, hydra_code"}
    sizes = {"large": "num_heads=10, cut2=20", "small": names["10 heads"]}
    accuracies, gaps = (heads(key, names) | night(key, none) for key in (ACCURACY, GAP))
    return heads_in_order(accuracies, gaps, where) | {
        f"(h) large heads have no smaller PG{where}": chain(heads(GAP, sizes), ">=")
    }


TRENDS: Trends = [
    (order_trends, ["table1"]), (long_stretch_trends, ["stretches"]), (cut_trends, ["fig3"]), (skew_trends, ["table2"]),
    (lambda table: rival_trends(table, RIVALS), ["table3"]), (head_trends, ["table4"]), (night_trends, ["night"]),
    (night_long_trends, ["night_long"]), (night_head_trends, ["night", "night_heads"]),
]  # fmt: skip
"""Judges, and the scenarios that they judge."""


def main() -> None:
    """Print a Markdown table; of a scenario that was not run, nothing."""
    print_verdicts(judged("forgetting", TRENDS), "percent or points")


if __name__ == "__main__":
    main()
