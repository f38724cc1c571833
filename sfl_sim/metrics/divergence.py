"""Divergence between the label distributions of clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def label_divergence(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the Jensen-Shannon divergence of each client's label distribution from that of all samples together.

    Args:
        counts: (C, L) samples of each label that each client holds.

    Returns:
        (C,) in bits: 0 for equal distributions, 1 for disjoint ones; NaN for a client without samples.
    """
    from scipy.spatial.distance import jensenshannon  # type: ignore[import-untyped]  # takes 0.2 s to import

    held = counts.sum(axis=1)
    divergence = np.full(len(counts), np.nan)
    with np.errstate(invalid="ignore"):  # rounding may leave the root of a negative number where two are equal
        distance = jensenshannon(counts[held > 0], counts.sum(axis=0)[None], axis=1, base=2)
    divergence[held > 0] = np.nan_to_num(distance) ** 2
    return divergence
