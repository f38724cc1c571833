"""Representations laid out in two dimensions, and how well labels keep apart in them."""

import numpy as np
import pytest

from sfl_sim.metrics.representations import laid_out, silhouettes


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
