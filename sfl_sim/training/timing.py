"""The timing executor: the same timeline with no data and no maths."""

from __future__ import annotations

from sfl_sim.ops import On, Value


class Timing:
    """Carries nothing out: states are ghosts, values have a size and no content."""

    name = "timing"

    def run(self, op: On) -> None:
        """Nothing."""

    def snapshot(self, payload: Value) -> Value:
        """A new ghost if the payload can change, itself if not."""
        return payload.snapshot()

    def read(self, value: Value) -> None:
        """Give None: nothing was trained, so no number is known."""

    def finish(self) -> None:
        """Do nothing: nothing is left at the end of a round."""
