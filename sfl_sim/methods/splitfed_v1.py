"""SplitFedV1: a part-2 for every client, all of them averaged.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, Algorithm 1. The variants that
average the copies of part-2 more often are those of SMoFi's comparison (METHODS.md 5.3).
"""

from __future__ import annotations

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.surrogates import Every, Surrogates


class V1Options(MethodOptions):
    """`server_agg_every`: average the copies of part-2 after every mini-batch step, local epoch or round."""

    server_agg_every: Every = "round"


class SplitFedV1(Surrogates, regular=True, survives=True):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    Options = V1Options
    options: V1Options

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.average_every = self.options.server_agg_every
        if len(set(task.cuts)) > 1 and self.average_every != "round":
            raise ScenarioError(
                "needs the same cut for all clients: what only some of them hold is averaged when the round ends",
                key="method.server_agg_every", found=self.average_every, allowed=["round"],
            )  # fmt: skip
