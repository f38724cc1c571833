"""The steps that flows run: each priced in MACs and bytes without running it.

A forward pass of n samples costs n times the part's MACs, a backward pass twice that (FedScale's factor 3 for both,
METHODS.md 4.1). `SPLITSTEP` of METHODS.md 0.2 is `Forward` at the client, `Train` at the server, `Backward` at the
client.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.replica import Joined, Replica, average
from sfl_sim.ops import Value, Work
from sfl_sim.training import stacked
from sfl_sim.training.optimisers import Optimiser

LABEL_BYTES = 8  # a torch int64 on the wire (METHODS.md CHOICE 12)


class PartStep:
    """What steps on a part and a value say to be run as one for many replicas (execute/batched.py)."""

    def batch_key(self, part: Replica, data: Value) -> Hashable:
        """Equal steps on replicas of the same part, with equally large batches."""
        return self, part.part, data.samples

    def refusal(self, part: Replica, data: Value) -> str | None:
        """Why the part's layers cannot be run for many replicas at once."""
        return stacked.refusal(part, data.load()[0])


@dataclass(frozen=True)
class Forward(PartStep):
    """Part-1 on a batch; gives the smashed data: activations at the cut, with their labels.

    Attributes:
        extra_bytes: of whatever else travels along.
    """

    extra_bytes: int = 0
    name = "forward"
    aggregates = False

    def work(self, part1: Replica, batch: Value) -> Work:
        """The forward pass."""
        return part1.part.work(batch.samples, passes=1)

    def out(self, part1: Replica, batch: Value) -> Value:
        """n * (A*be + by) bytes (METHODS.md 4.3)."""
        per_sample = part1.part.out_numel * part1.part.wire_dtype.itemsize + LABEL_BYTES
        return Value("smashed", batch.samples * per_sample + self.extra_bytes, batch.samples, batch.step)

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) detached from the graph, which waits in the replica, and labels (n,)."""
        x, labels = batch.load()
        return part1.weights.forward(x), labels

    def run_many(self, parts: Sequence[Replica], args: Sequence[tuple[Value]]) -> list[tuple[Tensor, Tensor]]:
        """`run` for replicas of one part."""
        inputs, labels = zip(*(batch.load() for (batch,) in args), strict=True)
        return list(zip(stacked.forward(parts, inputs), labels, strict=True))


@dataclass(frozen=True)
class Train(PartStep):
    """Forward, mean cross-entropy, backward and optimiser step; gives the gradient at the part's input.

    On smashed data it is the server's job; on a batch with a whole network it is local training. Members of a joined
    state are stepped together, after the gradient of all.

    Attributes:
        share: of this loss in the loss that is minimised, where other nodes add what remains.
    """

    optimiser: Optimiser
    share: float = field(default=1.0, kw_only=True)
    name = "train"
    aggregates = False

    def work(self, part: Replica | Joined, data: Value) -> Work:
        """Forward and backward."""
        return part.part.work(data.samples, passes=3)

    def out(self, part: Replica | Joined, data: Value) -> Value:
        """n * A*be bytes; nothing where the part takes the data themselves."""
        numel = 0 if part.part.first else part.part.in_numel
        return Value("gradients", data.samples * numel * part.part.wire_dtype.itemsize, data.samples, data.step)

    def run(self, part: Replica | Joined, data: Value) -> Tensor | None:
        """The gradient of the mean loss at the input (n, ...), evaluated before the step; None for the first part."""
        gradient = self.differentiate(part, data)
        for member in part.members:
            self.optimiser.step(member.weights)
        return gradient

    def differentiate(self, part: Replica | Joined, data: Value) -> Tensor | None:
        """All but the step."""
        x, labels = data.load()
        x = out = x.detach().requires_grad_(not part.part.first)
        for member in part.members:
            out = member.weights(out, training=True)
        part.part.calling.on_nan.differentiate(self.share * cross_entropy(out.to(part.part.dtype), labels))
        gradient: Tensor | None = x.grad
        return gradient

    def run_many(self, parts: Sequence[Replica], args: Sequence[tuple[Value]]) -> Sequence[Tensor | None]:
        """`run` for replicas of one part."""
        inputs, labels = zip(*(data.load() for (data,) in args), strict=True)
        return stacked.train(parts, inputs, labels, self.optimiser, self.share)


@dataclass(frozen=True)
class Backward(PartStep):
    """Part-1's backward pass from the gradient at the cut, and its optimiser step."""

    optimiser: Optimiser
    name = "backward"
    aggregates = False

    def work(self, part1: Replica, gradients: Value) -> Work:
        """The backward pass: twice the forward's."""
        return part1.part.work(gradients.samples, passes=2)

    def out(self, part1: Replica, gradients: Value) -> Value:
        """Nothing."""
        return Value("done", step=gradients.step)

    def run(self, part1: Replica, gradients: Value) -> None:
        """Backward through the graph that `Forward` left, then step."""
        part1.weights.backward(gradients.load())
        self.optimiser.step(part1.weights)

    def refusal(self, part: Replica, data: Value) -> None:
        """None, since the forward pass was asked."""

    def run_many(self, parts: Sequence[Replica], args: Sequence[tuple[Value]]) -> list[None]:
        """`run` for replicas of one part."""
        stacked.backward(parts, [gradients.load() for (gradients,) in args], self.optimiser)
        return [None] * len(parts)


class Average:
    """The state becomes the weighted average of replicas; one MAC per element and replica."""

    name = "average"
    aggregates = True

    def work(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> Work:
        """The weighted sum."""
        return Work.of(len(replicas) * (into.part.n_parameters + into.part.n_buffers))

    def out(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> Value:
        """Nothing."""
        return Value("done")

    def run(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> None:
        """Parameters and floating buffers alike (METHODS.md 0.5); `shares` add up to one."""
        average(into.weights, [replica.weights for replica in replicas], shares, into.has_velocity)


class Renew:
    """Forget the optimiser's state, as at the start of every round (METHODS.md CHOICE 1)."""

    name = "renew"
    aggregates = False

    def work(self, part: Replica) -> Work:
        """Free."""
        return Work.of(0)

    def out(self, part: Replica) -> Value:
        """Nothing."""
        return Value("done")

    def run(self, part: Replica) -> None:
        """Drop it all, also the weights that a proximal term refers to."""
        part.weights.forget()
