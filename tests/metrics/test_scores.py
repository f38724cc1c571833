"""Scores: golden values, I17 (docs/methods/README.md#identities), and the figures of a run."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.metrics.scores import (
    auroc,
    backward_transfer,
    by_client,
    calibration_error,
    client_ends,
    headline,
    label_ends,
    last_medians,
    of_numbers,
    of_pixels,
    of_sets,
    paper_like,
    performance_gap,
    score_of,
    way_to,
    worst_decile,
)


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


def test_the_confidence_of_a_bin_is_held_against_the_share_that_is_right():
    sure = np.array([0.9, 0.9, 0.9, 0.9, 0.5, 0.5])
    right = np.array([True, True, True, False, True, False])
    assert calibration_error(sure, right) == pytest.approx(4 / 6 * 0.15)  # 0.9 where 0.75 are right; 0.5 where half are
    assert calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert calibration_error(np.array([np.nan, 1.0]), np.ones(2, bool)) is None


def test_two_labels_are_told_apart_in_the_share_of_pairs_that_are_in_order():
    assert auroc(np.array([-1.0, 2.0, 0.0, 3.0]), np.array([False, False, True, True])) == 0.75
    assert auroc(np.ones(2), np.ones(2, bool)) is None


def test_a_client_has_the_accuracy_of_its_labels_and_the_worst_tenth_is_a_mean():
    of_clients = by_client([0.2, 1.0, np.nan], [[3, 1, 9], [0, 4, 0], [0, 0, 5]])
    assert of_clients[:2] == pytest.approx([0.4, 1.0])
    assert np.isnan(of_clients[2])
    assert worst_decile(of_clients) == pytest.approx(0.4)
    assert worst_decile(np.arange(20.0)) == 0.5
    ends = pd.DataFrame({"variant": "a", "seed": 0, "label": [0, 1], "accuracy": [0.0, 1.0]})
    clients = pd.DataFrame({"variant": "a", "seed": 0, "label_samples": [[0, 5], [1, 1]]})
    assert client_ends(ends, clients)[["share", "accuracy"]].to_numpy().tolist() == [[0.5, 0.5], [1.0, 1.0]]


def test_the_first_score_is_the_one_that_is_known():
    rounds = pd.DataFrame({"accuracy": [None, None], "r2": [np.nan, 0.5]})
    assert score_of(rounds) == "r2"
    assert score_of(rounds[["accuracy"]]) == "accuracy"


accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=10)


def test_golden_performance_gap_and_backward_transfer():
    assert performance_gap([0.9, 0.5, 0.1]) == pytest.approx(0.4)
    assert backward_transfer(np.array([[0.2, 0.9, 0.8], [0.5, 0.6, 0.7]]).T) == pytest.approx(0)


@given(accuracies)
def test_i17_the_gap_is_best_minus_mean_and_zero_only_if_all_are_equal(accuracy):
    gap = performance_gap(accuracy)
    assert gap == pytest.approx(max(accuracy) - sum(accuracy) / len(accuracy), abs=1e-12)
    assert gap >= -1e-12
    if max(accuracy) - min(accuracy) > 1e-9:
        assert gap > 0


@given(st.lists(accuracies.map(lambda a: (a * 10)[:3]), min_size=2, max_size=6))
def test_i17_labels_that_only_improve_have_no_positive_backward_transfer(history):
    assert backward_transfer(np.sort(np.array(history), axis=0)) <= 1e-12


def test_labels_without_test_samples_do_not_count():
    assert performance_gap([0.9, np.nan, 0.5]) == pytest.approx(0.2)
    assert backward_transfer([[0.9, np.nan], [0.5, np.nan]]) == pytest.approx(0.4)


def run_of(accuracy):
    n = len(accuracy)
    rounds = pd.DataFrame({
        "round": range(1, n + 1), "ended_s": 10.0 * np.arange(1, n + 1), "accuracy": accuracy,
        "performance_gap": 0.1, "bytes_up": 7, "bytes_down": 3,
    })  # fmt: skip
    labels = pd.DataFrame({"round": range(1, n + 1), "label": 0, "accuracy": accuracy})
    return rounds, labels


def test_the_chance_counts_labels_that_no_test_sample_has():
    labels = pd.DataFrame({"variant": "a", "seed": 0, "round": 1, "label": range(4), "label_name": list("abcd"),
                           "position": 0, "accuracy": [0.5, 0.5, np.nan, np.nan]})  # fmt: skip
    assert label_ends(labels)["chance"].tolist() == [0.25, 0.25]


def test_the_headline_tells_the_last_rounds_and_the_best_one():
    found = headline(*run_of([0.1, 0.5, 0.8, 0.7, 0.9, 0.6]))
    assert found["accuracy"] == pytest.approx(0.7)  # median of the last five
    assert found["best_accuracy"] == 0.9
    assert found["backward_transfer"] == pytest.approx(0.3)
    assert found["accuracy_spread"] == pytest.approx(((4 + 1 + 0 + 4 + 1) / 100 / 4) ** 0.5)  # of .5 .8 .7 .9 .6


def test_figures_of_a_score_without_a_finite_value_are_unknown_as_json_has_no_infinity():
    figures = headline(run_of([-np.inf, -np.inf])[0], pd.DataFrame())
    assert {figures[name] for name in ("accuracy", "accuracy_spread", "best_accuracy")} == {None}
    assert last_medians(pd.DataFrame({"mine": [1.0, np.inf, np.inf], "other": [1.0, 2.0, 9.0]}), ["mine", "other"]) == {
        "other": 2.0
    }


def test_a_single_round_does_not_tell_how_steady_a_run_is():
    assert headline(*run_of([0.5]))["accuracy_spread"] is None


def test_the_way_to_a_target_is_counted_in_rounds_seconds_and_bytes_up_to_the_first_that_reaches_it():
    rounds, _ = run_of([0.1, 0.5, 0.75, 0.7, 0.9, 0.6])
    assert way_to(0.75, rounds) == {
        "target_accuracy": 0.75,
        "rounds_to_accuracy": 3,
        "time_to_accuracy_s": 30.0,
        "bytes_to_accuracy": 30,
    }


@pytest.mark.parametrize(("target", "accuracy"), [(0.75, [0.1, 0.2]), (None, [0.1, 0.2]), (0.75, [None, None])])
def test_a_target_that_no_round_reaches_is_null(target, accuracy):
    found = way_to(target, run_of(accuracy)[0])
    assert found.pop("target_accuracy") == target
    assert set(found.values()) == {None}


def test_a_timing_only_run_has_no_accuracy():
    assert set(headline(*run_of([None, None])).values()) == {None}


def test_the_paper_like_summary_by_hand():
    """Medians over seeds .2 .4 .3 .5 .6 in the last five rounds; the median of the seeds' own medians would be .3."""
    history = [[0.9, 0.9, 0.9], [0.1, 0.2, 0.6], [0.3, 0.4, 0.5], [0.3, 0.3, 0.9], [0.5, 0.1, 0.6], [0.0, 0.6, 0.7]]
    middle, spread = paper_like(history)
    assert middle == pytest.approx(0.4)
    assert spread == pytest.approx(((4 + 0 + 1 + 1 + 4) / 100 / 4) ** 0.5)


def test_one_round_has_no_spread_over_rounds():
    middle, spread = paper_like([[0.1, 0.5, 0.3]])
    assert middle == 0.3
    assert np.isnan(spread)


@pytest.mark.parametrize(
    ("perplexities", "median"), [([9.0, 5.0, None, 6.0, None], 9), ([5.0, None, None, None, 6.0], None)]
)
def test_a_perplexity_larger_than_any_number_is_larger_than_the_median(perplexities, median):
    """A model that diverges now and then is no better than one that never does."""
    rounds = pd.DataFrame({"accuracy": [0.5] * 5, "perplexity": perplexities})
    labels = pd.DataFrame({"round": range(5), "label": 0, "accuracy": 0.5})
    assert headline(rounds, labels)["perplexity"] == median
