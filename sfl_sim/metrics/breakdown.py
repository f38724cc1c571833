"""Where the simulated time went, and what crossed the links: functions of recorded operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfl_sim.records import BREAKDOWN

_WHERE = {b"client": "device", b"uplink": "uplink", b"downlink": "downlink", b"peer": "uplink"}


def breakdown(
    rows: NDArray[np.void], participants: Sequence[int], started_s: float, ended_s: float
) -> dict[str, float]:
    """Seconds of a round by where its average participant spent them; they add up to the round's length.

    Args:
        rows: the round's operations (`OP_DTYPE`).
        participants: clients that took part; operations of others, such as a method's setup, are left out.
        started_s, ended_s: of the round.

    `queue` is waiting at the server, for a lane or for one's turn; waiting for the own device or link counts as that
    device or link. `aggregate` is what server and aggregator do for nobody in particular, mostly averaging, for which
    all participants wait. `barrier` is what remains: waiting for others (for the slowest, or, in SplitNN, for all
    predecessors).

    Raises ValueError if a client's operations overlap, for then the parts do not add up.
    """
    seconds = dict.fromkeys(BREAKDOWN, 0.0)
    rows = rows[(rows["client"] < 0) | np.isin(rows["client"], participants)]
    held_s = rows["ended_s"] - rows["requested_s"]
    for node, name in _WHERE.items():
        seconds[name] += float(held_s[rows["node"] == node].sum()) / len(participants)
    server = (rows["node"] == b"server") & (rows["client"] >= 0)
    seconds["queue"] = float((rows["started_s"] - rows["requested_s"])[server].sum()) / len(participants)
    seconds["server"] = float((rows["ended_s"] - rows["started_s"])[server].sum()) / len(participants)
    seconds["aggregate"] = _covered_s(rows[rows["client"] < 0])
    length_s = ended_s - started_s
    barrier_s = length_s - sum(seconds.values())
    if barrier_s < -1e-9 * max(length_s, 1.0):
        raise ValueError(
            f"operations of one client overlap by {-barrier_s:.3g} s: their parts do not add up to the round"
        )
    seconds["barrier"] = max(0.0, barrier_s)
    return seconds


def traffic(rows: NDArray[np.void]) -> dict[str, int]:
    """Bytes that left and reached clients; a message from client to client counts once, as up."""
    up = (rows["node"] == b"uplink") | (rows["node"] == b"peer")
    down = rows["node"] == b"downlink"
    return {"bytes_up": int(rows["bytes"][up].sum()), "bytes_down": int(rows["bytes"][down].sum())}


def _covered_s(rows: NDArray[np.void]) -> float:
    """Length of the union of the rows' intervals: side by side counts once."""
    total, until = 0.0, -np.inf
    for row in np.sort(rows, order="requested_s"):
        total += max(0.0, float(row["ended_s"]) - max(until, float(row["requested_s"])))
        until = max(until, float(row["ended_s"]))
    return total
