"""The steps of clients with an exit: a front end phi and a head h that answers from what phi gives.

The loss is gamma l_C + (1 - gamma) l_S, where l_C is the cross-entropy of the head's answer, and l_S that of the
server's (METHODS.md section 11). The server takes `steps.Train` with its share of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.replica import Replica
from sfl_sim.ops import Value, Work
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Backward, Forward


def exit_work(model: Bundle, samples: int, passes: int) -> Work:
    """What `passes` times a forward pass of front end and head compute."""
    return Work.total([member.part.work(samples, passes) for member in model.members[:2]])


@dataclass(frozen=True)
class ExitForward:
    """Front end and head on a batch; gives the smashed data, as `Forward` does.

    The head's gradient is known at once, and waits for the server's: in the head, and at the cut in `pending`.

    Attributes:
        gamma: the share of the head's loss.
    """

    gamma: float
    name = "forward"
    aggregates = False

    def work(self, model: Bundle, batch: Value) -> Work:
        """The forward passes of both."""
        return exit_work(model, batch.samples, passes=1)

    def out(self, model: Bundle, batch: Value) -> Value:
        """As large as without a head."""
        return Forward().out(_front(model), batch)

    def run(self, model: Bundle, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) detached from the graph, which waits in the front end, and labels (n,)."""
        x, labels = batch.load()
        front, head = model.replicas[:2]
        activations = front.weights.forward(x)
        at_cut = activations.detach().requires_grad_()
        differentiate_head(head, at_cut, labels, self.gamma)
        model.pending = at_cut.grad
        return activations, labels


@dataclass(frozen=True)
class ExitBackward:
    """The backward pass from the server's gradient at the cut and the head's, and the optimiser's step on both."""

    optimiser: Optimiser
    name = "backward"
    aggregates = False

    def work(self, model: Bundle, gradients: Value) -> Work:
        """The backward passes of front end and head."""
        return exit_work(model, gradients.samples, passes=2)

    def out(self, model: Bundle, gradients: Value) -> Value:
        """Nothing."""
        return Backward(self.optimiser).out(_front(model), gradients)

    def run(self, model: Bundle, gradients: Value) -> None:
        """The gradient is that of the joint loss, at the weights before the step."""
        backward(model, gradients)
        for replica in model.replicas[:2]:
            self.optimiser.step(replica.weights)


@dataclass(frozen=True)
class Adapt:
    """Steps of the front end and its head on one batch, by the head's loss alone.

    Attributes:
        n_steps: on the whole batch.
        keeps_statistics: whether running statistics of batch norm stay what they were, as in an inner loop that
            leaves nothing behind.
    """

    optimiser: Optimiser
    n_steps: int = 1
    keeps_statistics: bool = False
    name = "adapt"
    aggregates = False

    def work(self, model: Bundle, batch: Value) -> Work:
        """Forward and backward of both, as often."""
        return exit_work(model, batch.samples, passes=3 * self.n_steps)

    def out(self, model: Bundle, batch: Value) -> Value:
        """Nothing."""
        return Value("done", step=batch.step)

    def run(self, model: Bundle, batch: Value) -> None:
        """Nothing is learned from the server."""
        x, labels = batch.load()
        front, head = model.replicas[:2]
        statistics = [replica.weights.buffers.clone() for replica in (front, head)]
        for _ in range(self.n_steps):
            differentiate_head(head, front.weights(x, training=True), labels, share=1.0)
            for replica in (front, head):
                self.optimiser.step(replica.weights)
        if self.keeps_statistics:
            for replica, before in zip((front, head), statistics, strict=True):
                replica.weights.buffers.copy_(before)


def differentiate_head(head: Replica, activations: Tensor, labels: Tensor, share: float) -> None:
    """Accumulate gradients of `share` times the head's mean loss: in the head, and in what `activations` depend on."""
    answers = head.weights(activations, training=True)
    head.part.calling.on_nan.differentiate(share * cross_entropy(answers.to(head.part.dtype), labels))


def backward(model: Bundle, gradients: Value) -> None:
    """Accumulate the front end's gradient of the joint loss."""
    (front, *_), pending = model.replicas, model.pending
    model.pending = None
    front.weights.backward(gradients.load() + pending)


def _front(model: Bundle) -> Replica:
    front = model.members[0]
    assert isinstance(front, Replica), "a template, of which clients have copies"
    return front
