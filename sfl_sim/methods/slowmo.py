"""SlowMo: a slow momentum over the changes of rounds, in units of the learning rate (docs/methods/v1_variants.md).

Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR 2020.
"""

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import HostOptions, ServerCopies
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Average, MomentumAverage


class SlowMoOptions(HostOptions):
    """Options of SlowMo."""

    slow_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """Momentum of the step after a round (beta_s)."""
    slow_lr: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate of this step, in learning rates of the round (alpha_s)."""


class SlowMo(ServerCopies, regular=True, survives=True):
    """SplitFedV1 with a slow momentum, whose steps are as long as the learning rate of the round."""

    Options = SlowMoOptions
    options: SlowMoOptions
    tuned = ("slow_momentum", (0.2, 0.4, 0.6, 0.8))
    neutral = SlowMoOptions(slow_momentum=0.0)
    only_averages = False
    like = "splitfed_v1"
    equal_steps = True
    forgets_lost = False

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.optimiser(1)  # of which `merge` takes the rate, so that all nodes must have it

    def merge(self, round: int) -> Average:
        """u <- beta_s u + (w - sum_c k_c w_c) / eta_r; w <- w - alpha_s eta_r u. With eta_r = 0 models are averaged."""
        if not (lr := self.optimiser(round).lr):
            return Average()
        return MomentumAverage(Sgd(self.options.slow_lr * lr, self.options.slow_momentum), unit=lr)
