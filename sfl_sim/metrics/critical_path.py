"""Critical path of a round through its recorded operations, and the slack of every client."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.metrics.precedence import Floats, Ints, Ops, requested_after, served_after, started_after
from sfl_sim.store.places import NOBODY, OWN, at_servers

WAITING = "waiting"
"""Resource of seconds in which no operation is the reason to wait, such as a time limit of waiting."""
RESOURCES = ("device", "uplink", "backbone", "queue", "server", "downlink", "aggregate", WAITING)


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
        place = np.searchsorted(ops.ended_s[order], ops.requested_s) - 1
        return np.where((place >= 0) & (ops.requested_s > self.started_s), order[place], -1)

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
