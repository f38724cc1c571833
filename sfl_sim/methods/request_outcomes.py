"""Which sample of its client's test set a request is about."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError


def draw_rows(owners: NDArray[np.integer], clients: NDArray[np.integer], rng: np.random.Generator) -> NDArray[np.int64]:
    """For each request one row of the table of answers, each of its client's equally likely.

    Args:
        owners: (T,) the client whose test set a row of the table is of.
        clients: (R,) those of the requests.
        rng: draws with replacement.

    Returns:
        (R,) numbers of rows of the table.

    Raises:
        ScenarioError: a client that has requests has no row.
    """
    counts = np.bincount(owners, minlength=int(clients.max(initial=-1)) + 1)
    if not counts[clients].all():
        lacking = clients[counts[clients] == 0][0]
        raise ScenarioError(f"client {lacking} has requests, but no test samples to draw them from", key="data.test")
    begins = np.cumsum(counts) - counts
    rows: NDArray[np.int64] = np.argsort(owners, kind="stable")[begins[clients] + rng.integers(counts[clients])]
    return rows
