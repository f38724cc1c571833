"""Prices of operations in one system: seconds of service, and seconds on links. No clock and no queue."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from numbers import Integral
from typing import Any, NamedTuple

from sfl_sim.errors import NonFiniteError, ScenarioError
from sfl_sim.ops import NODE_NAMES, On, State, Step, Value, Work, describe
from sfl_sim.system.cost import Processor
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import Pieces, RateTrace, joint_transfer_s, moved_bytes, slowest
from sfl_sim.system.presence import Presence


class Computing(NamedTuple):
    """Demand for a node's time: `work` to compute, and `samples` to load from its own data."""

    node: int
    work: Work
    samples: int = 0


class Moving(NamedTuple):
    """Demand for the time of links: `size_bytes` from `src` to `dst`."""

    src: int
    dst: int
    size_bytes: int


class _Shapes(dict[type, "dict[Hashable, tuple[Work, str, int, int]] | None"]):
    """Work, and kind, bytes and samples of the result, by type and shape of a step; None for one without a shape."""

    def __missing__(self, kind: type) -> dict[Hashable, tuple[Work, str, int, int]] | None:
        last = next(base for base in kind.__mro__ if {"work", "out", "shape"} & vars(base).keys())
        known = self[kind] = {} if "shape" in vars(last) and last is not Step else None
        return known


class _Processors(dict[int, Processor]):
    """Processors of the nodes of a fleet: an unknown node is refused when it is first named."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(dict.fromkeys(NODE_NAMES, fleet.server))
        self._of_clients = fleet.processors

    def __missing__(self, node: Any) -> Processor:
        n_clients = len(self._of_clients)
        client = int(node) if isinstance(node, Integral) else -1
        if not 0 <= client < n_clients:
            allowed = f"clients 0 to {n_clients - 1}, SERVER, AGGREGATOR"
            raise ScenarioError(f"a flow names node {node!r}, which does not exist", allowed=allowed)
        processor = self[node] = self._of_clients[client]
        return processor


@dataclass(frozen=True, slots=True)
class Prices:
    """The rates of a fleet, applied to operations.

    Attributes:
        fleet: rates of devices, links and server.
        include_model_exchange: False lets models and averages take no time (docs/methods/timing.md#links).
    """

    fleet: Fleet
    include_model_exchange: bool = True
    _shapes: _Shapes = field(default_factory=_Shapes, repr=False, compare=False)
    _processors: _Processors = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_processors", _Processors(self.fleet))

    def check(self, *nodes: int) -> None:
        """Check that the fleet has these nodes. Raises ScenarioError."""
        for node in nodes:
            self._processors[node]

    def computing(self, op: On) -> tuple[Computing, Value]:
        """Give the operation's demand for computing, and its result.

        Raises ScenarioError if there is no such node, NonFiniteError if its work is no number of MACs.
        """
        self.check(op.node)
        work, result = self._work_and_result(op)
        if op.step.aggregates and not self.include_model_exchange:
            return Computing(op.node, Work.of(0)), result
        return Computing(op.node, work, self._samples(op)), result

    def look_up(self, op: On) -> tuple[float, float, Value]:
        """Give the MACs of the operation that count here, the seconds that its node computes for them, and its result.

        Raises ScenarioError if there is no such node, NonFiniteError if these are no numbers of MACs or of seconds.
        """
        processor = self._processors[op.node]
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
        step, shapes = op.step, self._shapes[type(op.step)]
        if shapes is None or (shape := step.shape(op.state, *op.args)) is None:
            return _work(op), step.out(op.state, *op.args)
        if shape not in shapes:
            out = step.out(op.state, *op.args)
            shapes[shape] = _work(op), out.kind, out.size_bytes, out.samples
        work, kind, size_bytes, samples = shapes[shape]
        return work, Value(kind, size_bytes, samples, op.args[0].step)

    def _samples(self, op: On) -> int:
        """Count the node's own samples in the operation, which a client has to load."""
        if op.node < 0:
            return 0
        return sum(value.samples for value in op.args if isinstance(value, Value) and value.kind == "batch")

    def computing_s(self, node: int, work: Work, samples: int) -> float:
        """Give the seconds for which a node computes `work`, after loading its own `samples`."""
        fleet = self.fleet
        if node < 0:
            return fleet.server.seconds(work)
        return fleet.processors[node].seconds(work) + samples * fleet.sample_s

    def seconds(self, demand: Computing | Moving) -> float:
        """Give the duration of `demand` alone, in a system where no duration depends on its start."""
        if isinstance(demand, Computing):
            return self.computing_s(*demand)
        taken_s, latency_s = self.transfer_s(demand.src, demand.dst, 0.0, demand.size_bytes)
        return taken_s + latency_s

    def batch_s(self, ops: Sequence[On]) -> float:
        """Give the seconds of `ops` as one batch at the server: MACs of all, calls of layers of one."""
        works = [op.step.work(op.state, *op.args) for op in ops]
        calls = max(work.n_ops for work in works)
        return self.fleet.server.seconds(Work.total(works)._replace(n_ops=calls))

    def travels(self, payload: Value) -> bool:
        """Return True if sending `payload` from one node to another takes time.

        Raises NonFiniteError if its size is no number of bytes.
        """
        if not 0 <= payload.size_bytes < inf:
            raise NonFiniteError(f"{payload!r} cannot be sent: these are no bytes")
        return self.include_model_exchange or not isinstance(payload, State)

    def transfer_s(
        self, src: int, dst: int, start_s: float, size_bytes: int, lost_s: float = inf
    ) -> tuple[float, float]:
        """Give the seconds for which a message occupies the links from `src` to `dst`, and the latency after them.

        Links stand still while their client is away. The seconds may be infinite if they would not end by `lost_s`.
        """
        fleet = self.fleet
        if src < 0:
            taken_s, latency_s = fleet.downlinks[dst].transfer_s(start_s, size_bytes), fleet.latency_s[dst]
        elif dst < 0:
            taken_s, latency_s = fleet.uplinks[src].transfer_s(start_s, size_bytes), fleet.latency_s[src]
        else:
            taken_s = joint_transfer_s([fleet.uplinks[src], fleet.downlinks[dst]], start_s, size_bytes)
            latency_s = fleet.latency_s[src] + fleet.latency_s[dst]
        if fleet.presence is not None:
            presences = [fleet.presence[client] for client in (src, dst) if client >= 0]
            if start_s + taken_s > min(there.until_s(start_s) for there in presences):
                taken_s = self._interrupted_s(src, dst, start_s, size_bytes, taken_s, lost_s)
        return taken_s, latency_s

    def _interrupted_s(
        self, src: int, dst: int, start_s: float, size_bytes: int, taken_s: float, lost_s: float
    ) -> float:
        """Give the seconds of a message that would take `taken_s` if its clients did not go away meanwhile."""
        match links := self._links(src, dst):
            case [RateTrace(pattern=None), Presence() as there] if 0 < there.share * there.period_s < taken_s:
                return there.done_s(start_s, taken_s) - start_s  # however many stays it takes
        return joint_transfer_s(links, start_s, size_bytes, lost_s)

    def latency_s(self, src: int, dst: int) -> float:
        """Give the latency of a message, in addition to the time of its bytes."""
        latency_s = self.fleet.latency_s
        if src < 0:
            return latency_s[dst]
        return latency_s[src] if dst < 0 else latency_s[src] + latency_s[dst]

    def moved_bytes(self, src: int, dst: int, start_s: float, end_s: float) -> float:
        """Give the bytes that the links from `src` to `dst` can move from `start_s` to `end_s`."""
        return moved_bytes(self._links(src, dst), start_s, end_s)

    def pieces(self, src: int, dst: int, start_s: float) -> Iterator[tuple[float, float]]:
        """Generate the constant pieces of the rate that the clients' own links allow, as `RateTrace.pieces`."""
        return slowest(self._links(src, dst), start_s)

    def _links(self, src: int, dst: int) -> list[Pieces]:
        """List the links, and the presences of their clients, that limit a message."""
        found: list[Pieces] = []
        for links, client in ((self.fleet.uplinks, src), (self.fleet.downlinks, dst)):
            if client >= 0:
                found.append(links[client])
                if self.fleet.presence is not None:
                    found.append(self.fleet.presence[client])
        return found

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
        if fleet.presence or fleet.conditions or fleet.topology:
            return False
        return fleet.uplinks.pattern is None and fleet.downlinks.pattern is None


def _work(op: On) -> Work:
    work = op.step.work(op.state, *op.args)
    if not 0 <= work.macs < inf:
        raise NonFiniteError(f"{describe(op)} has {work.macs} MACs")
    return work


def is_local(src: int, dst: int) -> bool:
    """Return True if a message needs no link: to the sender itself, or between the server and the aggregator."""
    return src == dst or (src < 0 and dst < 0)


def link_of(src: int, dst: int) -> tuple[str, int]:
    """Give a message's place in the records: the link, and the link's client."""
    if src < 0:
        return "downlink", dst
    return ("uplink" if dst < 0 else "peer"), src


def place_of(op: On) -> tuple[str, int]:
    """Give an operation's place in the records: the node, and the client of the device or job.

    A job at the server belongs to the maker of the first value that its step takes; to no client, -1, if no client made
    it.
    """
    if op.node >= 0:
        return "client", op.node
    return NODE_NAMES[op.node], client_of(op)


def client_of(op: On) -> int:
    """Give the client whose job an operation at the server is; -1 if no client made the first value that it takes."""
    for argument in op.args:
        if isinstance(argument, Value):
            return -1 if argument.maker is None else max(argument.maker, -1)
    return -1
