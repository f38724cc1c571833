"""The steps that flows run: each priced in MACs and bytes without running it.

A forward pass of n samples costs n times the part's MACs, a backward pass twice that (FedScale's factor 3 for both,
METHODS.md 4.1). `SPLITSTEP` of METHODS.md 0.2 is `Forward` at the client, `Train` at the server, `Backward` at the
client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.replica import Replica, average
from sfl_sim.models.sgd import Sgd
from sfl_sim.ops import Value

LABEL_BYTES = 8  # a torch int64 on the wire (METHODS.md CHOICE 12)


class Forward:
    """Part-1 on a batch; gives the smashed data: activations at the cut, with their labels."""

    name = "forward"
    aggregates = False

    def work(self, part1: Replica, batch: Value) -> float:
        """MACs of the forward pass."""
        return part1.part.macs * batch.samples

    def out(self, part1: Replica, batch: Value) -> Value:
        """n * (A*be + by) bytes (METHODS.md 4.3)."""
        per_sample = part1.part.out_numel * part1.part.dtype.itemsize + LABEL_BYTES
        return Value("smashed", batch.samples * per_sample, batch.samples, batch.step)

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) detached from the graph, which waits in the replica, and labels (n,)."""
        x, labels = batch.load()
        activations = part1.weights(x, training=True)
        part1.weights.awaiting_gradient = activations
        return activations.detach(), labels


@dataclass(frozen=True)
class Train:
    """Forward, mean cross-entropy, backward and optimiser step; gives the gradient at the part's input.

    On smashed data it is the server's job; on a batch with a whole network it is local training.
    """

    sgd: Sgd
    name = "train"
    aggregates = False

    def work(self, part: Replica, data: Value) -> float:
        """MACs of forward and backward."""
        return 3 * part.part.macs * data.samples

    def out(self, part: Replica, data: Value) -> Value:
        """n * A*be bytes; nothing where the part takes the data themselves."""
        numel = 0 if part.part.first else part.part.in_numel
        return Value("gradients", data.samples * numel * part.part.dtype.itemsize, data.samples, data.step)

    def run(self, part: Replica, data: Value) -> Tensor | None:
        """The gradient of the mean loss at the input (n, ...), evaluated before the step; None for the first part."""
        x, labels = data.load()
        x = x.detach().requires_grad_(not part.part.first)
        cross_entropy(part.weights(x, training=True), labels).backward()  # type: ignore[no-untyped-call]
        self.sgd.step(part.weights)
        gradient: Tensor | None = x.grad
        return gradient


@dataclass(frozen=True)
class Backward:
    """Part-1's backward pass from the gradient at the cut, and its optimiser step."""

    sgd: Sgd
    name = "backward"
    aggregates = False

    def work(self, part1: Replica, gradients: Value) -> float:
        """MACs of the backward pass: twice the forward's."""
        return 2 * part1.part.macs * gradients.samples

    def out(self, part1: Replica, gradients: Value) -> Value:
        """Nothing."""
        return Value("done", step=gradients.step)

    def run(self, part1: Replica, gradients: Value) -> None:
        """Backward through the graph that `Forward` left, then step."""
        weights = part1.weights
        assert weights.awaiting_gradient is not None, "backward without a forward"
        torch.autograd.backward(weights.awaiting_gradient, gradients.load())
        weights.awaiting_gradient = None
        self.sgd.step(weights)


class Average:
    """The state becomes the weighted average of replicas; one MAC per element and replica."""

    name = "average"
    aggregates = True

    def work(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> float:
        """MACs of the weighted sum."""
        return len(replicas) * (into.part.n_parameters + into.part.n_buffers)

    def out(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> Value:
        """Nothing."""
        return Value("done")

    def run(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> None:
        """Parameters and floating buffers alike (METHODS.md 0.5); `shares` add up to one."""
        average(into.weights, [replica.weights for replica in replicas], shares)


class Renew:
    """Forget the optimiser's state, as at the start of every round (METHODS.md CHOICE 1)."""

    name = "renew"
    aggregates = False

    def work(self, part: Replica) -> float:
        """Free."""
        return 0.0

    def out(self, part: Replica) -> Value:
        """Nothing."""
        return Value("done")

    def run(self, part: Replica) -> None:
        """Drop the momentum buffer."""
        part.weights.momentum = None
