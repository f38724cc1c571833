"""EPSL: the server propagates the first rows of all clients' mini-batches back as one, through their mean activations.

Lin et al., "Efficient Parallel Split Learning over Resource-constrained Wireless Edge Networks", 2023
(docs/methods/epsl.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.methods.base import MethodOptions
from sfl_sim.methods.pooled import Pooled, TrainMerged, dispatched, rows_of
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Flow, Value, Work, on


class EpslOptions(MethodOptions):
    """Options of EPSL."""

    phi: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of each mini-batch whose gradients are aggregated over clients; 0: none are, as with MergeSFL."""


class Epsl(Pooled, regular=True, survives=True, tiered=True):
    """Server steps on the merged mini-batches of all clients, with fewer rows to propagate back."""

    Options = EpslOptions
    options: EpslOptions
    examples = (EpslOptions(), EpslOptions(phi=1.0), EpslOptions(phi=0.0))

    def train(self, smashed: Mapping[int, Value], round: int) -> Flow:
        """One step on the merged mini-batch; gives each client's gradient."""
        optimiser, phi = self.optimiser(round, SERVER), self.options.phi
        slots = math.ceil(phi * self.batch_size)
        if phi and self.task.network.needs_batches_of_two:
            slots = max(2, slots)
        step = (
            TrainAggregated(optimiser, slots, tuple(self.task.shares(list(smashed)))) if phi else TrainMerged(optimiser)
        )
        return dispatched((yield on(SERVER, step, self.part2, list(smashed.values()))), smashed)


@dataclass(frozen=True)
class TrainAggregated(TrainMerged):
    """`TrainMerged` in which row j of all clients, for each j < `slots`, is propagated back as one virtual row.

    Its activations are the clients' weighted mean, the gradient at its outputs the sum of theirs.

    Attributes:
        slots: rows of each client's mini-batch that are aggregated.
        weights: of the clients.
    """

    slots: int
    weights: tuple[float, ...]

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        """Count the forward pass of all rows and of the virtual ones, and the backward pass of these and the others."""
        rows, virtual = sum(value.samples for value in smashed), max(self.aggregated(smashed))
        alone = rows - sum(self.aggregated(smashed))
        part = part2.part
        return Work.total([part.work(rows + virtual, passes=1), part.work(virtual + alone, passes=2)])

    def aggregated(self, smashed: Sequence[Value]) -> list[int]:
        """Count the rows of each client that are aggregated."""
        return [min(self.slots, value.samples) for value in smashed]

    def run(self, part2: Replica, smashed: Sequence[Value]) -> Tensor | None:
        """Give the gradient at the activations of all rows: an aggregated one gets its share of the virtual row's."""
        z, labels = rows_of(smashed)
        sizes, n_virtual = [value.samples for value in smashed], self.aggregated(smashed)
        z = z.detach().requires_grad_(not part2.part.first)
        out = part2.weights(z, training=True)
        (g,) = torch.autograd.grad(part2.part.loss(out, labels), out, retain_graph=True)
        virtual, g_virtual, members = self._virtual(z.detach(), g, sizes, n_virtual)
        virtual.requires_grad_(z.requires_grad)
        alone = torch.ones(len(out), dtype=torch.bool, device=out.device)
        for first, n in zip(_starts(sizes), n_virtual, strict=True):
            alone[first : first + n] = False
        # The sum whose gradient is wanted: gradients at outputs are constants in it.
        differentiate((out[alone] * g[alone]).sum() + (part2.weights(virtual, training=True) * g_virtual).sum())
        self.optimiser.step(part2.weights)
        if z.grad is None:
            return None
        gradient: Tensor = z.grad
        for first, n in zip(_starts(sizes), n_virtual, strict=True):
            gradient[first : first + n] = virtual.grad[:n] / members[:n]  # type: ignore[index]
        return gradient

    def _virtual(
        self, z: Tensor, g: Tensor, sizes: Sequence[int], n_virtual: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the virtual rows, the gradients at their outputs, and how many clients have a row in each."""
        n = max(n_virtual)
        rows, g_rows = z.new_zeros(n, *z.shape[1:]), g.new_zeros(n, *g.shape[1:])
        weights, members = z.new_zeros(n, *[1] * (z.dim() - 1)), z.new_zeros(n, *[1] * (z.dim() - 1))
        for first, count, weight in zip(_starts(sizes), n_virtual, self.weights, strict=True):
            rows[:count] += weight * z[first : first + count]
            g_rows[:count] += g[first : first + count]
            weights[:count] += weight
            members[:count] += 1
        return rows / weights, g_rows, members


def _starts(sizes: Sequence[int]) -> list[int]:
    """Give the first row of each client.

    >>> _starts([3, 2, 4])
    [0, 3, 5]
    """
    return [sum(sizes[:place]) for place in range(len(sizes))]
