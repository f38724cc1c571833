"""The provenance executor: it trains nothing, and traces how every result of training would be computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from sfl_sim.ops import On, State, Value
from sfl_sim.training.arguments import states_in


class TracedOperation(NamedTuple):
    """An operation with its lineage.

    Attributes:
        lineage: lineage of its result.
        before: lineage of the state that it waited for, before the operation.
        op: the operation.
    """

    lineage: bytes
    before: object
    op: On


class Provenance:
    """Gives every value its lineage as its content, and keeps one for every state.

    A lineage is a digest of the step with its settings, the node, and the lineages of all arguments and states of the
    step. So operations of equal lineage give equal numbers, whenever they run: two walks with the same lineages train
    the same models. Steps are assumed to touch only their arguments and states.

    Args:
        read: gives the number in a value of a lineage.

    Attributes:
        draws: True if steps draw from one stream of random numbers, so that each depends on all steps before it.
    """

    name = "lineage"
    computes = True  # it asks every operation in its order

    def __init__(self, read: Callable[[bytes], float]) -> None:
        self._read = read
        self.draws = False
        self._drawn = b""
        self._states: dict[State, object] = {}
        self._operations: list[TracedOperation] = []

    def run(self, op: On) -> bytes:
        """Give the lineage of the operation's result."""
        step = type(op.step).__qualname__, getattr(op.step, "__dict__", None)
        before = self._of(op.state.guard)
        lineage = _digest(step, op.node, self._identity(op.state), self._identity(op.args), self._drawn)
        if self.draws:
            self._drawn = lineage
        for place, state in enumerate(states_in(op.state)):
            self._states[state] = lineage, place
        self._operations.append(TracedOperation(lineage, before, op))
        return lineage

    def snapshot(self, payload: Value) -> Value:
        """Give a copy of the same lineage if the payload can change, itself if not."""
        copy = payload.snapshot()
        if isinstance(payload, State):
            origin = repr(payload), self._identity(payload)
            for place, state in enumerate(states_in(copy)):
                self._states[state] = _digest(origin, place)
        return copy

    def read(self, value: Value) -> float:
        """Give the number that training has produced, by `read`."""
        return self._read(value.content)

    def finish(self) -> None:
        """Finish a round: a no-op."""

    def take(self) -> list[TracedOperation]:
        """Give the operations since the last call, in the order of their start."""
        operations, self._operations = self._operations, []
        return operations

    def _of(self, state: State) -> object:
        """Give a state's lineage; an initial state has its size, since initial numbers are the same every time."""
        if state not in self._states:
            self._states[state] = repr(state)
        return self._states[state]

    def _identity(self, arg: Any) -> Any:
        """Describe an argument so that equal descriptions mean equal numbers."""
        if isinstance(arg, State):
            return [self._of(state) for state in states_in(arg)]
        if isinstance(arg, Value):
            return arg, arg.maker, arg.content, [self._identity(one) for one in arg.made_of]
        if isinstance(arg, Mapping):
            return [(key, self._identity(value)) for key, value in arg.items()]
        if isinstance(arg, list | tuple):
            return [self._identity(one) for one in arg]
        return arg


def _digest(*parts: Any) -> bytes:
    return blake2b(repr(parts).encode(), digest_size=16).digest()
