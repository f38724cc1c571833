"""An executor that can put what a run has in memory into the same run, walked again from its start.

Flows are generators, which cannot be stored. But they depend on nothing except the numbers that they read: a run that
is walked again, without computing, comes to the same point with the same values and states. What was computed for those
that are still held there is an `Image`. Values and states are known in it by the order in which they came to the
executor, which is that of simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch import Tensor

from sfl_sim.models.replica import Bundle, Joined, Replica, Weights
from sfl_sim.ops import SERVER, On, State, Value
from sfl_sim.training.contents import storable
from sfl_sim.training.deferred import Deferred, values_in
from sfl_sim.training.eager import Eager


class CheckpointMismatch(RuntimeError):
    """A run that is walked again is not the run that the image is of."""


@dataclass(frozen=True)
class Image:
    """What a run has in memory.

    Attributes:
        calls: of the executor, so far.
        walked: a digest of them.
        jobs: operations at the server among them.
        reads: the numbers that flows have read.
        states, results: contents by number, `storable`: what is alive, to be stored before the run goes on.
        draws: the states of the random generators, of the CPU and of all GPUs.
    """

    calls: int
    walked: str
    jobs: int
    reads: list[float]
    states: dict[int, Any]
    results: dict[int, Any]
    draws: tuple[Tensor, list[Tensor]]


class StandIn:
    """Stands for what an operation of the past gave, until it is known."""

    __slots__ = ("__weakref__", "content")

    def __init__(self) -> None:
        self.content: Any = None


class Replay:
    """Has another executor carry everything out, and remembers what of it is still alive.

    Args:
        executor: that executor.

    Attributes:
        jobs: operations at the server that have been carried out.
    """

    def __init__(self, executor: Eager) -> None:
        self._executor = executor
        self.jobs = 0
        self._calls = 0
        self._walked = blake2b(digest_size=16)
        self._reads: list[float] = []
        self._states: WeakKeyDictionary[State, int] = WeakKeyDictionary()
        self._n_states = 0
        self._results: dict[int, Any] = {}
        self._stand_ins: WeakValueDictionary[int, StandIn] = WeakValueDictionary()
        self._past: Image | None = None

    @property
    def name(self) -> str:
        """That of the other executor."""
        return self._executor.name

    @property
    def is_walking(self) -> bool:
        """Whether the run has yet to come to the point of the image that it was given."""
        return self._past is not None

    def walk(self, past: Image) -> None:
        """From now on compute nothing; at the point of `past`, put it in place and go on computing."""
        self._past = past

    def run(self, op: On) -> Any:
        """The content of the operation's result, or what stands in for it."""
        self._number(op.state, op.args)
        self._count(op.node, op.step.name)
        number = self._calls
        if self._past:
            content = self._stand_ins[number] = StandIn()
        else:
            self._settle(op.args)
            content = self._executor.run(op)
            self._keep(number, content)
        self.jobs += op.node == SERVER
        if self._put_in_place():
            content = content.content
        return content

    def snapshot(self, payload: Value) -> Value:
        """What the receiver of `payload` holds."""
        self._number(payload)
        self._count(payload.kind, payload.size_bytes)
        copy = payload.snapshot() if self._past else self._executor.snapshot(payload)
        self._number(copy)
        self._put_in_place()
        return copy

    def read(self, value: Value) -> float:
        """The number in `value`."""
        self._count("read", value.kind)
        if self._past:
            if len(self._reads) >= len(self._past.reads):
                raise CheckpointMismatch("more numbers are read than were")
            number = self._past.reads[len(self._reads)]
        else:
            self._settle(value)
            number = self._executor.read(value)
        self._reads.append(number)
        self._put_in_place()
        return number

    def finish(self) -> None:
        """Do what the other executor does at the end of a round."""
        self._executor.finish()

    def image(self) -> Image:
        """What is alive now. Raises Unstorable, while something is that cannot be stored."""
        states = {number: _content(state) for state, number in list(self._states.items())}
        results = {number: _strong(weak) for number, weak in list(self._results.items())}
        draws = torch.get_rng_state(), torch.cuda.get_rng_state_all() if _draws_on_gpu() else []
        alive = storable((states, results, draws))
        return Image(self._calls, self._walked.hexdigest(), self.jobs, list(self._reads), *alive)

    def remember(self, states: Iterable[State]) -> None:
        """Of states that never come by here, whatever they hold belongs to an image, too."""
        self._number(list(states))

    def _count(self, *told: object) -> None:
        self._calls += 1
        self._walked.update(f"{self._n_states} {told}".encode())

    def _number(self, *args: Any) -> None:
        """Give states that are new the next numbers; in a walk nobody knows what they hold."""
        for state in _states_in(args):
            if state not in self._states:
                self._states[state] = self._n_states
                self._n_states += 1
                if self._past:
                    state.content = None

    def _settle(self, *args: Any) -> None:
        """Give the values among `args` the contents for which others have stood in."""
        if self._stand_ins:
            for value in values_in(args):
                if isinstance(value.content, StandIn):
                    value.content = value.content.content

    def _keep(self, number: int, content: Any) -> None:
        """Remember a result for as long as somebody holds it."""
        if content is not None:
            self._results[number] = _weak(content, lambda _: self._results.pop(number, None))

    def _put_in_place(self) -> bool:
        """At the point of the image, fill what is alive with what it held; whether this is the point."""
        past = self._past
        if past is None or past.calls != self._calls:
            return False
        if past.walked != self._walked.hexdigest():
            raise CheckpointMismatch("other operations were carried out")
        self._past = None
        try:
            for state, number in self._states.items():
                if number in past.states:
                    _fill(state, past.states[number])
            for number, stand_in in list(self._stand_ins.items()):
                stand_in.content = past.results.get(number)
                self._keep(number, stand_in.content)
            draws, draws_on_gpu = past.draws
            past.states.clear()  # or else they would live as long as the run
            past.results.clear()
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointMismatch(f"what was in memory does not fit: {error}") from error
        torch.set_rng_state(draws)
        if draws_on_gpu:
            torch.cuda.set_rng_state_all(draws_on_gpu)
        return True


def _states_in(args: Any) -> Iterator[State]:
    """The states among an operation's arguments that hold something: bundles, and what states are made of."""
    for value in values_in(args):
        if isinstance(value, Joined | Bundle):
            if isinstance(value, Bundle):
                yield value
            yield from _states_in(value.members)
        elif isinstance(value, State):
            yield value


def _content(state: State) -> Any:
    """What a state holds, but for what its members do."""
    content = state.pending if isinstance(state, Bundle) else state.content
    return content.stored() if isinstance(content, Weights) else content


def _fill(state: State, content: Any) -> None:
    """Let a state hold what `_content` told of it."""
    if isinstance(state, Bundle):
        state.pending = content
    elif isinstance(state, Replica):
        state.content = None if content is None else Weights.restored(state.part, content)
    else:
        state.content = content


def _weak(content: Any, gone: Callable[[Any], object]) -> Any:
    """`content` with weak references to what holds the memory; `gone` is called when one of them has been freed."""
    if isinstance(content, tuple | list):
        return type(content)(_weak(one, gone) for one in content)
    if isinstance(content, Mapping):
        return {key: _weak(one, gone) for key, one in content.items()}
    return content if content is None or isinstance(content, bool | int | float | str) else ref(content, gone)


def _strong(weak: Any) -> Any:
    """The content again."""
    if isinstance(weak, tuple | list):
        return type(weak)(map(_strong, weak))
    if isinstance(weak, Mapping):
        return {key: _strong(one) for key, one in weak.items()}
    content = weak() if isinstance(weak, ref) else weak
    return content.result if isinstance(content, Deferred) else content


def _draws_on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
