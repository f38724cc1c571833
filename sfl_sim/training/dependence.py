"""Distance correlation: how much two tensors of the same samples depend on each other, in any way.

Székely, Rizzo, Bakirov, "Measuring and Testing Dependence by Correlation of Distances", Annals of Statistics 2007;
Székely, Rizzo, "Partial Distance Correlation with Methods for Dissimilarities", Annals of Statistics 2014.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_ROWS = 4
"""Number of samples from which on the unbiased estimate exists."""
LEAST = 1e-9
"""Least square of a distance correlation under a root whose gradient is wanted."""


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Compute the distance correlation of x (n, ...) and z (n, ...): 0 to 1, and 0 if one of them is constant.

    It can be differentiated. It is biased: of few samples with many elements it is large, whatever they are.
    """
    return correlation(distances(x), distances(z))


def correlation(of_x: Tensor, of_z: Tensor) -> Tensor:
    """Compute the distance correlation from the distances (n, n) of two tensors."""
    a, b = _centred(of_x), _centred(of_z)
    variances = (a * a).mean() * (b * b).mean()
    depend = variances > 0  # no `if`, which would wait for a GPU in every mini-batch
    ratio = (a * b).mean() / torch.where(depend, variances, 1).sqrt()
    return torch.where(depend, ratio.clamp(min=LEAST).sqrt(), 0 * variances)


def unbiased_distance_correlation(x: Tensor, z: Tensor) -> float:
    """Estimate the squared distance correlation of x (n, ...) and z (n, ...) without bias: -1 to 1, around 0 if none.

    0 if one of them is constant; NaN of fewer than four samples.
    """
    return unbiased_correlation(distances(x), distances(z))


def unbiased_correlation(of_x: Tensor, of_z: Tensor) -> float:
    """Estimate the squared distance correlation from the distances (n, n) of two tensors."""
    if len(of_x) < LEAST_ROWS:
        return float("nan")
    a, b = _unbiased(of_x), _unbiased(of_z)
    variances = float((a * a).sum() * (b * b).sum())
    return float((a * b).sum()) / variances**0.5 if variances > 0 else 0 * variances


def distances(x: Tensor) -> Tensor:
    """Euclidean distances (n, n) of samples, by products in double precision, which is fast for wide samples."""
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    to_others = 1 - torch.eye(len(flat), dtype=flat.dtype, device=flat.device)  # products round that to oneself
    return torch.cdist(flat, flat, compute_mode="use_mm_for_euclid_dist") * to_others


def _centred(distances: Tensor) -> Tensor:
    """Subtract the means of rows and columns, and add that of all."""
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def _unbiased(distances: Tensor) -> Tensor:
    """Subtract the means of rows and columns so that products have the right expectation; the diagonal is 0."""
    n = len(distances)
    rows = distances.sum(0) / (n - 2)
    centred = distances - rows - rows[:, None] + distances.sum() / ((n - 1) * (n - 2))
    return centred.fill_diagonal_(0)
