"""Errors find the line of their key."""

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.source_locations import SourceLine, SourceLocations

FILE = SourceLocations(
    SourceLine("a.yaml"),
    {"train": SourceLine("a.yaml", 3), "train.lr": SourceLine("a.yaml", 4), "model.cut": SourceLine("a.yaml", 6)},
)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("train.lr", 4),
        ("train.lr.3", 4),
        ("train.rounds", 3),
        ("model", 6),
        ("trai", None),
        ("seed", None),
        (None, None),
    ],
)
def test_a_key_lies_at_its_line_or_at_the_nearest_one(key, line):
    assert FILE.of(key) == SourceLine("a.yaml", line)


def test_what_is_set_anew_hides_what_was_below_it():
    places = FILE.over({"train": SourceLine("--set"), "model.name": SourceLine("--set")})

    assert places.of("train.lr") == SourceLine("--set")
    assert places.of("model.cut") == SourceLine("a.yaml", 6)
    assert FILE.of("train.lr") == SourceLine("a.yaml", 4)


def test_keys_rank_in_the_order_in_which_they_were_given():
    ranked = sorted(["model.cut", "train.lr", "seed", "train.rounds"], key=FILE.rank)

    assert ranked == ["seed", "train.rounds", "train.lr", "model.cut"]


def test_an_error_keeps_all_it_knows_and_gains_its_line():
    located = FILE.located(ScenarioError("too high", key="train.lr", found=9, allowed=["1", "2"]))

    assert str(located) == "a.yaml:4: train.lr: too high (found 9; allowed: 1, 2)"


def test_an_error_that_has_a_file_stays_as_it_is():
    error = ScenarioError("no such column", key="train.lr", file="profile.csv", line=7)

    assert FILE.located(error) is error
