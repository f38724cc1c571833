"""Critical path of a round through its recorded operations, the slack of every client, and what followed upon what.

Records do not name causes, but their times do. The successor of an operation in the chain of its client, or at its
resource, is requested at exactly the instant, to the last bit, at which the operation ends; and an operation that
starts later than it is requested has waited for a resource (device, link or server), each of which serves in a known
sequence. Many operations end together if clients are alike or operations take no time. Therefore all have a position
in an order in which none comes before its predecessor, and only earlier ones are considered.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.metrics.queue import held_idle, queue_length
from sfl_sim.store import places
from sfl_sim.store.places import AGGREGATOR, DEVICE, DOWNLINK, NOBODY, OWN, PEER, UPLINK, at_servers

WAITING = "waiting"
"""Resource of seconds in which no operation is the reason to wait, such as a time limit of waiting."""
RESOURCES = ("device", "uplink", "backbone", "queue", "server", "downlink", "aggregate", WAITING)
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
    index = np.searchsorted(ranked, wanted * n + before) - 1
    return np.where((index >= 0) & (ranked[index] // n == wanted), rows[sorted_by][index], -1)


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
        for job in rows[waited[rows] & (found[rows] < 0)].tolist():
            found[job] = _end_of_hold(ops, requested, rows, job)
    return np.where(_comes_before(ops, found), found, -1)


def _end_of_hold(ops: Ops, requested: Ints, jobs: Ints, job: int) -> int:
    now_s = ops.started_s[job]
    comes = jobs[ops.requested_s[jobs] == now_s]
    if len(comes):
        return int(requested[comes[0]])
    gone = jobs[ops.ended_s[jobs] <= now_s]
    last = gone[np.argmax(ops.ended_s[gone])] if len(gone) else -1
    waiting = jobs[(ops.requested_s[jobs] < now_s) & (ops.started_s[jobs] >= now_s)]
    first = waiting[np.argmin(ops.requested_s[waiting])]
    return int(last if last >= 0 and ops.ended_s[last] >= ops.requested_s[first] else requested[first])


@dataclass(frozen=True)
class CriticalPath:
    """Critical path of a round, and slack of the clients.

    Attributes:
        path: one row for each stretch from the start of the round to its end: the `row` of its operation (-1: none),
            the operation's `client`, `node`, `kind` and `step`, `from_s`, `to_s`, and the `resource`: `queue` is the
            server held idle although jobs wait, `aggregate` work of servers that belongs to no client. Every stretch
            begins when the one before ends, so they add up to the round.
        slack_s: by client, how many seconds later its work of the round could end without the round ending later: the
            least total float (critical path method) of its operations; 0 for clients on the path. Devices and links
            keep the recorded sequence, and so does a server that keeps turns. At a server that serves in the order of
            arrival, jobs wait for those for which they waited; that a later job would make others wait is left out.
            A barrier that was free, since all had come, leaves no trace in the records, and no limit here.
    """

    path: pd.DataFrame
    slack_s: pd.Series

    def seconds_by(self, column: str) -> pd.Series:
        """Sum the seconds on the path by `resource` or by `client` (-1: of no client), largest first."""
        taken_s = self.path["to_s"] - self.path["from_s"]
        return taken_s.groupby(self.path[column]).sum().sort_values(ascending=False, kind="stable")


def critical_path(rows: NDArray[np.void] | pd.DataFrame, started_s: float, ended_s: float) -> CriticalPath:
    """Find the longest chain of operations that each had to wait for the one before, and the slack of the others.

    Args:
        rows: the round's operations: `OP_DTYPE`, or a frame with its columns.
        started_s, ended_s: start and end of the round.
    """
    dependencies = Dependencies(Ops.of(rows), started_s, ended_s)
    return CriticalPath(dependencies.path(), dependencies.slack_s())


class Dependencies:
    """Dependencies between the operations of a round.

    Attributes:
        requested, started: for each operation the row of the one at whose end it was requested, and of the one for
            which it waited; -1 if there is none.
        graph: directed graph whose nodes are rows and, from the number of rows on, the instants at which all awaited
            operations have ended, the last of them the end of the round. `gap_s` of an edge is how much later the
            second node came than the first one made it wait.
        end: node of the round's end.
    """

    def __init__(self, ops: Ops, started_s: float, ended_s: float) -> None:
        self.ops, self.started_s, self.ended_s = ops, started_s, ended_s
        self.at_servers = at_servers(ops.node)
        requested, served = requested_after(ops), served_after(ops)
        self.started = started_after(ops, requested, served)
        self.requested = np.where(requested < 0, self._ended_last(), requested)
        self.graph: nx.DiGraph[int] = nx.DiGraph()
        self.gap_s = np.where(self.started >= 0, ops.started_s - ops.requested_s, 0.0)
        """Seconds between request and start of operations that waited for another one."""
        self._wait(served, ops.started_s - ops.ended_s[served])
        self._wait(self.requested, self.gap_s)
        self._wait(self.started, np.zeros(len(ops)))
        self.end = self._join()
        self.graph.add_node(self.end)  # which nothing leads to in a round without operations

    def _ended_last(self) -> Ints:
        """Find for each operation the one that ended last before it was requested; -1 if the round began then.

        It is the substitute if no operation ended at that instant, since a time limit of waiting did.
        """
        ops = self.ops
        order = np.argsort(ops.position)
        index = np.searchsorted(ops.ended_s[order], ops.requested_s) - 1
        return np.where((index >= 0) & (ops.requested_s > self.started_s), order[index], -1)

    def _wait(self, before: Ints, gap_s: Floats) -> None:
        after = np.flatnonzero(before >= 0)
        self._connect(before[after], after, gap_s[after])

    def _connect(self, before: Ints, after: Ints, gap_s: Floats) -> None:
        pairs = zip(before.tolist(), after.tolist(), gap_s.clip(min=0).tolist(), strict=True)
        self.graph.add_edges_from((one, other, {"gap_s": gap}) for one, other, gap in pairs)

    def _join(self) -> int:
        """Connect operations that their own client does not continue to the next barrier; gives the round's end.

        A barrier is the request of an operation that follows an operation of another client, or of none.
        """
        ops, n = self.ops, len(self.ops)
        own = (self.requested >= 0) & (ops.client[self.requested] == ops.client)
        joining = np.flatnonzero((self.requested >= 0) & ~own)
        instants_s, which = np.unique(ops.requested_s[joining], return_inverse=True)
        self._connect(n + which, joining, self.gap_s[joining])

        first = np.full(len(instants_s) + 1, n)  # position of the first operation that an instant lets go on
        np.minimum.at(first, which, ops.position[joining])
        instants_s = np.r_[instants_s, self.ended_s]
        awaited = np.setdiff1d(np.arange(n), self.requested[own])
        instant = np.searchsorted(instants_s[:-1], ops.ended_s[awaited])
        instant += first[instant] <= ops.position[awaited]
        self._connect(awaited, n + instant, instants_s[instant] - ops.ended_s[awaited])

        alike, instant = self._awaited_alike(joining, which, instants_s)
        before = ops.position[alike] < first[instant]
        self._connect(alike[before], n + instant[before], (instants_s[instant] - ops.ended_s[alike])[before])
        return n + len(instants_s) - 1

    def _awaited_alike(self, joining: Ints, which: Ints, instants_s: Floats) -> tuple[Ints, Ints]:
        """Find operations and the next barriers that wait for operations of their kind, as an average for all uploads.

        In this way all of them are known to be awaited, although their own clients may have continued at once.
        """
        ops = self.ops
        like = pd.DataFrame({"node": ops.node, "kind": ops.kind, "step": ops.step}).groupby(["node", "kind", "step"])
        rows = pd.DataFrame({"row": np.arange(len(ops)), "like": like.ngroup().to_numpy(), "at_s": ops.ended_s})
        awaited = pd.DataFrame({"like": rows["like"].to_numpy()[self.requested[joining]], "instant": which})
        awaited = awaited.drop_duplicates().assign(at_s=lambda found: instants_s[found["instant"]])
        pairs = pd.merge_asof(
            rows.sort_values("at_s"), awaited.sort_values("at_s"), on="at_s", by="like", direction="forward"
        ).dropna()
        return pairs["row"].to_numpy(), pairs["instant"].to_numpy(dtype=np.int64)

    def slack_s(self) -> pd.Series:
        """Compute the least total float of the operations of each client."""
        float_s: dict[int, float] = {}
        for node in reversed(list(nx.topological_sort(self.graph))):
            later = (float_s[after] + edge["gap_s"] for after, edge in self.graph[node].items())
            float_s[node] = min(later, default=0.0)
        rows = range(len(self.ops))
        of_clients = pd.Series([float_s[row] for row in rows], dtype=float).groupby(self.ops.client).min()
        return of_clients[of_clients.index != NOBODY]

    def path(self) -> pd.DataFrame:
        """List the stretches of the critical path, as `CriticalPath.path`."""
        ops, at_s = self.ops, self.started_s
        stretches: list[tuple[int, float, float, str]] = []
        for row, until_s in self._chain():
            begins_s, ends_s = max(at_s, ops.started_s[row]), min(ops.ended_s[row], until_s)
            if begins_s > at_s:
                held = self.at_servers[row] and ops.started_s[row] > ops.requested_s[row]
                stretches.append((row, at_s, begins_s, "queue" if held else WAITING))
            stretches.append((row, begins_s, ends_s, self._resource(row)))
            at_s = ends_s
        if at_s < self.ended_s:
            stretches.append((-1, at_s, self.ended_s, WAITING))
        path = pd.DataFrame(stretches, columns=["row", "from_s", "to_s", "resource"])
        about = pd.DataFrame({"client": ops.client, "node": ops.node, "kind": ops.kind, "step": ops.step})
        path = path.join(about, on="row").fillna({"client": NOBODY, "node": "", "kind": "", "step": -1})
        return path.astype({"client": int, "step": int})

    def _chain(self) -> list[tuple[int, float]]:
        """List the operations on the path, first to last, each with the instant at which the next one takes over."""
        ops, chain, until_s = self.ops, list[tuple[int, float]](), inf
        last = self.graph.predecessors(self.end)
        row = max(last, key=lambda row: (ops.ended_s[row], ops.client[row] == NOBODY, ops.position[row]), default=-1)
        while row >= 0:
            chain.append((row, until_s))
            waited = self.started[row] >= 0
            until_s = float((ops.started_s if waited else ops.requested_s)[row])
            row = int((self.started if waited else self.requested)[row]) if until_s > self.started_s else -1
        return chain[::-1]

    def _resource(self, row: int) -> str:
        node = str(self.ops.node[row])
        at_stations = "server" if self.at_servers[row] and self.ops.client[row] != NOBODY else "aggregate"
        return next((part for part, own in OWN.items() if node in own), at_stations)
