"""Trace of a flow: its operations, recorded without a clock, and their durations in one system after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from sfl_sim.ops import Expect, Flow, Occur, On, Par, Send, ServerNode, State, Value, Wait
from sfl_sim.sim.nodes import Link, client_of, maker_of
from sfl_sim.sim.prices import ClientResources, Computing, Moving, Prices
from sfl_sim.store.places import DEVICE


class NotPlannable(Exception):
    """The flow has no plan: it needs the event clock."""


Demand = Computing | Moving | None


class PlannedOperation(NamedTuple):
    """Operation of a flow: its row in the records without times, its demand, and the guard of its state.

    `demand` is None if it takes no time, `state` if it runs on the client's own device and links.
    """

    node: str
    kind: str
    step: int
    client: int
    macs: float
    bytes: int
    demand: Demand
    state: State | None


@dataclass(slots=True)
class Fork:
    """A `par`: the traces of its branches."""

    branches: list[FlowTrace]


FlowTrace = list["PlannedOperation | Fork | Expect | Wait | Occur"]


def trace(flow: Flow, prices: Prices) -> FlowTrace:
    """Drive `flow` to its end, a `par` branch by branch; the prices' rates do not matter, only which operations count.

    Raises NotPlannable where the flow asks for a result of training.
    """
    return _trace(flow, prices)[0]


def _trace(flow: Flow, prices: Prices) -> tuple[FlowTrace, Any]:
    traced: FlowTrace = []
    result: Any = None
    while True:
        try:
            op = flow.send(result)
        except StopIteration as stop:
            return traced, stop.value
        result = None
        if isinstance(op, On):
            computing, result = prices.computing(op)
            result.maker = maker_of(op)
            traced.append(_job(op, client_of(op), result.step, computing))
        elif isinstance(op, Send):
            link = prices.nodes.links[op.src, op.dst]
            result = op.payload.snapshot()
            if link is not None:
                traced.append(_message(link, result, prices))
        elif isinstance(op, Par):
            branches = [_trace(branch, prices) for branch in op.flows]
            traced.append(Fork([branch for branch, _ in branches]))
            values = [value for _, value in branches]
            result = values if op.names is None else dict(zip(op.names, values, strict=True))
        elif isinstance(op, Expect):
            traced.append(op)
        elif isinstance(op, Occur):
            op.event.occurred = True
            traced.append(op)
        elif isinstance(op, Wait) and op.at_most_s == inf:
            traced.append(op)
            result = True
        else:
            raise NotPlannable(f"a flow yields {op!r}")


def _job(op: On, client: int, step: int, computing: Computing) -> PlannedOperation:
    node, state = (op.node.name, op.state.guard) if isinstance(op.node, ServerNode) else (DEVICE, None)
    return PlannedOperation(node, op.step.name, step, client, computing.work.macs, 0, computing, state)


def _message(link: Link, payload: Value, prices: Prices) -> PlannedOperation:
    demand = Moving(link, payload.size_bytes) if prices.travels(payload) else None
    return PlannedOperation(link.place, payload.kind, payload.step, link.client, 0.0, payload.size_bytes, demand, None)


class Foreseen:
    """Duration that depends on its start: over a link whose rate varies, of a client that goes away, with jitter.

    Add it once for every operation, in the order in which the client's device and links serve them.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self.seconds = seconds

    def __radd__(self, start_s: float) -> float:
        """Give the end of an operation that begins at `start_s`."""
        return start_s + self.seconds(start_s)


Duration = float | Foreseen


def duration_of(demand: Demand, prices: Prices, resources: ClientResources) -> Duration:
    """Give the duration of an operation that uses nothing but the device or the links of one client, or a server."""
    if demand is None:
        return 0.0
    fleet = prices.fleet
    if isinstance(demand, Computing):
        seconds = float(prices.seconds(demand))
        if isinstance(demand.node, ServerNode) or (fleet.conditions is None and fleet.presence is None):
            return seconds
        client = demand.node
        return Foreseen(lambda start_s: resources.compute(client, start_s, seconds)[1])
    link = demand.link
    rate = (fleet.downlinks if link.uplink_of is None else fleet.uplinks)[link.client]
    if rate.pattern is None and fleet.presence is None:
        return float(prices.seconds(demand))
    size_bytes = demand.size_bytes
    if fleet.presence is None:
        wire_bytes, latency_s = prices.wire_bytes(size_bytes), prices.latency_s(link)
        return Foreseen(lambda start_s: rate.transfer_s(start_s, wire_bytes) + latency_s)
    return Foreseen(lambda start_s: resources.move(link, start_s, size_bytes)[1])
