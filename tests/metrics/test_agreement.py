"""A measured run beside a simulated one: rounds, operations, and places in the server's sequence."""

import numpy as np
import pandas as pd
import pytest

from sfl_sim.metrics.agreement import operations_beside, rounds_beside, same_places, spread


def ops(*rows):
    columns = ["round", "node", "kind", "client", "requested_s", "started_s", "ended_s", "macs"]
    return pd.DataFrame(rows, columns=columns)


MEASURED = ops(
    (1, "server", "train", 0, 0.0, 0.0, 1.0, 5),
    (1, "server", "train", 1, 0.0, 1.0, 3.0, 5),
    (1, "uplink", "smashed", 1, 0.0, 0.0, 0.5, 0),
)
SIMULATED = ops(
    (1, "server", "train", 1, 0.0, 0.0, 2.0, 5),
    (1, "server", "train", 0, 1.0, 2.0, 3.0, 5),
)


def test_rounds_that_both_have_are_laid_side_by_side():
    measured = pd.DataFrame({"round": [1, 2, 3], "started_s": [0, 2, 4], "ended_s": [2, 4, 7]})
    simulated = pd.DataFrame({"round": [1, 2], "started_s": [0, 4], "ended_s": [4, 5]})
    beside = rounds_beside(measured, simulated)
    assert beside["round"].tolist() == [1, 2]
    assert beside["ratio"].tolist() == [0.5, 2]


def test_spread_is_relative():
    assert spread(pd.Series([9.0, 10, 11])) == pytest.approx(0.1)
    assert np.isnan(spread(pd.Series([1.0])))


def test_operations_are_compared_by_their_means():
    (row,) = operations_beside(MEASURED, SIMULATED, ["node", "kind"]).to_dict("records")
    assert row["node"], row["n"] == ("server", 2)
    assert (row["measured_s"], row["simulated_s"], row["ratio"]) == (1.5, 1.5, 1)
    assert (row["measured_waited_s"], row["simulated_waited_s"]) == (0.5, 0.5)


def test_places_in_the_sequence_are_compared_round_by_round():
    assert same_places(MEASURED, MEASURED).to_dict("records") == [{"round": 1, "jobs": 2, "share": 1}]
    assert same_places(MEASURED, SIMULATED)["share"].tolist() == [0]
    assert same_places(MEASURED, SIMULATED.head(0)).empty
