"""Breakdown of the simulated time of a round by resource, and bytes on the links, from recorded operations."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store import places
from sfl_sim.store.columns import BREAKDOWN

_PRECEDENCE = ("device", "uplink", "downlink", "backbone", "server", "queue", "assistants", "aggregate")
"""Order of precedence: an instant at which several things happen to a participant counts as the first of these."""
_OF_ASSISTANTS = ("request", "knowledge")
"""Messages to and from assistants."""
_Intervals = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Begins and ends of intervals."""


def breakdown(
    rows: NDArray[np.void], participants: Sequence[int], started_s: float, ended_s: float
) -> dict[str, float]:
    """Divide the seconds of a round's average participant by what it spent them on; they add up to the round's length.

    `queue` is waiting at the server, for a worker or for the client's turn; waiting for its own device or link counts
    as that device or link. `assistants` is waiting at the server for features that assistants upload: from the arrival
    of a mini-batch's smashed data until its job is requested. `backbone` is the way of what belongs to the participant
    between servers. `aggregate` is work of servers and messages between them that belong to no client, mostly of
    averaging, for which all participants wait. `barrier` is what remains: waiting for others (for the slowest, or, in
    SplitNN, for all predecessors). An instant at which several of these happen to a participant counts once: as device,
    else uplink, downlink, backbone, server, queue, assistants, aggregate. An operation that began before the round,
    such as the transfer of an assistant that was late in the last one, counts from the round's start.

    Args:
        rows: the round's operations (`OP_DTYPE`), and those under way at its end.
        participants: clients that took part; operations of others, such as a method's setup, are left out.
        started_s, ended_s: start and end of the round.
    """
    length_s, n = ended_s - started_s, len(participants)
    found = _intervals(_clipped(rows, started_s), participants, started_s, length_s)
    seconds = {name: float((end - begin).sum()) / n for name, (begin, end) in found.items()}
    if not np.isclose(sum(seconds.values()), _union_s(list(found.values())) / n, rtol=1e-9, atol=1e-12 * n * length_s):
        until = [0.0, *(_union_s([found[name] for name in _PRECEDENCE[: i + 1]]) for i in range(len(_PRECEDENCE)))]
        seconds = dict(zip(_PRECEDENCE, np.diff(until) / n, strict=True))
    barrier_s = max(0.0, length_s - sum(seconds.values()))
    return {name: float(seconds.get(name, barrier_s)) for name in BREAKDOWN}


def by_client(
    rows: NDArray[np.void], participants: Sequence[int], started_s: float, ended_s: float
) -> dict[str, NDArray[np.float64]]:
    """Divide the seconds of each participant as `breakdown` does: (participants,) for each part."""
    length_s, n = ended_s - started_s, len(participants)
    found = _intervals(_clipped(rows, started_s), participants, started_s, length_s)
    borders_s = np.linspace(0.0, n * length_s, n + 1)
    merged, covered_s = (np.zeros(0), np.zeros(0)), [np.zeros(n)]
    for begin_s, end_s in (found[name] for name in _PRECEDENCE):
        if len(begin_s):  # a part that nobody has covers no more
            merged = _merged(np.concatenate([merged[0], begin_s]), np.concatenate([merged[1], end_s]))
        covered_s.append(np.diff(_covered_s(merged, borders_s)) if len(begin_s) else covered_s[-1])
    rank = np.argsort(np.argsort(participants))  # of each participant among the sorted ids
    added_s = np.maximum(0.0, np.diff([*covered_s, np.full(n, length_s)], axis=0))  # rounding may be below nothing
    *parts_s, barrier_s = added_s[:, rank]
    seconds = dict(zip(_PRECEDENCE, parts_s, strict=True))
    return {name: seconds.get(name, barrier_s) for name in BREAKDOWN}


def _covered_s(merged: _Intervals, until_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length of merged intervals before each of the instants `until_s`."""
    begin, end = merged
    knots_s = np.stack([begin, end], axis=1).ravel()
    length_s = np.stack([np.zeros(len(begin)), end - begin], axis=1).ravel().cumsum()
    return np.asarray(np.interp(until_s, knots_s, length_s), dtype=float)


def _clipped(rows: NDArray[np.void], started_s: float) -> NDArray[np.void]:
    """Clip the operations to times from the round's start on."""
    if (rows["requested_s"] >= started_s).all():
        return rows
    rows = rows.copy()
    for column in ("requested_s", "started_s"):
        rows[column] = rows[column].clip(min=started_s)
    return rows


def _intervals(
    rows: NDArray[np.void], participants: Sequence[int], started_s: float, length_s: float
) -> dict[str, _Intervals]:
    """Collect the participants' intervals by part, on an axis on which their rounds follow one another."""
    ranked = np.argsort(participants)
    sorted_ids = np.asarray(participants)[ranked]
    index = np.searchsorted(sorted_ids, rows["client"]).clip(max=len(sorted_ids) - 1)
    is_own = sorted_ids[index] == rows["client"]
    own, shift_s = rows[is_own], index[is_own] * length_s - started_s
    node = own["node"]
    requested_s, began_s, done_s = (own[column] + shift_s for column in ("requested_s", "started_s", "ended_s"))
    found = {}
    for part, where in places.OWN.items():
        is_there = places.at(node, *where)
        found[part] = requested_s[is_there], done_s[is_there]
    at_server = places.at_servers(node)
    found["queue"] = requested_s[at_server], began_s[at_server]
    found["server"] = began_s[at_server], done_s[at_server]
    are_any = places.at(rows["kind"], *_OF_ASSISTANTS).any()
    arrived, requested = _awaiting_features(own) if are_any else 2 * (np.zeros(0, np.int64),)
    found["assistants"] = done_s[arrived], requested_s[requested]
    of_nobody = rows[rows["client"] == places.NOBODY]
    begin, end = _merged(of_nobody["requested_s"], of_nobody["ended_s"])
    shifts_s = (np.arange(len(participants)) * length_s - started_s)[:, None]
    found["aggregate"] = (begin + shifts_s).ravel(), (end + shifts_s).ravel()
    return found


def _awaiting_features(rows: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of uploads of smashed data and rows of the server's jobs on them, where there are assistants.

    Between the two, methods without assistants wait for other clients.
    """
    step = rows["client"] * 2.0**32 + rows["step"]
    arrivals = np.flatnonzero(places.at(rows["node"], places.UPLINK) & (rows["kind"] == b"smashed"))
    jobs = np.flatnonzero(places.at_servers(rows["node"]) & (rows["kind"] == b"train"))
    _, arrived, requested = np.intersect1d(step[arrivals], step[jobs], return_indices=True)
    return arrivals[arrived], jobs[requested]


def _merged(begin: NDArray[np.float64], end: NDArray[np.float64]) -> _Intervals:
    """Merge overlapping intervals."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, until = begin[order], np.maximum.accumulate(end[order])
    is_gap = begin[1:] > until[:-1]
    return begin[np.r_[True, is_gap]], until[np.r_[is_gap, True]]


def _union_s(parts: Sequence[_Intervals]) -> float:
    """Return the length of the union of intervals."""
    begin, end = _merged(*(np.concatenate([part[i] for part in parts]) for i in (0, 1)))
    return float((end - begin).sum())


def traffic(rows: NDArray[np.void]) -> dict[str, int]:
    """Sum the bytes that left and reached clients, and those between servers, if there are any.

    A message from client to client counts once, as up.
    """
    up, down = places.at(rows["node"], *places.SENT), places.at(rows["node"], places.DOWNLINK)
    sums = {"bytes_up": up, "bytes_down": down}
    if (between := places.at(rows["node"], places.BACKBONE)).any():
        sums["bytes_backbone"] = between
    return {name: int(rows["bytes"][which].sum()) for name, which in sums.items()}
