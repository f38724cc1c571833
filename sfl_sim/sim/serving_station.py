"""The server's queue for requests: no state changes, so workers may share a model, and jobs a batch."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, NoReturn

import simpy
from simpy.events import NORMAL

from sfl_sim.ops import On
from sfl_sim.sim.branch import Callbacks
from sfl_sim.sim.station import LAST, Job

_Line = list[tuple[float, int, int, Job]]
"""A heap of jobs that may form one batch, each with its rank: arrival, client id, sequence."""


class ServingStation:
    """`workers` workers that serve jobs, each of them any job; jobs on one state may go as one batch.

    A free worker takes the first `max_batch` jobs on a state once so many wait, or once one of fewer has waited for
    `max_wait_s` (dynamic batching, as NVIDIA Triton calls it). Of several such states it takes the one whose first job
    ranks first. Jobs are ranked by arrival, client id and sequence. Choices are made at the end of an instant, after
    all its arrivals.

    Args:
        env: the clock.
        workers: number of workers; may be infinite.
        batch_s: seconds of several operations in one batch. A single job takes its `service_s`.
        max_batch: maximum of jobs in a batch.
        max_wait_s: how long a free worker waits for a batch to fill.
        drawn_s: makes the seconds of a call of those computed for it. None: as computed.
    """

    def __init__(
        self,
        env: simpy.Environment,
        workers: float,
        *,
        batch_s: Callable[[Sequence[On]], float],
        max_batch: int = 1,
        max_wait_s: float = 0.0,
        drawn_s: Callable[[float], float] | None = None,
    ) -> None:
        self.env = env
        self.free = workers
        self.batch_s = batch_s
        self.max_batch = max_batch
        self.max_wait_s = max_wait_s
        self.drawn_s = drawn_s or (lambda computed_s: computed_s)
        self._arrivals: list[Job] = []
        self._lines: dict[Any, _Line] = {}
        self._sequence = 0
        self._deciding = False
        self._wakes_s = inf

    def serve(self, job: Job) -> None:
        """Add a job to the queue, whose customer will be told when it starts and when it has been served."""
        self._arrivals.append(job)
        self._decide_soon()

    def rank(self, *_: object) -> NoReturn:
        """Raise TypeError: jobs are announced for training only."""
        raise TypeError("a server of requests takes no announcements of jobs")

    def lose(self, client: int) -> NoReturn:
        """Raise TypeError: clients are lost in rounds of training only."""
        raise TypeError(f"a server of requests cannot lose the jobs of client {client}")

    def waiting(self) -> Iterator[tuple[list[int], None]]:
        """Generate the clients of the waiting jobs of every future batch, and None, as no order holds the server."""
        for line in self._lines.values():
            yield [client for _, client, *_ in line], None

    def _decide_soon(self) -> None:
        if not self._deciding:
            self._deciding = True
            self._schedule([self._decide], 0.0, LAST)

    def _decide(self, _: simpy.Event) -> None:
        self._deciding = False
        for job in self._arrivals:
            self._join(job)
        self._arrivals.clear()
        while self.free and self._lines:
            due = [key for key, line in self._lines.items() if self._due_s(line) <= self.env.now]
            if not due:
                self._wake_at(min(map(self._due_s, self._lines.values())))
                break
            self._start(min(due, key=lambda key: self._lines[key][0]))

    def _join(self, job: Job) -> None:
        self._sequence += 1
        key = job.state if self.max_batch > 1 else None
        heapq.heappush(self._lines.setdefault(key, []), (job.arrived_s, job.client, self._sequence, job))

    def _due_s(self, line: _Line) -> float:
        """Give the instant from which on a free worker does not wait any longer for the batch to fill."""
        if len(line) >= self.max_batch:
            return -inf
        return line[0][0] + self.max_wait_s

    def _wake_at(self, due_s: float) -> None:
        if due_s < self._wakes_s:
            self._wakes_s = due_s
            self._schedule([self._woken], due_s - self.env.now)

    def _woken(self, _: simpy.Event) -> None:
        self._wakes_s = inf
        self._decide_soon()

    def _start(self, key: Any) -> None:
        """Start a batch, with one SimPy event for its end."""
        line = self._lines[key]
        batch = [heapq.heappop(line)[-1] for _ in range(min(self.max_batch, len(line)))]
        if not line:
            del self._lines[key]
        self.free -= 1
        for job in batch:
            job.started_s = self.env.now
            job.customer.begin(job)
        lasts_s = batch[0].service_s if len(batch) == 1 else self.batch_s([job.branch.op for job in batch])
        self._schedule([lambda _: self._release(batch)], self.drawn_s(lasts_s))

    def _release(self, batch: list[Job]) -> None:
        self.free += 1
        if self._lines:
            self._decide_soon()
        for job in batch:
            job.customer.served(job)

    def _schedule(self, callbacks: Callbacks, delay_s: float, priority: Any = NORMAL) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value, event.callbacks = True, None, callbacks
        self.env.schedule(event, priority, delay_s)
