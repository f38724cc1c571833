"""Which trends of Hydra's paper hold in the runs of this folder's scenarios: one line each, with the numbers.

    python scenarios/forgetting/verdicts.py [REPORTS]      (default: reports)

The rule was fixed before the runs (METHODS.md 14.5): two variants differ if their medians over seeds are more than one
pooled standard deviation apart. A trend is *reproduced* if all its comparisons point the paper's way by more than that,
*not reproduced* if any points the other way by more than that, and *not distinguishable* otherwise. `>=` allows ties:
its medians must not point the other way at all; `~` asks that they do not differ.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

ACCURACY, GAP, TRANSFER = "accuracy", "performance_gap", "backward_transfer"


@dataclass(frozen=True)
class Runs:
    """The variants of the five scenarios: each figure as a list over seeds."""

    folder: Path

    def figure(self, table: str, variant: str, key: str) -> np.ndarray:
        """(seeds,) in percentage points."""
        summary = json.loads((self.folder / f"forgetting_{table}" / "summary.json").read_text())
        found = [v[key] for v in summary["variants"] if v["name"] == variant]
        if not found:
            raise SystemExit(
                f"{table} has no variant {variant!r}, only {sorted({v['name'] for v in summary['variants']})}"
            )
        return 100 * np.array(found)

    def positions(self, table: str, variant: str) -> np.ndarray:
        """(seeds, L) accuracy by place in the cyclic order: median of the last five rounds, in percent."""
        labels = pd.read_parquet(self.folder / f"forgetting_{table}" / "labels.parquet")
        labels = labels[(labels["variant"] == variant) & (labels["round"] > labels["round"].max() - 5)]
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
    def verdict(self) -> str:
        """`holds`, `fails`, or `open` where the two differ by less than one pooled standard deviation."""
        left, right = self.left[1], self.right[1]
        pooled = np.sqrt((left.var(ddof=1) + right.var(ddof=1)) / 2)
        ahead = (np.median(left) - np.median(right)) * (-1 if self.sign == "<" else 1)
        if self.sign == "~":
            return "holds" if abs(ahead) <= pooled else "fails"
        if self.sign == ">=" and ahead >= 0:
            return "holds"
        return "open" if abs(ahead) <= pooled else "holds" if ahead > 0 else "fails"

    def __str__(self) -> str:
        left, right = (f"{name} {np.median(x):.1f} ± {x.std(ddof=1):.1f}" for name, x in (self.left, self.right))
        return f"{left} {self.sign} {right}: {self.verdict}"


def chain(called: dict[str, np.ndarray], *signs: str) -> list[Claim]:
    """`a sign b sign c ...` for figures over seeds by what they are called."""
    named = list(called.items())
    return [Claim(left, sign, right) for left, sign, right in zip(named, signs, named[1:], strict=False)]


def trends(runs: Runs) -> dict[str, list[Claim]]:
    """The trends of METHODS.md 14.1 as comparisons."""
    return order_trends(runs) | cut_trends(runs) | rival_trends(runs) | head_trends(runs) | skew_trends(runs)


def order_trends(runs: Runs) -> dict[str, list[Claim]]:
    """(a), (b) and (e), from Table 1."""
    orders = {f"phi {phi}": f"phi={phi}, hydra_code" for phi in (1, 5, 10)} | {"random": "random_job"}
    cyclic = list(orders)[:3]

    def figure(method: str, order: str, key: str) -> np.ndarray:
        return runs.figure("table1", f"{method}, {orders[order]}", key)

    last_first = []
    for order in cyclic:
        places = runs.positions("table1", f"splitfed_v2, {orders[order]}")
        best = ("best of the others", places[:, :-1].max(axis=1))
        last_first.append(Claim((f"{order}: last place", places[:, -1]), ">", best))
    more_transfer = [
        Claim(
            ("random", figure("splitfed_v2", "random", TRANSFER)), ">", (order, figure("splitfed_v2", order, TRANSFER))
        )
        for order in cyclic
    ]
    return {
        "(a) the label of the last place is known best (V2)": last_first,
        "(a) PG grows with phi (V2)": chain({o: figure("splitfed_v2", o, GAP) for o in cyclic}, "<", "<"),
        "(b) BW: random > cyclic (V2)": more_transfer,
        "(e) Hydra is more accurate than V2": [
            claim for o in orders for claim in chain({f"{o}: Hydra": figure("hydra", o, ACCURACY),
                                                      "V2": figure("splitfed_v2", o, ACCURACY)}, ">")
        ],
        "(e) Hydra has a smaller PG than V2": [
            claim for o in orders for claim in chain({f"{o}: Hydra": figure("hydra", o, GAP),
                                                      "V2": figure("splitfed_v2", o, GAP)}, "<")
        ],
        "(e) Hydra does not mind phi, accuracy": chain({o: figure("hydra", o, ACCURACY) for o in cyclic}, "~", "~"),
        "(e) Hydra does not mind phi, PG": chain({o: figure("hydra", o, GAP) for o in cyclic}, "~", "~"),
    }  # fmt: skip


def cut_trends(runs: Runs) -> dict[str, list[Claim]]:
    """(c) and (d), from Fig. 3."""

    def accuracy(variant: str) -> np.ndarray:
        return runs.figure("fig3", variant, ACCURACY)

    v1 = {p: accuracy(f"splitfed_v1, p={p}") for p in (0.1, 0.8)}
    v2 = {(p, cut): accuracy(f"splitfed_v2, p={p}, cut={cut}") for p in (0.1, 0.8) for cut in (1, 3, 4)}
    return {
        "(c) IID: V2 >= V1": chain({"V2": v2[0.1, 1], "V1": v1[0.1]}, ">="),
        "(c) 80 %-DL: V1 > V2": chain({"V1": v1[0.8], "V2": v2[0.8, 1]}, ">"),
        "(d) a deeper cut is more accurate (V2, 80 %-DL)": chain({f"cut {c}": v2[0.8, c] for c in (1, 3, 4)}, "<", "<"),
    }


def rival_trends(runs: Runs) -> dict[str, list[Claim]]:
    """(f), from Table 3."""
    names = {"Hydra": "hydra", "MergeSFL": "mergesfl", "V1": "splitfed_v1", "SplitNN": "splitnn", "multi-head":
             "multihead", "V3": "splitfed_v3"}  # fmt: skip
    accuracy = {called: runs.figure("table3", name, ACCURACY) for called, name in names.items()}
    by_gap = ("Hydra", "V1", "MergeSFL", "V3", "multi-head", "SplitNN")
    gap = {called: runs.figure("table3", names[called], GAP) for called in by_gap}
    return {
        "(f) accuracy of the rivals": chain(accuracy, ">=", ">", ">", ">", ">"),
        "(f) PG of the rivals": chain(gap, "<", "<", "~", "<", "<"),
    }


def head_trends(runs: Runs) -> dict[str, list[Claim]]:
    """(g) and (h), from Table 4."""
    few = {f"{n} heads": f"hydra, superclass, uniform, num_heads={n}" for n in (10, 5, 2)} | {"none": "splitfed_v2"}
    accuracy, gap = ({c: runs.figure("table4", name, k) for c, name in few.items()} for k in (ACCURACY, GAP))
    large = runs.figure("table4", "hydra, cut2=2", GAP)
    return {
        "(g) more heads are more accurate": chain(accuracy, ">", ">", ">"),
        "(g) more heads have a smaller PG": chain(gap, "<", "<", "<"),
        "(h) large heads have no smaller PG": chain({"large": large, "small": gap["10 heads"]}, ">="),
    }


def skew_trends(runs: Runs) -> dict[str, list[Claim]]:
    """(i), and (e) once more, from Table 2."""
    skews = {"sharding": "sharding, p=0.8, dominants=2, phi=1", "Dir .3": "dirichlet, alpha=0.3",
             "Dir .1": "dirichlet, alpha=0.1"}  # fmt: skip
    v2, hydra = (
        {
            key: {s: runs.figure("table2", f"{method}, {name}", key) for s, name in skews.items()}
            for key in (ACCURACY, GAP)
        }
        for method in ("splitfed_v2", "hydra")
    )
    return {
        "(i) PG grows from sharding to Dir .1 (V2)": chain(v2[GAP], "<", "<"),
        "(i) PG grows from sharding to Dir .1 (Hydra)": chain(hydra[GAP], "<", "<"),
        "(e) Hydra is more accurate than V2, partitions": [
            claim for s in skews for claim in chain({f"{s}: Hydra": hydra[ACCURACY][s], "V2": v2[ACCURACY][s]}, ">")
        ],
        "(e) Hydra has a smaller PG than V2, partitions": [
            claim for s in skews for claim in chain({f"{s}: Hydra": hydra[GAP][s], "V2": v2[GAP][s]}, "<")
        ],
    }


def main() -> None:
    """Print a Markdown table."""
    print("| trend | verdict | comparisons (median ± std over seeds, percent or points) |\n|---|---|---|")
    for name, claims in trends(Runs(Path(sys.argv[1] if len(sys.argv) > 1 else "reports"))).items():
        verdicts = {claim.verdict for claim in claims}
        verdict = (
            "not reproduced" if "fails" in verdicts else "not distinguishable" if "open" in verdicts else "reproduced"
        )
        print(f"| {name} | {verdict} | {'; '.join(map(str, claims))} |")


if __name__ == "__main__":
    main()
