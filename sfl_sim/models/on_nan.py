"""Handling of a loss or a gradient that is no finite number (`train.on_nan`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfl_sim.errors import NonFiniteError
from sfl_sim.ops import On, describe

if TYPE_CHECKING:
    from sfl_sim.models.weights import Weights


class OnNan:
    """State that all steps of an experiment share to stop at such a loss, or to leave such updates out.

    The first such loss stops the run. A CPU tells at once; a GPU would have to be waited for at every step, and is
    asked at the end of the round.

    An update that is left out leaves parameters, optimiser state and batch norm's statistics as they were before the
    mini-batch. The gradient that goes on to the parts before is not finite either, so that they leave out theirs. It
    has to be known before the step: every step waits for the GPU.

    Attributes:
        skips: whether updates are left out, and runs go on.
        ops: what is being computed: operations, in the order of their losses.
        left_out: how many updates have been left out since the last `take`.
    """

    def __init__(self, skips: bool = False) -> None:
        self.skips = skips
        self.ops: Sequence[On] = ()
        self.left_out = 0
        self._unseen: list[tuple[Tensor, list[str]]] = []

    def differentiate(self, loss: Tensor) -> None:
        """Backward from the loss, (), of what is being computed."""
        self.see(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def see(self, losses: Tensor) -> None:
        """The loss of what is being computed, (), or of each of its operations, (n,)."""
        if self.skips:
            return
        losses = losses.detach().flatten()
        if losses.device.type != "cpu":
            self._unseen.append((losses, [describe(op) for op in self.ops]))
            return
        for place, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss):
                _stop(loss, [describe(op) for op in self.ops[place : place + 1]])

    def end_round(self) -> None:
        """Look at the losses that nobody has waited for, and hold on to nothing."""
        self.ops = ()
        unseen, self._unseen = self._unseen, []
        if not unseen or torch.cat([losses for losses, _ in unseen]).isfinite().all():
            return
        for losses, where in unseen:
            for place, loss in enumerate(losses.tolist()):
                if not math.isfinite(loss):
                    _stop(loss, where[place : place + 1])

    def admits(self, weights: Weights) -> bool:
        """Return True if their gradient may be applied; where not, their buffers are again what they were."""
        if not self.skips or bool(weights.grad.isfinite().all()):
            return True
        self.left_out += 1
        if weights.statistics is not None:
            weights.buffers.copy_(weights.statistics)
        return False

    def keep(self, weights: Weights) -> None:
        """Remember what the buffers are before a mini-batch passes."""
        if self.skips and weights.statistics is None:
            weights.statistics = weights.buffers.clone()

    def take(self) -> int:
        """Return the number of updates left out since the last call."""
        found, self.left_out = self.left_out, 0
        return found


def _stop(loss: float, where: list[str]) -> None:
    place = f" of {where[0]}" if where else ""
    raise NonFiniteError(f"the loss{place} is {loss}; try a smaller train.lr, or train.on_nan: skip")
