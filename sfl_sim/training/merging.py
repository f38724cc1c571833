"""What becomes of the average of a round's replicas: a step of the server's own optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sfl_sim.models.replica import Replica
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Average


@dataclass(frozen=True)
class MomentumAverage(Average):
    """The state takes a step of SGD with momentum, whose gradient is (state - average of the replicas) / `unit`.

    The momentum buffer lives in the state, through all rounds. Running statistics of batch norm are averaged without
    momentum, which could make a variance negative (METHODS.md CHOICE 26).

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.
    """

    sgd: Sgd
    unit: float = 1.0

    def run(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> None:
        """`shares` add up to one."""
        weights = into.weights
        before = weights.flat.clone()
        super().run(into, replicas, shares)
        with torch.no_grad():
            torch.sub(before, weights.flat, out=weights.grad).div_(self.unit)
            weights.flat.copy_(before)
        self.sgd.step(weights)
