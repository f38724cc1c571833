"""Smashed data of assistants beside those of the client that trains: knowledge replay (KoReA-SFL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.replica import Replica
from sfl_sim.ops import Value, Work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Forward, Train


class Recall:
    """An assistant's forward pass: in training mode, but nothing is learned from it and no gradient will come."""

    name = "recall"
    aggregates = False

    def work(self, part1: Replica, batch: Value) -> Work:
        """The forward pass."""
        return Forward().work(part1, batch)

    def out(self, part1: Replica, batch: Value) -> Value:
        """As large as any smashed data."""
        return Value("knowledge", Forward().out(part1, batch).size_bytes, batch.samples)

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) and labels (n,). Running statistics move in the assistant's copy, which is dropped."""
        x, labels = batch.load()
        weights = part1.weights
        with torch.no_grad():
            return weights.part.call(weights.part.views(weights.flat), weights.buffer_views, x, training=True), labels


class Rows(Value):
    """Some rows of knowledge."""

    __slots__ = ("_rows",)

    def __init__(self, knowledge: Value, first: int, last: int) -> None:
        size_bytes = knowledge.size_bytes // knowledge.samples * (last - first)
        super().__init__(knowledge.kind, size_bytes, last - first, knowledge.step, knowledge.content)
        self._rows = slice(first, last)

    def load(self) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) and labels (n,)."""
        activations, labels = self.content
        return activations[self._rows], labels[self._rows]


@dataclass(frozen=True)
class TrainReplayed:
    """`Train` on a client's smashed data and on knowledge; gives the gradient at the client's rows alone.

    Attributes:
        joint: one forward pass for both, so that batch norm sees them as one; else one for each.
    """

    optimiser: Optimiser
    joint: bool = True
    name = "train"
    aggregates = False

    def work(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Work:
        """Forward and backward of all rows, in one call of every layer or two."""
        work = part2.part.work(sum(value.samples for value in (smashed, *knowledge)), passes=3)
        return work if self.joint else work._replace(n_ops=2 * work.n_ops)

    def out(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Value:
        """As without knowledge."""
        return Train(self.optimiser).out(part2, smashed)

    def run(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Tensor | None:
        """The gradient of the mean loss over all rows at those of the client (n, ...), evaluated before the step."""
        own, *others = (value.load() for value in (smashed, *knowledge))
        blocks = [[own, *others]] if self.joint else [[own], others]
        inputs = [torch.cat([x for x, _ in block]).requires_grad_() for block in blocks]
        labels = torch.cat([labels for _, labels in (own, *others)])
        scores = torch.cat([part2.weights(x, training=True) for x in inputs])
        part2.part.calling.on_nan.differentiate(cross_entropy(scores.to(part2.part.dtype), labels))
        self.optimiser.step(part2.weights)
        gradient: Tensor | None = inputs[0].grad
        return None if gradient is None else gradient[: smashed.samples]


class SquaredNorms:
    """Tell what `optimisers.Measured` has added up, on top of what another node tells. Free, as an optimiser step."""

    name = "norm"
    aggregates = False

    def work(self, part: Replica, elsewhere: Value | None = None) -> Work:
        """Free."""
        return Work.of(0)

    def out(self, part: Replica, elsewhere: Value | None = None) -> Value:
        """One number."""
        return Value("norm", part.part.dtype.itemsize)

    def run(self, part: Replica, elsewhere: Value | None = None) -> Tensor:
        """(); 0 of a part that has taken no step."""
        own = part.weights.squared_norms
        if own is None:
            own = part.weights.flat.new_zeros(())
        return own + elsewhere.load() if elsewhere else own
