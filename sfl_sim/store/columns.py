"""Records of operations: one flat row each, as the simulation makes them (meanings: schema.toml).

Times are simulated seconds since the start of the run. `round` counts from 1.
"""

import numpy as np
from numpy.typing import NDArray

OP_DTYPE = np.dtype(
    [
        ("node", "S10"),
        ("kind", "S24"),
        ("round", "<i4"),
        ("step", "<i4"),
        ("client", "<i4"),
        ("requested_s", "<f8"),
        ("started_s", "<f8"),
        ("ended_s", "<f8"),
        ("macs", "<f8"),
        ("bytes", "<i8"),
    ]
)

OP_COLUMNS = list(OP_DTYPE.names or ())

BREAKDOWN = ["device", "uplink", "backbone", "queue", "assistants", "server", "downlink", "barrier", "aggregate"]
"""Parts of a round for the average participant: columns of seconds that add up to its length."""
PARTS = [*BREAKDOWN, "idle"]
"""Parts of simulated time over rounds: those of a round, and the time between rounds without an available client."""


def in_order(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Sort operations by their end; those with equal ends by their contents.

    So the same operations give the same table and the same digest, from either clock.
    """
    ended_s = rows["ended_s"]
    if (ended_s[1:] < ended_s[:-1]).any():
        rows = rows.take(np.argsort(ended_s, kind="stable"))
        ended_s = rows["ended_s"]
    with_next = ended_s[1:] == ended_s[:-1]
    if not with_next.any():
        return rows
    together = np.append(with_next, False) | np.insert(with_next, 0, False)
    tied = rows[together]
    numbers = ("bytes", "macs", "step", "started_s", "requested_s", "client", "ended_s")
    names = [np.unique(tied[column], return_inverse=True)[1] for column in ("node", "kind")]
    rows = rows.copy()
    rows[together] = tied[np.lexsort((*names, *(tied[column] for column in numbers)))]
    return rows
