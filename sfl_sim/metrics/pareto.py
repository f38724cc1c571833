"""Which of several offers are worth a thought when two costs matter at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def non_dominated(*costs: ArrayLike) -> NDArray[np.bool_]:
    """Whether each offer is Pareto-optimal: no other costs no more of anything and less of something.

    Args:
        costs: what each offer costs, one sequence for every kind of cost; offers that cost the same do not beat each
            other, and NaN neither beats nor is beaten.
    """
    table = np.stack([np.asarray(cost) for cost in costs])
    other, this = table[:, :, None], table[:, None, :]
    beaten = (other <= this).all(axis=0) & (other < this).any(axis=0)
    return np.asarray(~beaten.any(axis=0))
