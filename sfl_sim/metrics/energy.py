"""Energy from the clients' batteries, in joules, from recorded operations and the fleet's powers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store import places
from sfl_sim.system.links import BITS_PER_BYTE
from sfl_sim.system.power import Power
from sfl_sim.system.presence import Presence

Floats = NDArray[np.float64]


def op_joule(
    rows: NDArray[np.void], power: Power, presence: Sequence[Presence] | None = None, since_s: float = -np.inf
) -> Floats:
    """Compute the joules that each operation takes from its client's battery; 0 for operations of servers.

    The time from start to end counts, without the time in which the client is away; waiting for a busy device or link
    does not. An operation that was lost counts until then. Latency counts, since a radio is not switched off while a
    message is on its way. An operation that takes no time, such as the exchange of models if that is left out, takes
    no energy. A message from client to client counts for both ends, but both times for its sender, which is the only
    client that records name.

    Args:
        rows: (N,) operations (`OP_DTYPE`).
        power: powers of the fleet.
        presence: when each client is present; None if always.
        since_s: seconds before this instant are left out; bits count whole, as bytes do, where a message ends.

    Returns:
        (N,) joules.
    """
    node, client = rows["node"], rows["client"]
    computes = places.at(node, places.DEVICE)
    sends, receives = places.at(node, *places.SENT), places.at(node, *places.RECEIVED)

    def own(values: list[float]) -> Floats:
        return np.asarray(values, dtype=float).take(client)

    watts = computes * own(power.compute_w) + sends * own(power.uplink_w) + receives * own(power.downlink_w)
    joule_per_bit = sends * own(power.uplink_joule_per_bit) + receives * own(power.downlink_joule_per_bit)
    ended_s = _own_s(rows["ended_s"], client, presence)
    bits = np.where(ended_s > _own_s(rows["started_s"], client, presence), BITS_PER_BYTE * rows["bytes"], 0)
    seconds = ended_s - _own_s(rows["started_s"].clip(min=since_s), client, presence)
    joule: Floats = watts * seconds.clip(min=0) + joule_per_bit * bits
    return joule


def client_joule(
    rows: NDArray[np.void],
    power: Power,
    participants: Sequence[int],
    started_s: float,
    ended_s: float,
    presence: Sequence[Presence] | None = None,
) -> Floats:
    """Compute the joules (C,) of every client in a round: of its operations and, while it takes part, of waiting.

    Args:
        rows: the round's operations, and those under way at its end; of one that began before, what is in the round.
        power: powers of the fleet.
        participants: clients whose waiting counts, whatever they wait for, while they are present.
        started_s, ended_s: start and end of the round.
        presence: when each client is present; None if always.
    """
    rows = rows[rows["client"] != places.NOBODY]
    n = len(power.compute_w)
    joule = _added(rows["client"], op_joule(rows, power, presence, started_s), n)
    if any(power.idle_w):
        clients = np.arange(n)
        began_s, over_s = (_own_s(np.full(n, time_s), clients, presence) for time_s in (started_s, ended_s))
        waiting_s = np.zeros(n)
        waiting_s[list(participants)] = (over_s - began_s)[list(participants)]
        busy_s = _busy_s(
            rows[places.at(rows["node"], places.DEVICE, *places.LINKS)], began_s, ended_s - started_s, presence
        )
        joule += np.asarray(power.idle_w) * (waiting_s - np.minimum(waiting_s, busy_s))
    return joule


def _own_s(times_s: Floats, client: NDArray[np.integer[Any]], presence: Sequence[Presence] | None) -> Floats:
    """Convert instants (N,) to seconds of presence of the `client` (N,) of each."""
    if presence is None:
        return times_s
    pairs = zip(client.tolist(), times_s.tolist(), strict=True)
    return np.array([presence[one].seconds_by(time_s) for one, time_s in pairs], dtype=float)


def _busy_s(rows: NDArray[np.void], began_s: Floats, lasts_s: float, presence: Sequence[Presence] | None) -> Floats:
    """Compute the seconds of a round in which each client is busy; overlapping operations count once.

    Args:
        rows: the round's operations.
        began_s: (C,), the round's start in seconds of presence of each client.
        lasts_s: length of the round, an upper bound of its length in seconds of presence.
        presence: when each client is present; None if always.
    """
    rows = rows[np.lexsort((rows["started_s"], rows["client"]))]
    client = rows["client"]
    shift_s = client * lasts_s - began_s[client]  # as if one client came after another
    begin_s = _own_s(rows["started_s"], client, presence).clip(min=began_s[client]) + shift_s
    end_s = _own_s(rows["ended_s"], client, presence) + shift_s
    until_s = np.maximum.accumulate(end_s)
    new_s = end_s - np.maximum(begin_s, np.r_[-np.inf, until_s][:-1])
    return _added(client, new_s.clip(min=0), began_s.size)


def _added(client: NDArray[np.int32], values: Floats, n: int) -> Floats:
    return np.bincount(client, values, minlength=n).astype(float)  # ints where there is no row
