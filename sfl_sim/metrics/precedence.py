"""Precedence of recorded operations: which one each followed in the chain of its client, and at its resource.

Records do not name causes, but their times do. The successor of an operation is requested at exactly the instant, to
the last bit, at which the operation ends; and an operation that starts later than it is requested has waited for a
resource (device, link or server), each of which serves in a known sequence. Many operations end together if clients
are alike or operations take no time. Therefore all have a position in an order in which none comes before its
predecessor, and only earlier ones are considered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.metrics.queue import held_idle, queue_length
from sfl_sim.store import places
from sfl_sim.store.places import AGGREGATOR, DEVICE, DOWNLINK, PEER, UPLINK

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_RANKS = {DEVICE: 0, UPLINK: 1, PEER: 1, DOWNLINK: 3}
_RANK_OF_SERVERS = 2
"""Ranks of operations that take no time and share an instant: they follow the path of a client's model."""


@dataclass(frozen=True)
class Ops:
    """Columns of operations, which are known by their row numbers."""

    node: NDArray[np.str_]
    kind: NDArray[np.str_]
    step: Ints
    client: Ints
    requested_s: Floats
    started_s: Floats
    ended_s: Floats
    position: Ints
    """Position of each row in an order in which no operation comes before its predecessor."""
    abreast: Ints
    """Position of the first operation with the same instant and rank, for those that take no time; else the own one."""

    @classmethod
    def of(cls, rows: NDArray[np.void] | pd.DataFrame) -> Ops:
        """Take the columns of recorded operations (`OP_DTYPE`, or a frame with its columns)."""
        node, kind = (np.asarray(rows[name]).astype(str) for name in ("node", "kind"))
        step, client = (np.asarray(rows[name]).astype(np.int64) for name in ("step", "client"))
        times = "requested_s", "started_s", "ended_s"
        requested_s, started_s, ended_s = (np.asarray(rows[name], dtype=float) for name in times)
        position, abreast = _positions(node, requested_s, ended_s)
        return cls(node, kind, step, client, requested_s, started_s, ended_s, position, abreast)

    def __len__(self) -> int:
        return len(self.node)

    def waited(self) -> NDArray[np.bool_]:
        """Mark operations that started later than requested."""
        return self.started_s > self.requested_s


def _positions(node: NDArray[np.str_], requested_s: Floats, ended_s: Floats) -> tuple[Ints, Ints]:
    names, which = np.unique(node, return_inverse=True)
    rank = np.array([_RANKS.get(name, _RANK_OF_SERVERS) for name in names], dtype=np.int64)[which]
    rank[requested_s < ended_s] = -1
    order = np.lexsort((rank, ended_s))
    is_new = np.r_[True, (np.diff(ended_s[order]) > 0) | (np.diff(rank[order]) > 0) | (rank[order][1:] < 0)]
    position, abreast = np.empty((2, len(order)), dtype=np.int64)
    position[order] = np.arange(len(order))
    abreast[order] = np.maximum.accumulate(np.where(is_new[: len(order)], np.arange(len(order)), 0))
    return position, abreast


def requested_after(ops: Ops) -> Ints:
    """Find for each operation the row of one at whose end it was requested; -1 if there is none.

    If several ended then, it is one of the same client, else one of no client, such as an average, else one of another
    client, preferably one that took time.
    """
    ended, requested = _instants(ops.ended_s, ops.requested_s)
    span = int(ops.client.max(initial=-1)) + 2
    nobodys = np.flatnonzero(ops.client == places.NOBODY)
    found = _last_before(ops, ops.position, ended * span + ops.client + 1, requested * span + ops.client + 1)
    took_time = np.flatnonzero(ops.requested_s < ops.ended_s)
    for among in (nobodys, took_time, np.arange(len(ops))):
        found = np.where(found < 0, _last_before(ops, ops.abreast, ended[among], requested, among), found)
    return found


def _instants(one_s: Floats, other_s: Floats) -> tuple[Ints, Ints]:
    """Number the distinct instants, so that numbers are equal where times are equal to the last bit."""
    one, other = np.split(np.unique(np.r_[one_s, other_s], return_inverse=True)[1].astype(np.int64), 2)
    return one, other


def _last_before(ops: Ops, before: Ints, keys: Ints, wanted: Ints, among: Ints | None = None) -> Ints:
    """Find for each operation the last row of `among` with its `wanted` key and a position below `before`; else -1."""
    n = len(ops)
    rows = np.arange(n) if among is None else among
    if not len(rows):
        return np.full(n, -1)
    sorted_by = np.argsort(keys * n + ops.position[rows])
    ranked = (keys * n + ops.position[rows])[sorted_by]
    place = np.searchsorted(ranked, wanted * n + before) - 1
    return np.where((place >= 0) & (ranked[place] // n == wanted), rows[sorted_by][place], -1)


def served_after(ops: Ops) -> Ints:
    """Find for each operation the row of the one that its device or link served before it; else -1.

    At a server that keeps turns, that is one that was held idle although jobs waited, it is the last job that had
    ended. A server that was never held serves jobs as they come, so its sequence implies no precedence.
    """
    found = np.full(len(ops), -1)
    kept = places.at(ops.node, DEVICE) | (places.at(ops.node, *places.LINKS) & (ops.ended_s > ops.requested_s))
    at_server = places.at_servers(ops.node)
    for server in np.unique(ops.node[at_server]):
        if _is_held(ops, ops.node == server):
            kept |= ops.node == server
    rows = np.flatnonzero(kept)
    _, resource = np.unique(np.where(ops.node == PEER, UPLINK, ops.node)[rows], return_inverse=True)
    resource = resource * (int(ops.client.max(initial=0)) + 1) + np.where(at_server[rows], 0, ops.client[rows])
    order = np.lexsort((ops.position[rows], ops.started_s[rows], resource))
    rows, resource = rows[order], resource[order]
    follows = resource[1:] == resource[:-1]
    follows &= ~at_server[rows[1:]] | (ops.ended_s[rows[:-1]] <= ops.started_s[rows[1:]])
    found[rows[1:][follows]] = rows[:-1][follows]
    return np.where(_comes_before(ops, found), found, -1)


def _is_held(ops: Ops, jobs: NDArray[np.bool_]) -> bool:
    times = {name: getattr(ops, name)[jobs] for name in ("requested_s", "started_s", "ended_s")}
    return len(held_idle(queue_length(pd.DataFrame(times)))) > 0


def _comes_before(ops: Ops, before: Ints) -> NDArray[np.bool_]:
    return (before >= 0) & (ops.position[before] < ops.position)


def started_after(ops: Ops, requested: Ints, served: Ints) -> Ints:
    """Find for each operation that waited the row of the one for which it waited; -1 for others, and if unknown.

    A job waits for the job at the server that ended when it started. If none did, the server was held: until a job
    came, or until a time limit, which began when the last job ended or when the first of the waiting jobs came.

    Args:
        requested, served: results of `requested_after` and `served_after`.
    """
    waited = ops.waited()
    at_station = places.at_servers(ops.node) | places.at(ops.node, AGGREGATOR)
    found = np.where(waited & ~at_station, served, -1)
    ended, started = _instants(ops.ended_s, ops.started_s)
    for node in np.unique(ops.node[at_station]):
        rows = np.flatnonzero(ops.node == node)
        here = waited & (ops.node == node)
        found[here] = _last_before(ops, ops.position, ended[rows], started, rows)[here]
    for job in np.flatnonzero(waited & at_station & (found < 0)).tolist():
        found[job] = _end_of_hold(ops, requested, job)
    return np.where(_comes_before(ops, found), found, -1)


def _end_of_hold(ops: Ops, requested: Ints, job: int) -> int:
    now_s, jobs = ops.started_s[job], np.flatnonzero(ops.node == ops.node[job])
    comes = jobs[ops.requested_s[jobs] == now_s]
    if len(comes):
        return int(requested[comes[0]])
    gone = jobs[ops.ended_s[jobs] <= now_s]
    last = gone[np.argmax(ops.ended_s[gone])] if len(gone) else -1
    waiting = jobs[(ops.requested_s[jobs] < now_s) & (ops.started_s[jobs] >= now_s)]
    first = waiting[np.argmin(ops.requested_s[waiting])]
    return int(last if last >= 0 and ops.ended_s[last] >= ops.requested_s[first] else requested[first])
