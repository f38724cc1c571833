"""Records of a clock: a row for every operation, numbers that flows have read, and operations that were lost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.sim.dropouts import Dropout
from sfl_sim.store.columns import OP_DTYPE, in_order

PACKED_ROWS = 50_000
"""Number of operations kept as Python objects, which take three times the memory of an array's rows."""


class Recording:
    """The records of one clock since they were last taken.

    Attributes:
        rows: the latest operations, as tuples in the order of `OP_DTYPE`, until `pack` moves them to an array.
        reads: the numbers that flows have read, in the order of reading.
        dropouts: the operations that were lost, in the order in which they were.
    """

    def __init__(self) -> None:
        self.reads: list[float] = []
        self.dropouts: list[Dropout] = []
        self.rows: list[tuple[Any, ...]] = []
        self._packed: list[NDArray[np.void]] = []

    def pack(self) -> None:
        """Move the latest rows to an array."""
        self._packed.append(np.array(self.rows, dtype=OP_DTYPE))
        self.rows.clear()

    def take(self) -> NDArray[np.void]:
        """Give all operations since the last call, as an `OP_DTYPE` array in order of their end."""
        self.pack()
        found = np.concatenate([rows for rows in self._packed if len(rows)] or self._packed)
        self._packed = []
        return in_order(found)

    def take_reads(self) -> list[float]:
        """Give the numbers that flows have read since the last call."""
        found, self.reads = self.reads, []
        return found

    def take_dropouts(self) -> list[Dropout]:
        """Give the operations that were lost since the last call."""
        found, self.dropouts = self.dropouts, []
        return found

    def add(self, rows: NDArray[np.void]) -> None:
        """Add `rows` that another clock has found."""
        self.pack()
        self._packed.append(rows)

    def last_end_s(self, otherwise_s: float) -> float:
        """Give the end of the last operation; `otherwise_s` if there is none."""
        self.pack()
        return max((float(rows["ended_s"][-1]) for rows in self._packed if len(rows)), default=otherwise_s)
