"""Operations that have not run yet, and the dependencies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from sfl_sim.models.replica import Bundle, Joined
from sfl_sim.ops import State, Value


class Deferred:
    """A task, `act(state, *args)`, which is not done yet; until then it is the placeholder for its result.

    Attributes:
        act, state, args: gone when it is done, so that a result keeps nothing else alive.
        kind: of tasks that may run as one; None: this one runs alone.
        place: of `state` in the order in which states came into use; a group in this order has the same one every time.
        turn: for the executor, in which order tasks got ready.
        result: once it is done.
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
    """A state's tasks: the last one that changes it, those that read its result, and the number of unfinished ones."""

    __slots__ = ("left", "place", "readers", "state", "writer")

    def __init__(self, state: State, place: int) -> None:
        self.state = state
        self.place = place
        self.writer: list[Deferred] = []
        self.readers: list[Deferred] = []
        self.left = 0


class Ledger:
    """The tasks that have not run yet, and the dependencies between them.

    A task waits for those before it that give a value which it takes, change a state which it changes or reads (those
    among its arguments), or read the state which it changes. Every order that respects this gives the same numbers as
    the order in which the simulator started the operations.
    """

    def __init__(self) -> None:
        self._places = count()
        self._uses: dict[int, _Uses] = {}
        self._unnamed = State("whatever no operation names")

    def add(
        self, act: Callable[..., Any], state: State, args: tuple[Any, ...], kind: Any = None, *, names_all: bool = True
    ) -> Deferred:
        """Add the next task. Without `names_all` it may touch other states, and such tasks keep their order."""
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
        """Mark `task` as done; gives the tasks that have become ready."""
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
    """Replace placeholders among `args` by their results."""
    for value in values_in(args):
        if isinstance(value.content, Deferred):
            value.content = value.content.result


def values_in(args: Any) -> Iterator[Value]:
    """Generate the values among an operation's arguments, those in collections and those they are made of."""
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
    """Generate the states among an operation's arguments; for joined states, their members."""
    for value in values_in(args):
        if isinstance(value, Joined | Bundle):
            yield from states_in(value.members)
        elif isinstance(value, State):
            yield value
