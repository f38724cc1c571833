"""What a clock writes down: a row for every operation, as compact as there are many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.store.columns import OP_DTYPE, in_order

PACKED_ROWS = 50_000
"""So many operations are kept as Python objects, which take three times the memory of an array's rows."""


class Recording:
    """The operations that have ended.

    Attributes:
        rows: the latest ones, in the order of `OP_DTYPE`; whoever adds to them may `pack` them.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._packed: list[NDArray[np.void]] = []

    def pack(self) -> None:
        """Make an array of the latest rows."""
        self._packed.append(np.array(self.rows, dtype=OP_DTYPE))
        self.rows.clear()

    def take(self) -> NDArray[np.void]:
        """All since the last call, in order of their end."""
        self.pack()
        found = np.concatenate([rows for rows in self._packed if len(rows)] or self._packed)
        self._packed = []
        return in_order(found)

    def add(self, rows: NDArray[np.void]) -> None:
        """Take over what somebody else has found."""
        self.pack()
        self._packed.append(rows)

    def last_end_s(self, otherwise_s: float) -> float:
        """When the last of them has ended, if there are any."""
        self.pack()
        return max((float(rows["ended_s"][-1]) for rows in self._packed if len(rows)), default=otherwise_s)
