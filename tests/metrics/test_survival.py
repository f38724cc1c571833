"""What survives uncertainty, against a table counted by hand."""

import pandas as pd
import pytest

from sfl_sim.metrics.survival import survival


def test_medians_intervals_and_firsts_as_counted_by_hand():
    """a wins the first two of three draws; b wins the last, where c is as good; d has no competitor."""
    times_s = {"a": [1.0, 2.0, 9.0], "b": [2.0, 3.0, 4.0], "c": [2.0, 4.0, 4.03], "d": [50.0, 60.0, 70.0]}
    draws = pd.DataFrame(
        [
            {"point": point, "contest": int(point == "d"), "seed": 0, "draw": number, "round_s": round_s}
            for point, each in times_s.items()
            for number, round_s in enumerate(each)
        ]
    )
    found = survival(draws, ["point"]).set_index("point")
    assert found["median_s"].to_dict() == {"a": 2.0, "b": 3.0, "c": 4.0, "d": 60.0}
    assert found["first"].to_dict() == pytest.approx({"a": 2 / 3, "b": 1 / 3, "c": 1 / 3, "d": 1.0})
    assert found.loc["d", ["low_s", "high_s"]].tolist() == pytest.approx([52.0, 68.0])  # 0.2 of 10 s inwards
