"""The server's queue: its workers, one queue per state, and a policy that picks from it."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf, nan
from typing import Any, NamedTuple, Protocol, runtime_checkable

import simpy

from sfl_sim.ops import Lost

LAST: Any = 2
"""SimPy's priorities are 0 and 1: at one instant, an event of priority 2 comes after all the others."""


@dataclass(slots=True, eq=False)
class Job:
    """A job that a client's flow brings to the server. `client` is -1 if no client brings it.

    `begin` is called when the service starts, at `started_s`. `op` is the operation, which the price of a batch
    depends on.
    """

    client: int
    state: Any
    arrived_s: float
    service_s: float
    begin: Callable[[], None] = lambda: None
    op: Any = None
    started_s: float = nan
    ended: simpy.Event | None = None


class Hold(NamedTuple):
    """A policy's choice to hold the server, and to be asked again at `until_s` even if no job arrives before.

    If `until_s` has passed or is infinite, the policy is asked at the next arrival only.
    """

    until_s: float


Choice = Job | Hold | None
Policy = Callable[[Mapping[int, Job], float], Choice]


@runtime_checkable
class Skipping(Protocol):
    """A policy that may hold the server for a client, so that it needs to know when the client will not come."""

    def skip(self, client: int) -> None:
        """Stop holding the server for `client`, which brings no more jobs."""


def first_come(waiting: Mapping[int, Job], now_s: float) -> Job | None:
    """Choose the job that came first: the policy of arrival order, and of every state that no order ranks."""
    return next(iter(waiting.values()))


class _Queue:
    """The jobs that wait to change one state: those that an order ranks, by client, and all others."""

    __slots__ = ("busy", "left", "listed", "others", "policy", "ranked", "to_come", "wake_s")

    def __init__(self) -> None:
        self.policy: Policy = first_come
        self.left: dict[int, int] = {}
        self.to_come = 0  # sum of `left`
        self.ranked: OrderedDict[int, Job] = OrderedDict()
        self.others: deque[Job] = deque()
        self.busy = False
        self.listed = False  # True while it is in the station's heap
        self.wake_s = inf  # instant at which it is reconsidered even without an arrival

    def join(self, job: Job) -> None:
        """Add a job: announced jobs are ranked by the policy; others are served before them, by arrival."""
        if not self.left.get(job.client):
            self.others.append(job)
        elif job.client in self.ranked:
            raise RuntimeError(f"client {job.client} brings a job to an ordered state before its last one was served")
        else:
            self.ranked[job.client] = job

    def take(self, now_s: float) -> Choice:
        """Remove and give the next job; None or a `Hold` if the policy holds the server."""
        choice = self.others.popleft() if self.others else self.policy(self.ranked, now_s)
        if isinstance(choice, Job):
            self.busy = True
            if self.ranked.get(choice.client) is choice:
                del self.ranked[choice.client]
                self.left[choice.client] -= 1
                self.to_come -= 1
        return choice

    def forget(self, client: int) -> list[Job]:
        """Remove the jobs of `client`, expect no more, and tell the policy; gives the removed jobs."""
        gone = [job for job in self.others if job.client == client]
        for job in gone:
            self.others.remove(job)
        if client in self.ranked:
            gone.append(self.ranked.pop(client))
        if self.left.get(client):
            self.to_come -= self.left[client]
            self.left[client] = 0
            if isinstance(self.policy, Skipping):
                self.policy.skip(client)
        return gone

    @property
    def oldest(self) -> Job | None:
        """The waiting job that came first; None if no job waits."""
        heads = [*islice(self.others, 1), *islice(self.ranked.values(), 1)]
        return min(heads, key=lambda job: job.arrived_s, default=None)

    @property
    def forgettable(self) -> bool:
        """True if the queue is in its initial state, so that it can be deleted."""
        return not (self.busy or self.others or self.ranked or self.to_come)


class Station:
    """`workers` workers that serve jobs; jobs on one state never overlap.

    A free worker takes, among the states that no job is changing, the one whose oldest job came first, and that state's
    policy picks the job. Ties go by (arrival time, client id, sequence): choices are made at the end of an instant,
    after all its arrivals. A policy that holds the server is asked again at the next arrival or at the instant that it
    names (`Hold`), not because time passes.
    """

    def __init__(self, env: simpy.Environment, workers: float) -> None:
        self.env = env
        self.free = workers
        self._queues: dict[Any, _Queue] = {}
        self._arrivals: list[Job] = []
        self._heap: list[tuple[float, int, int, _Queue]] = []
        self._sequence = 0
        self._deciding = False

    def rank(self, state: object, policy: Policy, left: dict[int, int]) -> None:
        """Let `policy` pick among the next `left[c]` jobs of each client on `state`; `left` counts down."""
        queue = self._queues.setdefault(state, _Queue())
        queue.policy, queue.left, queue.to_come = policy, left, sum(left.values())

    def serve(self, job: Job) -> simpy.Event:
        """Add a job; gives an event that occurs when it has been served; its worker and its state are free then."""
        job.ended = simpy.Event(self.env)
        job.ended.callbacks.append(self._release)
        self._arrivals.append(job)
        self._decide_soon()
        return job.ended

    def lose(self, client: int) -> None:
        """Expect no jobs of `client` any more; its waiting jobs end with `Lost`."""
        gone = [job for job in self._arrivals if job.client == client]
        for job in gone:
            self._arrivals.remove(job)
        for queue in self._queues.values():
            if queue.left.get(client) or any(job.client == client for job in (*queue.others, *queue.ranked.values())):
                gone += queue.forget(client)
                self._relist(queue)
        for job in gone:
            assert job.ended is not None
            job.ended.callbacks.remove(self._release)
            job.ended.fail(Lost(client))

    def _relist(self, queue: _Queue) -> None:
        """Ask the policy again after the waiting jobs have changed."""
        if queue.listed:
            self._heap = [entry for entry in self._heap if entry[-1] is not queue]
            heapq.heapify(self._heap)
            queue.listed = False
        self._reconsider(queue)

    def _start(self, job: Job) -> None:
        """Start the service of a job, with one SimPy event for its end."""
        self.free -= 1
        job.started_s = self.env.now
        job.begin()
        ended, job.ended = job.ended, None  # which would keep each other alive, and all that the job is about
        assert ended is not None
        ended._ok, ended._value = True, job
        self.env.schedule(ended, delay=job.service_s)

    def _release(self, ended: simpy.Event) -> None:
        self.free += 1
        queue = self._queues[ended._value.state]
        queue.busy = False
        if queue.forgettable:
            del self._queues[ended._value.state]
        self._reconsider(queue)

    def _reconsider(self, queue: _Queue) -> None:
        self._list(queue)
        if self._heap:
            self._decide_soon()

    def waiting(self) -> Iterator[tuple[list[int], int | None]]:
        """Generate, for every state with waiting jobs, their clients, and the client for which an order holds it."""
        for queue in self._queues.values():
            if queue.oldest:
                clients = [job.client for job in (*queue.others, *queue.ranked.values())]
                yield clients, getattr(queue.policy, "turn", None)

    def _decide_soon(self) -> None:
        if not self._deciding:
            self._deciding = True
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(self._decide)
            self.env.schedule(event, priority=LAST)

    def _decide(self, _: simpy.Event) -> None:
        self._deciding = False
        if len(self._arrivals) > 1:
            self._arrivals.sort(key=lambda job: job.client)
        for job in self._arrivals:
            self._join(job)
        self._arrivals.clear()
        while self.free and self._heap:
            queue = heapq.heappop(self._heap)[-1]
            queue.listed = False
            choice = queue.take(self.env.now)
            if isinstance(choice, Job):
                self._start(choice)
            elif choice is not None:  # if not held until an instant, the next arrival at this state lists it again
                self._wake(queue, choice.until_s)

    def _wake(self, queue: _Queue, at_s: float) -> None:
        """Ask the queue's policy again at `at_s`, unless its state is being changed then or no job waits for it.

        A queue has one wake-up at a time: if it has an earlier one, its policy can ask for another then.
        """
        if self.env.now < at_s < queue.wake_s:
            queue.wake_s = at_s
            self.env.timeout(at_s - self.env.now, queue).callbacks.append(self._woken)

    def _woken(self, wake_up: simpy.Event) -> None:
        queue: _Queue = wake_up._value
        queue.wake_s = inf
        self._reconsider(queue)

    def _join(self, job: Job) -> None:
        queue = self._queues.get(job.state)
        if queue is None:
            queue = self._queues[job.state] = _Queue()
        queue.join(job)
        self._list(queue)

    def _list(self, queue: _Queue) -> None:
        if queue.busy or queue.listed:
            return
        oldest = queue.oldest
        if oldest is not None:
            queue.listed = True
            self._sequence += 1
            heapq.heappush(self._heap, (oldest.arrived_s, oldest.client, self._sequence, queue))
