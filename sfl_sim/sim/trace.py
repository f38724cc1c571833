"""Trace of a flow: its operations, recorded without a clock, so that they can be timed again and again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from sfl_sim.ops import Expect, Flow, Occur, On, Par, Send, ServerNode, State, Value, Wait
from sfl_sim.sim.nodes import Link, client_of, maker_of
from sfl_sim.sim.prices import Computing, Moving, Prices
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
    found: FlowTrace = []
    result: Any = None
    while True:
        try:
            op = flow.send(result)
        except StopIteration as stop:
            return found, stop.value
        result = None
        if isinstance(op, On):
            computing, result = prices.computing(op)
            result.maker = maker_of(op)
            found.append(_job(op, result.step, computing))
        elif isinstance(op, Send):
            link = prices.nodes.links[op.src, op.dst]
            result = op.payload.snapshot()
            if link is not None:
                found.append(_message(link, result, prices))
        elif isinstance(op, Par):
            branches = [_trace(branch, prices) for branch in op.flows]
            found.append(Fork([branch for branch, _ in branches]))
            values = [value for _, value in branches]
            result = values if op.names is None else dict(zip(op.names, values, strict=True))
        elif isinstance(op, Expect):
            found.append(op)
        elif isinstance(op, Occur):
            op.event.occurred = True
            found.append(op)
        elif isinstance(op, Wait) and op.at_most_s == inf:
            found.append(op)
            result = True
        else:
            raise NotPlannable(f"a flow yields {op!r}")


def _job(op: On, step: int, computing: Computing) -> PlannedOperation:
    if isinstance(op.node, ServerNode):
        place, client, state = str(op.node), client_of(op), op.state.guard
    else:
        place, client, state = DEVICE, op.node, None
    return PlannedOperation(
        place, op.step.name, step, client, macs=computing.work.macs, bytes=0, demand=computing, state=state
    )


def _message(link: Link, payload: Value, prices: Prices) -> PlannedOperation:
    demand = Moving(link, payload.size_bytes) if prices.travels(payload) else None
    return PlannedOperation(
        link.place,
        payload.kind,
        payload.step,
        link.client,
        macs=0.0,
        bytes=payload.size_bytes,
        demand=demand,
        state=None,
    )
