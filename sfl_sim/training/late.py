"""Steps whose gradient comes first and whose optimiser steps later: after other nodes, or after a fusion."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import Value, Work
from sfl_sim.training.fusion import Fusion
from sfl_sim.training.optimisers import CoClipped, Optimiser
from sfl_sim.training.steps import Backward, Train


@dataclass(frozen=True)
class Differentiate(Train):
    """`Train` without its optimiser step: the parameters' gradients wait in the state for `Update`."""

    def run(self, part: Replica | Joined, data: Value) -> Tensor | None:
        """The gradient at the input, as `Train`."""
        return self.differentiate(part, data)


@dataclass(frozen=True)
class Update:
    """The optimiser step that `Differentiate` left out, for the mini-batch `smashed`.

    It takes the squared norm of the rest of the gradient, if the rule needs it, and the fused momentum buffers in
    whose `row` it goes on, if there are any.
    """

    optimiser: Optimiser
    row: int
    name = "update"
    aggregates = False

    def work(self, part2: Replica, smashed: Value, norm: Value | None, fusion: Fusion | None) -> Work:
        """Free, as every optimiser step."""
        return Work.of(0)

    def out(self, part2: Replica, smashed: Value, norm: Value | None, fusion: Fusion | None) -> Value:
        """Nothing."""
        return Value("done", step=smashed.step)

    def run(self, part2: Replica, smashed: Value, norm: Value | None, fusion: Fusion | None) -> None:
        """The step, with the gradient that waits."""
        if fusion:
            fusion.lend(part2.weights, self.row)
        optimiser = _clipped_with(self.optimiser, norm.load()) if norm else self.optimiser
        optimiser.step(part2.weights)


@dataclass(frozen=True)
class DifferentiateNormed(Differentiate):
    """`Differentiate`; with the gradient at the input goes the squared norm of that of part-2."""

    def out(self, part: Replica | Joined, data: Value) -> Value:
        """One number more."""
        gradients = super().out(part, data)
        gradients.size_bytes += part.part.dtype.itemsize
        return gradients

    def run(self, part: Replica | Joined, data: Value) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        """The gradient at the input, and the squared norm, ()."""
        (member,) = part.members
        gradient = self.differentiate(part, data)
        return gradient, CoClipped.squared_norm(member.weights, self.optimiser.weight_decay)


@dataclass(frozen=True)
class BackwardNormed(Backward):
    """`Backward` from what `DifferentiateNormed` gives, clipped as one with part-2; gives part-1's squared norm."""

    def out(self, part1: Replica, gradients: Value) -> Value:
        """One number."""
        return Value("norm", part1.part.dtype.itemsize, step=gradients.step)

    def run(self, part1: Replica, gradients: Value) -> Tensor:  # type: ignore[override]
        """Backward, then step."""
        gradient, elsewhere = gradients.load()
        part1.weights.backward(gradient)
        own = CoClipped.squared_norm(part1.weights, self.optimiser.weight_decay)
        _clipped_with(self.optimiser, elsewhere).step(part1.weights)
        return own


def _clipped_with(optimiser: Optimiser, elsewhere: Tensor) -> Optimiser:
    """The optimiser, whose gradient is clipped as one with the rest of it, of squared norm `elsewhere`, ()."""
    assert isinstance(optimiser.rule, CoClipped)
    return replace(optimiser, rule=replace(optimiser.rule, elsewhere=elsewhere))
