"""The timing executor: the same timeline without data and without computing."""

from __future__ import annotations

from sfl_sim.ops import On, Value


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
