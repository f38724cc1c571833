"""Events on which flows wait for other flows."""

from __future__ import annotations

from collections.abc import Callable, KeysView
from math import inf
from typing import Any

import simpy

from sfl_sim.ops import Event, Occur, Wait
from sfl_sim.sim.branch import WAITS, Branch


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
