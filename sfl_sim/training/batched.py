"""The batched executor: steps wait, and equal steps on different states run as one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from typing import Any, Protocol, cast

from sfl_sim.models.on_nan import OnNan
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import On, State, Step, Value
from sfl_sim.training.deferred import Deferred, Ledger, settle
from sfl_sim.training.eager import Eager

MAX_GROUP = 64
MIN_GROUP = 4
"""Group size below which vmap costs more than it gains (lenet5 at batch 8, on a CPU)."""


class BatchedStep(Step, Protocol):
    """A step that many states can take as one computation.

    A class that defines `run` must define `run_many`, too: a step that overrides `run` alone runs by itself.
    """

    def batch_key(self, state: Any, *args: Any) -> Hashable:
        """Give a key: operations with equal keys on different states may run as one. Arguments have no contents yet."""

    def refusal(self, state: Any, *args: Any) -> str | None:
        """Return the reason why they cannot run as one after all; None if they can. Called before they run."""

    def run_many(self, states: Sequence[Any], args: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """Run `run(state, *args)` for each state as one computation, up to rounding."""


class _Kind:
    """Tasks that may run as one: those that are ready, and the number of tasks of each state."""

    __slots__ = ("key", "ready", "states", "step")

    def __init__(self, key: Hashable, step: BatchedStep) -> None:
        self.key = key
        self.step = step
        self.ready: list[Deferred] = []
        self.states: Counter[int] = Counter()


class Batched(Eager):
    """Runs steps as late, and as many together, as possible: for GPUs, and for networks too small to fill a CPU.

    Results differ from the eager executor's by rounding; two runs agree to the bit. On one thread of a CPU, lenet5 with
    10 (50) clients and batch 8 is 1.8 (2.1) times as fast with fedavg and 1.9 (2.6) times with splitfed_v1, 1.5 times
    with batch 64; splitfed_v2, whose server goes step by step, gets 0.9 to 1.3, and cnn8 loses (0.6).

    Args:
        max_group: maximum of operations that run as one, which bounds the activations in memory.
        min_group: minimum of operations that run as one; fewer run one by one.
        on_nan: as for `Eager`.

    Attributes:
        one_by_one: the reason why steps run one by one, if the network cannot run for many clients as one; else None.
    """

    name = "batched"

    def __init__(self, max_group: int = MAX_GROUP, min_group: int = MIN_GROUP, on_nan: OnNan | None = None) -> None:
        super().__init__(on_nan)
        self.max_group = max_group
        self.min_group = min(min_group, max_group)
        self.one_by_one: str | None = None
        self._ledger = Ledger()
        self._turns = count()
        self._left: dict[Deferred, On | None] = {}  # tasks that are not done, in order; None for copies
        self._alone: deque[Deferred] = deque()  # ready tasks that run alone
        self._kinds: dict[Hashable, _Kind] = {}

    def run(self, op: On) -> Any:
        """Give a placeholder for the content of the result until the step has run."""
        if self.one_by_one:
            settle(op.args)
            return super().run(op)
        if not _runs_many(type(op.step)):  # it may touch other states
            return self._defer(self._ledger.add(op.step.run, op.state, op.args, names_all=False), op)
        if type(op.state) is not Replica:  # several states at once, which others may change with it
            return self._defer(self._ledger.add(op.step.run, op.state, op.args), op)
        step = cast(BatchedStep, op.step)
        key = step.batch_key(op.state, *op.args)
        kind = self._kinds.setdefault(key, _Kind(key, step))
        kind.states[id(op.state)] += 1
        return self._defer(self._ledger.add(step.run, op.state, op.args, kind), op)

    def snapshot(self, payload: Value) -> Value:
        """Copy the payload; the copy gets the contents that the payload has at this point of its order of changes."""
        if self.one_by_one or not isinstance(payload, State):
            return super().snapshot(payload)
        if type(payload) not in (Replica, Joined):  # its states and its kind of copy are unknown
            self.finish()
            return super().snapshot(payload)
        copy = cast(Replica, payload).empty()
        self._defer(self._ledger.add(_fill, copy, (payload,)))
        return copy

    def read(self, value: Value) -> float:
        """Give the number, after running the steps that it needs."""
        if isinstance(value.content, Deferred):
            self._run_until(value.content)
            settle(value)
        return super().read(value)

    def finish(self) -> None:
        """Run all waiting steps, at the end of a round."""
        self._run_until(None)
        super().finish()

    def _defer(self, task: Deferred, op: On | None = None) -> Deferred:
        self._left[task] = op
        if not task.waits_for:
            self._admit(task)
        return task

    def _admit(self, task: Deferred) -> None:
        task.turn = next(self._turns)
        (task.kind.ready if task.kind else self._alone).append(task)

    def _run_until(self, wanted: Deferred | None) -> None:
        while self._left and not (wanted and wanted.is_done):
            if self._alone:
                self._run_alone(self._alone.popleft())
            else:
                self._run_some(self._next_kind())

    def _next_kind(self) -> _Kind:
        """Choose the next group so that groups grow: one that cannot grow any more, else the largest.

        Among groups of maximum size it is the one that got ready last, so that clients go on to their backward passes
        before others take memory for their forward passes.
        """
        kinds = [kind for kind in self._kinds.values() if kind.ready]
        lonely = [kind for kind in kinds if len(kind.states) == 1]
        return lonely[0] if lonely else max(kinds, key=lambda k: (min(len(k.ready), self.max_group), k.ready[0].turn))

    def _run_some(self, kind: _Kind) -> None:
        group, kind.ready = kind.ready[: self.max_group], kind.ready[self.max_group :]
        group.sort(key=lambda task: task.place)
        settle([task.args for task in group])
        self.one_by_one = kind.step.refusal(group[0].state, *group[0].args)
        if self.one_by_one:
            self._run_in_order()
        elif len(group) < self.min_group:
            for task in group:
                self._run_alone(task)
        else:
            with self._watched(group):
                results = kind.step.run_many([task.state for task in group], [task.args for task in group])
            for task, result in zip(group, results, strict=True):
                self._close(task, result)

    def _run_in_order(self) -> None:
        """Run all waiting tasks in their order, as the eager executor does."""
        self.name = f"batched, but one by one: {self.one_by_one}"
        for task in list(self._left):
            self._run_alone(task)
        self._alone.clear()

    def _run_alone(self, task: Deferred) -> None:
        settle(task.args)
        with self._watched([task]):
            result = task.act(task.state, *task.args)
        self._close(task, result)

    def _watched(self, tasks: Sequence[Deferred]) -> AbstractContextManager[None]:
        return self.on_nan.in_force([op for task in tasks if (op := self._left[task])])

    def _close(self, task: Deferred, result: Any) -> None:
        del self._left[task]
        if kind := task.kind:
            kind.states[id(task.state)] -= 1
            if not kind.states[id(task.state)]:
                del kind.states[id(task.state)]
            if not kind.states:
                del self._kinds[kind.key]
        for ready in self._ledger.close(task, result):
            self._admit(ready)


@cache
def _runs_many(kind: type[Step]) -> bool:
    """Return True if the class that defines the step's `run` defines its `run_many`."""
    return "run_many" in vars(next(base for base in kind.__mro__ if "run" in vars(base)))


def _fill(copy: Replica, payload: Replica | Joined) -> None:
    copy.content = payload.snapshot().content
