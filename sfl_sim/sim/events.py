"""Events on which flows wait for other flows."""

from __future__ import annotations

from collections.abc import Generator, KeysView
from math import inf
from typing import Any

import simpy

from sfl_sim.ops import Event, Wait


class Events:
    """The flows of one clock that wait for events."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._awaited: dict[Event, list[simpy.Event]] = {}

    @property
    def events(self) -> KeysView[Event]:
        """Events for which a flow waits."""
        return self._awaited.keys()

    def wait(self, op: Wait) -> Generator[simpy.Event, Any, bool]:
        """Wait until all events have occurred, or for `op.at_most_s`; gives True if all have."""
        mine = {event: self.env.event() for event in op.events if not event.occurred}
        for event, waiting in mine.items():
            self._awaited.setdefault(event, []).append(waiting)
        if not mine:
            return True
        all_of_them = simpy.AllOf(self.env, mine.values())
        if op.at_most_s == inf:
            yield all_of_them
            return True
        yield all_of_them | self.env.timeout(op.at_most_s)
        for event, waiting in mine.items():
            if not event.occurred:
                self._forget(event, waiting)
        return all(event.occurred for event in mine)

    def _forget(self, event: Event, waiting: simpy.Event) -> None:
        """Remove one waiting flow from `event`."""
        self._awaited[event].remove(waiting)
        if not self._awaited[event]:
            del self._awaited[event]

    def occur(self, event: Event) -> None:
        """Mark `event` as occurred, and let the flows that wait for it go on."""
        event.occurred = True
        for waiting in self._awaited.pop(event, []):
            waiting.succeed()
