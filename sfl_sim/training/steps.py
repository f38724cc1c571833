"""Steps that flows run: each is priced in MACs and bytes without running it.

A forward pass of n samples costs n times the part's MACs, a backward pass twice that (docs/methods/timing.md#compute).
The mini-batch of split learning (docs/methods/README.md#one-split-step) is `Forward` at the client, `Train` at the
server, `Backward` at the client. A step that a single method uses lies in that method's file.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from sfl_sim.models.averages import average
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import Step, Value, Work
from sfl_sim.training.optimisers import Optimiser, Sgd


def gradient_at(part: Part, data: Value) -> Value:
    """Return the gradient at the input of `part` for `data`: n * A*b_e bytes; 0 bytes for the first part."""
    numel = 0 if part.first else part.in_numel
    return Value("gradients", data.samples * numel * part.wire_dtype.itemsize, data.samples, data.step)


@dataclass(frozen=True)
class Forward(Step):
    """Part-1 on a batch; gives the smashed data: activations at the cut, with their labels.

    Attributes:
        extra_bytes: size of further contents of the message.
        labelled: False if labels stay where they are.
    """

    extra_bytes: int = 0
    labelled: bool = True
    name = "forward"
    passes = 1

    def out(self, part1: Replica, batch: Value) -> Value:
        """Make a value of n * (A*b_e + b_y) bytes (docs/methods/timing.md#per-mini-batch)."""
        part = part1.part
        per_sample = part.out_numel * part.wire_dtype.itemsize + part.label_bytes * self.labelled
        return Value("smashed", batch.samples * per_sample + self.extra_bytes, batch.samples, batch.step)

    def shape(self, part1: Replica, batch: Value) -> Hashable:
        return part1.part, batch.samples, self.extra_bytes, self.labelled

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, ...]:
        """Compute activations (n, ...), detached from the graph, which waits in the replica; gives labels, too."""
        x, *labels = batch.load()
        return (part1.weights.forward(x), *labels)[: 1 + self.labelled]


class ForwardOnly(Forward):
    """`Forward` without a graph, as in evaluation: running statistics stay as they are."""

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, ...]:
        x, *labels = batch.load()
        with torch.no_grad():
            return (part1.weights(x, training=False), *labels)[: 1 + self.labelled]


@dataclass(frozen=True)
class Train(Step):
    """Forward, mean loss, backward and optimiser step; gives the gradient at the part's input.

    On smashed data this is the server's job; on a batch with a whole network it is local training. Members of a joined
    state are stepped together, after the gradient of all. A subclass may take `more`, such as a client's own term of
    the gradient.

    Attributes:
        share: weight of this loss in the loss that is minimised, where other nodes add the rest.
    """

    optimiser: Optimiser
    share: float = field(default=1.0, kw_only=True)
    gives_gradient: ClassVar[bool] = True
    """False if nobody needs the gradient at the input, though the part is not the first."""
    name = "train"
    passes = 3

    def out(self, part: Replica | Joined, data: Value, *more: Any) -> Value:
        """Return the gradient at the input; of 0 bytes if nobody needs it."""
        if self.gives_gradient:
            return gradient_at(part.part, data)
        return Value("gradients", samples=data.samples, step=data.step)

    def work(self, part: Replica | Joined, data: Value, *more: Any) -> Work:
        return part.part.work(data.samples, self.passes, self.gives_gradient and not part.part.first)

    def shape(self, part: Replica | Joined, data: Value, *more: Any) -> Hashable:
        return part.part, data.samples

    def run(self, part: Replica | Joined, data: Value, *more: Any) -> Tensor | None:
        """Give the mean loss's gradient at the input (n, ...), evaluated before the step; None for the first part."""
        gradient = self.differentiate(part, data)
        for member in part.members:
            self.optimiser.step(member.weights)
        return gradient

    def differentiate(self, part: Replica | Joined, data: Value) -> Tensor | None:
        """Accumulate the parameters' gradients; gives the gradient at the input, as `run`."""
        x, labels = data.load()
        x = out = x.detach().requires_grad_(self.gives_gradient and not part.part.first)
        for member in part.members:
            out = member.weights(out, training=True)
        differentiate(self.share * part.part.loss(out, labels))
        gradient: Tensor | None = x.grad
        return gradient


class TrainAlone(Train):
    """`Train` whose gradient at the cut nobody needs: none comes down."""

    gives_gradient = False


class InputGradient(Step):
    """The gradient of the mean loss at the part's input; the part stays as it is, with its running statistics."""

    name = "differentiate"

    def work(self, part: Replica, data: Value) -> Work:
        return Work.of(0) if part.part.first else part.part.input_gradient_work(data.samples)

    def out(self, part: Replica, data: Value) -> Value:
        return gradient_at(part.part, data)

    def run(self, part: Replica, data: Value) -> Tensor | None:
        """Give the gradient (n, ...)."""
        x, labels = data.load()
        if part.part.first:
            return None
        x = x.detach().requires_grad_()
        differentiate(part.part.loss(self.outputs(part.weights.to_input(x)), labels))
        gradient: Tensor | None = x.grad
        return gradient

    def outputs(self, answers: Tensor) -> Tensor:
        """Give the outputs of which the loss is taken: those of the part."""
        return answers


@dataclass(frozen=True)
class Backward(Step):
    """Part-1's backward pass from the gradient at the cut, and its optimiser step."""

    optimiser: Optimiser
    name = "backward"
    passes = 2

    def shape(self, part1: Replica, gradients: Value) -> Hashable:
        return part1.part, gradients.samples

    def run(self, part1: Replica, gradients: Value) -> None:
        part1.weights.backward(gradients.load())
        self.optimiser.step(part1.weights)


@dataclass(frozen=True)
class LossAtLabels(Step):
    """The loss where the labels are, and a step of the last layers; gives the gradient at what the server has sent.

    Attributes:
        sender: the server's part.
        first: number of the client's parts before the last layers, of which there may be none.
        share: weight of this loss in the loss that is minimised.
    """

    optimiser: Optimiser
    sender: Part
    first: int = 1
    share: float = 1.0
    name = "assess"

    def work(self, model: Replica | Bundle, sent: Value, labelled: Value) -> Work:
        return Work.total(member.part.work(sent.samples, 3, gradient=True) for member in model.members[self.first :])

    def out(self, model: Replica | Bundle, sent: Value, labelled: Value) -> Value:
        """Return n * A*b_e bytes, as many as have come without a codec."""
        sample_bytes = self.sender.at(sent.length).out_numel * self.sender.wire_dtype.itemsize
        return Value("gradients", sent.samples * sample_bytes, sent.samples, sent.step)

    def run(self, model: Replica | Bundle, sent: Value, labelled: Value) -> Tensor | None:
        """Give the gradient of the mean loss at what was sent (n, ...), evaluated before the step."""
        content, labels = sent.load(), labelled.load()[1]
        x = out = (content if isinstance(content, Tensor) else content[0]).detach().requires_grad_()
        last = [replica for member in model.members[self.first :] for replica in member.members]
        for replica in last:
            out = replica.weights(out, training=True)
        differentiate(self.share * self.sender.loss(out, labels))
        for replica in last:
            self.optimiser.step(replica.weights)
        gradient: Tensor | None = x.grad
        return gradient


class Relay(Forward):
    """Pass what has come through a part in the middle; gives the activations at its end, with the labels, if any."""

    def run(self, part: Replica, smashed: Value) -> tuple[Tensor, ...]:
        """Compute activations (n, ...); the graph waits in the replica, and leads to its input."""
        x, *labels = smashed.load()
        return part.weights.forward(x.detach().requires_grad_(not part.part.first)), *labels


class RelayBack(Backward):
    """Run the backward pass of a part in the middle, and its optimiser's step; gives the gradient at its input."""

    def out(self, part: Replica, gradients: Value) -> Value:
        return gradient_at(part.part, gradients)

    def run(self, part: Replica, gradients: Value) -> Tensor | None:  # type: ignore[override]
        """Give the gradient at the input (n, ...), evaluated before the step."""
        gradient = part.weights.backward(gradients.load())
        self.optimiser.step(part.weights)
        return gradient


class Average(Step):
    """Set the state to the weighted average of replicas; one MAC per replica and element, averaged velocities included.

    Where adapters are joined or decomposed, this takes products of matrices (docs/methods/lora.md#aggregation).
    """

    name = "average"
    aggregates = True

    def work(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> Work:
        part = into.part
        velocity = into.has_velocity * part.n_parameters
        if part.aggregate == "concat":
            numel = sum(slot.adapter.rank * math.prod(slot.adapter.shape) for slot in part.adapters)
            return Work.of(len(replicas) * (numel + velocity + part.n_buffers))
        if part.aggregate == "svd":
            ranks = [(len(replicas) * slot.adapter.rank, sum(slot.adapter.shape)) for slot in part.adapters]
            macs = sum(rank**2 * (sides + rank) for rank, sides in ranks)
            return Work.of(macs + len(replicas) * (velocity + part.n_buffers))
        return Work.of(len(replicas) * (part.n_parameters + velocity + part.n_buffers))

    def run(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> None:
        """Average parameters and floating buffers alike (docs/methods/README.md#batch-norm); `shares` add up to one."""
        average(into.weights, [replica.weights for replica in replicas], shares, into.has_velocity)


@dataclass(frozen=True)
class MomentumAverage(Average):
    """`Average` as a step of SGD with momentum, whose gradient is (state - average of the replicas) / `unit`.

    The momentum buffer lives in the state, through all rounds. Running statistics of batch norm are averaged without
    momentum, which could make a variance negative. Source: docs/methods/v1_variants.md#fedavgm.
    """

    sgd: Sgd
    unit: float = 1.0

    def run(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> None:
        weights = into.weights
        before = weights.flat.clone()
        super().run(into, replicas, shares)
        with torch.no_grad():
            torch.sub(before, weights.flat, out=weights.grad).div_(self.unit)
            weights.flat.copy_(before)
        self.sgd.step(weights)


class Renew(Step):
    """Forget the optimiser's state, as at the start of every round (docs/methods/README.md#optimisers)."""

    name = "renew"

    def run(self, part: Replica) -> None:
        """Drop the optimiser's state, and the weights that a proximal term refers to."""
        part.weights.forget()
