"""Tasks of the batched executor that have not run yet, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from sfl_sim.models.replica import Bundle, Joined
from sfl_sim.ops import State, Value


class Deferred:
    """A task: the call `act(state, *args)`, which runs later. Other tasks hold it in place of its result.

    Attributes:
        act, state, args: the call; deleted when the task is done, so that its result keeps nothing else alive.
        kind: tasks of one kind may run as one; None: this task runs alone.
        place: number of `state` in the order in which states came into use. A group of tasks is sorted by it, so that
            the same group always has the same order.
        turn: number in the order in which tasks got ready, set by the executor.
        result: what the call has returned; None before.
        uses: the states that the task changes or reads.
        waits_for: number of tasks that have to be done before.
        followers: the tasks that wait for this one.
    """

    __slots__ = (
        "__weakref__", "act", "args", "followers", "is_done", "kind", "place", "result", "state", "turn", "uses",
        "waits_for",
    )  # fmt: skip

    def __init__(self, act: Callable[..., Any], state: State, args: tuple[Any, ...], kind: Any) -> None:
        self.act = act
        self.state = state
        self.args = args
        self.kind = kind
        self.place = self.turn = 0
        self.is_done = False
        self.result: Any = None
        self.uses: list[_Uses] = []
        self.waits_for = 0
        self.followers: list[Deferred] = []


class _Uses:
    """The tasks that use a state.

    Attributes:
        place: as of the tasks.
        writer: the last task that changes the state; empty if there is none.
        readers: the tasks that read what the writer leaves.
        left: number of its tasks that are not done.
    """

    __slots__ = ("left", "place", "readers", "state", "writer")

    def __init__(self, state: State, place: int) -> None:
        self.state = state
        self.place = place
        self.writer: list[Deferred] = []
        self.readers: list[Deferred] = []
        self.left = 0


class Ledger:
    """The tasks that have not run yet, and what each of them waits for.

    A task waits for an earlier task

    - whose result is among its arguments;
    - that changes a state which it changes or reads;
    - that reads a state which it changes.

    It reads the states among its arguments. Every order that keeps these rules gives the same numbers as the order in
    which the simulator started the operations.
    """

    def __init__(self) -> None:
        self._places = count()
        self._uses: dict[int, _Uses] = {}
        self._unnamed = State("whatever no operation names")

    def add(
        self, act: Callable[..., Any], state: State, args: tuple[Any, ...], kind: Any = None, *, names_all: bool = True
    ) -> Deferred:
        """Add the next task.

        Args:
            names_all: False if it may touch states that it does not name; such tasks keep their order.
        """
        task = Deferred(act, state, args, kind)
        before = [value.content for value in values_in(args) if isinstance(value.content, Deferred)]
        for changed in [*states_in(state), *([] if names_all else [self._unnamed])]:
            uses = self._use(task, changed)
            before += uses.writer + uses.readers
            uses.writer, uses.readers = [task], []
        for read in states_in(args):
            uses = self._use(task, read)
            before += uses.writer
            uses.readers.append(task)
        task.place = task.uses[0].place
        for other in dict.fromkeys(before):
            if not other.is_done and other is not task:
                other.followers.append(task)
                task.waits_for += 1
        return task

    def close(self, task: Deferred, result: Any) -> list[Deferred]:
        """Mark `task` as done; gives the tasks that waited for nothing else."""
        task.is_done, task.result = True, result
        for uses in task.uses:
            uses.left -= 1
            if not uses.left:
                del self._uses[id(uses.state)]
        followers = task.followers
        del task.act, task.state, task.args, task.kind, task.uses, task.followers
        for follower in followers:
            follower.waits_for -= 1
        return [follower for follower in followers if not follower.waits_for]

    def _use(self, task: Deferred, state: State) -> _Uses:
        uses = self._uses.setdefault(id(state), _Uses(state, next(self._places)))
        uses.left += 1
        task.uses.append(uses)
        return uses


def settle(args: Any) -> None:
    """Replace the tasks among `args` by their results."""
    for value in values_in(args):
        if isinstance(value.content, Deferred):
            value.content = value.content.result


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
    """Generate the states among an operation's arguments. A joined state or a bundle stands for its members."""
    for value in values_in(args):
        if isinstance(value, Joined | Bundle):
            yield from states_in(value.members)
        elif isinstance(value, State):
            yield value
