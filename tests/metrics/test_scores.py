"""Scores of numbers, sets and pixels, against figures that were computed by hand."""

import numpy as np
import pandas as pd
import pytest

from sfl_sim.metrics.scores import of_numbers, of_pixels, of_sets, score_of


def test_numbers_are_scored_by_explained_variance_and_errors():
    true, predicted = np.array([[0.0], [2.0], [4.0]]), np.array([[0.0], [1.0], [5.0]])
    found = of_numbers(predicted, true)
    assert found == pytest.approx({"r2": 1 - 2 / 8, "mae": 2 / 3, "rmse": np.sqrt(2 / 3)})


def test_a_network_that_has_diverged_is_infinitely_wrong():
    found = of_numbers(np.array([[0.0], [np.nan]]), np.ones((2, 1)))
    assert found == {"r2": -np.inf, "mae": np.inf, "rmse": np.inf}
    assert of_sets(np.full((2, 2), np.nan), np.array([[1, 0], [0, 1]]))["mean_average_precision"] == 0.5


def test_sets_are_scored_by_label_that_occurs():
    sets = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    logits = np.array([[2.0, -1.0, 9.0], [1.0, 3.0, 9.0], [-3.0, 1.0, 9.0]])  # the third label never occurs
    found = of_sets(logits, sets)
    # First label: scores 2, 1, -3 of which the 1st and the 3rd are right: (1 + 2/3) / 2. Second: a perfect order.
    assert found["mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    # First label: one right, one wrong, one missed: 1/2. Second: both right.
    assert found["f1_macro"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["f1_micro"] == pytest.approx(2 * 3 / (2 * 3 + 2))


def test_pixels_are_scored_by_intersection_over_union():
    confusion = np.array([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    found = of_pixels(confusion)
    assert found == pytest.approx({"mean_iou": (6 / 9 + 3 / 6) / 2, "pixel_accuracy": 9 / 12})
    assert of_pixels(0 * confusion) == {"mean_iou": None, "pixel_accuracy": None}


def test_the_first_score_is_the_one_that_is_known():
    rounds = pd.DataFrame({"accuracy": [None, None], "r2": [np.nan, 0.5]})
    assert score_of(rounds) == "r2"
    assert score_of(rounds[["accuracy"]]) == "accuracy"
