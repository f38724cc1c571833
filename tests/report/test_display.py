import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from sfl_sim.report import display

SECONDS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "40 ms"), (1.25, "1.25 s"), (53, "53 s"), (59.6, "1 min"), (3599.7, "1 h"), (8040, "2 h 14 min")],
)
def test_a_duration_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert display.duration(seconds).replace(display.NBSP, " ") == text


@settings(max_examples=60)
@given(st.floats(0.001, 1e7))
def test_a_duration_read_back_is_about_the_same(seconds: float) -> None:
    parts = re.findall(rf"([\d.]+){display.NBSP}(\w+)", display.duration(seconds))

    assert sum(float(number) * SECONDS[unit] for number, unit in parts) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1_340_000_000, "1.34 GB")]
)
def test_bytes_have_decimal_prefixes(size_bytes: float, text: str) -> None:
    assert display.data_size(size_bytes).replace(display.NBSP, " ") == text


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 seed"), (12.0, "12 seeds"), (12.5, "12.5 seeds"), (2e6, "2,000,000 seeds")]
)
def test_a_number_of_things_is_rounded_to_no_whole_one(number: float, text: str) -> None:
    assert display.plural(number, "seed") == text


def test_an_exact_half_of_a_percentage_is_rounded_as_its_decimal_number() -> None:
    """100 times 0.3595 is a little less than 35.95 in binary, and 35.95 a little more."""
    assert [display.percent(share) for share in (0.3595, 0.3594)] == [f"36.0{display.NBSP}%", f"35.9{display.NBSP}%"]


def test_the_unit_of_an_axis_keeps_its_numbers_small() -> None:
    assert [display.time_unit(longest_s)[0] for longest_s in (0.5, 90, 600, 9000, 1e6)] == ["ms", "s", "min", "h", "d"]


def test_the_unit_of_bytes_does_so_too() -> None:
    assert [display.data_unit(most_bytes)[0] for most_bytes in (0, 900, 2000, 3.4e9)] == ["B", "B", "kB", "GB"]
    assert display.data_unit(3.4e9)[1] == 1e9


@settings(max_examples=60)
@given(st.integers(0, 300), st.integers(2, 50))
def test_thinning_keeps_both_ends_and_the_order(rows: int, limit: int) -> None:
    frame = pd.DataFrame({"x": range(rows)})

    thinned = list(display.thin(frame, limit)["x"])

    assert len(thinned) == min(rows, limit)
    assert thinned == sorted(set(thinned))
    assert thinned[:1] + thinned[-1:] == list(frame["x"])[:1] + list(frame["x"])[-1:]


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_spread_of_a_few_seeds_is_their_range_and_of_more_the_standard_deviation(seeds: list[float]) -> None:
    frame = pd.DataFrame({"round": 1, "accuracy": seeds})

    curve = display.over_seeds(frame, "round", ["accuracy"]).loc[1]

    middle, sd = frame["accuracy"].median(), frame["accuracy"].std()
    ends = (middle - sd, middle + sd) if len(seeds) >= 5 else (min(seeds), max(seeds))
    assert (curve["accuracy_low"], curve["accuracy_high"]) == pytest.approx(ends)
    assert curve["accuracy"] == middle


def test_names_beyond_the_first_few_are_counted():
    names = [Markup(f"m{n}") for n in range(display.MAX_NAMED + 2)]
    assert display.few_of(names[:2], "or") == "m0 or m1"
    assert display.few_of(names[:-1]).endswith(" and another one")
    assert display.few_of(names).endswith(" and 2 more")
