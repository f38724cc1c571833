"""Handling of a loss or a gradient that is no finite number (`train.on_nan`)."""

import math
from collections.abc import Iterator
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
        self._op: On | None = None
        self._unseen: list[tuple[Tensor, str]] = []

    @contextmanager
    def in_force(self, op: On | None = None) -> Iterator[None]:
        """Return a context in which this is the rule, and `op` is computed."""
        self._op = op
        before = _IN_FORCE.set(self)
        try:
            yield
        finally:
            _IN_FORCE.reset(before)
            self._op = None

    def see(self, loss: Tensor) -> None:
        """Check the loss, (), of what is being computed."""
        if self.skips:
            return
        loss = loss.detach()
        if loss.device.type != "cpu":
            self._unseen.append((loss, self._where()))
        elif not math.isfinite(loss):
            _stop(float(loss), self._where())

    def _where(self) -> str:
        return f" of {describe(self._op)}" if self._op else ""

    def end_round(self) -> None:
        """Look at the losses that nobody has waited for."""
        unseen, self._unseen = self._unseen, []
        if not unseen or torch.stack([loss for loss, _ in unseen]).isfinite().all():
            return
        for loss, where in unseen:
            if not math.isfinite(loss):
                _stop(float(loss), where)

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


def _stop(loss: float, where: str) -> None:
    raise NonFiniteError(f"the loss{where} is {loss}; try a smaller train.lr, or train.on_nan: skip")
