"""What operations take in this world: seconds of service, and seconds on links. No clock and no queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sfl_sim.ops import NODE_NAMES, On, State, Value, Work
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import joint_transfer_s


class Computing(NamedTuple):
    """What takes the time of a node: `work` there."""

    node: int
    work: Work


class Moving(NamedTuple):
    """What takes the time of links: so many bytes from `src` to `dst`."""

    src: int
    dst: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Prices:
    """The rates of a fleet, applied to operations.

    Attributes:
        fleet: rates of devices, links and server.
        include_model_exchange: False lets models and averages take no time (METHODS.md 4.1, as SMoFi's A.3).
    """

    fleet: Fleet
    include_model_exchange: bool = True

    def work(self, op: On) -> Work | None:
        """What the operation computes, as it counts here; None if it counts for nothing."""
        if op.step.aggregates and not self.include_model_exchange:
            return None
        return op.step.work(op.state, *op.args)

    def service(self, op: On) -> tuple[float, float]:
        """MACs of the operation, as they count here, and seconds that its node computes for them."""
        work = self.work(op)
        return (0, 0.0) if work is None else (work.macs, self.computing_s(op.node, work))

    def computing_s(self, node: int, work: Work) -> float:
        """Seconds that `node` computes for `work`."""
        return (self.fleet.processors[node] if node >= 0 else self.fleet.server).seconds(work)

    def seconds(self, demand: Computing | Moving) -> float:
        """How long it takes by itself, where no duration depends on when it begins."""
        if isinstance(demand, Computing):
            return self.computing_s(*demand)
        taken_s, latency_s = self.transfer_s(demand.src, demand.dst, 0.0, demand.size_bytes)
        return taken_s + latency_s

    def batch_s(self, ops: Sequence[On]) -> float:
        """Seconds that the server computes for `ops` in one go: the MACs of all, and the calls of layers of one."""
        works = [op.step.work(op.state, *op.args) for op in ops]
        calls = max(work.n_ops for work in works)
        return self.fleet.server.seconds(Work.total(works)._replace(n_ops=calls))

    def travels(self, payload: Value) -> bool:
        """Whether sending `payload` from one node to another takes time."""
        return self.include_model_exchange or not isinstance(payload, State)

    def transfer_s(self, src: int, dst: int, start_s: float, size_bytes: int) -> tuple[float, float]:
        """Seconds for which the links from `src` to `dst` are taken, and the latency after them."""
        fleet = self.fleet
        if src < 0:
            return fleet.downlinks[dst].transfer_s(start_s, size_bytes), fleet.latency_s[dst]
        if dst < 0:
            return fleet.uplinks[src].transfer_s(start_s, size_bytes), fleet.latency_s[src]
        taken_s = joint_transfer_s([fleet.uplinks[src], fleet.downlinks[dst]], start_s, size_bytes)
        return taken_s, fleet.latency_s[src] + fleet.latency_s[dst]

    @property
    def steady(self) -> bool:
        """Whether no duration depends on when it begins."""
        return all(link.pattern is None for link in (*self.fleet.uplinks, *self.fleet.downlinks))


def is_local(src: int, dst: int) -> bool:
    """Whether nothing has to travel: to itself, or between the server and the aggregator."""
    return src == dst or (src < 0 and dst < 0)


def link_of(src: int, dst: int) -> tuple[str, int]:
    """A message's place in the records: the link, and the client whose link it is."""
    if src < 0:
        return "downlink", dst
    return ("uplink" if dst < 0 else "peer"), src


def place_of(op: On) -> tuple[str, int]:
    """An operation's place in the records: the node, and the client whose device or job it is.

    A job at the server belongs to the maker of the first value that its step takes; to nobody, -1, if no client made
    it.
    """
    if op.node >= 0:
        return "client", op.node
    maker = next((argument.maker for argument in op.args if isinstance(argument, Value)), None)
    return NODE_NAMES[op.node], maker if maker is not None and maker >= 0 else -1
