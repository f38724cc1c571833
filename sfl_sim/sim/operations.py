"""Operations in simulated time: which device, links or server they occupy, for how long, and which are lost."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from math import inf
from typing import Any, Protocol

import simpy

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, Lost, On, Send, Value
from sfl_sim.sim.client_resources import ClientResources
from sfl_sim.sim.dropouts import Dropout
from sfl_sim.sim.prices import Prices, is_local, link_of, place_of
from sfl_sim.sim.recording import Recording
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.sim.shared_links import SharedLinks
from sfl_sim.sim.station import Job, Station
from sfl_sim.system.presence import Presence

MAX_LOSSES, MAX_LOSSES_A_CLIENT = 10_000, 100
"""Lost operations in a round, in all and on average per client, beyond which clients stay too briefly for it to end."""

Row = tuple[Any, ...]
"""One operation, in the order of `OP_DTYPE`."""


class Executor(Protocol):
    """Carries operations out; called in simulated-time order."""

    def run(self, op: On) -> Any:
        """Give the content of the operation's result."""

    def snapshot(self, payload: Value) -> Value:
        """Give the value that the receiver of `payload` holds."""

    def read(self, value: Value) -> float | None:
        """Give the number in `value`; None if it is not known."""

    def finish(self) -> None:
        """Complete the work that is left at the end of a round."""


class Operations:
    """Carries operations out in one SimPy environment, and records every one of them.

    A device and a link serve one operation at a time, in the order of request; they stand still while their client is
    away, unless that loses the operation. The server serves as its station says; the aggregator has as many workers as
    it needs, at the server's rate.

    Args:
        env: the event loop.
        executor: carries out what operations compute.
        prices: durations of operations.
        resources: the clients' devices and links, and the rule of their dropouts.
        server: where jobs wait for a worker.
        records: receives a row for every operation, and the lost operations.
        after_job: called with each operation at the server after its step has run.

    Attributes:
        round: number of the round that records belong to.
    """

    def __init__(
        self,
        env: simpy.Environment,
        executor: Executor,
        prices: Prices,
        resources: ClientResources,
        server: Station | ServingStation,
        records: Recording,
        after_job: list[Callable[[On], None]],
    ) -> None:
        self.env = env
        self.executor = executor
        self.resources = resources
        self.server = server
        self.aggregator = Station(env, inf)
        self.records = records
        self.after_job = after_job
        self.prices = prices
        self.dropouts = resources.dropouts
        topology = prices.fleet.topology
        self._shared = None if topology is None else SharedLinks(env, topology, resources.pieces)
        self._watched_s: dict[int, float] = {}
        self._n_lost = 0
        self.round = 0

    def begin_round(self, round: int, in_round: bool = True) -> None:
        """Count operations to this round from now on; without `in_round`, every client counts as present."""
        self.round, self._n_lost = round, 0
        self.dropouts.begin(float(self.env.now), in_round)
        self.resources.prices = self.prices if in_round else self.prices.of_all_present

    def on_client(self, op: On) -> Generator[simpy.Event, Any, Value]:
        """Run a step on a client's device. Raises Lost."""
        env, node = self.env, op.node
        requested_s = env.now
        macs, service_s = self.prices.service(op)
        started_s, lasts_s, lost_s = self.resources.compute(node, requested_s, service_s)
        result = op.step.out(op.state, *op.args)
        if lost_s < inf:
            yield from self._until(lost_s)
            macs *= self.prices.worked_share(node, started_s, lost_s, lasts_s)
            row = ("client", op.step.name, self.round, result.step, node, requested_s, started_s, env.now, macs, 0)
            self.server.lose(node)
            raise self._lose(node, lost_s, row)
        if started_s > requested_s:
            yield env.timeout(started_s - requested_s)
            started_s = env.now
        result.maker = node
        result.content = self.executor.run(op)
        if lasts_s:
            yield env.timeout(lasts_s)
        self.records.rows.append(
            ("client", op.step.name, self.round, result.step, node, requested_s, started_s, env.now, macs, 0)
        )
        return result

    def on_server(self, op: On) -> Generator[simpy.Event, Any, Value]:
        """Run a step at the server or the aggregator, once a worker is free and the order allows. Raises Lost."""
        requested_s = self.env.now
        macs, service_s = self.prices.service(op)
        result = op.step.out(op.state, *op.args)
        result.maker = op.node
        node, client = place_of(op)

        def begin() -> None:
            result.content = self.executor.run(op)
            if op.node == SERVER:
                for look in self.after_job:
                    look(op)

        job = Job(client, op.state.guard, requested_s, service_s, begin, op)
        lost_s = self.dropouts.at_s(client, requested_s) if self.dropouts.are_possible else inf
        if lost_s < inf:
            self._watch(client, lost_s)
        try:
            yield (self.server if op.node == SERVER else self.aggregator).serve(job)
        except Lost:
            now_s = self.env.now
            row = (node, op.step.name, self.round, result.step, client, requested_s, now_s, now_s, 0.0, 0)
            raise self._lose(client, lost_s, row) from None
        row = (node, op.step.name, self.round, result.step, client, requested_s, job.started_s, self.env.now, macs, 0)
        if lost_s < self.env.now:
            raise self._lose(client, lost_s, row)
        self.records.rows.append(row)
        return result

    def send(self, op: Send) -> Generator[simpy.Event, Any, Value]:
        """Move a payload over the links between two nodes. Raises Lost."""
        src, dst = op.src, op.dst
        payload = self.executor.snapshot(op.payload)
        if is_local(src, dst):
            return payload
        started_s = requested_s = self.env.now
        if self.prices.travels(payload):
            if self._shared is not None:
                return (yield from self._send_shared(self._shared, op, payload))
            started_s, lasts_s, lost_s = self.resources.move(src, dst, requested_s, payload.size_bytes)
            if lost_s < inf:
                yield from self._until(lost_s)
                moved_bytes = min(self.prices.moved_bytes(src, dst, started_s, lost_s), payload.size_bytes)
                raise self._lose_message(op, payload, requested_s, started_s, lost_s, moved_bytes)
            yield self.env.timeout((started_s - requested_s) + lasts_s)
        self.records.rows.append(self._message(op, payload, requested_s, started_s, payload.size_bytes))
        return payload

    def _send_shared(self, links: SharedLinks, op: Send, payload: Value) -> Generator[simpy.Event, Any, Value]:
        """Move a payload over shared links: its duration depends on the other messages."""
        src, dst, requested_s = op.src, op.dst, self.env.now
        lost_s = self.dropouts.message_at_s(src, dst, requested_s)
        started_s, moved_bytes = yield from links.transfer(src, dst, payload.size_bytes, lost_s)
        latency_s = self.prices.latency_s(src, dst)
        if moved_bytes < payload.size_bytes or self.env.now + latency_s > lost_s:
            yield from self._until(lost_s)
            raise self._lose_message(op, payload, requested_s, started_s, lost_s, moved_bytes)
        if latency_s:
            yield self.env.timeout(latency_s)
        self.records.rows.append(self._message(op, payload, requested_s, started_s, payload.size_bytes))
        return payload

    def _message(self, op: Send, payload: Value, requested_s: float, started_s: float, moved_bytes: float) -> Row:
        """Make the row of a message that has ended now."""
        link, client = link_of(op.src, op.dst)
        return (link, payload.kind, self.round, payload.step, client, requested_s, started_s, self.env.now, 0.0,
                int(moved_bytes))  # fmt: skip

    def _lose_message(
        self, op: Send, payload: Value, requested_s: float, started_s: float, lost_s: float, moved_bytes: float
    ) -> Lost:
        ends = [client for client in (op.dst, op.src) if client >= 0]  # the sender has done its part
        client = min(ends, key=lambda client: self.dropouts.at_s(client, requested_s))
        self.server.lose(client)
        return self._lose(client, lost_s, self._message(op, payload, requested_s, started_s, moved_bytes))

    def _lose(self, client: int, lost_s: float, row: Row) -> Lost:
        """Record that the operation of this `row` is lost; gives the error to throw into the flow that yielded it.

        Raises ScenarioError if a round loses more than it can ever make good.
        """
        node, kind, round, step = row[:4]
        self.records.rows.append(row)
        self.records.dropouts.append(Dropout(round, client, lost_s, node, kind, step, self.dropouts.cause))
        self._n_lost += 1
        if self._n_lost > max(MAX_LOSSES, MAX_LOSSES_A_CLIENT * len(self.prices.fleet.macs_per_s)):
            raise ScenarioError(
                f"stays are too short: round {round} has lost {self._n_lost:,} operations by {lost_s:.6g} s and does "
                "not end; clients must stay for as long as they take to train and to send",
                key=Presence.key,
            )
        return Lost(client)

    def _until(self, at_s: float) -> Iterator[simpy.Event]:
        if at_s > self.env.now:
            yield self.env.timeout(at_s - self.env.now)

    def _watch(self, client: int, lost_s: float) -> None:
        """Schedule one event at `lost_s` that removes the client's waiting jobs from the server's queue."""
        if self._watched_s.get(client) != lost_s:
            self._watched_s[client] = lost_s
            self.env.timeout(lost_s - self.env.now).callbacks.append(partial(self._look_after, client))

    def _look_after(self, client: int, _: simpy.Event) -> None:
        """Lose the client's jobs, unless the round has ended; watch again if the clock's rounding came too early."""
        watched_s, lost_s = self._watched_s.pop(client, None), self.dropouts.at_s(client, self.env.now)
        if lost_s <= self.env.now:
            self.server.lose(client)
        elif lost_s == watched_s:
            self._watch(client, lost_s)
