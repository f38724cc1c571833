"""Utility of a client for training, by which it may be chosen for a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sfl_sim.ops import Step


class Utility(Step):
    """|D_c| sqrt(mean squared loss) of the samples of a client, (1) of Oort (Lai et al. 2021), measured in no time.

    Oort takes the losses of training itself. Here they are those of the global model after the round.

    Args:
        losses: gives the losses (n,) of the client's samples.
    """

    __slots__ = ("losses",)  # no attribute that would count as a setting of the step, of which lineages are made
    name = "utility"

    def __init__(self, losses: Callable[[], Tensor]) -> None:
        self.losses = losses

    def run(self, state: Any, *model: Any) -> float:
        """Give the utility."""
        losses = self.losses()
        return float(len(losses) * losses.square().mean().sqrt())
