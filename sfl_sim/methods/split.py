"""The mini-batch that all split methods share."""

from __future__ import annotations

from collections.abc import Iterable

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.models.replica import Replica
from sfl_sim.models.steps import Backward, Forward, Train
from sfl_sim.ops import SERVER, Flow, on, send


class SplitMethod(Method):
    """A method whose model is cut once: part-1 at the clients, part-2 at the server."""

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        cut = task.network.check_cut(task.cut)
        self.part1, self.part2 = task.split(cut)

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

    def model(self) -> list[Replica]:
        """Part-1, then part-2."""
        return [self.part1, self.part2]
