"""The event loop: drives flows in simulated time, prices their operations, and records every one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import EmptySchedule

from sfl_sim.errors import StuckError
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Expect, Flow, Occur, On, Par, Read, Send, Start, Value, Wait
from sfl_sim.records import OP_DTYPE, in_order
from sfl_sim.rng import stream
from sfl_sim.sim.orders import LABELS_OF_THEIR_OWN, Order, Roster
from sfl_sim.sim.prices import Prices, is_local, link_of, place_of
from sfl_sim.sim.serving import ServingStation
from sfl_sim.sim.station import Job, Policy, Station
from sfl_sim.system.fleet import Fleet

PACKED_ROWS = 50_000
"""So many operations are kept as Python objects, which take three times the memory of an array's rows."""


class Executor(Protocol):
    """How operations are carried out; the clock calls it in simulated-time order."""

    def run(self, op: On) -> Any:
        """The content of the operation's result."""

    def snapshot(self, payload: Value) -> Value:
        """What the receiver of `payload` holds."""

    def read(self, value: Value) -> float:
        """The number in `value`."""


class Simulator:
    """One simulated world: clients with a device and two links each, an aggregator, and a server with a queue.

    A device and a link serve one operation at a time, in the order of request. The server serves as its `station` says;
    the aggregator as `Station` does, with as many lanes as it needs, at the server's rate.

    Args:
        fleet: rates of devices, links and server.
        executor: carries the operations out.
        order: makes each round's order policy for states that a flow `expect`s jobs on.
        workers: lanes of the server.
        station: makes the server of a clock and of so many lanes: for training, or a `ServingStation`.
        burst: consecutive jobs of a chosen client.
        labels: the clients' dominant labels, for orders that ask.
        max_wait_s: how long the server is held for a job, for orders that ask.
        seed: of the run; the order's random stream is (seed, round).
        include_model_exchange: False lets models and averages take no time (METHODS.md 4.1, as SMoFi's A.3).
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
    ) -> None:
        self.prices = Prices(fleet, include_model_exchange)
        self.executor = executor
        self.order = order
        self.workers = workers
        self.station = station
        self.burst = burst
        self.labels = labels
        self.max_wait_s = max_wait_s
        self.seed = seed
        self.round = 0
        self._begin(0.0)
        n = len(fleet.macs_per_s)
        self._device_free_s = [0.0] * n
        self._uplink_free_s = [0.0] * n
        self._downlink_free_s = [0.0] * n
        self._rows: list[tuple[Any, ...]] = []
        self._packed: list[NDArray[np.void]] = []
        self._reads: list[float] = []

    def _begin(self, now_s: float) -> None:
        """A new event loop: between two rounds nobody waits, and device and links are free."""
        self.env = simpy.Environment(now_s)
        self.stations = {SERVER: self.station(self.env, self.workers), AGGREGATOR: Station(self.env, inf)}
        self._awaited: dict[Event, list[simpy.Event]] = {}

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return float(self.env.now)

    def run(self, flow: Flow, round: int) -> Any:
        """Run `flow` as round number `round` (from 1) until it returns, and give what it returns.

        Raises StuckError if nothing can happen any more although flows wait.
        """
        self.round = round
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
        return process.value

    def serve(self, arrivals: Iterable[tuple[float, Flow]]) -> None:
        """Begin each flow at its instant, in seconds that never fall, and run until all of them have returned.

        They count as round 1. Raises StuckError if flows still wait when nothing can happen any more.
        """
        self.round = 1
        self._failure = None
        self._go_on(self._arrive(arrivals))
        with rare_garbage_collection(), suppress(EmptySchedule):
            while not self._failure:
                self.env.step()
        if self._failure:
            raise self._failure
        if self._awaited or any(self.stations[SERVER].waiting()):
            raise StuckError(self._who_waits())

    def _arrive(self, arrivals: Iterable[tuple[float, Flow]]) -> Iterator[simpy.Event]:
        last_s = self.now_s
        for at_s, flow in arrivals:
            if at_s > last_s:  # the clock may be off by a bit, and what is simultaneous must stay so
                yield self.env.timeout(max(0.0, at_s - self.env.now))
                last_s = at_s
            self._go_on(self._drive(flow))
            if len(self._rows) > PACKED_ROWS:
                self._pack()

    def _go_on(self, flow: Iterator[simpy.Event], _: simpy.Event | None = None) -> None:
        """Let a flow that nobody waits for go on until it has to wait: without the events of a process's begin and end.

        What an event brings is left to whoever made it.
        """
        event = next(flow, None)
        if event is not None:
            event.callbacks.append(partial(self._go_on, flow))

    def _pack(self) -> None:
        self._packed.append(np.array(self._rows, dtype=OP_DTYPE))
        self._rows.clear()

    def take_rows(self) -> NDArray[np.void]:
        """The operations that have ended since the last call, as an `OP_DTYPE` array in order of their end."""
        self._pack()
        found = np.concatenate([rows for rows in self._packed if len(rows)] or self._packed)
        self._packed = []
        return in_order(found)

    def take_reads(self) -> list[float]:
        """The numbers that flows have read since the last call, in the order of reading."""
        found, self._reads = self._reads, []
        return found

    def skip(self, rows: NDArray[np.void], until_s: float) -> None:
        """Take over what has been found in another way: the operations from now to `until_s`, when nobody waits."""
        self._pack()
        self._packed.append(rows)
        self._begin(until_s)

    def _drive(self, flow: Flow) -> Generator[simpy.Event, Any, Any]:
        """Carry out one flow's operations one after another."""
        try:
            result: Any = None
            while True:
                try:
                    op = flow.send(result)
                except StopIteration as stop:
                    return stop.value
                if isinstance(op, On):
                    result = yield from self._on_client(op) if op.node >= 0 else self._on_server(op)
                elif isinstance(op, Send):
                    result = yield from self._send(op)
                elif isinstance(op, Par):
                    branches = [self.env.process(self._drive(branch)) for branch in op.flows]
                    yield simpy.AllOf(self.env, branches)
                    result = [branch.value for branch in branches]
                elif isinstance(op, Read):
                    result = self.executor.read(op.value)
                    self._reads.append(result)
                elif isinstance(op, Wait):
                    result = yield from self._wait(op)
                elif isinstance(op, Start):
                    result = None
                    self.env.process(self._drive(op.flow))
                elif isinstance(op, Occur):
                    result = None
                    self._occur(op.event)
                elif isinstance(op, Expect):
                    result = None
                    self.stations[SERVER].rank(op.state.guard, *self.policy(op.jobs, self.round))
                else:
                    raise TypeError(f"a flow yielded {op!r}, which is no operation")
        except Exception as error:  # SimPy passes copies on, made of the arguments alone
            self._failure = self._failure or error
            raise

    def _on_client(self, op: On) -> Generator[simpy.Event, Any, Value]:
        env, node = self.env, op.node
        requested_s = env.now
        macs, service_s = self.prices.service(op)
        started_s = max(requested_s, self._device_free_s[node])
        self._device_free_s[node] = started_s + service_s
        if started_s > requested_s:
            yield env.timeout(started_s - requested_s)
            started_s = env.now
        result = op.step.out(op.state, *op.args)
        result.maker = node
        result.content = self.executor.run(op)
        if service_s:
            yield env.timeout(service_s)
        self._rows.append(
            ("client", op.step.name, self.round, result.step, node, requested_s, started_s, env.now, macs, 0)
        )
        return result

    def _on_server(self, op: On) -> Generator[simpy.Event, Any, Value]:
        requested_s = self.env.now
        macs, service_s = self.prices.service(op)
        result = op.step.out(op.state, *op.args)
        result.maker = op.node
        node, client = place_of(op)

        def begin() -> None:
            result.content = self.executor.run(op)

        job = Job(client, op.state.guard, requested_s, service_s, begin, op)
        yield self.stations[op.node].serve(job)
        self._rows.append(
            (node, op.step.name, self.round, result.step, client, requested_s, job.started_s, self.env.now, macs, 0)
        )
        return result

    def _send(self, op: Send) -> Generator[simpy.Event, Any, Value]:
        src, dst = op.src, op.dst
        payload = self.executor.snapshot(op.payload)
        if is_local(src, dst):
            return payload
        started_s = requested_s = self.env.now
        if self.prices.travels(payload):
            started_s = self._link_free_s(src, dst, requested_s)
            taken_s, latency_s = self.prices.transfer_s(src, dst, started_s, payload.size_bytes)
            self._take_link(src, dst, started_s + taken_s)
            yield self.env.timeout((started_s - requested_s) + (taken_s + latency_s))
        link, client = link_of(src, dst)
        self._rows.append(
            (link, payload.kind, self.round, payload.step, client, requested_s, started_s, self.env.now, 0.0,
             payload.size_bytes)
        )  # fmt: skip
        return payload

    def _wait(self, op: Wait) -> Generator[simpy.Event, Any, bool]:
        mine = {event: self.env.event() for event in op.events if not event.occurred}
        for event, waiting in mine.items():
            self._awaited.setdefault(event, []).append(waiting)
        if not mine:
            return True
        all_of_them = simpy.AllOf(self.env, mine.values())
        if op.at_most_s == inf:
            yield all_of_them
            return True
        yield all_of_them | self.env.timeout(op.at_most_s)
        for event, waiting in mine.items():
            if not event.occurred:
                self._forget(event, waiting)
        return all(event.occurred for event in mine)

    def _forget(self, event: Event, waiting: simpy.Event) -> None:
        """Somebody does not wait for `event` any more."""
        self._awaited[event].remove(waiting)
        if not self._awaited[event]:
            del self._awaited[event]

    def _occur(self, event: Event) -> None:
        event.occurred = True
        for waiting in self._awaited.pop(event, []):
            waiting.succeed()

    def _link_free_s(self, src: int, dst: int, now_s: float) -> float:
        """When sending from `src` to `dst` can start: once the one's uplink and the other's downlink are free."""
        up_s = self._uplink_free_s[src] if src >= 0 else now_s
        down_s = self._downlink_free_s[dst] if dst >= 0 else now_s
        return max(now_s, up_s, down_s)

    def _take_link(self, src: int, dst: int, until_s: float) -> None:
        if src >= 0:
            self._uplink_free_s[src] = until_s
        if dst >= 0:
            self._downlink_free_s[dst] = until_s

    def policy(self, jobs: Mapping[int, int], round: int) -> tuple[Policy, dict[int, int]]:
        """The order's policy for a round in which each client brings so many `jobs`; it follows the returned count."""
        left = {client: number for client, number in jobs.items() if number}
        rng = stream(self.seed, "order", round)
        return self.order(Roster(list(left), left, self.burst, rng, self.labels, self.max_wait_s)), left

    def _who_waits(self) -> str:
        lines = []
        for clients, turn in self.stations[SERVER].waiting():
            held = "" if turn is None else f", which the order holds for client {turn}"
            named = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
            lines.append(f"client {named} waits for the server{held}")
        lines += [f"somebody waits for {event.about}" for event in self._awaited]
        self._pack()
        # Patience may have ended later.
        ended_s = max((rows["ended_s"][-1] for rows in self._packed if len(rows)), default=self.now_s)
        return f"round {self.round} is stuck at {ended_s:.3f} s: " + ("; ".join(lines) or "no operation is pending")


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Let Python look for reference cycles a hundredth as often: a round makes many objects and hardly any cycle.

    1,000 clients run 1.15 to 1.2 times as fast, 100,000 clients 1.6 times (benchmarks/clock.py).
    """
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
