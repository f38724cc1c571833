"""The event clock: drives flows through an event loop in simulated time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import EmptySchedule

from sfl_sim.errors import StuckError
from sfl_sim.ops import Expect, Flow, Lost, Occur, On, Par, Present, Read, Send, Start, Wait
from sfl_sim.rng import stream
from sfl_sim.sim.client_resources import ClientResources
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.events import Events
from sfl_sim.sim.operations import Executor, Operations
from sfl_sim.sim.orders import LABELS_OF_THEIR_OWN, Order, Roster
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.recording import PACKED_ROWS, Recording
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.sim.station import Policy, Station
from sfl_sim.system.fleet import Fleet


class EventClock:
    """Clock of a simulated world: clients with a device and two links each, an aggregator, and a server with a queue.

    Args:
        fleet: rates of devices, links and server.
        executor: carries the operations out.
        order: makes each round's order policy for states that a flow `expect`s jobs on.
        workers: number of server workers.
        station: makes the server of an event loop and of so many workers: for training, or a `ServingStation`.
        burst: consecutive jobs of a chosen client.
        labels: the clients' dominant labels, for orders that ask.
        max_wait_s: how long the server is held for a job, for orders that ask.
        seed: of the run; the order's random stream is (seed, round).
        include_model_exchange: False lets models and averages take no time (docs/methods/timing.md).
        dropouts: which operations are lost in rounds; None: none.

    Attributes:
        records: rows of all operations, what was read, and what was lost.
        after_job: called with each operation at the server after its step has run.
    """

    def __init__(
        self,
        fleet: Fleet,
        executor: Executor,
        order: Order,
        *,
        workers: float = 1,
        station: Callable[[simpy.Environment, float], Station | ServingStation] = Station,
        burst: float = 1,
        labels: Sequence[int] = LABELS_OF_THEIR_OWN,
        max_wait_s: float = inf,
        seed: int = 0,
        include_model_exchange: bool = True,
        dropouts: Dropouts | None = None,
    ) -> None:
        self.dropouts = dropouts or Dropouts()
        self.prices = Prices(fleet, include_model_exchange)
        self.executor = executor
        self.order = order
        self.workers = workers
        self.station = station
        self.burst = burst
        self.labels = labels
        self.max_wait_s = max_wait_s
        self.seed = seed
        self.records = Recording()
        self.after_job: list[Callable[[On], None]] = []
        self._resources = ClientResources(self.prices, self.dropouts, seed)
        self._begin(0.0)

    def _begin(self, now_s: float) -> None:
        """Make a new event loop: between two rounds no flow waits, and devices and links are free."""
        self.env = simpy.Environment(now_s)
        self._server = self.station(self.env, self.workers)
        self._awaiting = Events(self.env)
        self._operations = Operations(
            self.env, self.executor, self.prices, self._resources, self._server, self.records, self.after_job
        )

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return float(self.env.now)

    def run(self, flow: Flow, round: int, *, in_round: bool = True) -> Any:
        """Run `flow` as round number `round` (from 1) until it returns, and give what it returns.

        Setup and finish are counted to the first and the last round, but are not `in_round`: every client is present
        then, because rounds do not wait for registrations or for final models.
        Raises StuckError if flows wait and no event is left, and Lost if `flow` ends with it.
        """
        self._operations.begin_round(round, in_round)
        self._failure: BaseException | None = None
        process = self.env.process(self._drive(flow))
        try:
            with rare_garbage_collection():
                while not (process.processed or self._failure):
                    self.env.step()
        except EmptySchedule as error:
            raise StuckError(self._who_waits()) from error
        if self._failure:
            raise self._failure
        return _survived(process.value)

    def serve(self, arrivals: Iterable[tuple[float, Flow]]) -> None:
        """Begin each flow at its instant, in seconds that never fall, and run until all of them have returned.

        All count as round 1. Raises StuckError if flows still wait when no event is left.
        """
        self._operations.begin_round(1)
        self._failure = None
        self._go_on(self._arrive(arrivals))
        with rare_garbage_collection(), suppress(EmptySchedule):
            while not self._failure:
                self.env.step()
        if self._failure:
            raise self._failure
        if self._awaiting.events or any(self._server.waiting()):
            raise StuckError(self._who_waits())

    def _arrive(self, arrivals: Iterable[tuple[float, Flow]]) -> Iterator[simpy.Event]:
        last_s = self.now_s
        for at_s, flow in arrivals:
            if at_s > last_s:  # the clock may be off by a bit, and what is simultaneous must stay so
                yield self.env.timeout(max(0.0, at_s - self.env.now))
                last_s = at_s
            self._go_on(self._drive(flow))
            if len(self.records.rows) > PACKED_ROWS:
                self.records.pack()

    def _go_on(self, flow: Iterator[simpy.Event], _: simpy.Event | None = None) -> None:
        """Advance a flow that no other waits for until it has to wait, without the two events of a SimPy process.

        The values of events are not passed on.
        """
        event = next(flow, None)
        if event is not None:
            event.callbacks.append(partial(self._go_on, flow))

    def take_rows(self) -> NDArray[np.void]:
        """The operations that have ended since the last call, as an `OP_DTYPE` array in order of their end."""
        return self.records.take()

    def skip(self, rows: NDArray[np.void], until_s: float) -> None:
        """Add operations that the array clock has timed, from now to `until_s`, and go on then; no flow may wait."""
        self.records.add(rows)
        self._begin(until_s)

    def _drive(self, flow: Flow) -> Generator[simpy.Event, Any, Any]:
        """Carry out a flow's operations one after another; gives its return value, or the `Lost` that has ended it."""
        operations = self._operations
        result: Any = None
        lost: Lost | None = None
        try:
            while True:
                try:
                    op = flow.send(result) if lost is None else flow.throw(lost)
                except StopIteration as stop:
                    return stop.value
                except Lost as error:
                    return error.with_traceback(None)  # whose frames hold the client's model, and are held by ours
                result = lost = None
                try:
                    if isinstance(op, On):
                        result = yield from operations.on_client(op) if op.node >= 0 else operations.on_server(op)
                    elif isinstance(op, Send):
                        result = yield from operations.send(op)
                    elif isinstance(op, Par):
                        result = yield from self._par(op)
                    elif isinstance(op, Read):
                        result = self.executor.read(op.value)
                        if result is not None:
                            self.records.reads.append(result)
                    elif isinstance(op, Wait):
                        result = yield from self._awaiting.wait(op)
                    elif isinstance(op, Start):
                        self.env.process(self._drive(op.flow))
                    elif isinstance(op, Occur):
                        self._awaiting.occur(op.event)
                    elif isinstance(op, Expect):
                        self._server.rank(op.state.guard, *self.policy(op.jobs, operations.round))
                    elif isinstance(op, Present):
                        result = yield from self._present(op)
                    else:
                        raise TypeError(f"a flow yielded {op!r}, which is no operation")
                except Lost as error:
                    lost = error
        except Exception as error:  # SimPy passes copies on, made of the arguments alone
            self._failure = self._failure or error
            raise

    def _par(self, op: Par) -> Generator[simpy.Event, Any, Any]:
        branches = [self.env.process(self._drive(branch)) for branch in op.flows]
        yield simpy.AllOf(self.env, branches)
        values = [branch.value for branch in branches]
        if op.names is None:
            return list(map(_survived, values))
        return {name: value for name, value in zip(op.names, values, strict=True) if not isinstance(value, Lost)}

    def _present(self, op: Present) -> Generator[simpy.Event, Any, list[int]]:
        presence = self.prices.fleet.presence
        if presence is None:
            return list(op.clients)
        while not (present := [c for c in op.clients if presence[c].is_present(self.env.now)]):
            again_s = min(presence[c].again_s(self.env.now) for c in op.clients)
            if again_s == inf:
                raise StuckError(f"round {self._operations.round} waits for clients, none of whom ever comes")
            yield self.env.timeout(again_s - self.env.now)
        return present

    def policy(self, jobs: Mapping[int, int], round: int) -> tuple[Policy, dict[int, int]]:
        """The order's policy for a round in which each client brings so many `jobs`; it follows the returned count."""
        left = {client: number for client, number in jobs.items() if number}
        rng = stream(self.seed, "order", round)
        return self.order(Roster(list(left), left, self.burst, rng, self.labels, self.max_wait_s)), left

    def _who_waits(self) -> str:
        lines = []
        for clients, turn in self._server.waiting():
            held = "" if turn is None else f", which the order holds for client {turn}"
            named = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
            lines.append(f"client {named} waits for the server{held}")
        lines += [f"a flow waits for {event.about}" for event in self._awaiting.events]
        ended_s = self.records.last_end_s(self.now_s)  # patience may have ended later
        why = "; ".join(lines) or "no operation is pending"
        return f"round {self._operations.round} is stuck at {ended_s:.3f} s: {why}"


def _survived(value: Any) -> Any:
    """Return a flow's value; raises the `Lost` that has ended it instead."""
    if isinstance(value, Lost):
        raise value
    return value


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Run Python's garbage collection 100 times less often: a round makes many objects and hardly any cycle.

    1,000 clients run 1.15 to 1.2 times as fast, 100,000 clients 1.6 times (benchmarks/clock.py).
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
