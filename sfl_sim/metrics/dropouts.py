"""Resources that clients had spent on a round before they dropped out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store import places
from sfl_sim.system.presence import Presence


class Spent(NamedTuple):
    """Seconds of devices, seconds of links and bytes."""

    device_s: float
    link_s: float
    bytes: int


def spent_by(rows: NDArray[np.void], lost: Mapping[int, float], presence: Sequence[Presence] | None = None) -> Spent:
    """Sum what the clients that a round has `lost` had spent on it until then.

    All of it is wasted, except what a part-2 that clients share has learned from them, and updates that a client of an
    asynchronous method had delivered earlier in the round.

    Args:
        rows: the round's operations (`OP_DTYPE`).
        lost: clients that dropped out -> the last instant at which they did.
        presence: when each client is present, since nothing is spent while it is away; None if always.
    """
    rows = rows[np.isin(rows["client"], list(lost))]
    rows = rows[rows["started_s"] <= [lost[client] for client in rows["client"].tolist()]]
    device, link = (rows[places.at(rows["node"], *which)] for which in ([places.DEVICE], places.LINKS))
    return Spent(_seconds(device, presence), _seconds(link, presence), int(link["bytes"].sum()))


def _seconds(rows: NDArray[np.void], presence: Sequence[Presence] | None) -> float:
    if presence is None:
        return float((rows["ended_s"] - rows["started_s"]).sum())
    times = zip(rows["client"].tolist(), rows["started_s"].tolist(), rows["ended_s"].tolist(), strict=True)
    return float(sum(presence[c].seconds_by(to_s) - presence[c].seconds_by(from_s) for c, from_s, to_s in times))
