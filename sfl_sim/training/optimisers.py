"""The local optimisers, on one flat vector, and the rules that change a gradient before a step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.weights import Weights


class GradientRule(Protocol):
    """Change of the gradient before a local step."""

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Change `weights.grad`; gives the weight decay that is left for the optimiser to apply."""


@dataclass(frozen=True, slots=True)
class Optimiser(ABC):
    """A local optimiser; its state lives in the weights that it steps.

    One fused call over the flat vector takes a fifth of the time of a step per tensor. torch's fused kernels
    round the odd tail of a vector differently from its others; the flat vector has none.

    Attributes:
        rule: rule that changes the gradient before the step; None for none.
        clip_norm: largest norm of the gradient, without weight decay, after the rule; a longer one is scaled down, as
            by `torch.nn.utils.clip_grad_norm_`. None for no limit.
    """

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0
    rule: GradientRule | None = None
    clip_norm: float | None = None

    @property
    @abstractmethod
    def n_moments(self) -> int:
        """Number of running averages of gradients (P,) that it keeps: `momentum`, and Adam's `variance`."""

    @property
    def n_moved(self) -> int:
        """Elements that a step reads and writes for each weight, as torch's loops over tensors do.

        That is the gradient as it is computed (1), the weight by its gradient (read both, write one: 3), and each
        running average: scaled (2), and the gradient added (3).
        """
        return 4 + 5 * self.n_moments

    def step(self, weights: Weights) -> bool:
        """Step with the accumulated gradient, and clear it; gives True.

        If the rule in force does not admit the gradient, the update is left out, buffers are what they were before the
        mini-batch, and it gives False.
        """
        on_nan = rule_in_force()
        with torch.no_grad():
            is_admitted = on_nan.admits(weights.grad)
            if is_admitted:
                decay = self.rule(weights, self.weight_decay) if self.rule else self.weight_decay
                is_admitted = self.rule is None or on_nan.admits(weights.grad)  # a rule may overflow
            if is_admitted and self.clip_norm is not None:
                norm = weights.grad.square().sum().sqrt()
                weights.grad.mul_((self.clip_norm / (norm + 1e-6)).clamp(max=1.0))
            if is_admitted:
                with weights.sparing():
                    self._update(weights, decay)
            elif weights.statistics is not None:
                weights.put(weights.statistics)
            weights.clear_gradient()
            weights.statistics = None
        return is_admitted

    @abstractmethod
    def _update(self, weights: Weights, weight_decay: float) -> None:
        """Change weights and moments by `weights.grad`."""


@dataclass(frozen=True, slots=True)
class Sgd(Optimiser):
    """PyTorch's SGD: g += wd*w; m = momentum*m + g, first m = g; w -= lr*m, or with `nesterov` lr*(g + momentum*m)."""

    momentum: float = 0.0
    _: KW_ONLY
    nesterov: bool = False

    @property
    def n_moments(self) -> int:
        return int(self.momentum > 0)

    def _update(self, weights: Weights, weight_decay: float) -> None:
        buffers = [weights.momentum]
        sgd(
            [weights.flat], [weights.grad], buffers,
            weight_decay=weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=self.nesterov, maximize=False, fused=True,
        )  # fmt: skip
        weights.momentum = buffers[0]


@dataclass(frozen=True, slots=True)
class Adam(Optimiser):
    """PyTorch's Adam, with its default betas; with `decoupled` decay AdamW (Loshchilov and Hutter, ICLR 2019)."""

    _: KW_ONLY
    decoupled: bool = False
    betas: ClassVar = (0.9, 0.999)
    epsilon: ClassVar = 1e-8

    @property
    def n_moments(self) -> int:
        return 2

    @property
    def n_moved(self) -> int:
        """As for others, and what the variance becomes before it divides: root (2), scale (2), epsilon (1)."""
        return 19

    def _update(self, weights: Weights, weight_decay: float) -> None:
        if weights.momentum is None:
            weights.momentum = torch.zeros_like(weights.flat)
        if weights.variance is None:
            weights.variance = torch.zeros_like(weights.flat)
        if weights.n_steps is None:
            weights.n_steps = torch.zeros((), device=weights.flat.device)
        (adamw if self.decoupled else adam)(
            [weights.flat], [weights.grad], [weights.momentum], [weights.variance], [], [weights.n_steps],
            amsgrad=False, beta1=self.betas[0], beta2=self.betas[1], lr=self.lr, weight_decay=weight_decay,
            eps=self.epsilon, maximize=False, fused=True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Foreign(Optimiser):
    """A user's own optimiser, whose state by parameter lives in the weights, as that of all others does.

    Attributes:
        make: makes a `torch.optim.Optimizer` of parameters, with arguments `lr` and, unless it is 0, `weight_decay`.
    """

    make: Callable[..., torch.optim.Optimizer]

    @property
    def n_moments(self) -> int:
        """Number of tensors that it keeps of the size of a parameter."""
        (state,) = self._stepped([torch.zeros(7, requires_grad=True)], [torch.ones(7)], 0.0, None)
        return sum(isinstance(kept, torch.Tensor) and kept.numel() == 7 for kept in state.values())

    def _update(self, weights: Weights, weight_decay: float) -> None:
        parameters, views = (weights.part.views(flat) for flat in (weights.flat, weights.grad))
        unlearned = set(weights.unlearned)
        gradients = [None if i in unlearned else gradient for i, gradient in enumerate(views)]
        weights.foreign = self._stepped(parameters, gradients, weight_decay, weights.foreign)

    def _stepped(
        self,
        values: list[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        decay: float,
        states: list[Any] | None,
    ) -> list[Any]:
        """Step the values in place; gives the state of each, from which the next step goes on."""
        leaves = [value.detach().requires_grad_() for value in values]
        optimiser = self.make(leaves, lr=self.lr, **({"weight_decay": decay} if decay else {}))
        for leaf, gradient, state in zip(leaves, gradients, states or [None] * len(leaves), strict=True):
            leaf.grad = gradient
            if state is not None:
                optimiser.state[leaf] = state
        optimiser.step()
        return [dict(optimiser.state[leaf]) for leaf in leaves]


OPTIMISERS = ("sgd", "nag", "adam", "adamw")
"""Names of the optimisers."""


def optimiser_of(
    kind: str | Callable[..., torch.optim.Optimizer], lr: float, momentum: float, **settings: Any
) -> Optimiser:
    """Make the optimiser of a name in `OPTIMISERS`, or a user's own; `momentum` is of SGD alone."""
    if not isinstance(kind, str):
        return Foreign(lr, kind, **settings)
    if kind in ("adam", "adamw"):
        return Adam(lr, decoupled=kind == "adamw", **settings)
    return Sgd(lr, momentum, nesterov=kind == "nag", **settings)


@dataclass(frozen=True, slots=True)
class Proximal:
    """Rule that adds the gradient of (mu/2) ||w - w_start||^2, where w_start is w before the round's first step.

    The L2 regularisation against forgetting, and the proximal term of FedProx (Li et al., "Federated Optimization in
    Heterogeneous Networks", MLSys 2020, Eq. 2). It is separable: each part adds its own.
    """

    mu: float

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Add the proximal gradient; the first step after a copy or a `Renew` stores w_start.

        Steps that come after training find w_start in `weights.start` of the replica itself: None if no step was taken,
        and not in a copy that was sent.
        """
        if weights.start is None:
            weights.start = weights.flat.clone()
        else:
            weights.grad.add_(weights.flat - weights.start, alpha=self.mu)
        return weight_decay


@dataclass(frozen=True, slots=True)
class CoClipped:
    """Rule that clips gradient and weight decay together to a norm of at most `max_norm`: FedNAR's co-clipping.

    Li et al., "FedNAR: Federated Optimization with Normalized Annealing Regularization", NeurIPS 2023
    (docs/methods/v1_variants.md#fednar).
    """

    max_norm: float

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Clip; nothing of the weight decay is left for the optimiser."""
        weights.grad.add_(weights.flat, alpha=weight_decay)
        norm = weights.grad.square().sum().sqrt()
        weights.grad.mul_((self.max_norm / norm).clamp(max=1.0))
        return 0.0


@dataclass(frozen=True, slots=True)
class SummedNorms:
    """Rule that sums the squared gradient norm, without weight decay, over a round's steps, and changes nothing."""

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Add the squared norm to a sum on the weights' device, so that the host need not wait for a GPU."""
        norm = weights.grad.square().sum()
        weights.squared_norms = norm if weights.squared_norms is None else weights.squared_norms + norm
        return weight_decay
