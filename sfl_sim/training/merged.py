"""Mini-batches of several clients merged into one at the server, and its gradients dispatched again (MergeSFL)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfl_sim.models.replica import Replica
from sfl_sim.ops import Value, Work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Train


@dataclass(frozen=True)
class TrainMerged:
    """`Train` on the smashed data of several clients as one mini-batch; gives the gradients of all, in a row."""

    optimiser: Optimiser
    name = "train"
    aggregates = False

    @property
    def _train(self) -> Train:
        return Train(self.optimiser)

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        """Of all samples, in one call."""
        return self._train.work(part2, _merged(smashed))

    def out(self, part2: Replica, smashed: Sequence[Value]) -> Value:
        """The gradients of all samples."""
        return self._train.out(part2, _merged(smashed))

    def run(self, part2: Replica, smashed: Sequence[Value]) -> Tensor | None:
        """The gradient of the mean loss over all samples, evaluated before the step."""
        inputs, labels = zip(*(value.load() for value in smashed), strict=True)
        merged = _merged(smashed)
        merged.content = torch.cat(inputs), torch.cat(labels)
        return self._train.run(part2, merged)


def _merged(smashed: Sequence[Value]) -> Value:
    return Value("smashed", samples=sum(value.samples for value in smashed), step=smashed[0].step)


class Dispatched(Value):
    """One client's rows of merged gradients, scaled to be the gradients of the mean loss over its own samples."""

    __slots__ = ("_rows", "_scale")

    def __init__(self, merged: Value, first: int, samples: int) -> None:
        size_bytes = merged.size_bytes // merged.samples * samples
        super().__init__(merged.kind, size_bytes, samples, merged.step, merged.content)
        self._rows = slice(first, first + samples)
        self._scale = merged.samples / samples

    def load(self) -> Tensor:
        """(n, ...)."""
        rows: Tensor = self.content[self._rows]
        return rows * self._scale


def dispatched(merged: Value, samples: Sequence[int]) -> Iterator[Dispatched]:
    """Merged gradients as those of every client, which brought so many samples each."""
    first = 0
    for n in samples:
        yield Dispatched(merged, first, n)
        first += n
