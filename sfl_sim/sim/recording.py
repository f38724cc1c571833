"""Records of a clock: a row for every operation, numbers that flows have read, and operations that were lost."""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from sfl_sim.sim.dropouts import Dropout
from sfl_sim.store.columns import OP_DTYPE, in_order

OperationRow = tuple[bytes, bytes, int, int, int, float, float, float, float, int]
"""One operation, in the order of `OP_DTYPE`."""

row_bytes = Struct("=10s24siiiddddq").pack
"""Give the bytes of a `OperationRow` in an array of `OP_DTYPE`."""


class Recording:
    """The records of one clock since they were last taken.

    Attributes:
        rows: the operations, as the bytes of an `OP_DTYPE` array: no Python object is kept of an operation.
        reads: the numbers that flows have read, in the order of reading.
        dropouts: the operations that were lost, in the order in which they were.
    """

    def __init__(self) -> None:
        self.reads: list[float] = []
        self.dropouts: list[Dropout] = []
        self.rows = bytearray()
        self._added: list[NDArray[np.void]] = []

    def take(self) -> NDArray[np.void]:
        """Give all operations since the last call, as an `OP_DTYPE` array in order of their end."""
        found = [rows for rows in self._parts() if len(rows)]
        rows = in_order(found[0] if len(found) == 1 else np.concatenate([*found, np.empty(0, OP_DTYPE)]))
        self.rows, self._added = bytearray(), []
        return rows

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
        self._added.append(rows)

    def last_end_s(self, otherwise_s: float) -> float:
        """Give the end of the last operation; `otherwise_s` if there is none."""
        return max((float(rows["ended_s"].max()) for rows in self._parts() if len(rows)), default=otherwise_s)

    def _parts(self) -> list[NDArray[np.void]]:
        return [*self._added, np.frombuffer(self.rows, OP_DTYPE)]
