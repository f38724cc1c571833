"""Averages of weights, weighted by shares; adapters have averages of their own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sfl_sim.models.lora import average_product, product_errors, truncated_product
from sfl_sim.models.weights import Weights, momentum_buffers
from sfl_sim.rng import torch_seed

CACHED_ELEMENTS = 65_536
"""Number of elements of a vector that fits into a core's cache several times."""


def average(into: Weights, replicas: Sequence[Weights], shares: Sequence[float], with_momentum: bool = False) -> None:
    """Set `into` to the average of `replicas` weighted by `shares`, also its momentum if asked for.

    Replicas may hold more layers than `into`.
    """
    replicas = [weights.only(into.part) for weights in replicas]
    with torch.no_grad():
        learned = _average_adapters(into, replicas, shares) if into.part.aggregate else {}
        weighted_sum(into.flat, [weights.flat for weights in replicas], shares)
        weighted_sum(into.buffers, [weights.buffers for weights in replicas], shares)
        average_counters(into, [weights.frozen for weights in replicas], shares)
        if with_momentum and (momenta := momentum_buffers(replicas)):
            into.momentum = torch.empty_like(into.flat)
            weighted_sum(into.momentum, momenta, shares)
        if learned:
            into.frozen = tuple(map(lambda name, old: learned.get(name, old), into.part.frozen_names, into.frozen))
            for name, view in zip(into.part.names, into.part.views(into.flat), strict=True):
                view.copy_(learned.get(name, view))


def average_counters(into: Weights, frozen: Sequence[tuple[Tensor, ...]], shares: Sequence[float]) -> None:
    """Set the whole numbers that layers have counted to the weighted mean of those among `frozen`, rounded."""
    means = list(into.frozen)
    for i in into.part.counters:
        first, *others = values = [tensors[i] for tensors in frozen]
        means[i] = first
        if any(other is not first and not torch.equal(other, first) for other in others):
            mean = sum(share * value.double() for share, value in zip(shares, values, strict=True))
            means[i] = torch.as_tensor(mean).round().to(first.dtype)
    into.frozen = tuple(means)


def _average_adapters(into: Weights, replicas: Sequence[Weights], shares: Sequence[float]) -> dict[str, Tensor]:
    """Give values by name that replace averages: of adapters, and of the frozen weights that they are joined into.

    Measures what averages of factors, or of their best approximations, are wrong by.
    """
    part, (seed, n_draws) = into.part, into.draws
    tensors = [dict(weights.named_tensors()) for weights in replicas]
    learned: dict[str, Tensor] = {}
    errors = torch.zeros(2, dtype=torch.float64)
    for slot in part.adapters:
        pairs = [(named[slot.a], named[slot.b]) for named in tensors]
        if part.aggregate == "separate":
            errors += product_errors(pairs, shares).cpu()
        elif part.aggregate == "svd":
            learned[slot.a], learned[slot.b], error = truncated_product(pairs, shares)
            errors += error.cpu()
        elif part.aggregate == "concat":
            weight = learned.get(slot.weight, tensors[0][slot.weight])
            learned[slot.weight] = slot.adapter.added(weight, average_product(pairs, shares))
            generator = torch.Generator().manual_seed(torch_seed(seed, f"adapter {slot.a}", n_draws + 1))
            learned[slot.a] = torch.empty(pairs[0][0].shape, dtype=part.dtype)
            slot.adapter.draw(learned[slot.a], generator)
            learned[slot.b] = torch.zeros_like(pairs[0][1])
    if part.aggregate in ("separate", "svd"):
        into.product_errors = errors
    elif part.aggregate == "concat":
        into.draws = seed, n_draws + 1
    return learned


def weighted_sum(into: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Set `into` (P,) to the sum of `vectors` (P,) weighted by `shares`, by a running sum.

    On a CPU the vectors are summed piece by piece, so that the sum stays in the cache: 1.25 times as fast, same bits.
    """
    length = CACHED_ELEMENTS if into.device.type == "cpu" else max(1, len(into))
    for part, *summands in zip(*(torch.split(vector, length) for vector in (into, *vectors)), strict=True):
        total = torch.zeros_like(part)
        for summand, share in zip(summands, shares, strict=True):
            total.add_(summand, alpha=share)
        part.copy_(total)
