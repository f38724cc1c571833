"""Losses: what training minimises, the server's gradients come from, and evaluation reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from sfl_sim.goals import NO_LABEL, NO_TOKEN, Goal


class Loss(Protocol):
    """Function of a network's outputs and of what it has to predict."""

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Compute the `mean` over the targets of a mini-batch, or their `sum`, ()."""


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: str = "mean", **options: Any) -> Tensor:
    """Compute the cross-entropy of logits (n, L) for labels (n,), or of logits (n, T, V) for the next tokens (n, T)."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction=reduction, **options)


def of_pixels(outputs: Tensor, targets: Tensor, reduction: str = "mean", **options: Any) -> Tensor:
    """Compute the cross-entropy of logits (n, L, H, W) for masks (n, H, W)."""
    labels = targets.long()
    labels = labels.masked_fill(labels == NO_LABEL, NO_TOKEN)
    return functional.cross_entropy(outputs, labels, reduction=reduction, **options)


def bce(outputs: Tensor, targets: Tensor, reduction: str = "mean", **options: Any) -> Tensor:
    """Compute the binary cross-entropy of logits (n, L) for sets of labels (n, L)."""
    return functional.binary_cross_entropy_with_logits(
        outputs, targets.to(outputs.dtype), reduction=reduction, **options
    )


def mse(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the squared error of numbers (n, K)."""
    return functional.mse_loss(outputs, targets.to(outputs.dtype), reduction=reduction)


def l1(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the absolute error of numbers (n, K)."""
    return functional.l1_loss(outputs, targets.to(outputs.dtype), reduction=reduction)


def huber(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the Huber loss of numbers (n, K): squared below an error of 1, absolute above it."""
    return functional.huber_loss(outputs, targets.to(outputs.dtype), reduction=reduction)


LOSSES: dict[Goal, dict[str, Callable[..., Tensor]]] = {
    Goal.LABEL: {"cross_entropy": cross_entropy},
    Goal.TOKENS: {"cross_entropy": cross_entropy},
    Goal.LABEL_SET: {"bce": bce},
    Goal.NUMBERS: {"mse": mse, "l1": l1, "huber": huber},
    Goal.PIXELS: {"cross_entropy": of_pixels},
}
"""Losses by what is predicted and by name; the first of each is the usual one."""


def counted(targets: Tensor) -> Tensor:
    """Mark those of targets (n, ...) that are predicted, and not ignored."""
    if targets.dtype == torch.int64:
        return targets != NO_TOKEN
    is_mask = targets.dtype == torch.uint8 and targets.ndim == 3
    return targets != NO_LABEL if is_mask else torch.ones_like(targets, dtype=torch.bool)


@dataclass(frozen=True)
class ByMean:
    """A loss that is known by its mean over a mini-batch alone: its sum is the mean times the number of targets."""

    mean: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Compute the loss, ()."""
        mean = self.mean(outputs, targets)
        return mean * counted(targets).sum() if reduction == "sum" else mean
