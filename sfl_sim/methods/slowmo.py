"""SlowMo: a slow momentum over what a round did in units of the learning rate.

Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum", ICLR 2020 (METHODS.md
section 10).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.hosts import EqualSteps, EqualStepsOptions
from sfl_sim.training.merging import MomentumAverage
from sfl_sim.training.optimisers import Sgd


class SlowMoOptions(EqualStepsOptions):
    """`slow_momentum`, `slow_lr`: of the step after a round."""

    slow_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.6
    slow_lr: Annotated[float, Field(gt=0)] = 1.0


class SlowMo(EqualSteps, regular=True, survives=True):
    """SplitFedV1 with a slow momentum, whose steps are as long as the learning rate of the round."""

    Options = SlowMoOptions
    options: SlowMoOptions

    def merge(self, round: int) -> MomentumAverage:
        """u <- beta*u + (w - sum_c k_c w_c) / lr_r; w <- w - alpha*lr_r*u."""
        lr = self.optimiser(round).lr
        return MomentumAverage(Sgd(self.options.slow_lr * lr, self.options.slow_momentum), unit=lr)
