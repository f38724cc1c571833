"""Ranks of variants that were run with the same seeds, and how far chance may have moved them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata, t  # type: ignore[import-untyped]


def ranks(figures: pd.DataFrame, more_is_better: bool) -> pd.DataFrame:
    """Rank variants seed by seed, and give each the mean of its ranks with a 95 % interval over seeds.

    Args:
        figures: a row for each seed, a column for each variant; infinite for a target that is not reached. A variant
            that has no figure with a seed, since it diverged, is last with it.

    Returns:
        a row for each variant with `rank`, `low` and `high`: 1 is the best, equal figures share a rank; low and high
        are those of a t-interval, within 1 and the number of variants, and NaN for fewer than two seeds.
    """
    whole = figures.dropna(how="all").fillna(-math.inf if more_is_better else math.inf)
    of_seeds = rankdata((-whole if more_is_better else whole).to_numpy(), axis=1) if len(whole) else np.empty((0, 0))
    if whole.empty:
        return pd.DataFrame(math.nan, index=figures.columns, columns=["rank", "low", "high"])
    low, high = np.clip(interval(of_seeds), 1, whole.shape[1])
    return pd.DataFrame({"rank": of_seeds.mean(axis=0), "low": low, "high": high}, index=whole.columns)


def interval(of_seeds: ArrayLike) -> NDArray[np.float64]:
    """Return the ends (2, ...) of the 95 % t-interval of the mean over seeds (S, ...); NaN for fewer than two."""
    values = np.asarray(of_seeds, dtype=float)
    n = len(values)
    if n < 2:
        return np.full((2, *values.shape[1:]), math.nan)
    half = t.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return np.stack([values.mean(axis=0) - half, values.mean(axis=0) + half])
