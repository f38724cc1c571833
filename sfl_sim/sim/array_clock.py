"""The array clock: times a stage of a round by recursion instead of by an event loop.

A stage is branches that run side by side. Each is a chain of operations on the client's own device and links, broken by
jobs at the server and by events of other branches, the only places where branches meet. So only the legs between such
places are walked one by one (Lindley's recursion: a job starts at the later of its arrival and the server's last
departure). Within a leg durations are added one after another, as an event loop adds them, so the times are the same to
the last bit. What is added may depend on what it is added to (`sim/trace.py`).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from math import inf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Event, Expect, Occur, Wait
from sfl_sim.sim.trace import Demand, Duration, Foreseen, NotPlannable, PlannedOperation
from sfl_sim.store.columns import OP_COLUMNS, OP_DTYPE
from sfl_sim.store.places import AGGREGATOR, PEER, SERVER

Floats = NDArray[np.float64]
BranchEntries = Sequence[PlannedOperation | Wait | Occur]


Turns = tuple[int, ...] | None
"""How jobs on one state are served: the clients in turn, or None, first come, first served."""


@dataclass(slots=True)
class Leg:
    """Operations of a branch that nothing interrupts once the first of them has started.

    Attributes:
        first, end: index of the first operation, and behind the last, among those of the stage.
        client: whose job the first operation is; None if it is no job at the server.
        awaited: events for which the leg waits.
        occurring: events that occur when it has ended.
        is_last: True if no leg of the branch follows.
    """

    first: int
    end: int
    client: int | None = None
    awaited: set[Event] = field(default_factory=set)
    occurring: list[Event] = field(default_factory=list)
    is_last: bool = False


class Stage:
    """Branches that begin together, compiled once for any fleet: everything that does not depend on durations.

    Raises NotPlannable if branches meet anywhere but at the server and at events, or change each other's states without
    an order.

    Attributes:
        rows: the operations, branch by branch, complete but for round and times.
        announced: the jobs on the one state that all branches change; None where every branch has its own.
        legs: the branches, one after another.
        awaiting: the legs that wait for an event, by event.
        bringing: number of branches that bring jobs.
        begins: the first leg of each branch.
        missing: how much must come before each leg: the end of the leg before it in the branch, and events.
        straight: the legs that begin with a job and end with the arrival of their branch's next job, and nothing else.
        filled: the legs that have operations; heads: indices of their first operations.
        resumed: of those legs, the ones that are not requested when the operation before them ends.
        chains: indices of the second operations of all legs, of the third ones, ...
    """

    def __init__(self, branches: Sequence[BranchEntries], announced: Expect | None = None) -> None:
        entries = [[item for item in branch if isinstance(item, PlannedOperation)] for branch in branches]
        _check(entries, announced)
        _check_own([{item.event for item in branch if isinstance(item, Occur)} for branch in branches], "events")
        self.announced = announced
        self.rows = _rows([*chain.from_iterable(entries)])
        self.legs: list[Leg] = []
        for branch in branches:
            if branch:
                self.legs += _legs(branch, self.legs[-1].end if self.legs else 0)
        self.bringing = len({leg.client for leg in self.legs if leg.client is not None})
        self.awaiting: dict[Event, list[int]] = {}
        for number, leg in enumerate(self.legs):
            for event in leg.awaited:
                self.awaiting.setdefault(event, []).append(number)
        if not self.awaiting.keys() <= {event for leg in self.legs for event in leg.occurring}:
            raise NotPlannable("an event does not occur among the flows that wait for it")
        self.begins = [number for number, leg in enumerate(self.legs) if not number or self.legs[number - 1].is_last]
        self.missing = [1 + len(leg.awaited) for leg in self.legs]
        self.straight = [
            number
            for number, (leg, after) in enumerate(pairwise(self.legs))
            if not (leg.is_last or leg.occurring or after.awaited or leg.client is None or after.client is None)
        ]
        firsts, ends = np.array([(leg.first, leg.end) for leg in self.legs], dtype=int).reshape(-1, 2).T
        self.filled = np.flatnonzero(firsts < ends)
        self.heads = firsts[self.filled]
        waiting = np.array([bool(leg.awaited) for leg in self.legs], dtype=bool)
        waiting[self.begins] = True
        self.resumed = np.flatnonzero(waiting[self.filled])
        self.chains = _by_rank(len(self.rows), self.heads)
        numbers: dict[Demand, int] = {}
        demands = (entry.demand for entry in chain.from_iterable(entries))
        self._demand = [numbers.setdefault(demand, len(numbers)) for demand in demands]
        self._demands = list(numbers)

    def durations(self, duration_of: Callable[[Demand], Duration]) -> list[list[Duration]]:
        """Return the operations' durations, leg by leg; operations with the same demand are priced once.

        Raises NotPlannable if something takes no number of seconds: an event loop can say what.
        """
        priced = [duration_of(demand) for demand in self._demands]
        if not all(0 <= duration < inf for duration in priced if isinstance(duration, float)):
            raise NotPlannable("something takes no number of seconds")
        durations = [priced[number] for number in self._demand]
        return [durations[leg.first : leg.end] for leg in self.legs]


class TimedStage:
    """A stage in one fleet; `times` gives its times from any start on.

    Args:
        durations: of the operations, leg by leg.
        workers: of the server.

    Attributes:
        is_steady: True if no duration depends on its start.
        short: duration of the job with which a leg begins, and of what follows it up to its branch's next job; None if
            more happens.

    Raises NotPlannable if a job for which others may wait takes no time: who comes next would depend on the events of
    one instant.
    """

    def __init__(self, stage: Stage, durations: list[list[Duration]], workers: float) -> None:
        self.stage = stage
        self.durations = durations
        self.workers = 1 if stage.announced else int(min(workers, max(1, stage.bringing)))
        services = (of_leg[0] for leg, of_leg in zip(stage.legs, durations, strict=True) if leg.client is not None)
        if (stage.announced or self.workers > 1) and stage.bringing > self.workers and 0.0 in services:
            raise NotPlannable("a job takes no time: which client comes next depends on events of one instant")
        flat = [*chain.from_iterable(durations)]
        self.is_steady = not any(isinstance(duration, Foreseen) for duration in flat)
        self._seconds = np.array(flat, dtype=float) if self.is_steady else None
        self.short: list[tuple[float, list[float]] | None] = [None] * len(durations)
        for number in stage.straight:
            service_s, *after = cast("list[float]", durations[number])
            self.short[number] = service_s, after

    def times(self, start_s: float, turns: Turns) -> tuple[Floats, Floats, Floats]:
        """Return three arrays of seconds, (operations,): when the operations are requested, start and end.

        Args:
            start_s: when the branches begin.
            turns: how the jobs are served.

        Raises NotPlannable if jobs are not served or events do not occur: an event loop would get stuck, and can say
        where.
        """
        stage = self.stage
        walk = _StageWalk(self, start_s)
        if turns is None:
            walk.by_arrival(self.workers)
        else:
            walk.in_turn(turns)
        if inf in walk.began_s:
            raise NotPlannable("a job is never served, or an event never occurs")
        began_s = np.array(walk.began_s)[stage.filled]
        if self._seconds is None:
            ended_s = np.fromiter(chain.from_iterable(walk.ended_s), float)
        else:
            ended_s = np.empty(len(stage.rows))
            ended_s[stage.heads] = began_s + self._seconds[stage.heads]
            for indices in stage.chains:
                ended_s[indices] = ended_s[indices - 1] + self._seconds[indices]
        requested_s = np.roll(ended_s, 1)
        requested_s[stage.heads[stage.resumed]] = np.array(walk.requested_s)[stage.filled][stage.resumed]
        started_s = requested_s.copy()
        started_s[stage.heads] = began_s
        return requested_s, started_s, ended_s


class _StageWalk:
    """One walk through a stage, along the server's jobs.

    Attributes:
        began_s: start of each leg; infinity as long as it has not begun.
        requested_s: when each leg that has waited, or begins a branch, could begin.
        ended_s: ends of the operations of each leg.
    """

    def __init__(self, timed: TimedStage, start_s: float) -> None:
        n, stage = len(timed.durations), timed.stage
        self.start_s = start_s
        self.began_s = [inf] * n
        self.requested_s = [start_s] * n
        self.ended_s: list[list[float]] = [[]] * n
        self._durations: list[list[Any]] = timed.durations
        self._short = timed.short
        self._is_steady = timed.is_steady
        self._stage = stage
        self._missing = stage.missing.copy()
        self._jobs: list[tuple[float, int, int]] = []  # a heap of those that have come: arrival, client, leg
        self._ready: list[int] = []
        for number in stage.begins:
            self._reach(number, start_s)
        self._go_on()

    def by_arrival(self, workers: int) -> None:
        """Serve the jobs first come, first served, by so many workers; ties go by client id."""
        jobs, free_s = self._jobs, [self.start_s] * workers
        while jobs:
            began_s, client, leg = heapq.heappop(jobs)
            if free_s[0] > began_s:
                began_s = free_s[0]
            heapq.heapreplace(free_s, self._serve(leg, client, began_s))

    def in_turn(self, turns: Sequence[int]) -> None:
        """Let one worker serve the clients in the sequence `turns`."""
        jobs, now_s = self._jobs, self.start_s
        waiting: dict[int, tuple[float, int]] = {}
        for client in turns:
            while jobs:
                arrived_s, newcomer, leg = jobs.pop()
                waiting[newcomer] = arrived_s, leg
            if client not in waiting:
                return
            arrived_s, leg = waiting.pop(client)
            now_s = self._serve(leg, client, max(arrived_s, now_s))

    def _serve(self, number: int, client: int, began_s: float) -> float:
        """Start a job, and let branches go on until their next jobs; gives its end."""
        short = self._short[number]
        if short is None:
            self._run(number, began_s)
            self._go_on()
            return self.ended_s[number][0]
        self.began_s[number] = began_s
        service_s, after = short
        now_s = ended_s = began_s + service_s
        if self._is_steady:
            for seconds in after:
                now_s += seconds
        else:
            self.ended_s[number] = [*accumulate(after, initial=ended_s)]
            now_s = self.ended_s[number][-1]
        heapq.heappush(self._jobs, (now_s, client, number + 1))
        return ended_s

    def _go_on(self) -> None:
        while self._ready:
            number = self._ready.pop()
            self._run(number, self.requested_s[number])

    def _run(self, number: int, began_s: float) -> None:
        """Run a leg from `began_s` to its end."""
        self.began_s[number] = began_s
        times_s = [*accumulate(self._durations[number], initial=began_s)]
        self.ended_s[number] = times_s[1:]
        self._end(number, times_s[-1])

    def _end(self, number: int, now_s: float) -> None:
        """Let events occur, and the branch go on, after a leg has ended."""
        leg = self._stage.legs[number]
        for event in leg.occurring:
            for waiting in self._stage.awaiting.get(event, ()):
                self._reach(waiting, now_s)
        if not leg.is_last:
            self._reach(number + 1, now_s)

    def _reach(self, number: int, now_s: float) -> None:
        """Note that something that must come before a leg has come; its job comes, or it is ready, after the last."""
        if now_s > self.requested_s[number]:
            self.requested_s[number] = now_s
        self._missing[number] -= 1
        if not self._missing[number]:
            client = self._stage.legs[number].client
            if client is None:
                self._ready.append(number)
            else:
                heapq.heappush(self._jobs, (self.requested_s[number], client, number))


def _legs(branch: BranchEntries, first: int) -> Iterator[Leg]:
    """Split a branch whose operations have indices from `first` on."""
    leg = Leg(first, first)
    occurred: set[Event] = set()
    for item in branch:
        is_job = isinstance(item, PlannedOperation) and item.node == SERVER
        if leg.occurring or (leg.first < leg.end and (is_job or isinstance(item, Wait))):
            yield leg
            leg = Leg(leg.end, leg.end)
        if isinstance(item, PlannedOperation):
            leg.client = item.client if is_job else leg.client
            leg.end += 1
        elif isinstance(item, Wait):
            leg.awaited.update(item.events)
        elif item.event not in occurred:
            occurred.add(item.event)
            leg.occurring.append(item.event)
    leg.is_last = True
    yield leg


def _by_rank(n: int, heads: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split `n` operations in chains that begin at `heads` by rank: the second ones, the third ones, ..."""
    if not n:
        return []
    rank = np.arange(n) - heads[np.searchsorted(heads, np.arange(n), side="right") - 1]
    return np.split(np.argsort(rank, kind="stable"), np.cumsum(np.bincount(rank)))[1:-1]


def _rows(entries: Sequence[PlannedOperation]) -> NDArray[np.void]:
    rows = np.zeros(len(entries), dtype=OP_DTYPE)
    for column, values in zip(PlannedOperation._fields, zip(*entries, strict=True), strict=False):
        if column in OP_COLUMNS:
            rows[column] = values
    return rows


def _check(branches: Sequence[Sequence[PlannedOperation]], announced: Expect | None) -> None:
    """Check that branches meet only at the server, with one state each or all with the announced jobs on one state."""
    if any(entry.node == PEER for branch in branches for entry in branch):
        raise NotPlannable("a message takes links of two clients")
    if len(branches) == 1 and announced is None:
        return
    _check_own([{entry.client for entry in branch if entry.state is None} for branch in branches], "devices or links")
    jobs = [[entry for entry in branch if entry.state is not None] for branch in branches]
    _check_own([{entry.state for entry in brought if entry.node == AGGREGATOR} for brought in jobs], "averages")
    jobs = [[entry for entry in brought if entry.node == SERVER] for brought in jobs]
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
