"""FedAvgM: the server has a momentum of its own.

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
(METHODS.md section 10).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.hosts import Hosted, HostOptions
from sfl_sim.training.merging import MomentumAverage
from sfl_sim.training.optimisers import Sgd


class FedAvgMOptions(HostOptions):
    """`server_momentum`, `server_lr`: of the round's step towards the average."""

    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    server_lr: Annotated[float, Field(gt=0)] = 1.0


class FedAvgM(Hosted, regular=True, survives=True):
    """SplitFedV1 whose server takes a step with momentum towards the average, for both parts."""

    Options = FedAvgMOptions
    options: FedAvgMOptions

    def merge(self, round: int) -> MomentumAverage:
        """v <- beta*v + (w - sum_c k_c w_c); w <- w - lr*v."""
        return MomentumAverage(Sgd(self.options.server_lr, self.options.server_momentum))
