"""Forward passes whose gradients have not come back yet, as what it takes to run them once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

if TYPE_CHECKING:
    from sfl_sim.models.replica import Weights


@dataclass(frozen=True)
class Passed:
    """A forward pass whose gradient has not come back: what it takes to run it once more, to the bit.

    Autograd holds on to the input in any case, so that this takes hardly any memory where the graph is kept, too.

    Attributes:
        version: how often the parameters had been changed.
        buffers, draws, devices: as they were before: buffers, and random states of the CPU and of other devices.
    """

    x: Tensor
    version: int
    buffers: Tensor
    draws: Tensor
    devices: tuple[list[int], list[Tensor]]

    @classmethod
    def now(cls, weights: Weights, x: Tensor) -> Passed:
        """One that is about to begin."""
        devices = ([], []) if x.device.type == "cpu" else get_device_states(x)  # which takes 40 us to find none
        return cls(x, weights.flat._version, weights.buffers.clone(), torch.get_rng_state(), devices)

    def again(self, weights: Weights) -> Tensor:
        """The activations with their graph: random draws repeat, and running statistics do not move twice."""
        if weights.flat._version != self.version:
            raise RuntimeError("weights have been modified by an inplace operation between forward and backward")
        with torch.random.fork_rng(self.devices[0], device_type=self.x.device.type):
            torch.set_rng_state(self.draws)
            set_device_states(*self.devices)
            return weights.part.call(weights.leaves, weights.part.buffer_views(self.buffers), self.x, training=True)
