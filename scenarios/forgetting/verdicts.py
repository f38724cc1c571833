"""Which trends of Hydra's paper hold in the runs of this folder's five tables: one line each, with the numbers.

    python scenarios/forgetting/verdicts.py [REPORTS]      (the folder with forgetting_table1, ...; default: reports)

The rule, after METHODS.md 14.5: two variants differ if their medians over seeds are more than one pooled standard
deviation apart. A trend is *reproduced* if all its comparisons point the paper's way by more than that, *not
reproduced* if any points the other way by more than that, else *not distinguishable*. `>=` allows ties: its medians
must not point the other way at all; `~` asks that no two differ by more than that, or that they do by less than two
points.
For two variants that are equal in truth, five seeds make `<` or `>` hold by chance about once in ten times, and fail as
often; so the seeds that point the paper's way are told as well. Seeds share data, order and initial weights.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

ACCURACY, GAP, TRANSFER = "accuracy", "performance_gap", "backward_transfer"
TIE = 2.0
Figures = dict[str, np.ndarray]
"""What is compared, by what it is called: percent or points of each seed."""


@dataclass(frozen=True)
class Table:
    """The complete run of one scenario."""

    folder: Path

    @cached_property
    def variants(self) -> pd.DataFrame:
        """Rows of summary.json."""
        if not (self.folder / "manifest.json").exists():
            raise SystemExit(f"{self.folder} is not there: run sfl-sim {self.folder.name.replace('_', '/')} first")
        status = json.loads((self.folder / "manifest.json").read_text())["status"]
        found = pd.DataFrame(json.loads((self.folder / "summary.json").read_text())["variants"])
        if status != "complete" or found["seed"].nunique() < 2:
            raise SystemExit(
                f"{self.folder} is {status}, with {found['seed'].nunique()} seeds; at least two are needed"
            )
        return found.sort_values("seed")

    def __call__(self, key: str, names: dict[str, str]) -> Figures:
        """The figure `key` of variants, given as what they are called here -> their name."""
        by_name = dict(list(self.variants.groupby("name")[key]))
        return {called: 100 * by_name[name].to_numpy(dtype=float) for called, name in names.items()}

    def places(self, name: str) -> np.ndarray:
        """(seeds, L) accuracy by place in the cyclic order: median of the last five rounds, in percent."""
        labels = pd.read_parquet(self.folder / "labels.parquet")
        labels = labels[(labels["variant"] == name) & (labels["round"] > labels["round"].max() - 5)]
        return (
            100 * labels.pivot_table(index="seed", columns="position", values="accuracy", aggfunc="median").to_numpy()
        )


@dataclass(frozen=True)
class Claim:
    """`left` `sign` `right`, each a name and its figures over seeds."""

    left: tuple[str, np.ndarray]
    sign: str
    right: tuple[str, np.ndarray]

    @property
    def ahead(self) -> np.ndarray:
        """By how much each seed points the paper's way."""
        return (self.left[1] - self.right[1]) * (-1 if self.sign == "<" else 1)

    @property
    def verdict(self) -> str:
        """`holds`, `fails`, or `open` where the two differ by less than one pooled standard deviation."""
        left, right = self.left[1], self.right[1]
        pooled = np.sqrt((left.var(ddof=1) + right.var(ddof=1)) / 2)
        ahead = (np.median(left) - np.median(right)) * (-1 if self.sign == "<" else 1)
        if self.sign == "~":
            return "holds" if abs(ahead) <= max(pooled, TIE) else "fails"
        if self.sign == ">=" and ahead >= 0:
            return "holds"
        return "open" if abs(ahead) <= pooled else "holds" if ahead > 0 else "fails"

    def __str__(self) -> str:
        left, right = (f"{name} {np.median(x):.1f} ± {x.std(ddof=1):.1f}" for name, x in (self.left, self.right))
        seeds = "" if self.sign == "~" else f", {(self.ahead > 0).sum()} of {len(self.ahead)} seeds"
        return f"{left} {self.sign} {right} ({self.verdict}{seeds})"


def chain(figures: Figures, *signs: str) -> list[Claim]:
    """`a sign b sign c ...`."""
    pairs = zip(figures.items(), signs, list(figures.items())[1:], strict=False)
    assert len(signs) == len(figures) - 1
    return [Claim(left, sign, right) for left, sign, right in pairs]


def alike(figures: Figures) -> list[Claim]:
    """All of them, two by two."""
    return [Claim(one, "~", other) for one, other in combinations(figures.items(), 2)]


def against(ours: Figures, sign: str, theirs: Figures) -> list[Claim]:
    """Hydra `sign` V2 wherever both were run."""
    return [Claim((f"{where}: Hydra", ours[where]), sign, ("V2", theirs[where])) for where in ours]


def of(method: str, settings: dict[str, str]) -> dict[str, str]:
    """The variants of one method."""
    return {called: f"{method}, {name}" for called, name in settings.items()}


def order_trends(table: Table) -> dict[str, list[Claim]]:
    """(a), (b) and (e), from Table 1."""
    cyclic = {f"phi {phi}": f"phi={phi}, hydra_code" for phi in (1, 5, 10)}
    orders = cyclic | {"random": "random_job"}
    transfer = table(TRANSFER, of("splitfed_v2", orders))
    last_place = []
    for called, name in of("splitfed_v2", cyclic).items():
        *others, last = table.places(name).T
        best = int(np.argmax([np.median(place) for place in others]))
        last_place.append(Claim((f"{called}: last place", last), ">", (f"place {best + 1}", others[best])))
    return {
        "(a) the last place is known best (V2)": last_place,
        "(a) PG grows with phi (V2)": chain(table(GAP, of("splitfed_v2", cyclic)), "<", "<"),
        "(b) BW: random > cyclic (V2)": [
            Claim(("random", transfer["random"]), ">", (phi, transfer[phi])) for phi in cyclic
        ],
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
    """(c) and (d), from Fig. 3."""
    iid = table(ACCURACY, {"V2": "splitfed_v2, p=0.1, cut=1", "V1": "splitfed_v1, p=0.1"})
    skewed = table(ACCURACY, {"V1": "splitfed_v1, p=0.8", "V2": "splitfed_v2, p=0.8, cut=1"})
    cuts = table(ACCURACY, {f"cut {cut}": f"splitfed_v2, p=0.8, cut={cut}" for cut in (1, 3, 4)})
    return {
        "(c) IID: V2 >= V1": chain(iid, ">="),
        "(c) 80 %-DL: V1 > V2": chain(skewed, ">"),
        "(d) a deeper cut is more accurate (V2, 80 %-DL)": chain(cuts, "<", "<"),
    }


def skew_trends(table: Table) -> dict[str, list[Claim]]:
    """(i), and (e) once more, from Table 2."""
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
    """(f), from Table 3."""
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
    """(g) and (h), from Table 4."""
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
    reports = Path(sys.argv[1] if len(sys.argv) > 1 else "reports")
    found = {}
    for name, trends in TRENDS.items():
        found |= trends(Table(reports / f"forgetting_{name}"))
    print("| trend | verdict | comparisons (median ± std over seeds, percent or points) |\n|---|---|---|")
    for name, claims in sorted(found.items()):
        verdicts = {claim.verdict for claim in claims}
        verdict = (
            "not reproduced" if "fails" in verdicts else "not distinguishable" if "open" in verdicts else "reproduced"
        )
        print(f"| {name} | {verdict} | {'; '.join(map(str, claims))} |")


if __name__ == "__main__":
    main()
