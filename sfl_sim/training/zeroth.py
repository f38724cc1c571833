"""Training by forward passes alone: losses at weights that are shifted along random directions (zeroth order).

A direction u is drawn from its seed whenever it is needed, and neither kept nor sent. With s_p the slope of a function
along u_p, the estimate of its gradient is the mean of s_p u_p. Passes use evaluation statistics, and change none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import Step, Value, Work
from sfl_sim.rng import torch_seed
from sfl_sim.training.exit_steps import HeadForward, exit_work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Forward

Dist = Literal["gauss", "sign", "sphere"]
"""Distribution of directions in d dimensions: normal; +1 or -1 in each; uniform on the sphere of radius sqrt(d). The
mean of u u^T is the identity for all."""
SCALAR_BYTES = 4
"""A float32, or the seed of a direction."""


@dataclass(frozen=True)
class Directions:
    """Random directions in the space of all parameters of some replicas.

    Attributes:
        dist: their distribution.
        count: how many there are (P).
        mu: length of a shift, in units of the direction.
        seed, ids: seed of the run, and what tells these directions from others.
    """

    dist: Dist
    count: int
    mu: float
    seed: int
    ids: tuple[int, ...] = ()

    def of(self, *ids: int) -> Directions:
        """Return others of the same kind."""
        return replace(self, ids=ids)

    def seeds(self) -> Tensor:
        """Return 32 bits of the seed of each (P,), as a message."""
        seeds = [torch_seed(self.seed, "direction", *self.ids, number) >> 32 for number in range(self.count)]
        return torch.tensor(seeds, dtype=torch.int32)

    def draw(self, number: int, replicas: Sequence[Replica]) -> list[Tensor]:
        """Draw direction `number`, a flat vector (P,) for each replica, laid out as its weights."""
        sizes = [replica.part.n_parameters for replica in replicas]
        first = replicas[0].weights.flat
        generator = torch.Generator().manual_seed(torch_seed(self.seed, "direction", *self.ids, number))
        u = torch.randn(sum(sizes), generator=generator, dtype=first.dtype)
        if self.dist == "sign":
            u = torch.where(u < 0, -1.0, 1.0).to(first.dtype)
        elif self.dist == "sphere":
            u *= math.sqrt(len(u)) / u.norm()
        pieces = zip(replicas, torch.split(u, sizes), strict=True)
        return [replica.part.with_gaps(piece, replica.part.shapes).to(first.device) for replica, piece in pieces]

    def all(self, replicas: Sequence[Replica]) -> Iterator[list[Tensor]]:
        """Draw one direction after another."""
        return (self.draw(number, replicas) for number in range(self.count))

    def add_gradient(self, replicas: Sequence[Replica], slopes: Tensor) -> None:
        """Add the mean over p of slopes[p] u_p to the gradients of `replicas`; `slopes` (P,) come from losses."""
        rule_in_force().see(slopes.sum())
        for slope, u in zip(slopes / self.count, self.all(replicas), strict=True):
            for replica, piece in zip(replicas, u, strict=True):
                replica.weights.grad.add_(slope.to(piece) * piece)


def shifted(replicas: Sequence[Replica], x: Tensor, u: Sequence[Tensor] | None = None, by: float = 0.0) -> Tensor:
    """Run replicas one after another on x (n, ...) at weights shifted by `by` times u, which are made and dropped."""
    with torch.no_grad():
        for number, replica in enumerate(replicas):
            weights, part = replica.weights, replica.part
            flat = weights.flat if u is None else torch.add(weights.flat, u[number], alpha=by)
            x = part.call(part.views(flat), weights.frozen, weights.buffer_views, x, training=False)
    return x


@dataclass(frozen=True)
class ForwardShifted(Forward):
    """Part-1 on a batch, without a graph, at weights that are shifted along the first direction; labels stay.

    Attributes:
        directions: of which the first is meant.
        sign: 1 or -1.
    """

    labelled: bool = False
    directions: Directions = field(kw_only=True)
    sign: int = 1

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, ...]:
        u = self.directions.draw(0, [part1])
        return (shifted([part1], batch.load()[0], u, self.sign * self.directions.mu),)


class LossForward(HeadForward):
    """phi and h on a batch without a graph; gives the smashed data, and keeps the loss in `pending`."""

    def run(self, model: Bundle, batch: Value) -> tuple[Tensor, Tensor]:
        x, labels = batch.load()
        phi, h = model.replicas[:2]
        z = shifted([phi], x)
        model.pending = h.part.loss(shifted([h], z), labels)
        return z, labels


@dataclass(frozen=True)
class ShiftedStep(Step):
    """A step of phi and h along directions, with the slopes of h's loss that further forward passes give.

    Attributes:
        central: take a slope from shifts to both sides; else from one shift and the loss that `LossForward` has kept.
    """

    optimiser: Optimiser
    directions: Directions
    central: bool = False
    name = "shifted"

    def work(self, model: Bundle, batch: Value) -> Work:
        passes = [exit_work(model, batch.samples, passes=1)] * (self.directions.count * (1 + self.central))
        return Work.total(passes)._replace(updated=sum(member.part.n_parameters for member in model.members[:2]))

    def run(self, model: Bundle, batch: Value) -> None:
        x, labels = batch.load()
        replicas, mu, loss_of = model.replicas[:2], self.directions.mu, model.replicas[1].part.loss
        at_w, model.pending = model.pending, None
        slopes = []
        for u in self.directions.all(replicas):
            ahead = loss_of(shifted(replicas, x, u, mu), labels)
            behind = loss_of(shifted(replicas, x, u, -mu), labels) if self.central else at_w
            slopes.append((ahead - behind) / (mu * (1 + self.central)))
        self.directions.add_gradient(replicas, torch.stack(slopes))
        for replica in replicas:
            self.optimiser.step(replica.weights)


@dataclass(frozen=True)
class Slopes(Step):
    """The slopes of <lambda, w1(x)> along directions, one-sided, where lambda is the gradient at the cut."""

    directions: Directions
    name = "shifted"

    def work(self, part1: Replica, batch: Value, smashed: Value, gradient: Value) -> Work:
        return Work.total([part1.part.work(batch.samples, passes=1)] * self.directions.count)

    def out(self, part1: Replica, batch: Value, smashed: Value, gradient: Value) -> Value:
        return Value("numbers", SCALAR_BYTES * self.directions.count, batch.samples, batch.step)

    def run(self, part1: Replica, batch: Value, smashed: Value, gradient: Value) -> Tensor:
        """Give the slopes (P,), in float32."""
        x, z, at_cut, mu = batch.load()[0], smashed.load()[0], gradient.load(), self.directions.mu
        if at_cut is None:  # all of part-1 is frozen
            return torch.zeros(self.directions.count)
        apart = (shifted([part1], x, u, mu) - z for u in self.directions.all([part1]))
        return torch.stack([(at_cut * change).sum() / mu for change in apart]).float()


@dataclass(frozen=True)
class SeededStep(Step):
    """A step of a part along directions whose slopes are known."""

    optimiser: Optimiser
    directions: Directions
    name = "step"

    def work(self, part: Replica, slopes: Value) -> Work:
        return Work.of(0)._replace(updated=part.part.n_parameters)

    def run(self, part: Replica, slopes: Value) -> None:
        self.directions.add_gradient([part], slopes.load())
        self.optimiser.step(part.weights)


@dataclass(frozen=True)
class ZerothSteps(Step):
    """Steps of part-2 on the same smashed data, each along the mean of directions of its own, with central slopes."""

    optimiser: Optimiser
    steps: tuple[Directions, ...]
    name = "train"

    def work(self, part2: Replica, smashed: Value) -> Work:
        n = sum(2 * step.count for step in self.steps)
        passes = Work.total([part2.part.work(smashed.samples, passes=1)] * n)
        return passes._replace(updated=part2.part.n_parameters * len(self.steps))

    def run(self, part2: Replica, smashed: Value) -> None:
        z, labels = smashed.load()
        for step in self.steps:
            pairs = [
                [part2.part.loss(shifted([part2], z, u, sign * step.mu), labels) for sign in (1, -1)]
                for u in step.all([part2])
            ]
            slopes = torch.stack([(ahead - behind) / (2 * step.mu) for ahead, behind in pairs])
            step.add_gradient([part2], slopes)
            self.optimiser.step(part2.weights)


@dataclass(frozen=True)
class CentralSlope(Step):
    """The central slope of part-2's loss between two messages from shifted part-1s; part-2 stays as it is."""

    mu: float
    name = "compare"

    def work(self, part2: Replica, smashed: Value, ahead: Value, behind: Value) -> Work:
        return Work.total([part2.part.work(smashed.samples, passes=1)] * 2)

    def out(self, part2: Replica, smashed: Value, ahead: Value, behind: Value) -> Value:
        return Value("numbers", SCALAR_BYTES, smashed.samples, smashed.step)

    def run(self, part2: Replica, smashed: Value, ahead: Value, behind: Value) -> Tensor:
        """Give the slope (1,), in float32."""
        labels = smashed.load()[1]
        losses = [part2.part.loss(shifted([part2], message.load()[0]), labels) for message in (ahead, behind)]
        return ((losses[0] - losses[1]) / (2 * self.mu)).float().view(1)
