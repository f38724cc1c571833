"""FedNAR: gradient and weight decay are clipped together (docs/methods/fednar.md).

Li et al., "FedNAR: Federated Optimization with Normalized Annealing Regularization", NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.methods.server_copies import ServerCopies, check_clipping
from sfl_sim.training.optimisers import CoClipped, Optimiser


class NarOptions(MethodOptions):
    """`max_norm`: M, to which each part's gradient with its weight decay is clipped."""

    max_norm: Annotated[float, Field(gt=0)] = 10.0


class FedNAR(ServerCopies, regular=True, survives=True):
    """SplitFedV1 with co-clipping in every local step."""

    Options = NarOptions
    options: NarOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        check_clipping(task)

    @once_a_round
    def optimiser(self, round: int) -> Optimiser:
        """g <- (g + wd w) min(1, M / ||g + wd w||); each part is clipped by its own norm."""
        return replace(super().optimiser(round), rule=CoClipped(self.options.max_norm))
