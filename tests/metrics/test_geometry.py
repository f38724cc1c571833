"""Layouts of representations, widths of minima, and divergence of labels, where these are known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.metrics.geometry import label_divergence, laid_out, silhouettes, width, with_widths


def clouds(distance):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 20)
    return rng.normal(size=(40, 5)) + distance * labels[:, None], labels


def test_labels_far_apart_have_a_silhouette_near_one_and_labels_that_mix_near_zero():
    assert silhouettes(*clouds(50.0)).mean() > 0.95
    assert abs(silhouettes(*clouds(0.0)).mean()) < 0.05


def test_a_silhouette_is_the_ratio_of_distances_within_and_between():
    """Two labels on a line at 0, 1 and at 4, 5: for the first a = 1 and b = 4.5."""
    found = silhouettes(np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([0, 0, 1, 1]))
    assert found[0] == pytest.approx((4.5 - 1) / 4.5)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_without_two_labels_or_two_of_a_label_there_is_no_silhouette(labels):
    assert np.isnan(silhouettes(np.eye(3), np.array(labels))).all()


def test_the_layout_keeps_neighbours_and_is_the_same_for_a_seed():
    vectors, labels = clouds(50.0)
    place = laid_out(vectors, seed=3)
    assert place.shape == (40, 2)
    assert silhouettes(place, labels).mean() > 0.5
    assert np.array_equal(place, laid_out(vectors, seed=3))


def test_a_model_that_has_diverged_has_neither_layout_nor_silhouette():
    vectors, labels = clouds(1.0)
    vectors[3, 2] = np.inf
    assert np.isnan(laid_out(vectors, seed=0)).all()
    assert np.isnan(silhouettes(vectors, labels)).all()


ALPHAS = np.linspace(-1, 1, 41)


def line(loss, **about):
    return pd.DataFrame({"alpha": ALPHAS, "loss": loss, "seed": 0, **about})


def test_the_width_of_a_parabola_is_where_it_has_risen_by_ln_2():
    assert width(line(0.3 + 4 * ALPHAS**2)) == pytest.approx(2 * np.sqrt(np.log(2) / 4), rel=2e-3)
    lopsided = np.where(ALPHAS < 0, -4 * ALPHAS, 2 * ALPHAS)
    assert width(line(lopsided)) == pytest.approx(np.log(2) / 4 + np.log(2) / 2)


def test_the_width_of_what_never_rises_is_the_line_and_a_model_without_a_loss_has_none():
    assert width(line(np.ones(41))) == 2
    assert np.isnan(width(line(np.full(41, np.nan))))
    walls = np.where(np.abs(ALPHAS) > 0.52, np.inf, 0.1)
    assert width(line(walls)) == pytest.approx(1.0)


def test_only_the_stretch_around_the_model_counts():
    """Beyond a ridge it may be low again."""
    ridges = np.where(np.isclose(np.abs(ALPHAS), 0.5), 9.0, 0.0)
    assert 0.9 < width(line(ridges)) < 1


def test_a_table_has_the_width_in_the_row_of_each_model_itself():
    about = {"run": "reports/one", "variant": "a", "slice": "line"}
    lines = [line(steepness * ALPHAS**2, **about | {"seed": seed}) for seed, steepness in enumerate((1, 4))]
    plane = line(ALPHAS**2, **about | {"slice": "plane"})
    points = with_widths(pd.concat([*lines, plane]))
    told = points.dropna(subset="width")
    assert told[["slice", "alpha", "seed"]].to_numpy().tolist() == [["line", 0, 0], ["line", 0, 1]]
    assert told["width"].tolist() == [width(one) for one in lines]


def test_values_in_closed_form():
    """Mean of (1, 0) and (1/2, 1/2) is (3/4, 1/4): 1/2 log2(4/3) + 1/4 log2(2/3) + 1/4 log2(2) bits."""
    expected = np.log2(4 / 3) / 2 + np.log2(2 / 3) / 4 + 1 / 4
    assert label_divergence(np.array([[10, 0], [0, 10], [7, 7]])) == pytest.approx([expected, expected, 0])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (np.eye(2), [0.3113, 0.3113]),  # log2(4/3) / 2 + (log2(2/3) / 2 + log2(2) / 2) / 2
        (np.eye(10), [0.7583] * 10),  # own label: 11 of 20
        (np.diag([5, 500]), [0.9599, 0.0050]),
    ],
)
def test_clients_that_share_no_label_stay_below_one_bit_by_their_number_and_sizes(counts, expected):
    assert label_divergence(counts.astype(int)) == pytest.approx(expected, abs=5e-5)


@given(st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=6))
def test_it_lies_between_equal_and_disjoint_and_is_unknown_for_a_client_without_samples(counts):
    counts = np.array([*counts, [1, 2, 3]])
    divergence = label_divergence(counts)
    assert np.array_equal(np.isnan(divergence), counts.sum(axis=1) == 0)
    assert ((divergence >= 0) & (divergence < 1))[counts.sum(axis=1) > 0].all()
    assert label_divergence(counts[-1:]) == pytest.approx([0])
