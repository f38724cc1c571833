"""Operations in simulated time: which device, links or server they occupy, for how long, and which are lost."""

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from struct import Struct
from typing import Any, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import NORMAL

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import Lost, On, Read, Send, ServerNode, Value, aggregator_of
from sfl_sim.sim.branch import WAITS, Branch, Callbacks
from sfl_sim.sim.dropouts import Dropout, Dropouts
from sfl_sim.sim.nodes import client_of, maker_of, owner
from sfl_sim.sim.prices import ClientResources, Prices
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.sim.shared_links import SharedLinks
from sfl_sim.sim.station import Job, Station
from sfl_sim.store.columns import OP_DTYPE, in_order
from sfl_sim.store.places import DEVICE, NOBODY
from sfl_sim.system.presence import Presence

MAX_LOSSES, MAX_LOSSES_A_CLIENT = 10_000, 100
"""Lost operations in a round, in all and on average per client, beyond which clients stay too briefly for it to end."""


OperationRow = tuple[bytes, bytes, int, int, int, float, float, float, float, int]
"""One operation, in the order of `OP_DTYPE`."""

row_bytes = Struct("=10s24siiiddddq").pack
"""Give the bytes of a `OperationRow` in an array of `OP_DTYPE`."""


class Recording:
    """The records of one clock since they were last taken.

    Attributes:
        rows: the operations, as the bytes of an `OP_DTYPE` array: no Python object is kept of an operation.
        reads: the numbers that flows have read, in the order of reading.
        dropouts: the operations that were lost, in the order in which they were.
    """

    def __init__(self) -> None:
        self.reads: list[float] = []
        self.dropouts: list[Dropout] = []
        self.rows = bytearray()
        self._added: list[NDArray[np.void]] = []

    def take(self) -> NDArray[np.void]:
        """Give all operations since the last call, as an `OP_DTYPE` array in order of their end."""
        parts = [rows for rows in self._parts() if len(rows)]
        rows = in_order(parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, OP_DTYPE)]))
        self.rows, self._added = bytearray(), []
        return rows

    def take_reads(self) -> list[float]:
        """Give the numbers that flows have read since the last call."""
        reads, self.reads = self.reads, []
        return reads

    def take_dropouts(self) -> list[Dropout]:
        """Give the operations that were lost since the last call."""
        dropouts, self.dropouts = self.dropouts, []
        return dropouts

    def add(self, rows: NDArray[np.void]) -> None:
        """Add `rows` that the array clock has timed."""
        self._added.append(rows)

    def last_end_s(self, otherwise_s: float) -> float:
        """Give the end of the last operation; `otherwise_s` if there is none."""
        return max((float(rows["ended_s"].max()) for rows in self._parts() if len(rows)), default=otherwise_s)

    def _parts(self) -> list[NDArray[np.void]]:
        return [*self._added, np.frombuffer(self.rows, OP_DTYPE)]


class Executor(Protocol):
    """Carries operations out; called in simulated-time order.

    Attributes:
        computes: False if it runs no step, so that nothing depends on the order of its calls.
    """

    computes: bool

    @property
    def name(self) -> str:
        """Name of the way in which it does."""

    def run(self, op: On) -> Any:
        """Give the content of the operation's result."""

    def snapshot(self, payload: Value) -> Value:
        """Give the value that the receiver of `payload` holds."""

    def read(self, value: Value) -> float | None:
        """Give the number in `value`; None if it is not known."""

    def finish(self) -> None:
        """Complete the work that is left at the end of a round."""


TierLinks = tuple[ClientResources, SharedLinks | None]


def links_by_tier(env: simpy.Environment, resources: ClientResources) -> dict[str, TierLinks]:
    """Return the resources and shared links that messages upwards from each tier take; '' stands for clients."""
    by_tier = {"": resources}
    for name, tier in resources.prices.fleet.tiers.items():
        prices = Prices(tier.servers, resources.prices.include_model_exchange)
        by_tier[name] = ClientResources(prices, Dropouts(), 0)
    shared: dict[int, SharedLinks] = {}  # by topology, which tiers may have in common
    for of_tier in by_tier.values():
        if (topology := of_tier.prices.fleet.topology) is not None and id(topology) not in shared:
            shared[id(topology)] = SharedLinks(env, topology, lambda link, s: by_tier[link.tier].prices.pieces(link, s))
    return {name: (of_tier, shared.get(id(of_tier.prices.fleet.topology))) for name, of_tier in by_tier.items()}


class Operations:
    """Carries operations out in one SimPy environment, and records every one of them.

    A device and a link serve one operation at a time, in the order of request; they stand still while their client is
    away, unless that loses the operation. A server serves as its station says; the aggregator has as many workers as
    it needs, at the server's rate.

    An operation gives its result, or `WAITS` if the flow has to wait for it: `go_on` then gets the result, or what has
    been lost. An operation that is lost at once raises `Lost`.

    Args:
        env: the event loop.
        executor: carries out what operations compute.
        prices: durations of operations.
        resources: the clients' devices and links, and the rule of their dropouts.
        servers: the stations of servers, where jobs wait for a worker until their client is lost.
        records: receives a row for every operation, and the lost operations.
        after_job: called with each operation at these servers after its step has run.
        go_on: lets a branch go on that has waited for an operation.

    Attributes:
        round: number of the round that records belong to.
    """

    def __init__(
        self,
        env: simpy.Environment,
        executor: Executor,
        prices: Prices,
        resources: ClientResources,
        servers: Mapping[ServerNode, Station | ServingStation],
        records: Recording,
        after_job: list[Callable[[On], None]],
        go_on: Callable[..., None],
    ) -> None:
        self.env = env
        self.executor = executor
        self.resources = resources
        self.servers = servers
        averaging = Station(env, inf)
        self._station_of = {**servers, **{aggregator_of(node): averaging for node in servers}}
        self.records = records
        self.after_job = after_job
        self.go_on = go_on
        self.prices = prices
        self.dropouts = resources.dropouts
        self._links = prices.nodes.links
        self._links_by_tier = links_by_tier(env, resources)
        stays = ((tier.nodes, tier.servers.presence or ()) for tier in prices.fleet.tiers.values())
        self._up = {node: up for nodes, ups in stays for node, up in zip(nodes, ups, strict=False)}
        self._up |= {aggregator_of(node): up for node, up in self._up.items()}
        self._watched_s: dict[int, float] = {}
        self._n_lost = 0
        self.round = 0
        self._device_free: Callbacks = [self._start_late]
        self._computed: Callbacks = [self._end_step]
        self._arrived: Callbacks = [self._end_message]

    def begin_round(self, round: int, in_round: bool = True) -> None:
        """Count operations to this round from now on; without `in_round`, every client counts as present."""
        self.round, self._n_lost = round, 0
        self.dropouts.begin(float(self.env.now), in_round)
        self.resources.prices = self.prices if in_round else self.prices.of_all_present

    def on(self, branch: Branch, op: On) -> Any:
        """Run a step on a client's device, or bring it to the station of another node."""
        node, requested_s = op.node, self.env.now
        branch.requested_s = requested_s
        branch.macs, service_s, branch.result = self.prices.look_up(op)
        if isinstance(node, ServerNode):
            return self._bring(branch, self._station_of[node], service_s)
        branch.result.maker = node
        started_s, lasts_s, lost_s = self.resources.compute(node, requested_s, service_s)
        branch.started_s, branch.lasts_s = started_s, lasts_s
        if lost_s < inf:
            return self._until(lost_s, branch, partial(self._lose_step, branch, lost_s))
        if started_s > requested_s:
            branch.callbacks = self._device_free
            self.env.schedule(branch, NORMAL, started_s - requested_s)
            return WAITS
        return self._start(branch)

    def _start_late(self, branch: Branch) -> None:
        branch.started_s = self.env.now
        self.go_on(branch, self._start(branch))

    def _start(self, branch: Branch) -> Any:
        """Start a step on a device that is free."""
        branch.result.content = self.executor.run(branch.op)
        if not branch.lasts_s:
            self.records.rows += row_bytes(*self._step(branch, branch.op.node, DEVICE))
            return branch.result
        branch.callbacks = self._computed
        self.env.schedule(branch, NORMAL, branch.lasts_s)
        return WAITS

    def _end_step(self, branch: Branch) -> None:
        self.records.rows += row_bytes(*self._step(branch, branch.op.node, DEVICE))
        self.go_on(branch, branch.result)

    def _step(self, branch: Branch, client: int, node: str) -> OperationRow:
        """Make the row of a step that has ended now, on a client's device or as its job at a server."""
        return (node.encode(), branch.op.step.name.encode(), self.round, branch.result.step, client,
                branch.requested_s, branch.started_s, self.ended_s(branch), branch.macs, 0)  # fmt: skip

    def _lose_step(self, branch: Branch, lost_s: float) -> Lost:
        client = branch.op.node
        branch.macs *= self.prices.worked_share(client, branch.started_s, lost_s, branch.lasts_s)
        self._leave(client)
        return self._lose(client, lost_s, self._step(branch, client, DEVICE))

    def _leave(self, client: int) -> None:
        """Lose the jobs with which a client waits at the servers."""
        for station in self.servers.values():
            station.lose(client)

    def _bring(self, branch: Branch, station: Station | ServingStation, service_s: float) -> Any:
        """Bring a job to a station, which serves it once a worker is free and the order allows."""
        client = client_of(branch.op)
        branch.result.maker = maker_of(branch.op)
        job = Job(
            client,
            branch.op.state.guard,
            arrived_s=branch.requested_s,
            service_s=service_s,
            customer=self,
            branch=branch,
        )
        branch.started_s = branch.lost_s = inf
        if self.dropouts.are_possible and client != NOBODY:
            branch.lost_s = lost_s = self.dropouts.at_s(client, branch.requested_s)
            if lost_s < inf:
                self._watch(client, lost_s)
        station.serve(job)
        return WAITS

    def begin(self, job: Job) -> None:
        """Run the step of a job whose turn has come."""
        branch = job.branch
        op, branch.started_s = branch.op, job.started_s
        if self._up and op.node in self._up:  # what the server does stands still while it is down
            job.service_s = self._up[op.node].done_s(job.started_s, job.service_s) - job.started_s
        try:
            branch.result.content = self.executor.run(op)
        except Exception as error:  # whose traceback then names the line that yielded the operation
            branch.flow.throw(error)
            raise
        for look in self.after_job:
            if op.node in self.servers:
                look(op)

    def served(self, job: Job) -> None:
        """Record a job that has ended, and go on; its client may have gone away meanwhile."""
        branch = job.branch
        row = self._step(branch, job.client, _name(branch.op.node))
        if branch.lost_s < self.env.now:
            self.go_on(branch, error=self._lose(job.client, branch.lost_s, row))
        else:
            self.records.rows += row_bytes(*row)
            self.go_on(branch, branch.result)

    def lost(self, job: Job) -> None:
        """Record a job that will not be served, because its client has gone away."""
        branch = job.branch
        branch.started_s, branch.macs = self.env.now, 0.0
        row = self._step(branch, job.client, _name(branch.op.node))
        self.go_on(branch, error=self._lose(job.client, branch.lost_s, row))

    def send(self, branch: Branch, op: Send) -> Any:
        """Move a payload over the link between two nodes."""
        link = self._links[op.src, op.dst]
        payload = self.executor.snapshot(op.payload)
        if link is None:
            return payload
        requested_s = self.env.now
        if link.tier:
            link = link._replace(client=owner(payload))
        branch.link, branch.result, branch.requested_s, branch.started_s = link, payload, requested_s, requested_s
        if not self.prices.travels(payload):
            self.records.rows += row_bytes(*self._message(branch, payload.size_bytes))
            return payload
        resources, shared = self._links_by_tier[link.tier]
        if shared is not None:
            return self._share(shared, branch)
        started_s, lasts_s, lost_s = resources.move(link, requested_s, payload.size_bytes)
        branch.started_s = started_s
        if lost_s < inf:
            return self._until(lost_s, branch, partial(self._lose_moved, branch, lost_s))
        branch.callbacks = self._arrived
        self.env.schedule(branch, NORMAL, (started_s - requested_s) + lasts_s)
        return WAITS

    def _end_message(self, branch: Branch) -> None:
        self.records.rows += row_bytes(*self._message(branch, branch.result.size_bytes))
        self.go_on(branch, branch.result)

    def _message(self, branch: Branch, moved_bytes: float) -> OperationRow:
        """Make the row of a message that has ended now."""
        payload, link = branch.result, branch.link
        return (link.place.encode(), payload.kind.encode(), self.round, payload.step, link.client,
                branch.requested_s, branch.started_s, self.ended_s(branch), 0.0, int(moved_bytes))  # fmt: skip

    def ended_s(self, branch: Branch) -> float:
        """Return the instant at which the operation of a branch, or what is left of it, has ended: now."""
        return self.env.now

    def read(self, _: Branch, op: Read) -> Any:
        """Give the number in a value, which is recorded."""
        number = self.executor.read(op.value)
        if number is not None:
            self.records.reads.append(number)
        return number

    def _lose_moved(self, branch: Branch, lost_s: float) -> Lost:
        size_bytes = branch.result.size_bytes
        moved_bytes = self.prices.moved_bytes(branch.link, branch.started_s, lost_s)
        moved_bytes *= size_bytes / (self.prices.wire_bytes(size_bytes) or 1)
        return self._lose_message(branch, lost_s, min(moved_bytes, size_bytes))

    def _share(self, shared: SharedLinks, branch: Branch) -> Any:
        """Move a payload over shared links: its duration depends on the other messages."""
        resources, _ = self._links_by_tier[branch.link.tier]
        branch.lost_s = resources.dropouts.message_at_s(branch.link.ends, branch.requested_s)
        wire_bytes = resources.prices.wire_bytes(branch.result.size_bytes)
        latency_s = resources.prices.latency_s(branch.link) + shared.latency_s(branch.link)
        passed = partial(self._passed, branch, wire_bytes, latency_s)
        shared.transfer(branch.link, wire_bytes, passed, branch.lost_s)
        return WAITS

    def _passed(
        self, branch: Branch, wire_bytes: float, latency_s: float, started_s: float, moved_bytes: float
    ) -> None:
        """Go on after the bytes of a message, or those that could be moved, have passed shared links."""
        lost_s, size_bytes, branch.started_s = branch.lost_s, branch.result.size_bytes, started_s
        if moved_bytes < wire_bytes or self.env.now + latency_s > lost_s:
            lose = partial(self._lose_message, branch, lost_s, moved_bytes * (size_bytes / (wire_bytes or 1)))
            branch.callbacks = [lambda _: self.go_on(branch, error=lose())]
            self.env.schedule(branch, NORMAL, max(0.0, lost_s - self.env.now))
        elif latency_s:
            branch.callbacks = self._arrived
            self.env.schedule(branch, NORMAL, latency_s)
        else:
            self._end_message(branch)

    def _until(self, lost_s: float, branch: Branch, lose: Callable[[], Lost]) -> Any:
        """Let the branch wait for the instant at which its operation is lost."""
        if lost_s <= self.env.now:
            raise lose()
        branch.callbacks = [lambda _: self.go_on(branch, error=lose())]
        self.env.schedule(branch, NORMAL, lost_s - self.env.now)
        return WAITS

    def _lose_message(self, branch: Branch, lost_s: float, moved_bytes: float) -> Lost:
        ends = branch.link.ends  # the receiver first: the sender has done its part
        client = min(ends, key=lambda client: self.dropouts.at_s(client, branch.requested_s))
        self._leave(client)
        return self._lose(client, lost_s, self._message(branch, moved_bytes))

    def _lose(self, client: int, lost_s: float, row: OperationRow) -> Lost:
        """Record that the operation of this `row` is lost; gives the error to throw into the flow that yielded it.

        Raises ScenarioError if a round loses more than it can ever make good.
        """
        node, kind, round, step = row[0].decode(), row[1].decode(), *row[2:4]
        self.records.rows += row_bytes(*row)
        self.records.dropouts.append(Dropout(round, client, lost_s, node, kind, step, self.dropouts.cause(client)))
        self._n_lost += 1
        if self._n_lost > max(MAX_LOSSES, MAX_LOSSES_A_CLIENT * len(self.prices.fleet.macs_per_s)):
            raise ScenarioError(
                f"stays are too short: round {round} has lost {self._n_lost:,} operations by {lost_s:.6g} s and does "
                "not end; clients must stay for as long as they take to train and to send",
                key=Presence.key,
            )
        return Lost(client)

    def overtake(self, client: int, branch: Branch) -> Lost | None:
        """Lose the operation for which a branch waits, if its device or a link of `client` carries it out; else gives
        None, and a job of the client at a server is lost by `leave`, or when its service has ended.
        """
        op, now_s = branch.op, self.env.now
        if isinstance(op, On):
            if client_of(op) != client:
                return None
            if isinstance(op.node, ServerNode):
                branch.lost_s = now_s
                return None
            branch.started_s = min(branch.started_s, now_s)
            return self._lose_step(branch, now_s)
        if branch.link.tier or client not in branch.link.ends:
            return None
        branch.started_s = min(branch.started_s, now_s)
        return self._lose_moved(branch, now_s)

    def lose_waiting(self, client: int) -> None:
        """Record that a client is lost that does nothing but wait for others, as an operation of no time."""
        now_s = self.env.now
        row = DEVICE.encode(), b"wait", self.round, -1, client, now_s, now_s, now_s, 0.0, 0
        self._lose(client, now_s, row)

    def leave(self, client: int) -> None:
        """Let a client that has been overtaken stop what it does, and lose its jobs that wait at servers."""
        self.resources.stop(client, self.env.now)
        self._leave(client)

    def _watch(self, client: int, lost_s: float) -> None:
        """Schedule one event at `lost_s` that removes the client's waiting jobs from the servers' queues."""
        if self._watched_s.get(client) != lost_s:
            self._watched_s[client] = lost_s
            self.env.timeout(lost_s - self.env.now).callbacks.append(partial(self._look_after, client, lost_s))

    def _look_after(self, client: int, watched_s: float, _: simpy.Event) -> None:
        """Lose the client's jobs, unless the round has ended; watch again if the clock's rounding came too early."""
        if self._watched_s.get(client) != watched_s:
            return  # a watch of a later round has replaced this watch
        del self._watched_s[client]
        lost_s = self.dropouts.at_s(client, self.env.now)
        if lost_s <= self.env.now:
            self._leave(client)
        elif lost_s == watched_s:
            self._watch(client, lost_s)

    def under_way(self, branch: Branch) -> OperationRow:
        """Make the row of the operation for which a branch waits, as if it ended now; of no MACs and no bytes yet."""
        op = branch.op
        if isinstance(op, Send):
            row = self._message(branch, 0)
        else:
            row = self._step(branch, client_of(op), _name(op.node) if isinstance(op.node, ServerNode) else DEVICE)
        *which, started_s, now_s, _, _ = row
        return *which, min(started_s, now_s), now_s, 0.0, 0  # type: ignore[return-value]


def _name(node: ServerNode) -> str:
    """Give the name of a server in records; that of the main one at once."""
    return node.name if node.number else node.role
