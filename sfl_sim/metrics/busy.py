"""For how long devices, links and server were busy in a round, and with how much."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store import places


def busy(rows: NDArray[np.void]) -> tuple[dict[int, tuple[float, ...]], tuple[float, float]]:
    """Sum a round's operations (`OP_DTYPE`).

    Returns:
        of each client that has computed or sent: seconds and MACs of its device, seconds and bytes of its uplink, and
            of its downlink.
        MACs of the main server, and seconds of its workers.
    """
    lasted_s = rows["ended_s"] - rows["started_s"]
    of_clients, sums = rows["client"] >= 0, []
    for place, amount in ((places.DEVICE, "macs"), (places.UPLINK, "bytes"), (places.DOWNLINK, "bytes")):
        own = places.at(rows["node"], place) & of_clients
        n = int(rows["client"].max(initial=-1)) + 1
        sums += [np.bincount(rows["client"][own], each[own], minlength=n) for each in (lasted_s, rows[amount])]
    table = np.stack(sums, axis=1)
    known = np.flatnonzero((table[:, 0] > 0) | (table[:, 2] > 0))
    server = places.at(rows["node"], places.SERVER)
    return (
        {c: tuple(table[c].tolist()) for c in known.tolist()},
        (float(rows["macs"][server].sum()), float(lasted_s[server].sum())),
    )
