"""Step-wise momentum fusion (SMoFi): the buffers that the server's surrogates share, and the steps on them.

Yang et al., AAAI 2026, Eq. (4) and (5): docs/methods/smofi.md#equations. m_j is the buffer of one surrogate, mbar the
fused buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.models.weights import Weights
from sfl_sim.ops import State, Step, Value, Work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Train


class Fusion(State):
    """Momentum buffers of a round's surrogates, and the fused one, which starts as the last round's mbar or as zeros.

    A surrogate's optimiser works on its row of the matrix, so that rows are averaged without being copied together. The
    content, from the first step that starts from mbar on: `separate` (moments, surrogates, P), as each surrogate's last
    step left them, and `fused` (moments, P). With Adam, moments are the averages of the gradient and of its square.
    """

    __slots__ = ("_carried", "moments", "part", "surrogates")
    content: tuple[Tensor, Tensor] | None

    def __init__(
        self, model: Replica | Joined, surrogates: int, optimiser: Optimiser, carried: Fusion | None = None
    ) -> None:
        super().__init__("momentum")
        self.part = model.part
        self.surrogates = surrogates
        self.moments = optimiser.n_moments
        self._carried = carried

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Content of the state, outside timing-only runs."""
        assert self.content is not None, "a timing-only fusion has no numbers"
        return self.content

    def advance(self, weights: Weights, row: int, optimiser: Optimiser) -> None:
        """Step the surrogate in `row` from mbar, not its own buffer (Eq. 4); that stays if the step is left out."""
        if self.content is None:
            separate = weights.flat.new_zeros(self.moments, self.surrogates, len(weights.flat))
            self.content = separate, self._carried.buffers[1] if self._carried else torch.zeros_like(separate[:, 0])
            self._carried = None
        separate, fused = self.buffers
        mine = separate[:, row]
        before = mine.clone() if rule_in_force().skips else mine
        mine.copy_(fused)
        weights.momentum, weights.variance = [*mine, None, None][:2]
        if not optimiser.step(weights):
            mine.copy_(before)


@dataclass(frozen=True)
class TrainFused(Train):
    """`Train` whose optimiser starts from mbar; `row` is the surrogate's row."""

    row: int

    def run(self, part2: Replica, smashed: Value, fusion: Fusion) -> Tensor | None:  # type: ignore[override]
        """Give the gradient at the input, as `Train`."""
        gradient = self.differentiate(part2, smashed)
        fusion.advance(part2.weights, self.row, self.optimiser)
        return gradient


@dataclass(frozen=True)
class Differentiate(Train):
    """`Train` without its optimiser step: the parameters' gradients wait in the state for `UpdateFromFused`."""

    def run(self, part: Replica | Joined, data: Value) -> Tensor | None:
        """Give the gradient at the input, as `Train`."""
        return self.differentiate(part, data)


@dataclass(frozen=True)
class UpdateFromFused(Step):
    """The optimiser step that `Differentiate` left out in step `tau`, from mbar; free, as every optimiser step."""

    optimiser: Optimiser
    row: int
    tau: int
    name = "update"

    def out(self, part2: Replica, fusion: Fusion) -> Value:
        """Give no result; the record names the mini-batch."""
        return Value("done", step=self.tau)

    def run(self, part2: Replica, fusion: Fusion) -> None:
        """Step with the gradient that `Differentiate` left."""
        fusion.advance(part2.weights, self.row, self.optimiser)


class Fuse(Step):
    """Fuse the buffers: mbar <- the sum of all m_j weighted by `shares`; one MAC per element and buffer.

    One product of a vector with the matrix, at the speed of memory: for 20 surrogates 0.4 % of the step before it,
    and 5 to 11 times as fast as parameter by parameter (research/proofs/smofi.py).
    """

    name = "fuse"
    aggregates = True

    def work(self, fusion: Fusion, shares: Sequence[float]) -> Work:
        """Count the MACs of the weighted sum."""
        return Work.of(fusion.moments * fusion.surrogates * fusion.part.n_parameters)

    def run(self, fusion: Fusion, shares: Sequence[float]) -> None:
        """Sum the buffers that the surrogates' last steps left in the matrix."""
        everyones, mbar = fusion.buffers
        device, dtype = everyones.device, everyones.dtype
        on_host = torch.tensor(shares, dtype=dtype, pin_memory=device.type == "cuda")  # pinned: the host does not wait
        weights = on_host.to(device, non_blocking=True)
        for separate, fused in zip(everyones, mbar, strict=True):
            torch.mv(separate.t(), weights, out=fused)
