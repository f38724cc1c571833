"""FedAvgM: the server has a momentum of its own (docs/methods/v1_variants.md#fedavgm).

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019.
"""

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import HostOptions, ServerCopies
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import MomentumAverage


class FedAvgMOptions(HostOptions):
    """Options of FedAvgM."""

    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Momentum of the round's step towards the average (beta_g)."""
    server_lr: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate of this step (eta_s)."""


class FedAvgM(ServerCopies, regular=True, survives=True):
    """SplitFedV1 whose server takes a step with momentum towards the average, for both parts."""

    Options = FedAvgMOptions
    options: FedAvgMOptions
    tuned = ("server_momentum", (0.1, 0.3, 0.5, 0.7, 0.9))
    neutral = FedAvgMOptions(server_momentum=0.0)
    only_averages = False
    like = "splitfed_v1"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if not self.options.server_momentum and self.options.server_lr == 1:
            self.idea_off = "method.server_momentum is 0"

    def merge(self, round: int) -> MomentumAverage:
        """v <- beta_g v + (w - sum_c k_c w_c); w <- w - eta_s v."""
        return MomentumAverage(Sgd(self.options.server_lr, self.options.server_momentum))
