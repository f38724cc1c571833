"""Prices of operations in one system, in seconds of devices, servers and links; and the clients' devices and links."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

from sfl_sim.errors import NonFiniteError
from sfl_sim.ops import Node, On, ServerNode, State, Step, Value, Work, describe, priced
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.nodes import Link, Nodes
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import Pieces, RateTrace, joint_transfer_s, moved_bytes, slowest
from sfl_sim.system.presence import Presence


class Computing(NamedTuple):
    """Demand for a node's time: `work` to compute, and `samples` to load from its own data."""

    node: Node
    work: Work
    samples: int = 0


class Moving(NamedTuple):
    """Demand for the time of a link: `size_bytes` to move."""

    link: Link
    size_bytes: int


class _Shapes(dict[type, "dict[Hashable, tuple[Work, str, int, int]] | None"]):
    """Work, and kind, bytes and samples of the result, by type and shape of a step; None for one without a shape."""

    def __missing__(self, kind: type) -> dict[Hashable, tuple[Work, str, int, int]] | None:
        last = next(base for base in kind.__mro__ if {"passes", "work", "out", "shape"} & vars(base).keys())
        known = self[kind] = {} if "shape" in vars(last) and last is not Step else None
        return known


@dataclass(frozen=True, slots=True)
class Prices:
    """The rates of a fleet, applied to operations.

    Attributes:
        fleet: rates of devices, links and server.
        include_model_exchange: False lets models and averages take no time (docs/methods/timing.md#links).
        nodes: the nodes of the fleet, and the links between them.
    """

    fleet: Fleet
    include_model_exchange: bool = True
    _shapes: _Shapes = field(default_factory=_Shapes, repr=False, compare=False)
    nodes: Nodes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", Nodes(self.fleet))

    def computing(self, op: On) -> tuple[Computing, Value]:
        """Give the operation's demand for computing, and its result.

        Raises ScenarioError if there is no such node, NonFiniteError if its work is no number of MACs.
        """
        self.nodes[op.node]
        work, result = self._work_and_result(op)
        if op.step.aggregates and not self.include_model_exchange:
            return Computing(op.node, Work.of(0)), result
        return Computing(op.node, work, self._samples(op)), result

    def look_up(self, op: On) -> tuple[float, float, Value]:
        """Give the MACs of the operation that count here, the seconds that its node computes for them, and its result.

        Raises ScenarioError if there is no such node, NonFiniteError if these are no numbers of MACs or of seconds.
        """
        processor = self.nodes[op.node]
        work, result = self._work_and_result(op)
        if op.step.aggregates and not self.include_model_exchange:
            return 0, 0.0, result
        service_s = processor.seconds(work)
        if sample_s := self.fleet.sample_s:
            service_s += self._samples(op) * sample_s
        if not 0 <= service_s < inf:
            raise NonFiniteError(f"{describe(op)} takes {service_s} s")
        return work.macs, service_s, result

    def _work_and_result(self, op: On) -> tuple[Work, Value]:
        """Give the operation's work and its result, which are asked of the step once for each shape."""
        if length := getattr(op.args[0], "length", 0) if op.args else 0:
            op = On(op.node, op.step, op.state.at(length), *op.args)
        step, shapes = op.step, self._shapes[type(op.step)]
        if shapes is None or (shape := step.shape(op.state, *op.args)) is None:
            work, result = _work(op), step.out(op.state, *op.args)
        else:
            if shape not in shapes:
                out = step.out(op.state, *op.args)
                shapes[shape] = _work(op), out.kind, out.size_bytes, out.samples
            work, kind, size_bytes, samples = shapes[shape]
            result = Value(kind, size_bytes, samples, op.args[0].step)
        result.length = length
        return work, result

    def _samples(self, op: On) -> int:
        """Count the node's own samples in the operation, which a client has to load."""
        if isinstance(op.node, ServerNode):
            return 0
        samples = 0
        for value in op.args:
            if isinstance(value, Value) and value.kind == "batch":
                samples += value.samples
        return samples

    def computing_s(self, node: Node, work: Work, samples: int) -> float:
        """Give the seconds for which a node computes `work`, after loading its own `samples`."""
        return self.nodes[node].seconds(work) + samples * self.fleet.sample_s

    def seconds(self, demand: Computing | Moving) -> float:
        """Give the duration of `demand` alone, in a system where no duration depends on its start."""
        if isinstance(demand, Computing):
            return self.computing_s(*demand)
        taken_s, latency_s = self.transfer_s(demand.link, 0.0, demand.size_bytes)
        return taken_s + latency_s

    def batch_s(self, ops: Sequence[On]) -> float:
        """Give the seconds of `ops` as one batch at their server: MACs of all, calls of layers of one."""
        works = [priced(op.step, op.state, *op.args) for op in ops]
        calls, weights = max(work.n_ops for work in works), max(work.weights for work in works)
        return self.nodes[ops[0].node].seconds(Work.total(works)._replace(n_ops=calls, weights=weights))

    def travels(self, payload: Value) -> bool:
        """Return True if sending `payload` from one node to another takes time.

        Raises NonFiniteError if its size is no number of bytes.
        """
        if not 0 <= payload.size_bytes < inf:
            raise NonFiniteError(f"{payload!r} cannot be sent: these are no bytes")
        return self.include_model_exchange or not isinstance(payload, State)

    def wire_bytes(self, size_bytes: float) -> float:
        """Give the bytes that a message of `size_bytes` puts on its link."""
        overhead = self.fleet.overhead
        if overhead is None or not size_bytes:
            return size_bytes
        return size_bytes * (1 + overhead.share) + overhead.message_bytes

    def transfer_s(self, link: Link, start_s: float, size_bytes: int, lost_s: float = inf) -> tuple[float, float]:
        """Give the seconds for which a message occupies its `link`, and the latency after them.

        Links stand still while their client is away. The seconds may be infinite if they would not end by `lost_s`.
        """
        sender: Any  # one of both may be None, which saves a check
        receiver: Any
        fleet, (_, _, sender, receiver, _, _, reach_s, up) = self.fleet, link
        wire_bytes = self.wire_bytes(size_bytes)
        if sender is None:
            taken_s = fleet.downlinks[receiver].transfer_s(start_s, wire_bytes)
            latency_s = fleet.latency_s[receiver] + reach_s
        elif receiver is None:
            taken_s = fleet.uplinks[sender].transfer_s(start_s, wire_bytes)
            latency_s = fleet.latency_s[sender] + reach_s
        else:
            taken_s = joint_transfer_s([fleet.uplinks[sender], fleet.downlinks[receiver]], start_s, wire_bytes)
            latency_s = self.latency_s(link)
        if fleet.presence is None and up is None:
            return taken_s, latency_s
        until_s = min(there.until_s(start_s) for there in self._presences(link))
        if start_s + taken_s > until_s:
            taken_s = self._interrupted_s(link, start_s, wire_bytes, taken_s, lost_s)
        return taken_s, latency_s

    def _interrupted_s(self, link: Link, start_s: float, wire_bytes: float, taken_s: float, lost_s: float) -> float:
        """Give the seconds of a message that would take `taken_s` if its clients did not go away meanwhile."""
        match links := self._limits(link):
            case [RateTrace(pattern=None), Presence() as there] if 0 < there.share * there.period_s < taken_s:
                return there.done_s(start_s, taken_s) - start_s  # however many stays it takes
        return joint_transfer_s(links, start_s, wire_bytes, lost_s)

    def latency_s(self, link: Link) -> float:
        """Give the latency of a message, in addition to the time of its bytes."""
        return sum(self.fleet.latency_s[client] for client in link.ends) + link.reach_s

    def moved_bytes(self, link: Link, start_s: float, end_s: float) -> float:
        """Give the bytes that a `link` can move from `start_s` to `end_s`."""
        return moved_bytes(self._limits(link), start_s, end_s)

    def pieces(self, link: Link, start_s: float) -> Iterator[tuple[float, float]]:
        """Generate the constant pieces of the rate that the clients' own links allow, as `RateTrace.pieces`."""
        return slowest(self._limits(link), start_s)

    def _limits(self, link: Link) -> list[Pieces]:
        """List the rates, and the presences of the clients, that limit a message."""
        limits: list[Pieces] = []
        for rates, client in ((self.fleet.uplinks, link.uplink_of), (self.fleet.downlinks, link.downlink_of)):
            if client is not None:
                limits.append(rates[client])
        return limits + self._presences(link)

    def _presences(self, link: Link) -> list[Presence]:
        """List when its clients are present, and when the server at its end is up, where they are not always."""
        presence = self.fleet.presence
        of_clients = [] if presence is None else [presence[client] for client in link.ends]
        return of_clients + ([] if link.up is None else [link.up])

    def presence_of(self, node: Node) -> Presence | None:
        """Give when a client is present, or a server of a tier is up; None if always."""
        if not isinstance(node, ServerNode):
            return None if self.fleet.presence is None else self.fleet.presence[node]
        of_tier = self.fleet.tiers[node.role].servers.presence if node.role in self.fleet.tiers else None
        return None if of_tier is None else of_tier[node.number - 1]

    def device_s(self, client: int, start_s: float, service_s: float) -> float:
        """Give the seconds from start to end of `service_s` of computing; the device stands still while away."""
        if self.fleet.presence is None:
            return service_s
        there = self.fleet.presence[client]
        if start_s + service_s <= there.until_s(start_s):
            return service_s
        return there.done_s(start_s, service_s) - start_s

    def worked_share(self, client: int, start_s: float, end_s: float, lasts_s: float) -> float:
        """Give the share of `lasts_s`, from the start on, that a device has worked by `end_s`.

        It counts as the share of work that is done, although a device that heats up works faster in the beginning.
        """
        if end_s <= start_s:
            return 0.0
        if self.fleet.presence is None:
            return (end_s - start_s) / lasts_s
        there_s = self.fleet.presence[client].seconds_by
        return (there_s(end_s) - there_s(start_s)) / (there_s(start_s + lasts_s) - there_s(start_s))

    @property
    def of_all_present(self) -> Prices:
        """The same prices with every client always present."""
        return self if self.fleet.presence is None else replace(self, fleet=replace(self.fleet, presence=None))

    @property
    def steady(self) -> bool:
        """True if durations depend on nothing, not even on their start."""
        fleet = self.fleet
        if fleet.presence or fleet.conditions or fleet.topology or fleet.tiers:
            return False
        return fleet.uplinks.patterns is None and fleet.downlinks.patterns is None


def _work(op: On) -> Work:
    work = priced(op.step, op.state, *op.args)
    if not 0 <= work.macs < inf:
        raise NonFiniteError(f"{describe(op)} has {work.macs} MACs")
    return work


Slot = tuple[float, float, float]
"""Start of a service, its seconds, and the instant at which it is lost; infinity if it is done by then."""


class ClientResources:
    """Devices and links of all clients, taken by one operation after another.

    Args:
        seed: of the run; jitter has a random stream for every client.
    """

    def __init__(self, prices: Prices, dropouts: Dropouts, seed: int) -> None:
        self.prices = prices
        self.dropouts = dropouts
        n, conditions = len(prices.fleet.macs_per_s), prices.fleet.conditions
        self._devices = None if conditions is None else conditions.begin(n, seed)
        self._device_free_s = [0.0] * n
        self._uplink_free_s = [0.0] * n
        self._downlink_free_s = [0.0] * n

    def compute(self, client: int, requested_s: float, service_s: float) -> Slot:
        """Occupy the client's device for `service_s` of work."""
        free_s = self._device_free_s[client]
        started_s = free_s if free_s > requested_s else requested_s
        if self._devices is not None:
            service_s = self._devices.seconds(client, started_s, service_s)
        if self.prices.fleet.presence is not None:
            service_s = self.prices.device_s(client, started_s, service_s)
        lost_s = self.dropouts.at_s(client, requested_s) if self.dropouts.are_possible else inf
        ended_s = started_s + service_s
        if ended_s <= lost_s:
            self._device_free_s[client] = ended_s
            return started_s, service_s, inf
        self._device_free_s[client] = lost_s
        return min(started_s, lost_s), service_s, lost_s

    def move(self, link: Link, requested_s: float, size_bytes: int) -> Slot:
        """Occupy a link, once the sender's uplink and the receiver's downlink are free."""
        _, _, sender, receiver, _, _, _, _ = link
        started_s = requested_s
        if sender is not None and self._uplink_free_s[sender] > started_s:
            started_s = self._uplink_free_s[sender]
        if receiver is not None and self._downlink_free_s[receiver] > started_s:
            started_s = self._downlink_free_s[receiver]
        lost_s = self.dropouts.message_at_s(link.ends, requested_s) if self.dropouts.are_possible else inf
        taken_s, latency_s = self.prices.transfer_s(link, started_s, size_bytes, lost_s)
        lasts_s, until_s = taken_s + latency_s, started_s + taken_s
        if started_s + lasts_s <= lost_s:
            lost_s = inf
        elif until_s > lost_s:
            until_s = lost_s
        # an operation that is lost while it waits frees no busy link
        if sender is not None and self._uplink_free_s[sender] < until_s:
            self._uplink_free_s[sender] = until_s
        if receiver is not None and self._downlink_free_s[receiver] < until_s:
            self._downlink_free_s[receiver] = until_s
        return (started_s, lasts_s, inf) if lost_s == inf else (min(started_s, lost_s), lasts_s, lost_s)

    def stop(self, client: int, now_s: float) -> None:
        """Free the client's device and links, whose operations are lost now."""
        for free_s in (self._device_free_s, self._uplink_free_s, self._downlink_free_s):
            free_s[client] = min(free_s[client], now_s)
