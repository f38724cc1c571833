"""A flow on its way through the event loop, and the events for which flows wait."""

from __future__ import annotations

from collections.abc import Callable, KeysView
from math import inf
from typing import Any

import simpy

from sfl_sim.ops import Event, Occur, Wait
from sfl_sim.sim.nodes import Link

Callbacks = list[Callable[[Any], None]]

WAITS: Any = object()
"""What carrying out an operation returns if the flow has to wait for its result."""


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
        ended_s: end of the operation as a node has reported it, in a live run.
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


class _Waiting(simpy.Event):
    """A branch that waits for events; itself the SimPy event on the way to its going on.

    Attributes:
        missing: the events that had not occurred when it began to wait.
        n_left: how many of them have not occurred yet.
        is_over: True once the branch is about to go on.
    """

    _ok = True
    _value = None

    def __init__(self, branch: Branch, missing: list[Event], at_most_s: float) -> None:
        self.branch = branch
        self.missing = missing
        self.n_left = len(missing)
        self.is_patient = at_most_s == inf
        self.is_over = False


class Events:
    """The flows of one clock that wait for events.

    They go on in the order in which they began to wait, after what was to happen at the same instant anyway.
    """

    def __init__(self, env: simpy.Environment, go_on: Callable[..., None]) -> None:
        self.env = env
        self.go_on = go_on
        self._awaited: dict[Event, list[_Waiting]] = {}

    @property
    def events(self) -> KeysView[Event]:
        """Events for which a flow waits."""
        return self._awaited.keys()

    def wait(self, branch: Branch, op: Wait) -> Any:
        """Wait until all events have occurred, or for `op.at_most_s`; gives True if all have."""
        missing = [event for event in dict.fromkeys(op.events) if not event.occurred]
        if not missing:
            return True
        waiting = _Waiting(branch, missing, op.at_most_s)
        for event in missing:
            self._awaited.setdefault(event, []).append(waiting)
        if not waiting.is_patient:
            self.env.timeout(op.at_most_s).callbacks.append(lambda _: self._over(waiting))
        return WAITS

    def occur(self, _: Branch, op: Occur) -> None:
        """Mark the event as occurred, and let the flows that wait for it go on."""
        op.event.occurred = True
        for waiting in self._awaited.pop(op.event, []):
            waiting.n_left -= 1
            if not waiting.n_left:
                waiting.callbacks = [self._complete]
                self.env.schedule(waiting)

    def _complete(self, waiting: _Waiting) -> None:
        if waiting.is_patient:
            self._over(waiting)
        else:
            waiting.callbacks = [self._over]
            self.env.schedule(waiting)

    def _over(self, waiting: _Waiting) -> None:
        if not waiting.is_over:
            waiting.is_over = True
            waiting.branch.callbacks = [lambda _: self._go_on(waiting)]
            self.env.schedule(waiting.branch)

    def _go_on(self, waiting: _Waiting) -> None:
        for event in waiting.missing:
            if not event.occurred:
                self._forget(event, waiting)
        self.go_on(waiting.branch, all(event.occurred for event in waiting.missing))

    def _forget(self, event: Event, waiting: _Waiting) -> None:
        """Remove one waiting flow from `event`."""
        self._awaited[event].remove(waiting)
        if not self._awaited[event]:
            del self._awaited[event]
