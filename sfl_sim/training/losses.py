"""The loss that training minimises and evaluation reports."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def loss_of(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of logits (n, L) for labels (n,), or of logits (n, T, V) for the next tokens (n, T)."""
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)
