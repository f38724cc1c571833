"""The replaying executor: walks a run again from its start without computing, then restores an image of its memory.

Flows are generators, which cannot be stored. But they depend on nothing except the numbers that they read: a run that
is walked again, without computing, comes to the same point with the same values and states. The contents of those that
are still alive at that point are an `Image`. Values and states are numbered in it by the order in which they came to
the executor, which is that of simulated time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch import Tensor

from sfl_sim.models import global_draws
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.models.weights import Weights
from sfl_sim.ops import On, State, Value
from sfl_sim.training.contents import storable
from sfl_sim.training.executors import Eager


class CheckpointMismatch(RuntimeError):
    """The run that is walked again is not the run of the image."""


@dataclass(frozen=True)
class Image:
    """Contents of a run's memory at one point.

    Attributes:
        calls: number of calls of the executor so far.
        walked: digest of these calls.
        reads: numbers that flows have read.
        states, results: `storable` contents that are alive, by number; to be stored before the run goes on.
        draws: states of the global generators of torch on the CPU, numpy and Python, and of all GPUs.
    """

    calls: int
    walked: str
    reads: list[float]
    states: dict[int, Any]
    results: dict[int, Any]
    draws: tuple[global_draws.States, list[Tensor]]


class StandIn:
    """Placeholder for the result of an operation that is not computed again, until the image is restored."""

    __slots__ = ("__weakref__", "content")

    def __init__(self) -> None:
        self.content: Any = None


class Replay:
    """Passes operations on to another executor, and remembers the contents that are still alive.

    Args:
        executor: the other executor.
    """

    computes = True

    def __init__(self, executor: Eager) -> None:
        self._executor = executor
        self._calls = 0
        self._walked = blake2b(digest_size=16)
        self._reads: list[float] = []
        self._states: WeakKeyDictionary[State, int] = WeakKeyDictionary()
        self._n_states = 0
        self._results: dict[int, Any] = {}
        self._stand_ins: WeakValueDictionary[int, StandIn] = WeakValueDictionary()
        self._target: Image | None = None

    @property
    def name(self) -> str:
        """Name of the other executor."""
        return self._executor.name

    @property
    def is_walking(self) -> bool:
        """True until the run has reached the point of the image that it was given."""
        return self._target is not None

    def walk(self, target: Image) -> None:
        """Walk without computing up to the point of `target`, restore it there, and go on computing."""
        self._target = target

    def run(self, op: On) -> Any:
        """Give the content of the operation's result, or a placeholder for it."""
        self._number(op.state, op.args)
        self._count(op.node, op.step.name)
        number = self._calls
        if self._target:
            content = self._stand_ins[number] = StandIn()
        else:
            self._settle(op.args)
            content = self._executor.run(op)
            self._keep(number, content)
        if self._put_in_place():
            content = content.content
        return content

    def snapshot(self, payload: Value) -> Value:
        """Give the value that the receiver of `payload` holds."""
        self._number(payload)
        self._count(payload.kind, payload.size_bytes)
        copy = payload.snapshot() if self._target else self._executor.snapshot(payload)
        self._number(copy)
        self._put_in_place()
        return copy

    def read(self, value: Value) -> float:
        """Give the number in `value`."""
        self._count("read", value.kind)
        if self._target:
            if len(self._reads) >= len(self._target.reads):
                raise CheckpointMismatch("more numbers are read than were")
            number = self._target.reads[len(self._reads)]
        else:
            self._settle(value)
            number = self._executor.read(value)
        self._reads.append(number)
        self._put_in_place()
        return number

    def finish(self) -> None:
        """Finish a round by the other executor."""
        self._executor.finish()

    def image(self) -> Image:
        """Make an image of the contents that are alive now. Raises Unstorable if one of them cannot be stored."""
        states = {number: _content(state) for state, number in list(self._states.items())}
        results = {number: _strong(weak) for number, weak in list(self._results.items())}
        of_torch, (name, key, *rest), of_python = global_draws.states()
        draws = of_torch, (name, key.tolist(), *rest), of_python
        of_gpus = torch.cuda.get_rng_state_all() if _draws_on_gpu() else []
        alive = storable((states, results, (draws, of_gpus)))
        return Image(self._calls, self._walked.hexdigest(), list(self._reads), *alive)

    def remember(self, states: Iterable[State]) -> None:
        """Include states in images that no operation passes to this executor."""
        self._number(list(states))

    def _count(self, *facts: object) -> None:
        self._calls += 1
        self._walked.update(f"{self._n_states} {facts}".encode())

    def _number(self, *args: Any) -> None:
        """Number new states; while walking, their contents are unknown."""
        for state in states_in(args):
            if state not in self._states:
                self._states[state] = self._n_states
                self._n_states += 1
                if self._target:
                    state.content = None

    def _settle(self, *args: Any) -> None:
        """Replace placeholders among the values in `args` by their contents."""
        if self._stand_ins:
            for value in values_in(args):
                if isinstance(value.content, StandIn):
                    value.content = value.content.content

    def _keep(self, number: int, content: Any) -> None:
        """Remember a result for as long as it is alive."""
        if content is not None:
            self._results[number] = _weak(content, lambda _: self._results.pop(number, None))

    def _put_in_place(self) -> bool:
        """Restore the image if this is its point; gives True if it is. Raises CheckpointMismatch."""
        target = self._target
        if target is None or target.calls != self._calls:
            return False
        if target.walked != self._walked.hexdigest():
            raise CheckpointMismatch("other operations were carried out")
        self._target = None
        try:
            for state, number in self._states.items():
                if number in target.states:
                    _fill(state, target.states[number])
            for number, stand_in in list(self._stand_ins.items()):
                stand_in.content = target.results.get(number)
                self._keep(number, stand_in.content)
            draws, draws_on_gpu = target.draws
            target.states.clear()  # or else they would live as long as the run
            target.results.clear()
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointMismatch(f"what was in memory does not fit: {error}") from error
        global_draws.restore(draws)
        if draws_on_gpu:
            torch.cuda.set_rng_state_all(draws_on_gpu)
        return True


def values_in(args: Any) -> Iterator[Value]:
    """Generate the values among an operation's arguments: also those in collections, and those they are made of."""
    if isinstance(args, Value):
        yield args
        if args.made_of:
            yield from values_in(args.made_of)
    elif isinstance(args, Mapping):
        yield from values_in(list(args.values()))
    elif isinstance(args, list | tuple):
        for arg in args:
            yield from values_in(arg)


def states_in(args: Any) -> Iterator[State]:
    """Generate the states with contents among an operation's arguments: bundles, and members of joined states."""
    for value in values_in(args):
        if isinstance(value, Joined | Bundle):
            if isinstance(value, Bundle):
                yield value
            yield from states_in(value.members)
        elif isinstance(value, State):
            yield value


def _content(state: State) -> Any:
    """Give a state's content, without that of its members."""
    content = state.pending if isinstance(state, Bundle) else state.content
    return content.stored() if isinstance(content, Weights) else content


def _fill(state: State, content: Any) -> None:
    """Set a state's content to one that `_content` gave."""
    if isinstance(state, Bundle):
        state.pending = content
    elif isinstance(state, Replica):
        state.content = None if content is None else Weights.restored(state.part, content)
    else:
        state.content = content


def _weak(content: Any, gone: Callable[[Any], object]) -> Any:
    """Replace objects in `content` by weak references; `gone` is called when one of them has been freed."""
    if isinstance(content, tuple | list):
        return type(content)(_weak(item, gone) for item in content)
    if isinstance(content, Mapping):
        return {key: _weak(item, gone) for key, item in content.items()}
    return content if content is None or isinstance(content, bool | int | float | str) else ref(content, gone)


def _strong(weak: Any) -> Any:
    """Replace weak references by their objects."""
    if isinstance(weak, tuple | list):
        return type(weak)(map(_strong, weak))
    if isinstance(weak, Mapping):
        return {key: _strong(item) for key, item in weak.items()}
    return weak() if isinstance(weak, ref) else weak


def _draws_on_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
