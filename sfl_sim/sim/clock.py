"""The event loop: drives flows in simulated time, prices their operations, and records every one of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from sfl_sim.errors import StuckError
from sfl_sim.ops import AGGREGATOR, NODE_NAMES, SERVER, Expect, Flow, On, Par, Read, Send, State, Value
from sfl_sim.records import OP_DTYPE
from sfl_sim.rng import stream
from sfl_sim.sim.orders import Order, Roster
from sfl_sim.sim.station import Job, Station
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import joint_finish_s


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

    A device and a link serve one operation at a time, in the order of request. The server serves as `Station` says; so
    does the aggregator, with as many lanes as it needs, at the server's rate.

    Args:
        fleet: rates of devices, links and server.
        executor: carries the operations out.
        order: makes each round's order policy for states that a flow `expect`s jobs on.
        workers: lanes of the server.
        burst: consecutive jobs of a chosen client.
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
        burst: float = 1,
        seed: int = 0,
        include_model_exchange: bool = True,
    ) -> None:
        self.env = simpy.Environment()
        self.fleet = fleet
        self.executor = executor
        self.order = order
        self.burst = burst
        self.seed = seed
        self.include_model_exchange = include_model_exchange
        self.stations = {SERVER: Station(self.env, workers), AGGREGATOR: Station(self.env, float("inf"))}
        self.round = 0
        n = len(fleet.macs_per_s)
        self._device_free_s = [0.0] * n
        self._uplink_free_s = [0.0] * n
        self._downlink_free_s = [0.0] * n
        self._rows: list[tuple[Any, ...]] = []

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return float(self.env.now)

    def run(self, flow: Flow, round: int) -> Any:
        """Run `flow` as round number `round` (from 1) until it returns, and give what it returns.

        Raises StuckError if nothing can happen any more although flows wait.
        """
        self.round = round
        process = self.env.process(self._drive(flow))
        try:
            return self.env.run(process)
        except RuntimeError as error:
            if process.is_alive and self.env.peek() == float("inf"):
                raise StuckError(self._who_waits()) from error
            raise

    def take_rows(self) -> NDArray[np.void]:
        """The operations that have ended since the last call, as an `OP_DTYPE` array in order of their end."""
        rows = np.array(self._rows, dtype=OP_DTYPE)
        self._rows.clear()
        return rows

    def _drive(self, flow: Flow) -> Generator[simpy.Event, Any, Any]:
        """Carry out one flow's operations one after another."""
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
            elif isinstance(op, Expect):
                result = None
                self._expect(op)
            else:
                raise TypeError(f"a flow yielded {op!r}, which is no operation")

    def _on_client(self, op: On) -> Generator[simpy.Event, Any, Value]:
        env, node = self.env, op.node
        requested_s = env.now
        macs = op.step.work(op.state, *op.args)
        service_s = macs / self.fleet.macs_per_s[node]
        free_s = self._device_free_s[node]
        if free_s > requested_s:
            self._device_free_s[node] = free_s + service_s
            yield env.timeout(free_s - requested_s)
        else:
            self._device_free_s[node] = requested_s + service_s
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
        env = self.env
        requested_s = env.now
        macs = op.step.work(op.state, *op.args)
        if op.step.aggregates and not self.include_model_exchange:
            macs = 0.0
        result = op.step.out(op.state, *op.args)
        result.maker = op.node
        client = _bringer(op)
        job = Job(client, op.state, requested_s, macs / self.fleet.server_macs_per_s)
        station = self.stations[op.node]
        yield station.request(job)
        started_s = env.now
        result.content = self.executor.run(op)
        if job.service_s:
            yield env.timeout(job.service_s)
        station.release(job)
        self._rows.append(
            (NODE_NAMES[op.node], op.step.name, self.round, result.step, client, requested_s, started_s, env.now,
             macs, 0)
        )  # fmt: skip
        return result

    def _send(self, op: Send) -> Generator[simpy.Event, Any, Value]:
        env, src, dst = self.env, op.src, op.dst
        payload = self.executor.snapshot(op.payload)
        if src == dst or (src < 0 and dst < 0):
            return payload
        requested_s = env.now
        size_bytes = payload.size_bytes
        if src < 0:
            link, client = "downlink", dst
        elif dst < 0:
            link, client = "uplink", src
        else:
            link, client = "peer", src
        if isinstance(payload, State) and not self.include_model_exchange:
            started_s = requested_s
        else:
            started_s, arrives_s = self._occupy(src, dst, requested_s, size_bytes)
            yield env.timeout(arrives_s - requested_s)
        self._rows.append(
            (
                link,
                payload.kind,
                self.round,
                payload.step,
                client,
                requested_s,
                started_s,
                env.now,
                0.0,
                size_bytes,
            )
        )
        return payload

    def _occupy(self, src: int, dst: int, now_s: float, size_bytes: int) -> tuple[float, float]:
        """Take the links from `src` to `dst` as soon as they are free; when sending starts, and when all is there."""
        fleet = self.fleet
        if src < 0:
            started_s = max(now_s, self._downlink_free_s[dst])
            left_s = self._downlink_free_s[dst] = fleet.downlinks[dst].finish_s(started_s, size_bytes)
            return started_s, left_s + fleet.latency_s[dst]
        if dst < 0:
            started_s = max(now_s, self._uplink_free_s[src])
            left_s = self._uplink_free_s[src] = fleet.uplinks[src].finish_s(started_s, size_bytes)
            return started_s, left_s + fleet.latency_s[src]
        started_s = max(now_s, self._uplink_free_s[src], self._downlink_free_s[dst])
        left_s = joint_finish_s([fleet.uplinks[src], fleet.downlinks[dst]], started_s, size_bytes)
        self._uplink_free_s[src] = self._downlink_free_s[dst] = left_s
        return started_s, left_s + fleet.latency_s[src] + fleet.latency_s[dst]

    def _expect(self, op: Expect) -> None:
        left = {client: jobs for client, jobs in op.jobs.items() if jobs}
        roster = Roster(list(left), left, self.burst, stream(self.seed, "order", self.round))
        self.stations[SERVER].rank(op.state, self.order(roster), left)

    def _who_waits(self) -> str:
        lines = []
        for clients, turn in self.stations[SERVER].waiting():
            held = "" if turn is None else f", which the order holds for client {turn}"
            named = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
            lines.append(f"client {named} waits for the server{held}")
        return f"round {self.round} is stuck at {self.now_s:.3f} s: " + ("; ".join(lines) or "no operation is pending")


def _bringer(op: On) -> int:
    """The client whose job it is: the maker of the first value that the step takes; -1 if no client made it."""
    for argument in op.args:
        if isinstance(argument, Value):
            return argument.maker if argument.maker is not None and argument.maker >= 0 else -1
    return -1
