"""The table of operations: one order for the same operations, however they were found."""

import numpy as np
import pytest

from sfl_sim.store.columns import OP_DTYPE, in_order

ROW = ("client", "forward", 1, 0, 3, 0.0, 1.0, 2.0, 10.0, 0)


@pytest.mark.parametrize("column", OP_DTYPE.names)
def test_rows_that_differ_in_one_column_alone_have_an_order(column):
    if column == "round":
        pytest.skip("rounds follow upon each other, and are sorted one by one")
    rows = np.array([ROW, ROW], dtype=OP_DTYPE)
    rows[column][1] = b"other" if rows[column].dtype.kind == "S" else 1000
    assert in_order(rows).tobytes() == in_order(rows[::-1]).tobytes()
