"""The client's steps of HARMONY's label-private mini-batch beside those of `exit_steps` (METHODS.md 12.2).

Two views of a client's samples go to the server: z++ of the whole front end, of which the task is learned, and z+ of
a front end that ends at a drawn depth, by which alone the trunk is aligned. No label goes there: of each pair of
samples the server is told whether their labels are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.part import Part
from sfl_sim.models.replica import through
from sfl_sim.ops import Value, Work
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.exit_steps import backward, exit_work
from sfl_sim.training.optimisers import Optimiser

HALF_BYTES = 2


@dataclass(frozen=True)
class Wire:
    """How features travel: as float16, clamped to its range, or as they are (METHODS.md CHOICE 34).

    The gradient passes straight through: the client's backward pass uses the graph of what was not rounded.
    """

    is_half: bool

    def size_bytes(self, part: Part, numel: int) -> int:
        """Of so many elements that the part gives."""
        return numel * (HALF_BYTES if self.is_half else part.wire_dtype.itemsize)

    def pack(self, x: Tensor) -> Tensor:
        """What is sent of x."""
        if not self.is_half:
            return x
        largest = torch.finfo(torch.float16).max  # which bfloat16 would round up
        return x.float().clamp(-largest, largest).half()


@dataclass(frozen=True)
class View:
    """The front end as far as `part`, in training mode, with neither gradient nor head: z+."""

    part: Part
    name = "view"
    aggregates = False

    def work(self, model: Bundle, batch: Value) -> Work:
        """The forward pass so far."""
        return self.part.work(batch.samples, passes=1)

    def out(self, model: Bundle, batch: Value) -> Value:
        """Stays at the client."""
        return Value("view", samples=batch.samples, step=batch.step)

    def run(self, model: Bundle, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) and labels (n,)."""
        x, labels = batch.load()
        with torch.no_grad():
            weights = model.replicas[0].weights.only(self.part)
            return self.part.call(self.part.views(weights.flat), weights.buffer_views, x, training=True), labels


@dataclass(frozen=True)
class Views:
    """What the server gets of a mini-batch: z++ (n, ...), and where it is to be aligned z+ (n, ...), and (n,) whether
    the labels behind the two are the same."""

    own: Tensor
    other: Tensor | None
    same: Tensor | None


@dataclass(frozen=True)
class Upload:
    """Put a mini-batch's message together.

    Attributes:
        other: the part that gave z+; None if there is none.
    """

    wire: Wire
    other: Part | None
    name = "upload"
    aggregates = False

    def work(self, model: Bundle, own: Value, other: Value | None) -> Work:
        """Free."""
        return Work.of(0)

    def out(self, model: Bundle, own: Value, other: Value | None) -> Value:
        """2n (A_K + A_d) bytes, a bit for each pair, and a byte for K (METHODS.md 12.3)."""
        part, n = model.members[0].part, own.samples
        size_bytes = self.wire.size_bytes(part, n * part.out_numel)
        if self.other:
            size_bytes += self.wire.size_bytes(part, n * self.other.out_numel) + ceil(n / 8) + 1
        return Value("features", size_bytes, n, own.step)

    def run(self, model: Bundle, own: Value, other: Value | None) -> Views:
        """All but the labels."""
        z, labels = own.load()
        if other is None:
            return Views(self.wire.pack(z), None, None)
        z_other, labels_other = other.load()
        return Views(self.wire.pack(z), self.wire.pack(z_other), labels == labels_other)


@dataclass(frozen=True)
class Assess:
    """The task's loss where the labels are: of the client's classifier on the embeddings, or of the server's answers.

    The classifier takes its step at once; gives the gradient at what the server sent.

    Attributes:
        share: of this loss in the loss that is minimised.
    """

    optimiser: Optimiser
    share: float
    name = "assess"
    aggregates = False

    def work(self, model: Bundle, answer: Value, own: Value) -> Work:
        """Forward and backward of the classifier, if the client has it."""
        return Work.total([member.part.work(answer.samples, passes=3) for member in model.members[2:]])

    def out(self, model: Bundle, answer: Value, own: Value) -> Value:
        """4n dS bytes."""
        part = model.members[-1].part
        numel = part.in_numel if len(model.members) > 2 else part.out_numel
        return Value("gradients", answer.samples * numel * part.wire_dtype.itemsize, answer.samples, answer.step)

    def run(self, model: Bundle, answer: Value, own: Value) -> Tensor | None:
        """(n, dS), or (n, L)."""
        _, labels = own.load()
        part, classifier = model.members[-1].part, model.replicas[2:]
        x = answer.load().to(part.wire_dtype).detach().requires_grad_()
        part.calling.on_nan.differentiate(self.share * cross_entropy(through(classifier, x).to(part.dtype), labels))
        for replica in classifier:
            self.optimiser.step(replica.weights)
        gradient: Tensor | None = x.grad
        return gradient


@dataclass(frozen=True)
class Outer:
    """First-order meta-learning: the gradient at the adapted weights is applied to those before the adaptation.

    Running statistics of batch norm become those that the adapted model's training pass left.
    """

    optimiser: Optimiser
    name = "backward"
    aggregates = False

    def work(self, model: Bundle, adapted: Bundle, gradients: Value) -> Work:
        """The backward passes of front end and head."""
        return exit_work(adapted, gradients.samples, passes=2)

    def out(self, model: Bundle, adapted: Bundle, gradients: Value) -> Value:
        """Nothing."""
        return Value("done", step=gradients.step)

    def run(self, model: Bundle, adapted: Bundle, gradients: Value) -> None:
        """No derivative through the adaptation (FOMAML, Finn et al. 2017)."""
        backward(adapted, gradients)
        for replica, other in zip(model.replicas[:2], adapted.replicas[:2], strict=True):
            replica.weights.grad.copy_(other.weights.grad)
            replica.weights.buffers.copy_(other.weights.buffers)
            self.optimiser.step(replica.weights)
