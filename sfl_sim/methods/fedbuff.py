"""FedBuff: the server moves the global model by what every K updates have learned, whenever they come.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, Algorithms 1 and 2, with the
staleness scaling of its experiments (docs/methods/asynchronous.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field

from sfl_sim.methods.asynchronous import Asynchronous, AsynchronousOptions, ClientUpdate
from sfl_sim.models.averages import average_counters, weighted_sum
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Flow, On, Step, Work, on
from sfl_sim.training.steps import Average


class FedBuffOptions(AsynchronousOptions):
    """Options of FedBuff."""

    buffer: Annotated[int, Field(ge=1)] = 10
    """Number of updates that make a new version, which is a round (K)."""
    server_lr: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate of the server (eta_g)."""


class FedBuff(Asynchronous, survives=True):
    """Clients train asynchronously; the server adds the mean of every K updates."""

    Options = FedBuffOptions
    options: FedBuffOptions
    examples = (FedBuffOptions(buffer=1), FedBuffOptions(buffer=2, host="splitfed_v1"))
    neutral = FedBuffOptions(buffer=1)
    ignores: Mapping[str, str] = {**Asynchronous.ignores, "train.agg_weights": "updates count by their staleness"}

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Wait for K updates, and take them in at once."""
        self.begin(round)
        updates: list[ClientUpdate] = []
        while len(updates) < self.options.buffer:
            updates.append((yield from self.next_update(len(clients))))
        yield from self.take(updates)

    def client(self, c: int) -> Flow:
        """A visit, whose update remembers w^(v_i), the parts that it began with."""
        origins = self.parts
        return replace((yield from super().client(c)), origins=origins)

    def merge(self, i: int, part: Replica, updates: Sequence[ClientUpdate]) -> On:
        """w <- w + eta_g / K * sum_i s(tau_i) (w_i - w^(v_i)), for any numbers of samples.

        Clients send w_i, and the server remembers the versions: as many bytes as the paper's differences have.
        """
        copies, origins = [update.copies[i] for update in updates], [update.origins[i] for update in updates]
        shares = [weight / len(updates) for weight in self.weights(updates)]
        return on(self.nodes[i], AddDifferences(self.options.server_lr), part, copies, shares, origins)


@dataclass(frozen=True)
class AddDifferences(Step):
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
        return Average().work(into, replicas, shares)

    def run(
        self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float], origins: Sequence[Replica]
    ) -> None:
        """Move `into`; `shares` add up to one or less, `origins` are what the `replicas` were copied from."""
        old, learned = into.weights, [replica.weights for replica in replicas]
        steps = [self.lr * share for share in shares]
        vectors = [old.flat, *(weights.flat for weights in learned), *(origin.weights.flat for origin in origins)]
        statistics = [old.buffers, *(weights.buffers for weights in learned)]
        with torch.no_grad():
            weighted_sum(old.flat, vectors, [1, *steps, *(-step for step in steps)])
            weighted_sum(old.buffers, statistics, [1 - sum(shares), *shares])
            average_counters(old, [old.frozen, *(weights.frozen for weights in learned)], [1 - sum(shares), *shares])
