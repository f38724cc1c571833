"""CycleSL: the server trains on a shuffled pool of all activations first; clients get gradients of what it has become.

Wang et al., "CycleSL: Server-Client Cyclical Update Driven Scalable Split Learning", 2025 (docs/methods/cyclesl.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sfl_sim.data.transforms import to_device
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import Pooled, rows_of
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Flow, State, Step, Value, Work, on
from sfl_sim.rng import stream
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import InputGradient, gradient_at

Ints = NDArray[np.int64]


class CycleOptions(MethodOptions):
    """Options of CycleSL."""

    server_epochs: Annotated[int, Field(ge=1)] = 1
    """Number of passes of the server over a step's pool."""
    server_batch: Annotated[int, Field(ge=1)] | None = None
    """Samples of the server's mini-batches; null: those of a client's."""


class CycleSL(Pooled, survives=True):
    """Part-2 learns from mini-batches of the pooled activations, and then tells clients its gradients."""

    Options = CycleOptions
    options: CycleOptions
    tuned = ("server_epochs", (1, 2, 4))
    neutral = None
    shares_server_model = False  # gradients of several clients are computed side by side

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.server_batch = self.options.server_batch or self.batch_size
        self.n_steps = 0
        """Number of steps begun, which names the draws of the pool's order."""

    def train(self, smashed: Mapping[int, Value], round: int) -> Flow:
        """One step of the server per mini-batch of the pool; no gradient is known yet."""
        shares = self.task.shares(list(smashed))
        self.n_steps += 1
        draws, epochs = (self.task.seed, "pool", self.n_steps), self.options.server_epochs
        rows = sum(value.samples for value in smashed.values())
        sizes = pool_sizes(rows, self.server_batch, self.task.network.least_batch)
        step = TrainPool(self.optimiser(round, SERVER), tuple(sizes), epochs, tuple(shares), draws)
        yield on(SERVER, step, self.part2, list(smashed.values()))
        return {}

    def gradient(self, smashed: Value, part: Value | None) -> Flow:
        """Give the gradient of the client's own mean loss with part-2 as the step has left it."""
        return (yield on(SERVER, ReadGradient(), State("gradient"), smashed, self.part2))


def pool_sizes(rows: int, batch: int, least: int = 1) -> list[int]:
    """Cut `rows` into mini-batches of `batch`; a rest of fewer than `least` joins the last one.

    >>> pool_sizes(10, 4), pool_sizes(9, 4, least=2), pool_sizes(3, 4)
    ([4, 4, 2], [4, 5], [3])
    """
    sizes = [min(batch, rows - start) for start in range(0, rows, batch)]
    if len(sizes) > 1 and sizes[-1] < least:
        sizes[-2:] = [sizes[-2] + sizes[-1]]
    return sizes


@dataclass(frozen=True)
class TrainPool(Step):
    """Mini-batches of the smashed data of several clients in random order, and an optimiser step on each.

    A row's weight in its mini-batch is that of its client.

    Attributes:
        sizes: samples of the mini-batches, which add up to all rows.
        epochs: passes over all rows, each in an order of its own.
        weights: of the clients' rows.
        draws: seed, name and numbers of the random stream.
    """

    optimiser: Optimiser
    sizes: tuple[int, ...]
    epochs: int
    weights: tuple[float, ...]
    draws: tuple[int, str, int]
    name = "train"

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        return Work.total([part2.part.work(size, 3, gradient=False) for size in self.sizes] * self.epochs)

    def run(self, part2: Replica, smashed: Sequence[Value]) -> None:
        z, labels = rows_of(smashed)
        owner = np.repeat(np.arange(len(smashed)), [value.samples for value in smashed])
        for epoch in range(self.epochs):
            order = stream(*self.draws, epoch).permutation(len(owner))
            for rows in np.split(order, np.cumsum(self.sizes)[:-1]):
                rows = rows[np.argsort(owner[rows], kind="stable")]  # a client's rows together
                index = to_device(torch.from_numpy(rows), z.device)
                self._step(part2, z[index], labels[index], *np.unique(owner[rows], return_counts=True))

    def _step(self, part2: Replica, z: Tensor, labels: Tensor, owners: Ints, counts: Ints) -> None:
        """Step on rows of the clients `owners`, of which each has so many, one after another."""
        total = sum(self.weights[c] * n for c, n in zip(owners, counts, strict=True))
        out = torch.split(part2.weights(z, training=True), counts.tolist())
        theirs = zip(owners, out, torch.split(labels, counts.tolist()), strict=True)
        losses = [part2.part.loss(answers, y) * (self.weights[c] * len(y) / total) for c, answers, y in theirs]
        differentiate(torch.stack(losses).sum())
        self.optimiser.step(part2.weights)


class ReadGradient(Step):
    """`InputGradient` as a job that does not keep others from reading the part."""

    name = "differentiate"

    def work(self, _: State, data: Value, part: Replica) -> Work:
        return InputGradient().work(part, data)

    def out(self, _: State, data: Value, part: Replica) -> Value:
        return gradient_at(part.part, data)

    def run(self, _: State, data: Value, part: Replica) -> Tensor | None:
        return InputGradient().run(part, data)
