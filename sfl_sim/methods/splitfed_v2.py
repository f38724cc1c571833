"""SplitFedV2: one part-2, trained by all clients in turn.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022. It is the SFL of Tirana et al. 2026,
whose comparison adds the L2 regularisation (docs/methods/splitfed.md#splitfedv2).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.methods.split import SharedServer, SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, expect, on, par
from sfl_sim.scenario.fields import Unless
from sfl_sim.training.optimisers import Proximal
from sfl_sim.training.steps import Backward, Forward, Renew

PENALTY_BYTES = 4  # a float32


class V2Options(MethodOptions):
    """Options of SplitFedV2."""

    l2: Annotated[float, Field(ge=0)] = 0.0
    """Weight mu of the penalty (mu/2) ||w - w^r||^2 on what a round changes."""
    l2_on: Annotated[Literal["part2", "model"], Unless("l2", 0)] = "part2"
    """What is penalised: part-2, or the whole model, and the clients then report their share of the penalty with every
    mini-batch."""


class SplitFedV2(SharedServer, SplitMethod, regular=True, survives=True, tiered=True):
    """Part-1 is averaged every round; part-2 is one state, changed in the order in which the server serves."""

    Options = V2Options
    options: V2Options
    examples = (V2Options(), V2Options(l2=0.5, l2_on="model"))
    neutral = V2Options(l2=0.0, l2_on="part2")

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.client_model = self.part1
        if self.options.l2:
            self.rule = Proximal(self.options.l2)
            if self.options.l2_on == "model":
                self.forward = Forward(PENALTY_BYTES)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 by every job in turn; w1 <- sum_c k_c w1_c."""
        yield on(SERVER, Renew(), self.part2)
        yield expect(self.part2, self.begin(clients))
        copies = yield par({c: self.client(c, self.part2, round) for c in clients})
        yield from self.average(AGGREGATOR, self.part1, copies)

    @once_a_round
    def backward(self, round: int, c: int) -> Backward:
        """The client's step, without the penalty where that is on part-2 alone."""
        return Backward((self if self.options.l2_on == "model" else self.task).optimiser(round, c))

    def current(self) -> list[Replica]:
        return [self.part1_now(), self.part2]
