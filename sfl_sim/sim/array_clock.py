"""The array clock: times a stage of a round by recursion instead of by an event loop.

A stage is branches that run side by side. Each is a chain of operations on the client's own device and links, broken by
jobs at the server, the only place where branches meet. So only the jobs are walked one by one (Lindley's recursion: a
job starts at the later of its arrival and the server's last departure); all the rest are sums, taken for all clients at
once. Sums are taken in the order in which an event loop takes them, so the times are the same to the last bit. What
is added may depend on what it is added to: durations over links that vary (`sim/link_durations.py`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Expect
from sfl_sim.sim.link_durations import Duration, Durations, Transfer, duration_of
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.trace import Demand, Entry, NotPlannable
from sfl_sim.store.columns import OP_DTYPE

Floats = NDArray[np.float64]
Turns = tuple[int, ...] | None


class Stage:
    """Branches that begin together, compiled once for any fleet: everything that does not depend on durations.

    Raises NotPlannable if branches meet anywhere but at the server, or change each other's states without an order.

    Attributes:
        rows: the operations, branch by branch, complete but for round and times.
        announced: the jobs on the one state that all branches change; None where every branch has its own.
        jobs, firsts: places of the server's jobs, and of the branches' first operations, in `rows`.
        heads: places of both, where chains of operations begin that nothing interrupts.
        chains: places of the second operations of all chains, of the third ones, ...
        brought: for every branch that brings jobs, its client, and the places of its first operation, of its jobs, and
            behind its last operation.
    """

    def __init__(self, branches: Sequence[Sequence[Entry]], announced: Expect | None = None) -> None:
        _check(branches, announced)
        self.announced = announced
        branches = [branch for branch in branches if branch]
        entries = [entry for branch in branches for entry in branch]
        self.rows = _rows(entries)
        self.jobs = np.flatnonzero(self.rows["node"] == b"server")
        bounds = np.cumsum([0, *map(len, branches)])
        self.firsts = bounds[:-1]
        self.heads = np.union1d(self.firsts, self.jobs)
        self.chains = _by_rank(len(entries), self.heads)
        self.brought = [
            (entries[jobs[0]].client, first, jobs.tolist(), end)
            for first, end in pairwise(bounds.tolist())
            if len(jobs := self.jobs[slice(*np.searchsorted(self.jobs, (first, end)))])
        ]
        numbers: dict[Demand, int] = {}
        self._demand = np.array([numbers.setdefault(entry.demand, len(numbers)) for entry in entries], dtype=np.intp)
        self._demands = list(numbers)

    def durations(self, prices: Prices) -> Floats | Durations:
        """Give each operation's duration: seconds, where no duration depends on when its operation begins.

        Operations with the same demand are priced once.

        Raises NotPlannable if a job for which others may wait takes no time: who comes next would depend on the events
        of one instant; or if something takes no number of seconds: an event loop can say what.
        """
        each = [0.0 if demand is None else duration_of(demand, prices) for demand in self._demands]
        if not all(isinstance(one, Transfer) or 0 <= one < inf for one in each):
            raise NotPlannable("something takes no number of seconds")
        if len(self.brought) > 1 and 0.0 in [each[demand] for demand in self._demand[self.jobs].tolist()]:
            raise NotPlannable("a job takes no time: which client comes next depends on events of one instant")
        if prices.steady:
            return np.array(each, dtype=float)[self._demand]
        return Durations([each[demand] for demand in self._demand])


class TimedStage:
    """A stage in one fleet; `times` gives its times from any start on.

    Args:
        durations: (operations,) what each of them takes.
    """

    def __init__(self, stage: Stage, durations: Floats | Durations) -> None:
        self.stage = stage
        self._of_heads = durations[stage.heads]
        self._chains = [(chain, durations[chain]) for chain in stage.chains]
        self._queue = _Queue(stage, durations.tolist())

    def times(self, start_s: float, workers: float, turns: Turns) -> tuple[Floats, Floats, Floats]:
        """Give the times at which the operations are requested, start and end: three arrays of seconds, (operations,).

        Args:
            start_s: when the branches begin.
            workers: of the server; 1 where all branches change one state.
            turns: the clients in the sequence in which they are served; None: first come, first served.

        Raises NotPlannable if the turns do not match the jobs: an event loop would get stuck, and can name the client.
        """
        stage = self.stage
        jobs_s = self._queue.by_arrival(start_s, workers) if turns is None else self._queue.in_turn(start_s, turns)
        begins_s = np.full(len(stage.rows), start_s)
        begins_s[stage.jobs] = jobs_s
        ended_s = np.empty(len(stage.rows))
        ended_s[stage.heads] = begins_s[stage.heads] + self._of_heads
        for chain, durations in self._chains:
            ended_s[chain] = ended_s[chain - 1] + durations
        requested_s = np.roll(ended_s, 1)
        requested_s[stage.firsts] = start_s
        started_s = requested_s.copy()
        started_s[stage.jobs] = jobs_s
        return requested_s, started_s, ended_s


class _Queue:
    """The server's queue of one stage. Jobs are numbered consecutively, branch by branch.

    Attributes:
        clients: of the branches that bring jobs.
        first, last: numbers of each branch's first and last job.
        before: the durations of the operations that come before each branch's first job.
        service, after: the duration of each job, and those of the operations between it and the branch's next job.
    """

    def __init__(self, stage: Stage, durations: list[Duration]) -> None:
        self.clients: list[int] = []
        self.first: list[int] = []
        self.last: list[int] = []
        self.before: list[list[Duration]] = []
        self.service: list[Duration] = []
        self.after: list[list[Duration]] = []
        for client, first, jobs, end in stage.brought:
            self.clients.append(client)
            self.first.append(len(self.service))
            self.last.append(len(self.service) + len(jobs) - 1)
            self.before.append(durations[first : jobs[0]])
            for job, following in pairwise([*jobs, end]):
                self.service.append(durations[job])
                self.after.append(durations[job + 1 : following])

    def by_arrival(self, start_s: float, workers: float) -> Floats:
        """Give the start of each job, first come, first served by `workers` workers; ties go by client id."""
        service, after = self.service, self.after
        started_s = [0.0] * len(service)
        lead_s = (_after(start_s, before) for before in self.before)
        coming = list(zip(lead_s, self.clients, self.first, self.last, strict=True))
        heapq.heapify(coming)
        free_s = [start_s] * int(min(workers, max(1, len(coming))))
        while coming:
            now_s, client, job, last = coming[0]
            if free_s[0] > now_s:
                now_s = free_s[0]
            started_s[job] = now_s
            now_s += service[job]
            heapq.heapreplace(free_s, now_s)
            if job == last:
                heapq.heappop(coming)
            else:
                for duration in after[job]:
                    now_s += duration
                heapq.heapreplace(coming, (now_s, client, job + 1, last))
        return np.array(started_s)

    def in_turn(self, start_s: float, turns: Sequence[int]) -> Floats:
        """Give the start of each job if one worker serves the clients in the sequence `turns`."""
        started_s = [0.0] * len(self.service)
        arrives_s = dict(zip(self.clients, (_after(start_s, before) for before in self.before), strict=True))
        jobs = dict(zip(self.clients, self.first, strict=True))
        now_s = start_s
        for client in turns:
            job = jobs[client]
            if arrives_s[client] > now_s:
                now_s = arrives_s[client]
            started_s[job] = now_s
            now_s += self.service[job]
            arrives_s[client] = _after(now_s, self.after[job])
            jobs[client] = job + 1
        if len(turns) < len(self.service):
            raise NotPlannable("there are fewer turns than jobs")
        return np.array(started_s)


def _after(now_s: float, durations: Iterable[Duration]) -> float:
    for duration in durations:
        now_s += duration
    return now_s


def _by_rank(n: int, heads: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split `n` operations in chains that begin at `heads` by rank: the second ones, the third ones, ..."""
    if not n:
        return []
    rank = np.arange(n) - heads[np.searchsorted(heads, np.arange(n), side="right") - 1]
    return np.split(np.argsort(rank, kind="stable"), np.cumsum(np.bincount(rank)))[1:-1]


def _rows(entries: Sequence[Entry]) -> NDArray[np.void]:
    rows = np.zeros(len(entries), dtype=OP_DTYPE)
    for column in ("node", "kind", "step", "client", "macs", "bytes"):
        rows[column] = [getattr(entry, column) for entry in entries]
    return rows


def _check(branches: Sequence[Sequence[Entry]], announced: Expect | None) -> None:
    """Check that branches meet only at the server, with one state each or all with the announced jobs on one state."""
    if any(entry.node == "peer" for branch in branches for entry in branch):
        raise NotPlannable("a message takes links of two clients")
    if len(branches) == 1 and announced is None:
        return
    _check_own([{entry.client for entry in branch if entry.state is None} for branch in branches], "devices or links")
    _check_own([{entry.state for entry in branch if entry.node == "aggregator"} for branch in branches], "averages")
    jobs = [[entry for entry in branch if entry.node == "server"] for branch in branches]
    _check_own([{job.client for job in brought} for brought in jobs], "clients who bring jobs")
    if any(len({job.client for job in brought}) > 1 for brought in jobs):
        raise NotPlannable("a branch brings jobs of several clients")
    if announced is None:
        _check_own([{job.state for job in brought} for brought in jobs], "states")
        return
    states = {job.state for brought in jobs for job in brought}
    if states != {announced.state.guard} or Counter(job.client for b in jobs for job in b) != Counter(announced.jobs):
        raise NotPlannable("the jobs are not those that were announced")


def _check_own(belongings: Sequence[set[Any]], what: str) -> None:
    if sum(map(len, belongings)) > len(set().union(*belongings)):
        raise NotPlannable(f"branches share {what}")
