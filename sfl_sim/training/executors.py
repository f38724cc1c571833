"""Executors: of training, where every step runs at the instant its service starts, and of the same timeline alone."""

from typing import Any

from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import On, Value


class Eager:
    """Runs each step immediately.

    Args:
        on_nan: rule for losses that are not finite; None: the run stops at the first of them.
    """

    name = "eager"
    computes = True

    def __init__(self, on_nan: OnNan | None = None) -> None:
        self.on_nan = on_nan or OnNan()

    def run(self, op: On) -> Any:
        """Run the step and give its content."""
        with self.on_nan.in_force(op):
            return op.step.run(op.state, *op.args)

    def snapshot(self, payload: Value) -> Value:
        """Give a copy if the payload can change, itself if not."""
        return payload.snapshot()

    def finish(self) -> None:
        """Finish a round: check the losses that have not been checked."""
        self.on_nan.end_round()

    def read(self, value: Value) -> float:
        """Give the number in `value`."""
        return float(value.load())


class Timing:
    """Computes nothing: states and values have a size and no content."""

    name = "timing"
    computes = False

    def run(self, op: On) -> None:
        """Compute nothing; the result has no content."""

    def snapshot(self, payload: Value) -> Value:
        """Give a copy if the payload can change, itself if not."""
        return payload.snapshot()

    def read(self, value: Value) -> None:
        """Give None: without training no number is known."""

    def finish(self) -> None:
        """Finish a round: a no-op."""
