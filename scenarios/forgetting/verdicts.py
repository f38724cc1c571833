"""Prints which trends of Hydra's paper hold in the runs of this folder's five tables, with the numbers.

    python -m scenarios.forgetting.verdicts [REPORTS]      (the folder with forgetting_table1, ...; default: reports)

Run it from the root of the repository. The rule is that of scenarios/trends.py; figures are percent or points.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from scenarios.trends import Claim, Figures, Table, alike, chain, one_against, print_verdicts, reports_folder

ACCURACY, GAP, TRANSFER = "accuracy", "performance_gap", "backward_transfer"


def against(ours: Figures, sign: str, theirs: Figures) -> list[Claim]:
    """Comparisons `Hydra sign V2` in every setting."""
    return [Claim((f"{where}: Hydra", ours[where]), sign, ("V2", theirs[where])) for where in ours]


def of(method: str, settings: dict[str, str]) -> dict[str, str]:
    """Names of one method's variants, by setting."""
    return {called: f"{method}, {name}" for called, name in settings.items()}


def places(table: Table, name: str) -> np.ndarray:
    """Accuracy by place in the cyclic order, in percent, shape (seeds, L): median of the last five rounds."""
    labels = pd.read_parquet(table.folder / "labels.parquet")
    labels = labels[(labels["variant"] == name) & (labels["round"] > labels["round"].max() - 5)]
    by_place = labels.pivot_table(index="seed", columns="position", values="accuracy", aggfunc="median")
    return np.asarray(100 * by_place)


def order_trends(table: Table) -> dict[str, list[Claim]]:
    """Trends (a), (b) and (e), from Table 1."""
    cyclic = {f"phi {phi}": f"phi={phi}, hydra_code" for phi in (1, 5, 10)}
    orders = cyclic | {"random": "random_job"}
    last_place = []
    for called, name in of("splitfed_v2", cyclic).items():
        *others, last = places(table, name).T
        best = int(np.argmax([np.median(place) for place in others]))
        last_place.append(Claim((f"{called}: last place", last), ">", (f"place {best + 1}", others[best])))
    return {
        "(a) the last place is known best (V2)": last_place,
        "(a) PG grows with phi (V2)": chain(table(GAP, of("splitfed_v2", cyclic)), "<", "<"),
        "(b) BW: random > cyclic (V2)": one_against("random", ">", table(TRANSFER, of("splitfed_v2", orders))),
        "(e) Hydra is more accurate than V2": against(
            table(ACCURACY, of("hydra", orders)), ">", table(ACCURACY, of("splitfed_v2", orders))
        ),
        "(e) Hydra has a smaller PG than V2": against(
            table(GAP, of("hydra", orders)), "<", table(GAP, of("splitfed_v2", orders))
        ),
        "(e) Hydra does not mind phi, accuracy": alike(table(ACCURACY, of("hydra", cyclic))),
        "(e) Hydra does not mind phi, PG": alike(table(GAP, of("hydra", cyclic))),
    }


def cut_trends(table: Table) -> dict[str, list[Claim]]:
    """Trends (c) and (d), from Fig. 3."""
    iid = table(ACCURACY, {"V2": "splitfed_v2, p=0.1, cut=1", "V1": "splitfed_v1, p=0.1"})
    skewed = table(ACCURACY, {"V1": "splitfed_v1, p=0.8", "V2": "splitfed_v2, p=0.8, cut=1"})
    cuts = table(ACCURACY, {f"cut {cut}": f"splitfed_v2, p=0.8, cut={cut}" for cut in (1, 3, 4)})
    return {
        "(c) IID: V2 >= V1": chain(iid, ">="),
        "(c) 80 %-DL: V1 > V2": chain(skewed, ">"),
        "(d) a deeper cut is more accurate (V2, 80 %-DL)": chain(cuts, "<", "<"),
    }


def skew_trends(table: Table) -> dict[str, list[Claim]]:
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


def rival_trends(table: Table) -> dict[str, list[Claim]]:
    """Trend (f), from Table 3."""
    names = {
        "Hydra": "hydra", "MergeSFL": "mergesfl", "V1": "splitfed_v1", "SplitNN": "splitnn", "multi-head": "multihead",
        "V3": "splitfed_v3",
    }  # fmt: skip
    by_gap = {called: names[called] for called in ("Hydra", "V1", "MergeSFL", "V3", "multi-head", "SplitNN")}
    return {
        "(f) accuracy of the rivals": chain(table(ACCURACY, names), ">=", ">", ">", ">", ">"),
        "(f) PG of the rivals": chain(table(GAP, by_gap), "<", "<", "~", "<", "<"),
    }


def head_trends(table: Table) -> dict[str, list[Claim]]:
    """Trends (g) and (h), from Table 4."""
    heads = {f"{n} heads": f"hydra, superclass, uniform, num_heads={n}" for n in (10, 5, 2)} | {"none": "splitfed_v2"}
    sizes = {"large": "hydra, superclass, uniform, num_heads=10, cut2=2", "small": heads["10 heads"]}
    return {
        "(g) more heads are more accurate": chain(table(ACCURACY, heads), ">", ">", ">"),
        "(g) more heads have a smaller PG": chain(table(GAP, heads), "<", "<", "<"),
        "(h) large heads have no smaller PG": chain(table(GAP, sizes), ">="),
    }


TRENDS = {
    "table1": order_trends,
    "fig3": cut_trends,
    "table2": skew_trends,
    "table3": rival_trends,
    "table4": head_trends,
}


def main() -> None:
    """Print a Markdown table."""
    reports = reports_folder()
    found: dict[str, list[Claim]] = {}
    for name, trends in TRENDS.items():
        found |= trends(Table(reports / f"forgetting_{name}"))
    print_verdicts(found, "percent or points")


if __name__ == "__main__":
    main()
