"""The eager executor: every step runs at the instant its service starts."""

from __future__ import annotations

from typing import Any

from sfl_sim.ops import On, Value


class Eager:
    """Runs steps at once. The default on a CPU: threads and batching gain nothing there beyond tiny models."""

    name = "eager"

    def run(self, op: On) -> Any:
        """Run the step and give its content."""
        return op.step.run(op.state, *op.args)

    def snapshot(self, payload: Value) -> Value:
        """A copy if the payload can change, itself if not."""
        return payload.snapshot()

    def read(self, value: Value) -> float:
        """The number, now."""
        return float(value.load())
