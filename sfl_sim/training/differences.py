"""What replicas have learned since they were copied, added to a model that has changed in the meantime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sfl_sim.models.replica import Replica, weighted_sum
from sfl_sim.ops import Value, Work
from sfl_sim.training.steps import Average


@dataclass(frozen=True)
class AddDifferences:
    """The state moves by `lr` times the weighted sum of replicas minus what each of them was copied from.

    It costs as much as their average. Running statistics of batch norm take in the replicas' own as an average does,
    without `lr`: differences could make a variance negative.
    """

    lr: float
    name = "average"
    aggregates = True

    def work(
        self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float], origins: Sequence[Replica]
    ) -> Work:
        """One MAC per element and replica."""
        return Average().work(into, replicas, shares)

    def out(
        self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float], origins: Sequence[Replica]
    ) -> Value:
        """Nothing."""
        return Value("done")

    def run(
        self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float], origins: Sequence[Replica]
    ) -> None:
        """`shares` add up to one, or to less. `origins` are what the `replicas` began as."""
        old, learned = into.weights, [replica.weights for replica in replicas]
        steps = [self.lr * share for share in shares]
        vectors = [old.flat, *(weights.flat for weights in learned), *(origin.weights.flat for origin in origins)]
        statistics = [old.buffers, *(weights.buffers for weights in learned)]
        with torch.no_grad():
            weighted_sum(old.flat, vectors, [1, *steps, *(-step for step in steps)])
            weighted_sum(old.buffers, statistics, [1 - sum(shares), *shares])
