"""FedBuff: the server moves the global model by what every K updates have learned, whenever they come.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, Algorithms 1 and 2, with the
staleness scaling of its experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from sfl_sim.methods.asynchronous import Asynchronous, AsynchronousOptions, Update
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Flow, On, on
from sfl_sim.training.differences import AddDifferences


class FedBuffOptions(AsynchronousOptions):
    """`buffer`: K, updates to a new version, which is a round. `server_lr`: how far it goes along their mean."""

    buffer: Annotated[int, Field(ge=1)] = 10
    server_lr: Annotated[float, Field(gt=0)] = 1.0


class FedBuff(Asynchronous, survives=True):
    """Clients train asynchronously; the server adds the mean of what every K of them have learned."""

    Options = FedBuffOptions
    options: FedBuffOptions
    needs_origins = True

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Wait for K updates, and take them in at once."""
        self.begin(round)
        updates: list[Update] = []
        while len(updates) < self.options.buffer:
            updates.append((yield from self.next_update(len(clients))))
        yield from self.take(updates)

    def merge(self, i: int, part: Replica, updates: Sequence[Update]) -> On:
        """w <- w + eta_g / K * sum_i s(tau_i) (w_i - w_(version i began with)), whatever the clients' samples.

        Clients tell w_i, and the server remembers the versions: as many bytes as the paper's differences have.
        """
        copies, origins = [update.copies[i] for update in updates], [update.origins[i] for update in updates]
        shares = [weight / len(updates) for weight in self.weights(updates)]
        return on(self.nodes[i], AddDifferences(self.options.server_lr), part, copies, shares, origins)
