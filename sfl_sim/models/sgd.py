"""The local optimisers: stochastic gradient descent on one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.optim.sgd import sgd

from sfl_sim.models.replica import Weights


@dataclass(frozen=True, slots=True)
class Sgd:
    """PyTorch's SGD (METHODS.md 0.3): g += wd*w; m = momentum*m + g, first m = g; w -= lr*m."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def step(self, weights: Weights) -> None:
        """One step with the accumulated gradient, which is cleared. The momentum buffer lives in `weights`.

        One fused call over the flat vector takes a fifth of the time of a step per tensor (shared/PERFORMANCE.md), and
        gives the bits of `torch.optim.SGD` as it is by default: the vector has no odd tail, where torch's fused kernel
        alone rounds differently.
        """
        buffers = [weights.momentum]
        with torch.no_grad():
            sgd(
                [weights.flat], [weights.grad], buffers,
                weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
                dampening=0.0, nesterov=False, maximize=False, fused=True,
            )  # fmt: skip
            weights.grad.zero_()
        weights.momentum = buffers[0]


@dataclass(frozen=True, slots=True)
class ProximalSgd(Sgd):
    """SGD on the loss plus (mu/2) ||w - w_start||^2, where w_start is w before the round's first step.

    The L2 regularisation against forgetting, and the proximal term of FedProx (Li et al., "Federated Optimization in
    Heterogeneous Networks", MLSys 2020, Eq. 2). Its gradient is separable: each part adds its own.
    """

    mu: float = 0.0

    def step(self, weights: Weights) -> None:
        """One step; the first one since the state was copied or renewed remembers where it starts."""
        if weights.start is None:
            weights.start = weights.flat.clone()
        else:
            weights.grad.add_(weights.flat - weights.start, alpha=self.mu)
        Sgd.step(self, weights)
