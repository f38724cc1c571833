"""Comparison of choices: Pareto-optimal ones, ranks whose intervals hold the truth, and who comes first over draws."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from sfl_sim.metrics.choices import interval, mean_within, non_dominated, ranks, survival

COSTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8)


@given(COSTS)
def test_a_choice_is_pareto_optimal_unless_another_is_better_in_one_cost_and_no_worse_in_the_other(costs):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    found = non_dominated(*zip(*costs, strict=True))
    assert found.tolist() == [not any(beats(other, offer) for other in costs) for offer in costs]


@given(COSTS)
def test_for_every_choice_there_is_a_pareto_optimal_one_that_is_no_worse(costs):
    costs = np.array(costs)
    pareto = costs[non_dominated(*costs.T)]
    assert all((pareto <= offer).all(axis=1).any() for offer in costs)


def test_the_best_has_rank_one_seed_by_seed():
    figures = pd.DataFrame({"a": [0.9, 0.8, 0.7], "b": [0.5, 0.6, 0.8], "c": [0.1, 0.2, 0.3]})
    found = ranks(figures, more_is_better=True)
    assert found["rank"].to_dict() == {"a": pytest.approx(4 / 3), "b": pytest.approx(5 / 3), "c": 3}
    assert found["low"]["c"] == found["high"]["c"] == 3
    half = t.ppf(0.975, 2) * np.std([1, 1, 2], ddof=1) / math.sqrt(3)
    assert (found["low"]["a"], found["high"]["a"]) == (1, pytest.approx(4 / 3 + half))


def test_less_can_be_better_and_what_is_missed_comes_last_together():
    figures = pd.DataFrame({"fast": [1.0, 2.0], "never": [math.inf, math.inf], "nor": [math.inf, math.inf]})
    assert ranks(figures, more_is_better=False)["rank"].tolist() == [1, 2.5, 2.5]


@pytest.mark.parametrize("more_is_better", [True, False])
def test_who_diverges_with_a_seed_is_last_with_it_and_the_seed_counts(more_is_better):
    figures = pd.DataFrame({"a": [2.0, math.nan], "b": [1.0, 1.0], "c": [3.0, 1.5]})
    if not more_is_better:
        figures = 4 - figures
    assert ranks(figures, more_is_better)["rank"].to_dict() == {"a": 2.5, "b": 2.5, "c": 1}


def test_intervals_of_ranks_stay_within_those_that_seeds_have_had():
    """Ranks 1 and 3 of three, in turn: a t-interval would end at 2 + 2.571 * 1.095 / 2.449 = 3.15."""
    figures = pd.DataFrame({"a": [1.0, 3.0] * 3, "b": [2.0] * 6, "c": [3.0, 1.0] * 3})
    found = ranks(figures, more_is_better=True)
    assert found.loc["b"].tolist() == [2, 2, 2]
    assert 1 <= found.loc["a", "low"] < 2 < found.loc["a", "high"] <= 3


def test_the_interval_of_a_mean_rank_by_bootstrap_holds_the_truth_in_more_than_nine_of_ten():
    """Five equal variants, whose mean rank is 3; a plain bootstrap's holds it in 85 of 100."""
    rng = np.random.default_rng(1)
    ends = [mean_within(rng.random((6, 5)).argsort(axis=1) + 1.0) for _ in range(200)]
    assert np.mean([(low <= 3) & (high >= 3) for low, high in ends]) == pytest.approx(0.94, abs=0.03)


def test_one_seed_has_ranks_without_an_interval_and_none_has_none():
    one = ranks(pd.DataFrame({"a": [1.0], "b": [2.0]}), more_is_better=True)
    assert one["rank"].tolist() == [2, 1]
    assert one["low"].isna().all()
    assert ranks(pd.DataFrame({"a": [math.nan]}), more_is_better=True)["rank"].isna().all()


def test_an_interval_holds_the_mean_of_normal_figures_in_95_of_100():
    drawn = np.random.default_rng(0).normal(size=(6, 4000))
    low, high = interval(drawn)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(0.95, abs=0.015)


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
