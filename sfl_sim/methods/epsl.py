"""EPSL: the server propagates the first rows of all clients' mini-batches back as one, through their mean activations.

Lin et al., "Efficient Parallel Split Learning over Resource-constrained Wireless Edge Networks", 2023
(docs/methods/epsl.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.methods.base import MethodOptions
from sfl_sim.methods.pooled import Pooled, TrainMerged, rows_of
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Step, Value, Work

ROUNDING = 1e-12
"""Taken off a product before it is rounded up, so that one that is whole but for rounding stays as it is."""


class EpslOptions(MethodOptions):
    """Options of EPSL."""

    phi: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of each mini-batch whose gradients are aggregated over clients; 0: none are, as with MergeSFL."""


class Epsl(Pooled, regular=True, survives=True, tiered=True):
    """Server steps on the merged mini-batches of all clients, with fewer rows to propagate back."""

    Options = EpslOptions
    options: EpslOptions
    examples = (EpslOptions(), EpslOptions(phi=1.0), EpslOptions(phi=0.0))

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, Any]:
        """Return whether each row has a gradient of its own."""
        return {"gradients_by_row": isinstance(options, EpslOptions) and not options.phi}

    def step_of(self, smashed: Mapping[int, Value], round: int) -> Step:
        """One for the first ceil(phi b) rows of all clients together, unless phi is 0."""
        if not (phi := self.options.phi):
            return super().step_of(smashed, round)
        slots = max(self.task.network.least_batch, math.ceil(phi * self.batch_size * (1 - ROUNDING)))
        return TrainAggregated(self.optimiser(round, SERVER), slots, tuple(self.task.shares(list(smashed))))


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
        g_of = torch.split(g, sizes)
        virtual, g_virtual, members = self._virtual(torch.split(z.detach(), sizes), g_of, n_virtual)
        virtual.requires_grad_(z.requires_grad)
        clients = zip(torch.split(out, sizes), g_of, n_virtual, strict=True)
        alone = torch.cat([(rows[n:] * g_rows[n:]).flatten() for rows, g_rows, n in clients])
        # The sum whose gradient is wanted: gradients at outputs are constants in it.
        differentiate(alone.sum() + (part2.weights(virtual, training=True) * g_virtual).sum())
        self.optimiser.step(part2.weights)
        gradient: Tensor | None = z.grad
        if gradient is not None and virtual.grad is not None:
            for rows, n in zip(torch.split(gradient, sizes), n_virtual, strict=True):
                rows[:n] = virtual.grad[:n] / members[:n]
        return gradient

    def _virtual(
        self, z: Sequence[Tensor], g: Sequence[Tensor], n_virtual: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the virtual rows, the gradients at their outputs, and how many clients have a row in each.

        Args:
            z, g: activations and gradients at the outputs of each client's rows.
        """
        n = max(n_virtual)
        rows, g_rows = z[0].new_zeros(n, *z[0].shape[1:]), g[0].new_zeros(n, *g[0].shape[1:])
        weights, members = z[0].new_zeros(2, n, *[1] * (z[0].dim() - 1))
        for z_c, g_c, count, weight in zip(z, g, n_virtual, self.weights, strict=True):
            rows[:count] += weight * z_c[:count]
            g_rows[:count] += g_c[:count]
            weights[:count] += weight
            members[:count] += 1
        return rows / weights, g_rows, members
