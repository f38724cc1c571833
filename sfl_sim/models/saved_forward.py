"""Forward passes that await their gradients, stored so that they can be run once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states

if TYPE_CHECKING:
    from sfl_sim.models.replica import Weights


@dataclass(frozen=True)
class SavedForward:
    """Forward pass that awaits its gradient, with all that is needed to run it once more, to the bit.

    In addition to a graph this takes hardly more memory than the input.

    Attributes:
        x: input.
        version: number of changes of the parameters before the pass.
        buffers: buffers before the pass.
        draws, devices: random states before the pass, of the CPU and of other devices.
    """

    x: Tensor
    version: int
    buffers: Tensor
    draws: Tensor
    devices: tuple[list[int], list[Tensor]]

    @classmethod
    def now(cls, weights: Weights, x: Tensor) -> SavedForward:
        """Record a pass that is about to begin."""
        devices = ([], []) if x.device.type == "cpu" else get_device_states(x)  # which takes 40 us to find none
        return cls(x, weights.flat._version, weights.buffers.clone(), torch.get_rng_state(), devices)

    def again(self, weights: Weights) -> Tensor:
        """Compute the activations with their graph again: random draws repeat, and running statistics stay as they are.

        Raises:
            RuntimeError: the parameters have changed since.
        """
        if weights.flat._version != self.version:
            raise RuntimeError("weights have been modified by an inplace operation between forward and backward")
        with torch.random.fork_rng(self.devices[0], device_type=self.x.device.type):
            torch.set_rng_state(self.draws)
            set_device_states(*self.devices)
            buffers = weights.part.buffer_views(self.buffers)
            return weights.part.call(weights.leaves, weights.frozen, buffers, self.x, training=True)
