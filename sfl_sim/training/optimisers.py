"""The local optimisers, on one flat vector, and the rules that change a gradient before a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Protocol

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
    """

    lr: float
    _: KW_ONLY
    weight_decay: float = 0.0
    rule: GradientRule | None = None

    @property
    @abstractmethod
    def n_moments(self) -> int:
        """Number of running averages of gradients (P,) that it keeps: `momentum`, and Adam's `variance`."""

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
            if is_admitted:
                self._update(weights, decay)
            elif weights.statistics is not None:
                weights.buffers.copy_(weights.statistics)
            weights.grad.zero_()
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
        """1 with momentum (m), 0 without."""
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
        """2: averages of the gradient and of its square."""
        return 2

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
    (docs/methods/fednar.md).
    """

    max_norm: float

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Clip; nothing of the weight decay is left for the optimiser."""
        weights.grad.add_(weights.flat, alpha=weight_decay)
        norm = weights.grad.square().sum().sqrt()
        weights.grad.mul_((self.max_norm / norm).clamp(max=1.0))
        return 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Rule that sums the squared gradient norm, without weight decay, over a round's steps, and changes nothing."""

    def __call__(self, weights: Weights, weight_decay: float) -> float:
        """Add the squared norm to a sum on the weights' device, so that the host need not wait for a GPU."""
        norm = weights.grad.square().sum()
        weights.squared_norms = norm if weights.squared_norms is None else weights.squared_norms + norm
        return weight_decay
