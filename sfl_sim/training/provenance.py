"""The executor that trains nothing, and knows of everything how training would have come about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from sfl_sim.ops import On, State, Value
from sfl_sim.training.deferred import states_in


class Descent(NamedTuple):
    """How one operation came about.

    Attributes:
        lineage: of what it makes.
        before: of the state that it waited for, as it found it.
        op: the operation.
    """

    lineage: bytes
    before: object
    op: On


class Provenance:
    """Gives every value a digest of how it came about as its content, and keeps one for every state.

    The digest is of the step with its settings, the node, and the lineages of all that the step takes and changes. So
    operations of equal lineage give equal numbers, whenever they run: two walks whose operations have the same lineages
    have learned the same. As in `Batched`, steps are taken to touch nothing but what they name.

    Args:
        read: the number in a value of that lineage.

    Attributes:
        draws: whether steps draw from one stream of random numbers, so that each depends on all that began before it.
    """

    name = "lineage"

    def __init__(self, read: Callable[[bytes], float]) -> None:
        self._read = read
        self.draws = False
        self._drawn = b""
        self._states: dict[State, object] = {}
        self._descents: list[Descent] = []

    def run(self, op: On) -> bytes:
        """The lineage of the result."""
        step = type(op.step).__qualname__, getattr(op.step, "__dict__", None)
        before = self._of(op.state.guard)
        lineage = _digest(step, op.node, self._told(op.state), self._told(op.args), self._drawn)
        if self.draws:
            self._drawn = lineage
        for place, state in enumerate(states_in(op.state)):
            self._states[state] = lineage, place
        self._descents.append(Descent(lineage, before, op))
        return lineage

    def snapshot(self, payload: Value) -> Value:
        """A new ghost of the same lineage if the payload can change, itself if not."""
        copy = payload.snapshot()
        if isinstance(payload, State):
            origin = self._told(payload)
            for place, state in enumerate(states_in(copy)):
                self._states[state] = _digest(origin, place)
        return copy

    def read(self, value: Value) -> float:
        """The number that training produced, if it is known."""
        return self._read(value.content)

    def finish(self) -> None:
        """Do nothing: nothing is left at the end of a round."""

    def take(self) -> list[Descent]:
        """The operations since the last call, in the order in which they began."""
        found, self._descents = self._descents, []
        return found

    def _of(self, state: State) -> object:
        """A state that nothing has made is what its size says: what is initialised has the same numbers every time."""
        if state not in self._states:
            self._states[state] = repr(state)
        return self._states[state]

    def _told(self, arg: Any) -> Any:
        """What an argument is, so that equal text means equal numbers."""
        if isinstance(arg, State):
            return [self._of(state) for state in states_in(arg)]
        if isinstance(arg, Value):
            return arg, arg.maker, arg.content
        if isinstance(arg, Mapping):
            return [(key, self._told(value)) for key, value in arg.items()]
        if isinstance(arg, list | tuple):
            return [self._told(one) for one in arg]
        return arg


def _digest(*told: Any) -> bytes:
    return blake2b(repr(told).encode(), digest_size=16).digest()
