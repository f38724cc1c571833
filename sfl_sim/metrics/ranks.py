"""Ranks of variants that were run with the same seeds, and how far chance may have moved them."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy.stats import rankdata, t


def ranks(figures: pd.DataFrame, more_is_better: bool) -> pd.DataFrame:
    """Rank variants seed by seed, and give each the mean of its ranks with a 95 % interval over seeds.

    Args:
        figures: a row for each seed, a column for each variant; infinite for a target that is not reached. Seeds that
            do not have all variants do not count.

    Returns:
        a row for each variant with `rank`, `low` and `high`: 1 is the best, equal figures share a rank; low and high
        are those of a t-interval, within 1 and the number of variants, and NaN for fewer than two seeds.
    """
    whole = figures.dropna()
    of_seeds = rankdata((-whole if more_is_better else whole).to_numpy(), axis=1) if len(whole) else np.empty((0, 0))
    n, most = len(whole), whole.shape[1]
    if not n:
        return pd.DataFrame(math.nan, index=figures.columns, columns=["rank", "low", "high"])
    mean = of_seeds.mean(axis=0)
    half = t.ppf(0.975, n - 1) * of_seeds.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(most, math.nan)
    low, high = np.clip([mean - half, mean + half], 1, most)
    return pd.DataFrame({"rank": mean, "low": low, "high": high}, index=whole.columns)
