"""FedAsync: the server mixes every update into the global model as soon as it comes.

Xie et al., "Asynchronous Federated Optimization", 2019 (arXiv 1903.03934), Algorithm 1 (docs/methods/asynchronous.md).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from sfl_sim.methods.asynchronous import Asynchronous, AsynchronousOptions, ClientUpdate
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Flow, On, on
from sfl_sim.training.optimisers import Proximal
from sfl_sim.training.steps import Average


class FedAsyncOptions(AsynchronousOptions):
    """Options of FedAsync."""

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Share of a fresh update in the new version."""
    rho: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the proximal term (rho/2) ||w - w_start||^2 that clients add to their loss."""


class FedAsync(Asynchronous, survives=True):
    """Clients train asynchronously; the server mixes each update in as it comes, the less the staler it is."""

    Options = FedAsyncOptions
    options: FedAsyncOptions
    examples = (FedAsyncOptions(), FedAsyncOptions(host="splitfed_v1"))
    neutral = FedAsyncOptions(alpha=1.0)
    ignores: Mapping[str, str] = {**Asynchronous.ignores, "train.agg_weights": "updates count by their staleness"}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.options.rho:
            self.rule = Proximal(self.options.rho)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Take in one update after another, as many as clients train at a time."""
        self.begin(round)
        for _ in clients:
            update = yield from self.next_update(len(clients))
            yield from self.take([update])

    def merge(self, i: int, part: Replica, updates: Sequence[ClientUpdate]) -> On:
        """w <- (1 - alpha_t) w + alpha_t w_new with alpha_t = alpha s(tau)."""
        (update,), (weight,) = updates, self.weights(updates)
        alpha = self.options.alpha * weight
        return on(self.nodes[i], Average(), part, [self.parts[i], update.copies[i]], [1 - alpha, alpha])
