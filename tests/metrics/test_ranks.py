"""Ranks: ties, targets that are missed, and intervals that hold the truth as often as they say."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from sfl_sim.metrics.ranks import interval, ranks


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


def test_one_seed_has_ranks_without_an_interval_and_none_has_none():
    one = ranks(pd.DataFrame({"a": [1.0], "b": [2.0]}), more_is_better=True)
    assert one["rank"].tolist() == [2, 1]
    assert one["low"].isna().all()
    assert ranks(pd.DataFrame({"a": [math.nan]}), more_is_better=True)["rank"].isna().all()


def test_an_interval_holds_the_mean_of_normal_figures_in_95_of_100():
    drawn = np.random.default_rng(0).normal(size=(6, 4000))
    low, high = interval(drawn)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(0.95, abs=0.015)
