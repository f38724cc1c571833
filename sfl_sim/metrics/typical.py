"""Typical round of a run, which stands for all."""

from __future__ import annotations

import pandas as pd

MAX_VARIANTS = 21
"""Number of variants, the first ones, whose durations decide which round is typical."""


def typical_round(rounds: pd.DataFrame) -> int:
    """Choose the round to show in detail: of the middle half, the nearest to the median durations of first seeds.

    Args:
        rounds: columns variant, seed, round, started_s, ended_s.
    """
    rounds = rounds[rounds["variant"].isin(rounds["variant"].unique()[:MAX_VARIANTS])]
    rounds = rounds[rounds["seed"] == rounds.groupby("variant")["seed"].transform("min")]
    duration_s = rounds.assign(duration_s=rounds["ended_s"] - rounds["started_s"]).pivot(
        index="round", columns="variant", values="duration_s"
    )
    off_median = (duration_s.dropna() / duration_s.median() - 1).abs().sum(axis="columns")
    quarter = len(off_median) // 4
    middle = off_median.iloc[quarter : len(off_median) - quarter]
    return int(middle.index[int(middle.argmin())])
