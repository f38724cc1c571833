"""The server's side of HARMONY's mini-batch: features enter where their depth says, and are aligned by contrast.

METHODS.md 12.2. The steps of the client are in `harmony_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sfl_sim.models.replica import through
from sfl_sim.ops import Value, Work
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.harmony_steps import Views, Wire
from sfl_sim.training.optimisers import Optimiser

EPSILON = 1e-12
"""Inside the distance, whose gradient is infinite at 0."""


@dataclass(frozen=True)
class Route:
    """Where features enter the server's pieces.

    Attributes:
        own: the first piece that z++ runs through.
        other: that of z+; None if there is none.
        trunk: how many pieces there are before the classifier, if the server has it.
    """

    own: int
    other: int | None
    trunk: int

    @property
    def first(self) -> int:
        """The first piece that either runs through."""
        return self.own if self.other is None else min(self.own, self.other)

    def work(self, theta: Bundle, samples: int, passes: int) -> Work:
        """Of z++ through all that follows, and of z+ through the trunk."""
        pieces = [piece.part for piece in theta.members]
        others = [] if self.other is None else pieces[self.other : self.trunk]
        return Work.total([part.work(samples, passes) for part in (*pieces[self.own :], *others)])


@dataclass(frozen=True)
class Passed:
    """The graphs of a mini-batch that wait at the server for a gradient from the client."""

    features: Tensor
    answer: Tensor
    embedding: Tensor
    other: Tensor | None
    same: Tensor | None


@dataclass(frozen=True)
class Embed:
    """Both views through the server's model; gives the embeddings of z++, or the server's answers to them."""

    route: Route
    wire: Wire
    name = "embed"
    aggregates = False

    def work(self, theta: Bundle, features: Value) -> Work:
        """Forward."""
        return self.route.work(theta, features.samples, passes=1)

    def out(self, theta: Bundle, features: Value) -> Value:
        """2n dS bytes, of an embedding of dS elements, or of as many answers as labels."""
        part = theta.members[-1].part
        size_bytes = self.wire.size_bytes(part, features.samples * part.out_numel)
        return Value("embedding", size_bytes, features.samples, features.step)

    def run(self, theta: Bundle, features: Value) -> Tensor:
        """(n, dS), or (n, L); the graphs wait in `theta`."""
        views: Views = features.load()
        trunk = theta.replicas[: self.route.trunk]
        dtype = trunk[0].part.wire_dtype
        other = None
        if views.other is not None:
            other = through(trunk[self.route.other :], views.other.to(dtype))
        z = views.own.to(dtype).detach().requires_grad_()
        embedding = through(trunk[self.route.own :], z)
        answer = through(theta.replicas[self.route.trunk :], embedding)
        theta.pending = Passed(z, answer, embedding, other, views.same)
        return self.wire.pack(answer.detach())


@dataclass(frozen=True)
class Align:
    """The server's backward pass, with the gradient of contrastive semantic alignment (Eq. 7) in the trunk alone.

    Attributes:
        weight, margin, is_normalised: of the alignment (METHODS.md CHOICE 33).
    """

    optimiser: Optimiser
    route: Route
    weight: float
    margin: float
    is_normalised: bool
    name = "align"
    aggregates = False

    def work(self, theta: Bundle, gradients: Value) -> Work:
        """Backward of all that `Embed` ran."""
        return self.route.work(theta, gradients.samples, passes=2)

    def out(self, theta: Bundle, gradients: Value) -> Value:
        """4n A_d bytes."""
        part = theta.members[self.route.own].part
        size_bytes = gradients.samples * part.in_numel * part.wire_dtype.itemsize
        return Value("gradients", size_bytes, gradients.samples, gradients.step)

    def run(self, theta: Bundle, gradients: Value) -> Tensor | None:
        """(n, A_d): of the task alone. Pieces that nothing ran through take no step."""
        passed: Passed = theta.pending
        theta.pending = None
        torch.autograd.backward(passed.answer, gradients.load(), retain_graph=passed.other is not None)
        gradient = passed.features.grad
        if passed.other is not None and passed.same is not None:
            assert gradient is not None
            gradient = gradient.clone()  # to which the alignment's would be added
            embedding, dtype = passed.embedding, theta.members[0].part.dtype
            loss = contrast(passed.other.to(dtype), embedding.to(dtype), passed.same, self.margin, self.is_normalised)
            (self.weight * loss).backward()  # type: ignore[no-untyped-call]
        for replica in theta.replicas[self.route.first :]:
            self.optimiser.step(replica.weights)
        return gradient


def contrast(one: Tensor, other: Tensor, same: Tensor, margin: float, is_normalised: bool = False) -> Tensor:
    """HARMONY's Eq. (7), the mean over pairs of embeddings (n, ...): D^2 / 2 where `same` (n,), else
    max(0, margin - D)^2 / 2, where D is the distance of a pair (Motiian et al., ICCV 2017).
    """
    one, other = one.flatten(1), other.flatten(1)
    if is_normalised:
        one, other = normalize(one), normalize(other)
    squared = (one - other).square().sum(dim=1)
    apart = (margin - (squared + EPSILON).sqrt()).clamp(min=0).square()
    return torch.where(same, squared, apart).mean() / 2
