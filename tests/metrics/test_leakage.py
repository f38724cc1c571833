"""Leakage as figures: golden values and identities of docs/methods/leakage.md."""

import math

import numpy as np
import pytest

from sfl_sim.metrics.leakage import (
    by_chance,
    clusters_of,
    labels_by_clusters,
    labels_by_nearest,
    labels_by_norm,
    psnr,
    ssim,
)
from sfl_sim.rng import stream


def images(n=3, channels=3, side=16, name="images"):
    return stream(0, name).random((n, channels, side, side))


def test_a_tenth_of_the_range_is_20_decibels():
    assert psnr(np.array([0.01, 1.0, 0.0])).tolist() == pytest.approx([20, 0, math.inf])


@pytest.mark.parametrize("side", [4, 8, 28, 33])
def test_an_image_is_like_itself_and_unlike_noise(side):
    x = images(side=side)
    assert ssim(x, x).tolist() == pytest.approx([1] * 3)
    assert (ssim(x, images(side=side, name="others")) < 0.6).all()


def test_constant_images_by_hand():
    """Without variance, the similarity is that of the means: (2 a b + K1^2) / (a^2 + b^2 + K1^2)."""
    x, y = np.full((1, 1, 16, 16), 0.5), np.full((1, 1, 16, 16), 0.25)
    assert ssim(x, y)[0] == pytest.approx((0.25 + 1e-4) / (0.3125 + 1e-4))


def test_an_image_as_large_as_the_window_by_hand():
    """The window fits at one place: the similarity is that of the means, variances and the covariance in it."""
    x, y = images(1, channels=1, side=11), images(1, channels=1, side=11, name="others")
    line = np.exp(-(np.linspace(-5, 5, 11) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    a, b = (window * x).sum(), (window * y).sum()
    xx, yy, xy = (window * x * x).sum() - a * a, (window * y * y).sum() - b * b, (window * x * y).sum() - a * b
    expected = (2 * a * b + 1e-4) * (2 * xy + 9e-4) / ((a * a + b * b + 1e-4) * (xx + yy + 9e-4))
    assert ssim(x, y)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "area"),
    [((0.9, 0.4, 0.35, 0.1, 0.2), 1), ((0.9, 0.3, 0.35, 0.1, 0.2), 5 / 6), ((1, 1, 1, 1, 1), 0.5)],
)
def test_norms_by_hand(scores, area):
    labels = np.array([1, 1, 0, 0, 0])
    assert labels_by_norm(np.array(scores), labels, np.zeros(5, dtype=int)) == pytest.approx(area)
    assert labels_by_norm(-np.array(scores), labels, np.zeros(5, dtype=int)) == pytest.approx(area)


def test_norms_are_compared_within_a_message():
    """The scale of a message says nothing: here it would tell all labels."""
    norms, labels = np.array([1.0, 1, 100, 100]), np.array([0, 1, 0, 1])
    assert labels_by_norm(norms, labels, np.array([0, 0, 1, 1])) == 0.5
    assert math.isnan(labels_by_norm(norms, np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])))


def test_orthogonal_directions_give_all_labels_away():
    labels = np.array([2, 0, 1, 0, 2, 2, 1])
    scales = np.array([1.0, 3, 2, 0.1, 5, 7, 1])
    gradients = scales[:, None] * np.eye(4)[labels]
    assert labels_by_clusters(clusters_of(gradients, 3, seed=0), labels) == 1
    assert labels_by_nearest(gradients, labels) == 1


def test_equal_directions_give_the_commonest_label_away_at_most():
    labels = np.array([0, 0, 0, 1, 2])
    gradients = np.ones((5, 4))
    assert labels_by_clusters(clusters_of(gradients, 3, seed=0), labels) == 3 / 5
    assert labels_by_nearest(gradients, labels) == 1  # the nearest is the first, of label 0, and so are the others
    assert math.isnan(labels_by_nearest(gradients[:3], np.array([0, 1, 2])))


def test_a_gradient_of_zero_has_no_direction():
    gradients = np.array([[0.0, 0], [1, 0], [-1, 0], [2, 0]])
    assert labels_by_nearest(gradients, np.array([0, 1, 0, 1])) == 1  # nothing is nearer to -x than to x


def test_chance_is_what_a_measure_finds_without_a_link():
    """Of 200 samples of ten labels in ten messages: the better order and the best assignment gain by chance."""
    rng = stream(0, "chance")
    labels, messages = rng.integers(10, size=200), np.repeat(np.arange(10), 20)
    norms, gradients = rng.random(200), rng.normal(size=(200, 8))
    clusters, one = clusters_of(gradients, 10, seed=0), np.zeros(200, int)
    measures = {
        "norm": (lambda order: labels_by_norm(norms, labels[order], messages), messages, 0.53, 0.62),
        "clusters": (lambda order: labels_by_clusters(clusters, labels[order]), one, 0.2, 0.28),
        "nearest": (lambda order: labels_by_nearest(gradients, labels[order]), one, 0.07, 0.13),
    }
    for name, (measure, groups, low, high) in measures.items():
        assert low < by_chance(measure, groups, rng) < high, name
        assert low - 0.05 < measure(np.arange(200)) < high + 0.05, name


def test_samples_change_places_within_their_group_alone():
    groups = np.array([1, 0, 1, 0, 1, 2])
    seen = []
    by_chance(lambda order: seen.append(order) or 0.0, groups, stream(0, "groups"))
    assert all((groups[order] == groups).all() and sorted(order) == list(range(6)) for order in seen)
    assert len({tuple(order) for order in seen}) > 5
