"""The server's queue: its workers, one queue per state, and a policy that picks from it."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import simpy
from simpy.events import NORMAL

from sfl_sim.sim.branch import Callbacks

LAST: Any = 2
"""SimPy's priorities are 0 and 1: at one instant, an event of priority 2 comes after all the others."""


class Job(simpy.Event):
    """A job that a client's flow brings to the server, and the SimPy event of its end.

    Attributes:
        client: the client; -1 if no client brings it.
        state: what it changes.
        arrived_s, service_s, started_s: its arrival, the duration of its service, and the start of that. A job of
            infinite duration ends when its customer schedules it.
        customer: has methods `begin`, `served` and `lost`, each called with the job.
        branch: whose operation it is.
    """

    __slots__ = ("arrived_s", "branch", "callbacks", "client", "customer", "service_s", "started_s", "state")
    _ok = True
    _value = None
    started_s: float
    callbacks: Callbacks

    def __init__(
        self, client: int, state: Any, arrived_s: float, service_s: float, customer: Any = None, branch: Any = None
    ) -> None:
        self.client = client
        self.state = state
        self.arrived_s = arrived_s
        self.service_s = service_s
        self.customer = customer
        self.branch = branch


class Hold(NamedTuple):
    """A policy's choice to hold the server, and to be asked again at `until_s` even if no job arrives before.

    If `until_s` has passed or is infinite, the policy is asked at the next arrival only.
    """

    until_s: float


NextJob = Job | Hold | None
OrderPolicy = Callable[[Mapping[int, Job], float], NextJob]


@runtime_checkable
class Skipping(Protocol):
    """A policy that may hold the server for a client, so that it needs to know when the client will not come."""

    def skip(self, client: int) -> None:
        """Stop holding the server for `client`, which brings no more jobs."""


@runtime_checkable
class Sorting(Protocol):
    """A policy that sorts the jobs itself, and so is told of each job that comes."""

    def add(self, job: Job) -> None:
        """Note that `job` waits."""


def first_come(waiting: Mapping[int, Job], now_s: float) -> Job | None:
    """Choose the job that came first: the policy of arrival order, and of every state that no order ranks."""
    return next(iter(waiting.values()))


class _Queue:
    """The jobs that wait to change one state: those that an order ranks, by client, and all others."""

    __slots__ = ("add", "busy", "entry", "left", "others", "policy", "ranked", "to_come", "wake_s")

    def __init__(self) -> None:
        self.policy: OrderPolicy = first_come
        self.add: Callable[[Job], None] | None = None  # tells the policy of a job
        self.left: dict[int, int] = {}
        self.to_come = 0  # sum of `left`
        self.ranked: OrderedDict[int, Job] = OrderedDict()
        self.others: OrderedDict[Job, None] = OrderedDict()
        self.busy = False
        self.entry = 0  # number of its entry in the station's heap; 0 while it has none
        self.wake_s = inf  # instant at which it is reconsidered even without an arrival

    def join(self, job: Job) -> None:
        """Add a job: announced jobs are ranked by the policy; others are served before them, by arrival."""
        if not self.left.get(job.client):
            self.others[job] = None
        elif job.client in self.ranked:
            raise RuntimeError(f"client {job.client} brings a job to an ordered state before its last one was served")
        else:
            self.ranked[job.client] = job
            if self.add:
                self.add(job)

    def take(self, now_s: float) -> NextJob:
        """Remove and give the next job; None or a `Hold` if the policy holds the server."""
        choice = self.others.popitem(last=False)[0] if self.others else self.policy(self.ranked, now_s)
        if isinstance(choice, Job):
            self.busy = True
            if self.ranked.get(choice.client) is choice:
                del self.ranked[choice.client]
                self.left[choice.client] -= 1
                self.to_come -= 1
        return choice

    def forget(self, job: Job) -> None:
        """Remove a waiting job."""
        if job in self.others:
            del self.others[job]
        else:
            del self.ranked[job.client]

    def expect_no_more(self, client: int) -> None:
        """Expect no announced job of `client`, and tell the policy."""
        self.to_come -= self.left[client]
        self.left[client] = 0
        if isinstance(self.policy, Skipping):
            self.policy.skip(client)

    @property
    def oldest(self) -> Job | None:
        """The waiting job that came first; None if no job waits."""
        ranked, other = next(iter(self.ranked.values()), None), next(iter(self.others), None)
        if ranked is None or other is None:
            return ranked or other
        return ranked if ranked.arrived_s < other.arrived_s else other

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
        self._announced: dict[Any, _Queue] = {}  # those whose jobs have been announced
        self._arrivals: list[Job] = []  # jobs that have not joined their queue yet: only a free worker needs to know
        self._waiting: dict[int, list[Job]] = {}  # jobs in queues, by client
        self._heap: list[tuple[float, int, int, _Queue]] = []
        self._sequence = 0
        self._deciding = False
        self._ended: Callbacks = [self._release]
        self._decisions: Callbacks = [self._decide]
        self._decision = simpy.Event(env)
        self._decision._ok, self._decision._value = True, None

    def rank(self, state: object, policy: OrderPolicy, left: dict[int, int]) -> None:
        """Let `policy` pick among the next `left[c]` jobs of each client on `state`; `left` counts down."""
        self._admit(self.env.now)
        queue = self._queues.setdefault(state, _Queue())
        queue.policy, queue.left, queue.to_come = policy, left, sum(left.values())
        queue.add = policy.add if isinstance(policy, Sorting) else None
        if queue.add:
            for job in queue.ranked.values():
                queue.add(job)
        self._announced[state] = queue

    def missing(self) -> dict[int, int]:
        """Return the jobs that were announced and have not come, by client."""
        return {client: n for queue in self._announced.values() for client, n in queue.left.items() if n}

    def serve(self, job: Job) -> None:
        """Add a job, whose customer will be told what becomes of it."""
        self._arrivals.append(job)
        if self.free:
            self._decide_soon()

    def lose(self, client: int) -> None:
        """Expect no jobs of `client` any more; its waiting jobs end with `Lost`."""
        self._admit(self.env.now)
        gone = [job for job in self._arrivals if job.client == client]
        self._arrivals = [job for job in self._arrivals if job.client != client]
        waited = self._waiting.pop(client, [])
        queues = {job.state: self._queues[job.state] for job in waited}
        for state, queue in self._announced.items():
            if queue.left.get(client):
                queue.expect_no_more(client)
                queues[state] = queue
        for job in waited:
            queues[job.state].forget(job)
        for state, queue in queues.items():
            queue.entry = 0
            self._tidy(state, queue)
            self._reconsider(queue)
        for job in gone + waited:
            job.callbacks = [job.customer.lost]
            self.env.schedule(job)

    def _start(self, job: Job) -> None:
        """Start the service of a job."""
        waiting = self._waiting[job.client]
        waiting.remove(job)
        if not waiting:
            del self._waiting[job.client]
        self.free -= 1
        job.started_s = self.env.now
        job.callbacks = self._ended
        job.customer.begin(job)
        if job.service_s < inf:
            self.env.schedule(job, NORMAL, job.service_s)

    def _release(self, job: Job) -> None:
        self._admit(self.env.now)
        self.free += 1
        queue = self._queues[job.state]
        queue.busy = False
        self._tidy(job.state, queue)
        self._reconsider(queue)
        job.customer.served(job)

    def _tidy(self, state: object, queue: _Queue) -> None:
        """Delete the queue of a state if nothing is left in it."""
        if queue.forgettable:
            del self._queues[state]
            self._announced.pop(state, None)

    def _reconsider(self, queue: _Queue) -> None:
        self._list(queue)
        if self.free and (self._heap or self._arrivals):
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
            self._decision.callbacks = self._decisions
            self.env.schedule(self._decision, LAST)

    def _decide(self, _: simpy.Event) -> None:
        self._deciding = False
        self._admit(inf)
        while self.free and self._heap:
            _arrived_s, _client, entry, queue = heapq.heappop(self._heap)
            if entry != queue.entry:
                continue  # listed anew since
            queue.entry = 0
            choice = queue.take(self.env.now)
            if isinstance(choice, Job):
                self._start(choice)
            elif choice is not None:  # if not held until an instant, the next arrival at this state lists it again
                self._wake(queue, choice.until_s)

    def _admit(self, before_s: float) -> None:
        """Let the jobs that have arrived before an instant join their queues."""
        arrivals = self._arrivals
        if not arrivals or arrivals[0].arrived_s >= before_s:
            return
        later = [job for job in arrivals if job.arrived_s >= before_s]
        del arrivals[len(arrivals) - len(later) :]
        if len(arrivals) > 1:
            arrivals.sort(key=attrgetter("arrived_s", "client"))
        for job in arrivals:
            queue = self._queues.get(job.state)
            if queue is None:
                queue = self._queues[job.state] = _Queue()
            queue.join(job)
            self._waiting.setdefault(job.client, []).append(job)
            if not (queue.busy or queue.entry):
                self._list(queue)
        self._arrivals = later

    def _wake(self, queue: _Queue, at_s: float) -> None:
        """Ask the queue's policy again at `at_s`, unless its state is being changed then or no job waits for it.

        A queue has one wake-up at a time: if it has an earlier one, its policy can ask for another then.
        """
        if self.env.now < at_s < queue.wake_s:
            queue.wake_s = at_s
            self.env.timeout(at_s - self.env.now).callbacks.append(lambda _: self._woken(queue))

    def _woken(self, queue: _Queue) -> None:
        queue.wake_s = inf
        self._reconsider(queue)

    def _list(self, queue: _Queue) -> None:
        """Enter the queue in the heap, with its oldest job, unless its state is being changed or no job waits."""
        if queue.busy or queue.entry:
            return
        oldest = queue.oldest
        if oldest is not None:
            self._sequence = queue.entry = self._sequence + 1
            heapq.heappush(self._heap, (oldest.arrived_s, oldest.client, queue.entry, queue))
