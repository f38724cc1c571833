"""FedProx: local steps are held back towards the global model (docs/methods/v1_variants.md#fedprox).

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import ServerCopies
from sfl_sim.training.optimisers import Proximal


class ProxOptions(MethodOptions):
    """Options of FedProx."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the proximal term (mu/2) ||w - w^r||^2, of both parts."""


class FedProx(ServerCopies, regular=True, survives=True, tiered=True):
    """SplitFedV1 with a proximal term in every local step."""

    Options = ProxOptions
    options: ProxOptions
    tuned = ("mu", (0.001, 0.01, 0.1, 1.0))
    neutral = ProxOptions(mu=0.0)
    like = "splitfed_v1"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.idea_off = "" if self.options.mu else "method.mu is 0"
        self.rule = Proximal(self.options.mu)
        """g <- g + mu (w - w^r); each part adds its own."""
