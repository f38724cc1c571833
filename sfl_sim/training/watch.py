"""The eager executor, watched: somebody may look at the model while a round goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import SERVER, On
from sfl_sim.training.eager import Eager
from sfl_sim.training.steps import Train

Look = Callable[[int, On | None], None]
"""Called with the number of training jobs that the server has run since the watch began, and the last of them."""


class Watched(Eager):
    """Calls `look` after every few training jobs at the server. Meanwhile nobody trains and the clock stands still."""

    def __init__(self, look: Look, on_nan: OnNan | None = None) -> None:
        super().__init__(on_nan)
        self._look = look
        self._every = self._jobs = 0

    def watch(self, every: int) -> None:
        """Look now, and from now on after every `every` jobs; 0: not any more."""
        self._every, self._jobs = every, 0
        if every:
            self._look(0, None)

    def run(self, op: On) -> Any:
        """Run the step and give its content."""
        content = super().run(op)
        if self._every and op.node == SERVER and op.step.name == Train.name:
            self._jobs += 1
            if self._jobs % self._every == 0:
                self._look(self._jobs, op)
        return content
