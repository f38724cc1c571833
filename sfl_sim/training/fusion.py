"""Step-wise momentum fusion: the momentum buffers of all surrogates are averaged after every step (SMoFi)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfl_sim.models.part import Part
from sfl_sim.models.replica import Joined, Replica, Weights
from sfl_sim.ops import State, Value, Work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Train


@dataclass
class Buffers:
    """The numbers of a `Fusion`.

    A surrogate's optimiser works on its row of the matrix, so that nothing is gathered before the rows are averaged.

    Attributes:
        own: (moments, surrogates, P), as each surrogate's last step left them.
        fused: (moments, P).
    """

    own: Tensor
    fused: Tensor


class Fusion(State):
    """The momentum buffers of a round's surrogates, and what they are fused to: that of an earlier round, or zeros.

    Their numbers are the content, from the first step on that goes on from them.
    """

    __slots__ = ("_carried", "moments", "part", "surrogates")
    content: Buffers | None

    def __init__(
        self, model: Replica | Joined, surrogates: int, optimiser: Optimiser, carried: Fusion | None = None
    ) -> None:
        super().__init__("momentum")
        self.part: Part = model.part
        self.surrogates = surrogates
        self.moments = optimiser.n_moments
        self._carried = carried

    @property
    def buffers(self) -> Buffers:
        """The content, outside timing-only runs."""
        assert self.content is not None, "a timing-only fusion has no numbers"
        return self.content

    def lend(self, weights: Weights, row: int) -> None:
        """Let the next step of the surrogate in `row` go on from the fused buffers instead of its own (Eq. 4)."""
        if self.content is None:
            own = weights.flat.new_zeros(self.moments, self.surrogates, len(weights.flat))
            self.content = Buffers(own, self._carried.buffers.fused if self._carried else torch.zeros_like(own[:, 0]))
            self._carried = None
        rows = list(self.buffers.own[:, row])
        for own, fused in zip(rows, self.buffers.fused, strict=True):
            own.copy_(fused)
        weights.momentum, weights.variance = [*rows, None, None][:2]


@dataclass(frozen=True)
class TrainFused(Train):
    """`Train` whose optimiser goes on from the fused momentum buffers; `row` is the surrogate's."""

    row: int

    def work(self, part: Replica | Joined, data: Value, fusion: Fusion | None = None) -> Work:
        """As `Train`."""
        return super().work(part, data)

    def out(self, part: Replica | Joined, data: Value, fusion: Fusion | None = None) -> Value:
        """As `Train`."""
        return super().out(part, data)

    def run(self, part: Replica | Joined, data: Value, fusion: Fusion | None = None) -> Tensor | None:
        """As `Train`."""
        (surrogate,) = part.members
        assert fusion
        gradient = self.differentiate(part, data)
        fusion.lend(surrogate.weights, self.row)
        self.optimiser.step(surrogate.weights)
        return gradient


class Fuse:
    """The fused buffers become sums of the surrogates' own, weighted by `shares`; one MAC per element and buffer.

    One product of a vector with the matrix, at the speed of memory: for 20 surrogates 0.4 % of the step before it,
    and 5 to 11 times as fast as parameter by parameter (benchmarks/smofi.py).
    """

    name = "fuse"
    aggregates = True

    def work(self, fusion: Fusion, shares: Sequence[float]) -> Work:
        """The weighted sum."""
        return Work.of(fusion.moments * fusion.surrogates * fusion.part.n_parameters)

    def out(self, fusion: Fusion, shares: Sequence[float]) -> Value:
        """Nothing."""
        return Value("done")

    def run(self, fusion: Fusion, shares: Sequence[float]) -> None:
        """Of the buffers that the surrogates' last steps left in the matrix."""
        buffers = fusion.buffers
        device, dtype = buffers.own.device, buffers.own.dtype
        on_host = torch.tensor(shares, dtype=dtype, pin_memory=device.type == "cuda")  # pinned, so that nobody waits
        weights = on_host.to(device, non_blocking=True)
        for own, fused in zip(buffers.own, buffers.fused, strict=True):
            torch.mv(own.t(), weights, out=fused)
