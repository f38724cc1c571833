"""The loss: what training minimises, the server's gradients come from, and evaluation reports."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional


class Loss(Protocol):
    """Function of a network's outputs and of what it has to predict; `vmap` can run it for many clients as one."""

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Compute the `mean` or the `sum` over a mini-batch, ()."""


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of logits (n, L) for labels (n,), or of logits (n, T, V) for the next tokens (n, T)."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction=reduction)
