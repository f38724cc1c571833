"""The mini-batch that all split methods share."""

from __future__ import annotations

from collections.abc import Iterable

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.models.replica import Replica
from sfl_sim.models.steps import Backward, Forward, Train
from sfl_sim.ops import SERVER, Flow, on, send


class SplitStep(Method):
    """A method whose clients train part-1 and whose server trains part-2, one mini-batch after another."""

    def batches(self, c: int, part1: Replica, part2: Replica, batches: Iterable[Batch], round: int) -> Flow:
        """Train both parts on the mini-batches of client `c`, one after another (SPLITSTEP, METHODS.md 0.2)."""
        sgd = self.task.sgd(round)
        forward, train, backward = Forward(), Train(sgd), Backward(sgd)
        for batch in batches:
            smashed = yield on(c, forward, part1, batch)
            smashed = yield send(smashed, c, SERVER)
            gradient = yield on(SERVER, train, part2, smashed)
            gradient = yield send(gradient, SERVER, c)
            yield on(c, backward, part1, gradient)


class SplitMethod(SplitStep):
    """A method whose model is cut at one place for all clients."""

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.part1, self.part2 = task.split(task.cut)

    def model(self) -> list[Replica]:
        """Part-1, then part-2."""
        return [self.part1, self.part2]
