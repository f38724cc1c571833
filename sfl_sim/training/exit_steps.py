"""Steps on a front end with a head of its own, an exit or an auxiliary loss: a bundle of phi, h and what else is sent.

l_C is the loss of the head's answer. Each step costs what phi and h cost (`exit_work`).
"""

from dataclasses import dataclass

from torch import Tensor

from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import Step, Value, Work
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Forward


def exit_work(model: Bundle, samples: int, passes: int) -> Work:
    """Count the work of `passes` forward passes of phi and h."""
    return Work.total([member.part.work(samples, passes) for member in model.members[:2]])


class HeadForward(Step):
    """phi and h on a batch; gives the smashed data."""

    name = "forward"

    def work(self, model: Bundle, batch: Value) -> Work:
        return exit_work(model, batch.samples, passes=1)

    def out(self, model: Bundle, batch: Value) -> Value:
        return Forward().out(model.replicas[0], batch)


@dataclass(frozen=True)
class ExitForward(HeadForward):
    """phi and h on a batch; gives the smashed data, as `Forward` does.

    gamma times the gradient of l_C is known at once, and waits for the server's: that of h in h, that of the smashed
    data in `pending`.
    """

    gamma: float

    def run(self, model: Bundle, batch: Value) -> tuple[Tensor, Tensor]:
        """Compute activations (n, ...) detached from the graph, which waits in phi; gives labels (n,), too."""
        x, labels = batch.load()
        phi, h = model.replicas[:2]
        z = phi.weights.forward(x)
        at_cut = z.detach().requires_grad_()
        _differentiate(h, at_cut, labels, self.gamma)
        model.pending = at_cut.grad
        return z, labels


@dataclass(frozen=True)
class ExitBackward(Step):
    """The backward pass from the server's gradient at the cut and the exit's, and the optimiser's step on phi and h."""

    optimiser: Optimiser
    name = "backward"

    def work(self, model: Bundle, gradients: Value) -> Work:
        return exit_work(model, gradients.samples, passes=2)

    def run(self, model: Bundle, gradients: Value) -> None:
        """Step with the gradient of the joint loss, at the weights before the step."""
        backward(model, gradients)
        for replica in model.replicas[:2]:
            self.optimiser.step(replica.weights)


@dataclass(frozen=True)
class LocalBackward(ExitBackward):
    """The backward pass from what `ExitForward` left alone, and the optimiser's step on phi and h."""

    def run(self, model: Bundle, batch: Value) -> None:
        """Step with the gradient of the exit's loss, at the weights before the step."""
        super().run(model, Value("gradients", samples=batch.samples))


def backward(model: Bundle, gradients: Value) -> None:
    """Accumulate the gradient of the joint loss in phi: from the server's and from what `ExitForward` left.

    Gradients without content mean that the server sends none: l_C alone is trained by.
    """
    pending, model.pending = model.pending, None
    at_server = gradients.load()  # None, too, where phi is all frozen, and keeps no graph either
    model.replicas[0].weights.backward(pending if at_server is None else at_server + pending)


@dataclass(frozen=True)
class Adapt(Step):
    """Steps of phi and h on one batch, by the exit's loss alone.

    Attributes:
        n_steps: on the whole batch.
        keeps_statistics: whether running statistics of batch norm stay what they were, as in an inner loop that leaves
            nothing behind.
    """

    optimiser: Optimiser
    n_steps: int = 1
    keeps_statistics: bool = False
    name = "adapt"

    def work(self, model: Bundle, batch: Value) -> Work:
        return Work.total([exit_work(model, batch.samples, passes=3)] * self.n_steps)

    def run(self, model: Bundle, batch: Value) -> None:
        x, labels = batch.load()
        phi, h = model.replicas[:2]
        statistics = [replica.weights.state for replica in (phi, h)]
        for _ in range(self.n_steps):
            _differentiate(h, phi.weights(x, training=True), labels, share=1.0)
            for replica in (phi, h):
                self.optimiser.step(replica.weights)
        if self.keeps_statistics:
            for replica, before in zip((phi, h), statistics, strict=True):
                replica.weights.put(before)


def _differentiate(h: Replica, z: Tensor, labels: Tensor, share: float) -> None:
    """Accumulate the gradients of `share` times the mean loss of h: in h, and in what `z` depends on."""
    differentiate(share * h.part.loss(h.weights(z, training=True), labels))
