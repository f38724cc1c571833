"""For how long devices, links and server were busy in a round, and with how much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store import places


def busy(rows: NDArray[np.void]) -> tuple[dict[int, tuple[float, ...]], tuple[float, float]]:
    """Sum a round's operations (`OP_DTYPE`).

    Returns:
        of each client that has computed or sent: seconds and MACs of its device, seconds and bytes of its uplink, and
            of its downlink; of its jobs at servers seconds, their number, and the seconds for which they waited.
        MACs of servers, and seconds of their workers.
    """
    lasted_s, waited_s = rows["ended_s"] - rows["started_s"], rows["started_s"] - rows["requested_s"]
    at_servers, ones = places.at_servers(rows["node"]) & (rows["macs"] > 0), np.ones(len(rows))
    n = int(rows["client"].max(initial=-1)) + 1
    sums = []
    for where, amounts in (
        (places.at(rows["node"], places.DEVICE), (lasted_s, rows["macs"])),
        (places.at(rows["node"], places.UPLINK), (lasted_s, rows["bytes"])),
        (places.at(rows["node"], places.DOWNLINK), (lasted_s, rows["bytes"])),
        (at_servers, (lasted_s, ones, waited_s)),
    ):
        own = where & (rows["client"] >= 0) & ((lasted_s > 0) | at_servers)  # what takes no time has no rate
        sums += [np.bincount(rows["client"][own], each[own], minlength=n) for each in amounts]
    table = np.stack(sums, axis=1)
    known = np.flatnonzero((table[:, 0] > 0) | (table[:, 2] > 0))
    return (
        {c: tuple(table[c].tolist()) for c in known.tolist()},
        (float(rows["macs"][at_servers].sum()), float(lasted_s[at_servers].sum())),
    )
