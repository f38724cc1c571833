"""What the clients' batteries pay: joules, a function of recorded operations and of the fleet's powers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfl_sim.system.power import Power

BITS_PER_BYTE = 8
_SENT, _RECEIVED = (b"uplink", b"peer"), (b"downlink", b"peer")
_BUSY = (b"client", *_SENT, *_RECEIVED)

Floats = NDArray[np.float64]


def op_joule(rows: NDArray[np.void], power: Power) -> Floats:
    """Joules that each operation (`OP_DTYPE`) takes from its client's battery; 0 for what servers do.

    Counted is the time from start to end: waiting for a device or a link that is busy is no work of theirs. Latency is
    in it, since a radio is not switched off while a message is on its way. What takes no time, such as the exchange of
    models where that is left out, takes no energy. A message from client to client counts at both ends, and both times
    for its sender, the only one whom records name.
    """
    node, client = rows["node"], rows["client"]
    computes, sends, receives = node == b"client", np.isin(node, _SENT), np.isin(node, _RECEIVED)

    def own(values: list[float]) -> Floats:
        return np.asarray(values, dtype=float).take(client)

    watts = computes * own(power.compute_w) + sends * own(power.uplink_w) + receives * own(power.downlink_w)
    joule_per_bit = sends * own(power.uplink_joule_per_bit) + receives * own(power.downlink_joule_per_bit)
    seconds: Floats = rows["ended_s"] - rows["started_s"]
    bits = np.where(seconds > 0, BITS_PER_BYTE * rows["bytes"], 0)
    joule: Floats = watts * seconds + joule_per_bit * bits
    return joule


def client_joule(
    rows: NDArray[np.void], power: Power, participants: Sequence[int], started_s: float, ended_s: float
) -> Floats:
    """Joules of every client in a round, (C,): of its operations and, if it takes part, of waiting.

    Args:
        rows: the round's operations; of one that began before the round, all of it counts.
        participants: the clients whose waiting counts, whatever they wait for.
        started_s, ended_s: of the round.
    """
    rows = rows[rows["client"] >= 0]
    n = len(power.compute_w)
    joule = _added(rows["client"], op_joule(rows, power), n)
    if any(power.idle_w):
        waiting_s = np.zeros(n)
        waiting_s[list(participants)] = ended_s - started_s
        waiting_s -= np.minimum(waiting_s, _busy_s(rows[np.isin(rows["node"], _BUSY)], n, started_s, ended_s))
        joule += np.asarray(power.idle_w) * waiting_s
    return joule


def _busy_s(rows: NDArray[np.void], n: int, started_s: float, ended_s: float) -> Floats:
    """Seconds of the round in which each client does something; what it does at the same time counts once."""
    rows = rows[np.lexsort((rows["started_s"], rows["client"]))]
    shift_s = rows["client"] * (ended_s - started_s)  # as if one client came after another
    begin, end = rows["started_s"].clip(min=started_s) + shift_s, rows["ended_s"] + shift_s
    until = np.maximum.accumulate(end)
    new_s = end - np.maximum(begin, np.r_[-np.inf, until][:-1])
    return _added(rows["client"], new_s.clip(min=0), n)


def _added(client: NDArray[np.int32], values: Floats, n: int) -> Floats:
    return np.bincount(client, values, minlength=n).astype(float)  # ints where there is no row
