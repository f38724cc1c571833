"""Sentences at the top of pages: who is first, where another one is, and whom to choose; tested by their facts."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from read_table import untagged

from sfl_sim.report import lead
from sfl_sim.report.display import duration, percent
from sfl_sim.report.lead import BestSpan, Compared, best_along, best_spans, choice

NEVER = math.inf
TIME = Compared("time to 70 % accuracy", "shortest", duration, target="70 % accuracy")
ROUND = Compared("time of a round", "shortest", duration, learned=False)
ACCURACY = Compared("accuracy", "best", percent, more_is_better=True)


def said(compared: Compared, numbers: dict[str, list[float]], **more: Any) -> lead.Sentence:
    by_seed = {label: pd.Series(of_seeds, dtype=float) for label, of_seeds in numbers.items()}
    (sentence,) = lead.lead(compared, by_seed, **more)
    return sentence


@pytest.mark.parametrize(
    ("compared", "numbers", "facts", "words"),
    [
        (TIME, {"b": [15, 30, 60], "a": [10, 20, 30]},
         {"first": ["a"], "next": "b", "seeds": 3, "ahead": 3, "times": 1.5}, ["20 s", "30 s", "1.50", "3 of 3 seeds"]),
        (ROUND, {"a": [1], "b": [2]}, {"first": ["a"], "ahead": 1, "seeds": 1}, ["one seed"]),
        (ACCURACY, {"a": [0.5, 0.7], "b": [0.6, 0.8]}, {"first": ["b"], "next": "a", "ahead": 2}, ["70.0 %", "60.0 %"]),
        # What reads alike is equal: nobody leads by 0.2 ms in a minute.
        (ROUND, {"a": [60.0002], "b": [60], "c": [90]}, {"first": ["b", "a"], "next": "c"}, ["1 min"]),
        (TIME, {"a": [60.0002], "b": [60]}, {"first": ["b", "a"]}, ["b and a have the same", "1 min"]),
        (TIME, {"a": [60, 80, 80], "b": [60.0002, 90, 90]}, {"ahead": 2, "level": 1}, ["2 of 3 seeds", "with 1"]),
        # A seed that misses the target is told, and one that has no number is left out.
        (TIME, {"a": [10, 20, NEVER], "b": [30, 40, NEVER]},
         {"first": [], "not told apart": ["a", "b"], "late": {"a": (2, 3), "b": (2, 3)}}, ["20 s with 2 of 3 seeds"]),
        (TIME, {"a": [10, 20], "b": [NEVER, NEVER]}, {"first": ["a"], "late": {"b": (0, 2)}}, ["b does not reach"]),
        (TIME, {"a": [10, 20], "b": [19, NEVER]}, {"first": ["a"], "late": {"b": (1, 2)}}, ["more than half of its"]),
        (TIME, {"a": [NEVER], "b": [NEVER]}, {"first": [], "late": {"a": (0, 1), "b": (0, 1)}}, ["No variant"]),
        (TIME, {"a": [5], "b": [math.nan]}, {"first": ["a"], "medians": {"a": 5}}, ["a is 5 s"]),
    ],
)  # fmt: skip
def test_the_facts_of_a_lead_are_in_its_sentence(
    compared: Compared, numbers: dict[str, list[float]], facts: dict[str, Any], words: list[str]
) -> None:
    sentence = said(compared, numbers)
    assert {key: sentence.facts.get(key) for key in facts} == facts
    for word in words:
        assert word in " ".join(untagged(sentence.text).split())


def test_without_numbers_there_is_no_sentence() -> None:
    assert lead.lead(TIME, {}) == lead.lead(TIME, {"a": pd.Series([math.nan])}) == []


@pytest.mark.parametrize(
    ("compared", "numbers", "alike", "words"),
    [
        # Ranks of 1, 2 and 2 have a mean of 1.67 ± 4.30 · 0.58 / √3 = 1.43, within which lies the other's of 1.33.
        (TIME, {"a": [10, 20, 30], "b": [15, 19, 29]}, ["b", "a"], ["19 s", "20 s", "over 3 seeds"]),
        (ROUND, {"a": [10, 20, 30], "b": [15, 19, 29]}, ["b", "a"], ["over 3 seeds"]),
        # Of what was learned one seed says little, but who gets to the target and who does not.
        (ACCURACY, {"a": [0.5], "b": [0.6]}, ["b", "a"], ["60.0 %", "50.0 %", "one seed"]),
        (TIME, {"a": [10], "b": [20], "c": [NEVER]}, ["a", "b"], ["one seed", "c does not reach"]),
        (TIME, {"a": [10, math.nan], "b": [20, 20]}, ["a", "b"], ["10 s", "20 s"]),  # a diverged with a seed
        # c is last in all seeds: its ranks are told apart from those of the others.
        (TIME, {"a": [10, 20], "b": [15, 19], "c": [90, 91]}, ["a", "b", "c"], ["over 2 seeds"]),
        (TIME, {"a": [10, 20, 30, 9], "b": [15, 19, 29, 11], "c": [90, 91, 92, 93]}, ["a", "b"], ["over 4 seeds"]),
    ],
)  # fmt: skip
def test_nobody_is_first_among_those_that_are_not_told_apart(
    compared: Compared, numbers: dict[str, list[float]], alike: list[str], words: list[str]
) -> None:
    sentence = said(compared, numbers)
    assert (sentence.facts["first"], sentence.facts["not told apart"]) == ([], alike)
    assert "next" not in sentence.facts
    for word in words:
        assert word in " ".join(untagged(sentence.text).split())


def test_variants_without_a_common_seed_are_not_told_apart() -> None:
    (sentence,) = lead.lead(TIME, {"a": pd.Series([1.0], index=[0]), "b": pd.Series([2.0], index=[1])})
    assert sentence.facts["not told apart"] == ["a", "b"]


def test_a_reference_is_named_unless_it_is_already() -> None:
    numbers = {"a": [1.0], "b": [2.0], "c": [3.0]}
    for reference, times in (("a", 1), ("b", 1), ("c", 1)):
        text = said(ROUND, numbers, reference=(reference, "the reference")).text
        assert text.count(f"<b>{reference}</b>") == times
        assert ("the reference" in text) == (reference == "c")


def test_names_may_have_marks_and_are_escaped_without() -> None:
    assert "<b>&lt;i&gt;</b>" in said(TIME, {"<i>": [1.0], "b": [2.0]}).text
    marked = {"a": Markup("<i>●</i> a"), "b": Markup("b")}
    assert said(ROUND, {"a": [1.0], "b": [2.0]}, names=marked).text.startswith("<i>●</i> a has ")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=5))
def test_seeds_are_counted_one_by_one(seeds: list[tuple[int, int]]) -> None:
    ours, theirs = (list(map(float, numbers)) for numbers in zip(*seeds, strict=True))
    facts = said(Compared("time", "shortest", "{:.1f}".format, learned=False), {"ours": ours, "theirs": theirs}).facts
    if np.median(ours) == np.median(theirs):
        assert set(facts["first"]) | set(facts.get("not told apart", ())) == {"ours", "theirs"}
        return
    sign = 1 if np.median(ours) < np.median(theirs) else -1
    ahead, level = (sum(sign * np.sign(other - one) == by for one, other in seeds) for by in (1, 0))
    if facts["first"]:
        assert facts["first"] == ["ours" if sign == 1 else "theirs"]
        assert (facts["ahead"], facts["level"], facts["seeds"]) == (ahead, level, len(seeds))
    else:
        assert ahead < len(seeds)


# Where another one is the best

NAMES = [Markup("<b>a</b>"), Markup("<b>b</b>")]
AT = [Markup("×1"), Markup("×2"), Markup("×4")]


def along(numbers: list[list[float]], **more: Any) -> list[lead.Sentence]:
    return best_along("cut", "bandwidth", NAMES, AT, np.array(numbers), 0.01, **more)


def test_who_is_ahead_by_less_than_a_percent_does_not_take_over() -> None:
    times_s = np.array([[10.0, 10.0, 10.0], [11.0, 9.95, 9.5]])
    assert best_spans(times_s, 0.01) == [BestSpan(0, 0, 1), BestSpan(1, 2, 2)]


def test_a_change_is_told_with_the_values_at_which_it_was_seen() -> None:
    rows = [[1.0, 2.0, 3.0], [2.0, 1.0, 1.0]]
    (sentence,) = along(rows)
    assert sentence.facts["spans"] == [BestSpan(0, 0, 0), BestSpan(1, 1, 2)]
    assert "<b>a</b> at ×1; <b>b</b> at ×2 to ×4" in sentence.text
    (sentence,) = along(rows, is_numeric=False)  # there is nothing between names
    assert "<b>b</b> at ×2 and ×4" in sentence.text


def test_the_same_best_everywhere_is_told_as_such_and_one_value_tells_nothing() -> None:
    (sentence,) = along([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    assert sentence.facts["spans"] == [BestSpan(0, 0, 2)]
    assert "within" not in sentence.text
    (sentence,) = along([[1.0, 1.0, 1.0], [2.0, 0.995, 2.0]])
    assert "within 1" in sentence.text
    assert along([[1.0, math.nan, math.nan], [2.0, math.nan, math.nan]]) == []


def test_who_is_within_what_counts_as_equal_at_every_value_is_as_good() -> None:
    (sentence,) = along([[1.0, 1.0, 1.0], [1.005, 1.0, 1.0]])
    assert sentence.facts["alike"] == 2
    assert "the best" not in sentence.text


# Whom to choose


def test_those_on_the_front_are_named() -> None:
    sentence = choice(["time", "gap"], {"a": NAMES[0], "b": NAMES[1]})
    assert sentence.facts == {"figures": ["time", "gap"], "chosen": ["a", "b"]}
    assert "choose <b>a</b> or <b>b</b>" in sentence.text
    sentence = choice(["time", "gap"], {"a": NAMES[0]}, " that gets there")
    assert (sentence.facts["chosen"], "that gets there" in sentence.text) == (["a"], True)
