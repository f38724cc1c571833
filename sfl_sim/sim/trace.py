"""What a flow does, written down without a clock, so that it can be timed again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from sfl_sim.ops import Expect, Flow, On, Par, Send, State, Value
from sfl_sim.sim.prices import Prices, is_local, link_of, place_of


class Unforeseen(Exception):
    """The flow needs an event loop."""


class Entry(NamedTuple):
    """One operation: its row in the records but for the times, how long it takes, the guard of the state it changes.

    `state` is None for what takes place on the client's own device and links.
    """

    node: str
    kind: str
    step: int
    client: int
    macs: float
    bytes: int
    duration_s: float
    state: State | None


@dataclass(slots=True)
class Fork:
    """A `par`: what its branches do."""

    branches: list[list[Entry | Fork | Expect]]


Trace = list[Entry | Fork | Expect]


def trace(flow: Flow, prices: Prices) -> Trace:
    """Drive `flow` to its end, a `par` branch by branch.

    Raises Unforeseen where the flow asks for what training produced, or where durations depend on when they begin.
    """
    if not prices.steady:
        raise Unforeseen("the rates of links vary")
    return _trace(flow, prices)[0]


def _trace(flow: Flow, prices: Prices) -> tuple[Trace, Any]:
    found: Trace = []
    result: Any = None
    while True:
        try:
            op = flow.send(result)
        except StopIteration as stop:
            return found, stop.value
        result = None
        if isinstance(op, On):
            result = op.step.out(op.state, *op.args)
            result.maker = op.node
            found.append(_job(op, result.step, prices))
        elif isinstance(op, Send):
            result = op.payload.snapshot()
            if not is_local(op.src, op.dst):
                found.append(_message(op, result, prices))
        elif isinstance(op, Par):
            branches = [_trace(branch, prices) for branch in op.flows]
            found.append(Fork([branch for branch, _ in branches]))
            result = [value for _, value in branches]
        elif isinstance(op, Expect):
            found.append(op)
        else:
            raise Unforeseen(f"{op!r}")


def _job(op: On, step: int, prices: Prices) -> Entry:
    macs, service_s = prices.service(op)
    node, client = place_of(op)
    state = None if op.node >= 0 else op.state.guard
    return Entry(node, op.step.name, step, client, macs, 0, service_s, state)


def _message(op: Send, payload: Value, prices: Prices) -> Entry:
    node, client = link_of(op.src, op.dst)
    duration_s = 0.0
    if prices.travels(payload):
        taken_s, latency_s = prices.transfer_s(op.src, op.dst, 0.0, payload.size_bytes)
        duration_s = taken_s + latency_s
    return Entry(node, payload.kind, payload.step, client, 0.0, payload.size_bytes, duration_s, None)
