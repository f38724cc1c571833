"""The eager executor: every step runs at the instant its service starts."""

from __future__ import annotations

from typing import Any

from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import On, Value


class Eager:
    """Runs steps at once. The default on a CPU: threads and batching gain nothing there beyond tiny models.

    Args:
        on_nan: that of the network whose steps it runs, which is told what they are.
    """

    name = "eager"

    def __init__(self, on_nan: OnNan | None = None) -> None:
        self.on_nan = on_nan or OnNan()

    def run(self, op: On) -> Any:
        """Run the step and give its content."""
        self.on_nan.ops = (op,)
        return op.step.run(op.state, *op.args)

    def snapshot(self, payload: Value) -> Value:
        """A copy if the payload can change, itself if not."""
        return payload.snapshot()

    def finish(self) -> None:
        """All that is left to do at the end of a round."""
        self.on_nan.end_round()

    def read(self, value: Value) -> float:
        """The number, now."""
        return float(value.load())
