"""Targets of samples other than labels: their goal, and the groups that stand for labels where clients differ."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sfl_sim.goals import NO_LABEL, Goal

QUANTILES = 10
"""Groups of equally many training samples that stand for labels where numbers are predicted."""


def goal_of(targets: Tensor) -> Goal:
    """Return what targets (N, ...) other than labels ask for: their type and shape say so."""
    if targets.is_floating_point():
        return Goal.NUMBERS
    return Goal.LABEL_SET if targets.ndim == 2 else Goal.PIXELS


def groups(targets: Tensor, test_targets: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Group samples by their targets: the groups take the place of labels where clients differ by labels.

    Numbers are grouped by the `QUANTILES` of the first of them among training samples. Sets of labels and masks are
    grouped by the label that fewest training samples have, among those that the sample has.

    Returns:
        Groups of training samples (N,) and of test samples (M,), int64, and the groups' names.
    """
    if targets.is_floating_point():
        return _by_quantile(targets[:, 0].double(), test_targets[:, 0].double())
    held = [_held(part, len(names)) for part in (targets, test_targets)]
    rarity = held[0].sum(dim=0).argsort(stable=True)  # the rarest label first
    place = [part[:, rarity].int().argmax(dim=1) for part in held]
    chosen = [rarity[at].masked_fill(~part.any(dim=1), len(names)) for part, at in zip(held, place, strict=True)]
    occurring, numbers = torch.unique(torch.cat(chosen), return_inverse=True)
    told = (*names, "none")
    return numbers[: len(targets)], numbers[len(targets) :], tuple(told[int(group)] for group in occurring)


def _by_quantile(first: Tensor, of_tests: Tensor) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Group numbers (N,) by quantiles of the training samples'; equal ones are in one group."""
    edges = torch.from_numpy(np.unique(np.quantile(first.numpy(), np.linspace(0, 1, QUANTILES + 1)[1:-1])))
    edges = edges[edges < first.max()]
    names = [f"up to {edge:.4g}" for edge in edges.tolist()]
    names.append(f"above {float(edges[-1]):.4g}" if names else "all")
    return torch.bucketize(first, edges), torch.bucketize(of_tests, edges), tuple(names)


def _held(targets: Tensor, n_labels: int) -> Tensor:
    """Mark the labels (N, L) that occur in sets (N, L) or masks (N, H, W)."""
    if targets.ndim == 2:
        return targets.bool()
    held = torch.zeros(len(targets), NO_LABEL + 1, dtype=torch.bool)
    held.scatter_(1, targets.flatten(1).long(), value=True)
    return held[:, :n_labels]
