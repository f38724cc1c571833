"""Width of the minimum that a model lies in, from its loss at points around it (rows of landscape.parquet)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

TOLERATED_RISE = math.log(2)
"""Rise of the loss within which a minimum reaches: the right answers are half as probable there."""


def with_widths(points: pd.DataFrame) -> pd.DataFrame:
    """Add the column `width` to the rows of the models themselves (alpha 0 of slice line); NaN in all others."""
    model = ["run", "variant", "seed"]
    on_line = points[points["slice"] == "line"]
    widths = pd.Series({key: width(line) for key, line in on_line.groupby(model)}, dtype=float)
    of_each = widths.reindex(pd.MultiIndex.from_frame(points[model])).to_numpy()
    return points.assign(width=np.where((points["slice"] == "line") & (points["alpha"] == 0), of_each, np.nan))


def width(line: pd.DataFrame) -> float:
    """Measure how much of one model's line rises by `TOLERATED_RISE` at most; NaN if the model has no loss."""
    line = line.sort_values("alpha")
    alpha = line["alpha"].to_numpy()
    excess = rise(line).fillna(math.inf).to_numpy() - TOLERATED_RISE
    middle = len(line) // 2
    if excess[middle] > 0:
        return math.nan
    return _reach(alpha[middle:], excess[middle:]) + _reach(-alpha[middle::-1], excess[middle::-1])


def rise(line: pd.DataFrame) -> pd.Series:
    """Compute the loss of each point beyond that of its seed's model; NaN for what is no number."""
    at_model = line["seed"].map(line[line["alpha"] == 0].set_index("seed")["loss"])
    return (line["loss"] - at_model).where(np.isfinite(line["loss"]))


def _reach(distance: NDArray[np.float64], excess: NDArray[np.float64]) -> float:
    """Return the distance at which the excess first gets positive, on the line between two points; or the last."""
    beyond = np.flatnonzero(excess > 0)
    if not len(beyond):
        return float(distance[-1])
    crossing = slice(beyond[0] - 1, beyond[0] + 1)
    return float(np.interp(0, excess[crossing], distance[crossing]))
