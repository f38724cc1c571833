"""Handling of a loss or a gradient that is no finite number (`train.on_nan`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from sfl_sim.errors import NonFiniteError
from sfl_sim.ops import On, describe


class OnNan:
    """The rule of an executor, in force while it runs a step: it stops at such a loss, or leaves such updates out.

    The first such loss stops the run. A CPU tells at once; a GPU would have to be waited for at every step, and is
    asked at the end of the round.

    An update that is left out leaves parameters, optimiser state and batch norm's statistics as they were before the
    mini-batch. The gradient that goes on to the parts before is not finite either, so that they leave out theirs. It
    has to be known before the step: every step waits for the GPU.

    Attributes:
        skips: whether updates are left out, and runs go on.
        left_out: how many updates have been left out since the last `take`.
    """

    def __init__(self, skips: bool = False) -> None:
        self.skips = skips
        self.left_out = 0
        self._ops: Sequence[On] = ()
        self._unseen: list[tuple[Tensor, list[str]]] = []

    @contextmanager
    def in_force(self, ops: Sequence[On]) -> Iterator[None]:
        """Return a context in which this is the rule, and `ops` are computed, in the order of their losses."""
        self._ops = ops
        before = _IN_FORCE.set(self)
        try:
            yield
        finally:
            _IN_FORCE.reset(before)
            self._ops = ()

    def see(self, losses: Tensor) -> None:
        """The loss of what is being computed, (), or of each of its operations, (n,)."""
        if self.skips:
            return
        losses = losses.detach().flatten()
        if losses.device.type != "cpu":
            self._unseen.append((losses, [describe(op) for op in self._ops]))
            return
        for place, loss in enumerate(losses.tolist()):
            if not math.isfinite(loss):
                _stop(loss, [describe(op) for op in self._ops[place : place + 1]])

    def end_round(self) -> None:
        """Look at the losses that nobody has waited for."""
        unseen, self._unseen = self._unseen, []
        if not unseen or torch.cat([losses for losses, _ in unseen]).isfinite().all():
            return
        for losses, where in unseen:
            for place, loss in enumerate(losses.tolist()):
                if not math.isfinite(loss):
                    _stop(loss, where[place : place + 1])

    def admits(self, gradient: Tensor) -> bool:
        """Return True if the gradient may be applied; where not, its update counts as left out."""
        if not self.skips or bool(gradient.isfinite().all()):
            return True
        self.left_out += 1
        return False

    def take(self) -> int:
        """Return the number of updates left out since the last call."""
        n_left_out, self.left_out = self.left_out, 0
        return n_left_out


_IN_FORCE: ContextVar[OnNan] = ContextVar("rule for losses and gradients that are not finite")


def rule_in_force() -> OnNan:
    """Return the rule of the executor that runs a step; where none does, one that stops."""
    return _IN_FORCE.get(None) or OnNan()


def differentiate(loss: Tensor) -> None:
    """Accumulate the gradients of the loss, (), of the step that is being run, unless the run stops at it."""
    rule_in_force().see(loss)
    loss.backward()  # type: ignore[no-untyped-call]


def _stop(loss: float, where: list[str]) -> None:
    place = f" of {where[0]}" if where else ""
    raise NonFiniteError(f"the loss{place} is {loss}; try a smaller train.lr, or train.on_nan: skip")
