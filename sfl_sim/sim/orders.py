"""Order policies: they choose the job that may change a shared state next (docs/methods/orders.md).

A policy is a function `(waiting, now_s) -> Job | Hold | None` of the jobs that have arrived, by client and in order of
arrival. `None` holds the server until the next arrival, `Hold(until_s)` until then at the latest. An order is a
function that makes the policy of one round from a `Roster`. To add one, write it and enter it in `ORDERS`, and in
`ARRIVAL_DRIVEN` if it never holds the server: it then takes no burst. Or name it in the scenario as
`server: {order: "my_package.my_module:my_order"}`. A complete example, the client with the longest job first:

    >>> def longest_job(roster):
    ...     return lambda waiting, now_s: max(waiting.values(), key=lambda job: job.service_s)
    >>> from sfl_sim.sim.station import Job
    >>> waiting = {c: Job(c, state=None, arrived_s=0.0, service_s=s) for c, s in [(4, 0.1), (2, 0.3)]}
    >>> longest_job(Roster(clients=[2, 4], left={2: 1, 4: 1}))(waiting, now_s=0.0).client
    2
"""

import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.knowledge import Known, knows
from sfl_sim.sim.station import Hold, Job, NextJob, OrderPolicy, Skipping, Sorting, first_come

LABELS_OF_THEIR_OWN: Sequence[int] = range(sys.maxsize)
"""Dominant labels where no two clients share one: client c has label c."""


@dataclass(slots=True)
class Roster:
    """Facts about a round that an order may use.

    Attributes:
        clients: the participants in cyclic order (grouped by dominant label: docs/methods/orders.md#the-cyclic-list).
        left: number of jobs of each client that have not been served yet; the station keeps it up to date. It is 0 for
            a client that has gone away.
        burst: how many consecutive jobs of a chosen client are served before another choice.
        rng: the round's own random stream.
        labels: the dominant label of every client, by client id.
        max_wait_s: how long `bounded_wait` holds the server for a job.
        recorded: the clients of another run's jobs in this round, in the sequence in which they were served.
    """

    clients: list[int]
    left: dict[int, int]
    burst: float = 1
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    labels: Sequence[int] = LABELS_OF_THEIR_OWN
    max_wait_s: float = inf
    recorded: Sequence[int] = ()

    def turns_of(self, client: int) -> Iterator[int]:
        """Generate `client` once for every job of its burst; less often if fewer jobs are left or a turn is skipped."""
        now = self.left[client]
        end = max(0, now - self.burst)
        while now > end:
            yield client
            before, now = now, self.left[client]
            if now == before:
                return


Order = Callable[[Roster], OrderPolicy]


class InTurn:
    """A strict policy: serve the clients in the sequence `turns`, and hold the server for the one whose turn it is."""

    def __init__(self, turns: Iterator[int]) -> None:
        self.turns = turns
        self.turn: int | None = None
        """The client whose turn it is; None between two turns. The next turn is drawn when it is asked for."""

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> NextJob:
        """Give the job of the client whose turn it is, if it has arrived."""
        if self.turn is None:
            self.turn = next(self.turns, None)
        if self.turn is None or self.turn not in waiting:
            return None
        job, self.turn = waiting[self.turn], None
        return job

    def skip(self, client: int) -> None:
        """Pass the turn on if it is that of `client`, which will not come."""
        if self.turn == client:
            self.turn = None


class PatientInTurn(InTurn):
    """`InTurn` with patience: for each job the server is held for `max_wait_s` at most.

    If the job has not come by then, the turn passes to the next client in the sequence who has.
    """

    def __init__(self, turns: Iterator[int], max_wait_s: float) -> None:
        super().__init__(turns)
        self.max_wait_s = max_wait_s
        self.until_s = inf
        """Instant at which the turn passes on; infinite while the server is not held."""

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> NextJob:
        """Give the job of the client whose turn it is, a `Hold` for it, or in the end the next job in the sequence."""
        choice = super().__call__(waiting, now_s)
        if choice is None:
            self.until_s = min(self.until_s, now_s + self.max_wait_s)
            if now_s < self.until_s:
                return Hold(self.until_s)
            while self.turn not in waiting:
                self.turn = next(self.turns)
            choice = super().__call__(waiting, now_s)
        self.until_s = inf
        return choice

    def skip(self, client: int) -> None:
        """Pass the turn on as `InTurn` does, and begin to wait anew."""
        if self.turn == client:
            self.until_s = inf
        super().skip(client)


class InARow:
    """A policy that serves `turn` jobs of a client in a row, and holds the server for it between them.

    Args:
        policy: chooses the client; each row is one job to it.
        rows: number of rows of each client that have not begun, which the policy follows.
    """

    def __init__(self, policy: OrderPolicy, rows: dict[int, int], turn: int) -> None:
        self.policy = policy
        self.rows = rows
        self.n = turn
        self.turn: int | None = None
        """The client whose row has begun; None between two rows."""
        self._left = 0

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> NextJob:
        """Give the next job of the row, if it has come, or else the first of another."""
        if self.turn is not None:
            choice: NextJob = waiting.get(self.turn)
        else:
            choice = self.policy(waiting, now_s)
            if isinstance(choice, Job):
                self.turn, self._left = choice.client, self.n
                self.rows[choice.client] -= 1
        if isinstance(choice, Job):
            self._left -= 1
            self.turn = self.turn if self._left else None
        return choice

    def add(self, job: Job) -> None:
        """Tell the policy of a job that begins a row, if it sorts them."""
        if job.client != self.turn and isinstance(self.policy, Sorting):
            self.policy.add(job)

    def skip(self, client: int) -> None:
        """End the row of a client that will not come."""
        self.rows[client] = 0
        self.turn = None if self.turn == client else self.turn
        if isinstance(self.policy, Skipping):
            self.policy.skip(client)


def fcfs(roster: Roster) -> OrderPolicy:
    """Serve jobs in the order of arrival, ties by client id."""
    return first_come


@knows(Known.LABELS)
def cyclic(roster: Roster) -> OrderPolicy:
    """Repeat the cyclic list, skipping clients that are done."""
    return InTurn(_sweeps(roster, reverse=False))


@knows(Known.LABELS)
def cyclic_reverse(roster: Roster) -> OrderPolicy:
    """Pass through the cyclic list forwards, then backwards, then forwards; every round starts forwards."""
    return InTurn(_sweeps(roster, reverse=True))


def random_job(roster: Roster) -> OrderPolicy:
    """Draw a client with jobs left before each burst, uniformly (the `random` of Hydra's released code)."""

    def turns() -> Iterator[int]:
        unfinished = [client for client in roster.clients if roster.left[client]]
        while unfinished:
            chosen = int(roster.rng.integers(len(unfinished)))
            yield from roster.turns_of(unfinished[chosen])
            if not roster.left[unfinished[chosen]]:
                del unfinished[chosen]

    return InTurn(turns())


def random_sweep(roster: Roster) -> OrderPolicy:
    """Draw a new permutation of the clients for every sweep, each client once per sweep."""

    def turns() -> Iterator[int]:
        while unfinished := [client for client in roster.clients if roster.left[client]]:
            for client in roster.rng.permutation(unfinished):
                yield from roster.turns_of(int(client))

    return InTurn(turns())


def random_client(roster: Roster) -> OrderPolicy:
    """Draw one permutation per round; with burst `all`, the default, a client's jobs run in a row (Thapa's code)."""
    roster.clients = [int(client) for client in roster.rng.permutation(roster.clients)]
    return InTurn(_sweeps(roster, reverse=False))


@knows(Known.LABELS)
def bounded_wait(roster: Roster) -> OrderPolicy:
    """Follow the cyclic list, waiting `max_wait_s` at most; a client passed over loses the rest of its burst."""
    return PatientInTurn(_sweeps(roster, reverse=False), roster.max_wait_s)


@knows(Known.JOBS)
def shortest_job(roster: Roster) -> OrderPolicy:
    """Serve the shortest of the waiting jobs; ties by arrival.

    Where all clients have one cut and whole mini-batches, all jobs are alike, and this is `fcfs`.
    """
    return ShortestFirst()


@knows(Known.LABELS)
def label_aware(roster: Roster) -> OrderPolicy:
    """Serve the waiting client whose dominant label was served longest ago; ties by arrival.

    Labels that were not served yet in the round come first, in their order in the cyclic list.
    """
    return LabelsInTurn(roster.clients, roster.labels)


class ShortestFirst:
    """Policy of `shortest_job`. It keeps the jobs in a heap; one that does not wait any more is dropped on the way."""

    def __init__(self) -> None:
        self._jobs: list[tuple[float, int, Job]] = []
        self._arrivals = count()

    def add(self, job: Job) -> None:
        """Note that `job` waits."""
        heapq.heappush(self._jobs, (job.service_s, next(self._arrivals), job))

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> NextJob:
        while self._jobs:
            *_, job = heapq.heappop(self._jobs)
            if waiting.get(job.client) is job:
                return job
        return None


class LabelsInTurn:
    """Policy of `label_aware`. It keeps a line of jobs for every label, and the labels with jobs in a heap."""

    def __init__(self, clients: Sequence[int], labels: Sequence[int]) -> None:
        self.labels = labels
        unserved = dict.fromkeys(labels[client] for client in clients)
        self._last_served = {label: index - len(unserved) for index, label in enumerate(unserved)}
        self._services = count()
        self._lines = {label: deque[Job]() for label in unserved}
        self._heap: list[tuple[int, int]] = []

    def add(self, job: Job) -> None:
        """Note that `job` waits."""
        label = self.labels[job.client]
        self._lines[label].append(job)
        if len(self._lines[label]) == 1:
            heapq.heappush(self._heap, (self._last_served[label], label))

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> NextJob:
        """Give the first job of the label that was served longest ago."""
        while self._heap:
            _, label = self._heap[0]
            line = self._lines[label]
            job = line.popleft()
            is_there = waiting.get(job.client) is job
            if is_there:
                self._last_served[label] = next(self._services)
            if not line:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (self._last_served[label], label))
            if is_there:
                return job
        return None


def _sweeps(roster: Roster, reverse: bool) -> Iterator[int]:
    """Generate turns from a deque of clients, visited from the front or the back (orders.md#the-cyclic-list)."""
    queue = deque(roster.clients)
    forwards, visits = True, 0
    while queue:
        client = queue.popleft() if forwards else queue.pop()
        yield from roster.turns_of(client)
        if roster.left[client]:
            (queue.append if forwards else queue.appendleft)(client)
        visits += 1
        if reverse and visits % len(roster.clients) == 0:
            forwards = not forwards


ARRIVAL_DRIVEN: dict[str, Order] = {"fcfs": fcfs, "shortest_job": shortest_job, "label_aware": label_aware}
"""Orders that choose among the jobs that have come, and never hold the server; they take no burst."""


@knows(Known.RUN)
def recorded(roster: Roster) -> OrderPolicy:
    """Serve clients in the sequence of another run.

    Raises ScenarioError if they brought other numbers of jobs there.
    """
    turns = [client for client in roster.recorded if client in roster.left]
    brought = Counter(turns)
    for client, left in roster.left.items():
        if brought[client] != left:
            problem = (
                f"client {client} brings {left} jobs to this round, and brought {brought[client]} to the recorded one"
            )
            raise ScenarioError(problem, key="server.recorded")
    return InTurn(iter(turns))


ORDERS: dict[str, Order] = {
    **ARRIVAL_DRIVEN,
    "random_job": random_job,
    "random_sweep": random_sweep,
    "random_client": random_client,
    "cyclic": cyclic,
    "cyclic_reverse": cyclic_reverse,
    "bounded_wait": bounded_wait,
}
OF_RUNS: dict[str, Order] = {"recorded": recorded}
"""Orders that need another run."""


def usual_burst(name: str) -> float:
    """Give the default burst of an order."""
    return float("inf") if name == "random_client" else 1


def check_burst(name: str, burst: float, section: str = "server") -> None:
    """Check that an arrival-driven order has burst 1; otherwise raises ScenarioError."""
    if name in ARRIVAL_DRIVEN and burst != 1:
        found = "all" if burst == inf else int(burst)
        raise ScenarioError(f"{name} serves one job at a time", key=f"{section}.burst", found=found, allowed=[1])


def check_max_wait(name: str, max_wait_s: float | None, section: str = "server") -> None:
    """Check that `bounded_wait` has a maximum wait and other orders have none; otherwise raises ScenarioError."""
    if name == "bounded_wait" and max_wait_s is None:
        allowed = "a number of seconds from 0 on"
        raise ScenarioError("bounded_wait needs it", key=f"{section}.max_wait_s", allowed=allowed)
    if name != "bounded_wait" and name in ORDERS and max_wait_s is not None:
        problem = f"{name} does not bound a wait, only bounded_wait does"
        raise ScenarioError(problem, key=f"{section}.max_wait_s", found=max_wait_s)
