"""The event loop: drives flows in simulated time, prices their operations, and records every one of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import EmptySchedule

from sfl_sim.errors import StuckError
from sfl_sim.ops import (
    SERVER,
    Expect,
    Flow,
    Lost,
    Occur,
    On,
    Par,
    Present,
    Read,
    Send,
    Start,
    Value,
    Wait,
)
from sfl_sim.rng import stream
from sfl_sim.sim.client_resources import ClientResources
from sfl_sim.sim.dropouts import Dropout, Dropouts
from sfl_sim.sim.events import Events
from sfl_sim.sim.orders import LABELS_OF_THEIR_OWN, Order, Roster
from sfl_sim.sim.prices import Prices, is_local, link_of, place_of
from sfl_sim.sim.recording import PACKED_ROWS, Recording
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.sim.shared_links import SharedLinks
from sfl_sim.sim.station import Job, Policy, Station
from sfl_sim.system.fleet import Fleet

LOSSES_A_CLIENT = 1_000
"""Who loses so many operations for every client in one round will never end it: stays are too short for any visit."""


class Executor(Protocol):
    """How operations are carried out; the clock calls it in simulated-time order."""

    def run(self, op: On) -> Any:
        """The content of the operation's result."""

    def snapshot(self, payload: Value) -> Value:
        """What the receiver of `payload` holds."""

    def read(self, value: Value) -> float | None:
        """The number in `value`."""


class Simulator:
    """One simulated world: clients with a device and two links each, an aggregator, and a server with a queue.

    A device and a link serve one operation at a time, in the order of request; they stand still while their client is
    away, unless that loses the operation (`losses`). The server serves as its `station` says;
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
        losses: which operations are lost in rounds; None: none.
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
        losses: Dropouts | None = None,
    ) -> None:
        self.losses = losses or Dropouts()
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
        self._own = ClientResources(self.prices, self.losses, seed)
        self._begin(0.0)
        self._lost: list[Dropout] = []
        self._n_lost = 0
        self._recording = Recording()
        self._rows = self._recording.rows
        self._reads: list[float] = []

    def move_to(self, fleet: Fleet) -> None:
        """From now on, when nobody waits, it is the world of this fleet."""
        self.prices = replace(self.prices, fleet=fleet)
        self._own = ClientResources(self.prices, self.losses, self.seed)
        self._begin(self.now_s)

    def _begin(self, now_s: float) -> None:
        """A new event loop: between two rounds nobody waits, and device and links are free."""
        self.env = simpy.Environment(now_s)
        self._server = self.station(self.env, self.workers)
        self._aggregator = Station(self.env, inf)
        self._awaiting = Events(self.env)
        self._watched_s: dict[int, float] = {}
        topology = self.prices.fleet.topology
        self._shared = None if topology is None else SharedLinks(self.env, topology, self._own.pieces)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return float(self.env.now)

    def run(self, flow: Flow, round: int, *, in_round: bool = True) -> Any:
        """Run `flow` as round number `round` (from 1) until it returns, and give what it returns.

        What happens once, before the first round or after the last, is counted to it, but is not `in_round`: nobody is
        away then, for neither registering clients nor giving them their models is what rounds wait for.
        Raises StuckError if nothing can happen any more although flows wait, and Lost if `flow` ends so.
        """
        self.round, self._n_lost = round, 0
        self.losses.begin(self.now_s, in_round)
        self._own.prices = self.prices if in_round else self.prices.of_all_present
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
        if self._awaiting.events or any(self._server.waiting()):
            raise StuckError(self._who_waits())

    def _arrive(self, arrivals: Iterable[tuple[float, Flow]]) -> Iterator[simpy.Event]:
        last_s = self.now_s
        for at_s, flow in arrivals:
            if at_s > last_s:  # the clock may be off by a bit, and what is simultaneous must stay so
                yield self.env.timeout(max(0.0, at_s - self.env.now))
                last_s = at_s
            self._go_on(self._drive(flow))
            if len(self._rows) > PACKED_ROWS:
                self._recording.pack()

    def _go_on(self, flow: Iterator[simpy.Event], _: simpy.Event | None = None) -> None:
        """Let a flow that nobody waits for go on until it has to wait: without the events of a process's begin and end.

        What an event brings is left to whoever made it.
        """
        event = next(flow, None)
        if event is not None:
            event.callbacks.append(partial(self._go_on, flow))

    def take_rows(self) -> NDArray[np.void]:
        """The operations that have ended since the last call, as an `OP_DTYPE` array in order of their end."""
        return self._recording.take()

    def take_reads(self) -> list[float]:
        """The numbers that flows have read since the last call, in the order of reading."""
        found, self._reads = self._reads, []
        return found

    def take_losses(self) -> list[Dropout]:
        """What was lost since the last call, in the order in which it was."""
        found, self._lost = self._lost, []
        return found

    def skip(self, rows: NDArray[np.void], until_s: float) -> None:
        """Take over what has been found in another way: the operations from now to `until_s`, when nobody waits."""
        self._recording.add(rows)
        self._begin(until_s)

    def _drive(self, flow: Flow) -> Generator[simpy.Event, Any, Any]:
        """Carry out one flow's operations one after another; gives what it returns, or the `Lost` that has ended it."""
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
                        result = yield from self._on_client(op) if op.node >= 0 else self._on_server(op)
                    elif isinstance(op, Send):
                        result = yield from self._send(op)
                    elif isinstance(op, Par):
                        result = yield from self._par(op)
                    elif isinstance(op, Read):
                        result = self.executor.read(op.value)
                        if result is not None:
                            self._reads.append(result)
                    elif isinstance(op, Wait):
                        result = yield from self._awaiting.wait(op)
                    elif isinstance(op, Start):
                        self.env.process(self._drive(op.flow))
                    elif isinstance(op, Occur):
                        self._awaiting.occur(op.event)
                    elif isinstance(op, Expect):
                        self._server.rank(op.state.guard, *self.policy(op.jobs, self.round))
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
        while not (there := [c for c in op.clients if presence[c].there(self.env.now)]):
            again_s = min(presence[c].again_s(self.env.now) for c in op.clients)
            if again_s == inf:
                raise StuckError(f"round {self.round} waits for clients, none of whom ever comes")
            yield self.env.timeout(again_s - self.env.now)
        return there

    def _on_client(self, op: On) -> Generator[simpy.Event, Any, Value]:
        env, node = self.env, op.node
        requested_s = env.now
        macs, service_s = self.prices.service(op)
        started_s, lasts_s, lost_s = self._own.compute(node, requested_s, service_s)
        result = op.step.out(op.state, *op.args)
        if lost_s < inf:
            yield from self._until(lost_s)
            macs *= self.prices.worked_share(node, started_s, lost_s, lasts_s)
            row = ("client", op.step.name, self.round, result.step, node, requested_s, started_s, env.now, macs, 0)
            self._server.lose(node)
            raise self._lose(node, lost_s, row)
        if started_s > requested_s:
            yield env.timeout(started_s - requested_s)
            started_s = env.now
        result.maker = node
        result.content = self.executor.run(op)
        if lasts_s:
            yield env.timeout(lasts_s)
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
        lost_s = self.losses.at_s(client, requested_s) if self.losses.are_possible else inf
        if lost_s < inf:
            self._watch(client, lost_s)
        try:
            yield (self._server if op.node == SERVER else self._aggregator).serve(job)
        except Lost:
            now_s = self.env.now
            row = (node, op.step.name, self.round, result.step, client, requested_s, now_s, now_s, 0.0, 0)
            raise self._lose(client, lost_s, row) from None
        row = (node, op.step.name, self.round, result.step, client, requested_s, job.started_s, self.env.now, macs, 0)
        if lost_s < self.env.now:
            raise self._lose(client, lost_s, row)
        self._rows.append(row)
        return result

    def _send(self, op: Send) -> Generator[simpy.Event, Any, Value]:
        src, dst = op.src, op.dst
        payload = self.executor.snapshot(op.payload)
        if is_local(src, dst):
            return payload
        started_s = requested_s = self.env.now
        if self.prices.travels(payload):
            if self._shared is not None:
                return (yield from self._send_shared(op, payload))
            started_s, lasts_s, lost_s = self._own.move(src, dst, requested_s, payload.size_bytes)
            if lost_s < inf:
                yield from self._until(lost_s)
                moved_bytes = min(self.prices.moved_bytes(src, dst, started_s, lost_s), payload.size_bytes)
                raise self._lose_message(op, payload, requested_s, started_s, lost_s, moved_bytes)
            yield self.env.timeout((started_s - requested_s) + lasts_s)
        self._rows.append(self._message(op, payload, requested_s, started_s, payload.size_bytes))
        return payload

    def _send_shared(self, op: Send, payload: Value) -> Generator[simpy.Event, Any, Value]:
        """Over links that others share: how long it takes turns out on the way."""
        assert self._shared is not None
        src, dst, requested_s = op.src, op.dst, self.env.now
        lost_s = self.losses.message_at_s(src, dst, requested_s)
        started_s, moved_bytes = yield from self._shared.transfer(src, dst, payload.size_bytes, lost_s)
        latency_s = self.prices.latency_s(src, dst)
        if moved_bytes < payload.size_bytes or self.env.now + latency_s > lost_s:
            yield from self._until(lost_s)
            raise self._lose_message(op, payload, requested_s, started_s, lost_s, moved_bytes)
        if latency_s:
            yield self.env.timeout(latency_s)
        self._rows.append(self._message(op, payload, requested_s, started_s, payload.size_bytes))
        return payload

    def _message(
        self, op: Send, payload: Value, requested_s: float, started_s: float, moved_bytes: float
    ) -> tuple[Any, ...]:
        """The row of a message that has ended now."""
        link, client = link_of(op.src, op.dst)
        return (link, payload.kind, self.round, payload.step, client, requested_s, started_s, self.env.now, 0.0,
                int(moved_bytes))  # fmt: skip

    def _lose_message(
        self, op: Send, payload: Value, requested_s: float, started_s: float, lost_s: float, moved_bytes: float
    ) -> Lost:
        ends = [client for client in (op.dst, op.src) if client >= 0]  # the sender has done its part
        client = min(ends, key=lambda client: self.losses.at_s(client, requested_s))
        self._server.lose(client)
        return self._lose(client, lost_s, self._message(op, payload, requested_s, started_s, moved_bytes))

    def _lose(self, client: int, lost_s: float, row: tuple[Any, ...]) -> Lost:
        """What to throw into the flow that asked for the operation of this `row`."""
        node, kind, round, step = row[:4]
        self._rows.append(row)
        self._lost.append(Dropout(round, client, lost_s, node, kind, step, self.losses.cause))
        self._n_lost += 1
        if self._n_lost > LOSSES_A_CLIENT * len(self.prices.fleet.macs_per_s):
            raise StuckError(f"round {round} has lost {self._n_lost} operations and does not end: stays are too short")
        return Lost(client)

    def _until(self, at_s: float) -> Iterator[simpy.Event]:
        if at_s > self.env.now:
            yield self.env.timeout(at_s - self.env.now)

    def _watch(self, client: int, lost_s: float) -> None:
        """Take the client's jobs that still wait then out of the server's queue: one event, however many they are."""
        if self._watched_s.get(client) != lost_s:
            self._watched_s[client] = lost_s
            self.env.timeout(lost_s - self.env.now).callbacks.append(partial(self._look_after, client))

    def _look_after(self, client: int, _: simpy.Event) -> None:
        """A round may have ended meanwhile, and its deadline with it; and clocks are off by a bit."""
        watched_s, lost_s = self._watched_s.pop(client, None), self.losses.at_s(client, self.env.now)
        if lost_s <= self.env.now:
            self._server.lose(client)
        elif lost_s == watched_s:
            self._watch(client, lost_s)

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
        lines += [f"somebody waits for {event.about}" for event in self._awaiting.events]
        ended_s = self._recording.last_end_s(self.now_s)  # patience may have ended later
        return f"round {self.round} is stuck at {ended_s:.3f} s: " + ("; ".join(lines) or "no operation is pending")


def _survived(value: Any) -> Any:
    """What a flow has returned; raises the `Lost` that has ended it instead."""
    if isinstance(value, Lost):
        raise value
    return value


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
