"""Pareto-optimal choices among several costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(*costs: ArrayLike) -> NDArray[np.bool_]:
    """Mark (N,) the choices that are Pareto-optimal: no other is at most as expensive in all costs and cheaper in one.

    Args:
        costs: (N,) costs of the choices, one sequence for every kind of cost. Choices with equal costs do not dominate
            each other, and NaN neither dominates nor is dominated.
    """
    table = np.stack([np.asarray(cost) for cost in costs])
    other, this = table[:, :, None], table[:, None, :]
    beaten = (other <= this).all(axis=0) & (other < this).any(axis=0)
    return np.asarray(~beaten.any(axis=0))
