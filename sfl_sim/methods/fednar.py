"""FedNAR: gradient and weight decay are clipped together (docs/methods/v1_variants.md#fednar).

Li et al., "FedNAR: Federated Optimization with Normalized Annealing Regularization", NeurIPS 2023.
"""

from typing import Annotated

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import ServerCopies, co_clipping


class NarOptions(MethodOptions):
    """Options of FedNAR."""

    max_norm: Annotated[float, Field(gt=0)] = 10.0
    """Norm to which each part's gradient with its weight decay is clipped (M)."""


class FedNAR(ServerCopies, regular=True, survives=True, tiered=True):
    """SplitFedV1 with co-clipping in every local step."""

    Options = NarOptions
    options: NarOptions
    neutral = NarOptions(max_norm=1e9)
    like = "splitfed_v1"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.options.max_norm >= NarOptions().max_norm:
            self.idea_off = "gradients with their decay are seldom as long as method.max_norm"
        self.rule = co_clipping(task, self.options.max_norm)
        """g <- (g + wd w) min(1, M / ||g + wd w||); each part is clipped by its own norm."""
