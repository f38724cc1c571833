"""What survives uncertainty: how long points of a what-if take over all draws, and in how many each comes first."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

LOW, HIGH = 0.1, 0.9
"""Quantiles between which lies an 80 % interval."""
ALIKE = 0.01
"""Times of a round that differ by no more than such a share are as good as equal."""


def survival(draws: pd.DataFrame, at: Sequence[str]) -> pd.DataFrame:
    """Summarise draws: one row per point, in order of appearance.

    Args:
        draws: `round_s` of every point in every drawn system; `contest`, `seed` and `draw`: rows that agree in these
            compete to be the first.
        at: columns that tell a point.

    Returns:
        The columns `at`, contest, median_s, low_s and high_s (80 % interval), and `first`: the share of draws in which
        the point is the fastest of its competitors or as good.
    """
    fastest_s = draws.groupby(["contest", "seed", "draw"])["round_s"].transform("min")
    ranked = draws.assign(first=draws["round_s"] <= fastest_s * (1 + ALIKE))
    by_point = ranked.groupby([*at, "contest"], sort=False)
    round_s = by_point["round_s"]
    about = {"low_s": round_s.quantile(LOW), "median_s": round_s.median(), "high_s": round_s.quantile(HIGH)}
    return pd.DataFrame({**about, "first": by_point["first"].mean()}).reset_index()
