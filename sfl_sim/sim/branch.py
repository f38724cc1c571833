"""A flow on its way through the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy

from sfl_sim.sim.nodes import Link

Callbacks = list[Callable[[Any], None]]

WAITS: Any = object()
"""What carrying out an operation gives if the flow has to wait for its result."""


NOTHING = (_ for _ in ())
"""A flow that has ended."""
next(NOTHING, None)


class Branch(simpy.Event):
    """A flow that a clock carries out, and the one SimPy event for which it waits, scheduled again and again.

    Its callbacks are those of the moment: it never waits for two things at once.

    Attributes:
        flow: yields the operations; None if it only waits for a whole round.
        parent: the branch that waits for its end; None if none does.
        value: what the flow has returned, or the `Lost` that has ended it.
        is_over: True once the flow of a whole round has ended.
        op: the operation that the flow has yielded last.
        result: what the operation gives.
        macs: MACs of the operation, if it computes.
        link: that it takes, if it sends.
        requested_s, started_s, lasts_s, lost_s: of the operation: its request, its start, its duration, and the instant
            at which it is lost.
        ended_s: end of the operation, where that was told and is not now.
        branches, n_left, n_wanted: those of the `par` under way, the number of them that have not ended, and of those
            for which it still waits.
    """

    __slots__ = (
        "branches", "callbacks", "ended_s", "flow", "is_over", "lasts_s", "link", "lost_s", "macs", "n_left",
        "n_wanted", "op", "parent", "requested_s", "result", "started_s", "value",
    )  # fmt: skip
    _ok = True
    _value = None
    callbacks: Callbacks
    op: Any
    result: Any
    value: Any
    macs: float
    link: Link
    requested_s: float
    started_s: float
    lasts_s: float
    lost_s: float
    ended_s: float
    branches: list[Branch]
    n_left: int
    n_wanted: float

    def __init__(self, flow: Any = None, parent: Branch | None = None) -> None:
        self.flow = flow
        self.parent = parent
        self.is_over = False
        self.op = None

    def moved(self) -> Branch:
        """Move the flow to another branch in the place of this one, whose event then lets nothing go on."""
        other = Branch(self.flow, self.parent)
        if self.parent is not None:
            siblings = self.parent.branches
            siblings[siblings.index(self)] = other
        self.flow, self.parent, self.callbacks = NOTHING, None, []
        return other
