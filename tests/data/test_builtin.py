"""Digits, and synthetic data of any shape."""

import math
import tracemalloc

import pytest
import torch
from refusals import refused
from well_formed import assert_normalised_by_mean_and_std, assert_well_formed

from sfl_sim.data.loading import load


def rows(x):
    return {sample.numpy().tobytes() for sample in x}


def test_digits_are_split_four_to_one_within_every_label():
    data = load("digits")
    assert_well_formed(data)
    assert_normalised_by_mean_and_std(data)
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert data.label_names == tuple("0123456789")
    assert data.x_train.max() == 255
    test, train = torch.bincount(data.y_test), torch.bincount(data.y_train)
    assert (test - 0.2 * (test + train)).abs().max() <= 1


def test_digits_test_images_are_no_training_images():
    data = load("digits")
    assert rows(data.x_train).isdisjoint(rows(data.x_test))
    assert len(rows(data.x_train) | rows(data.x_test)) == 1797


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 5, 7), (2, 1, 1), (80,)])
def test_synthetic_data_have_the_shape_labels_and_size_that_were_asked_for(shape):
    data = load("synthetic", shape=shape, n_labels=7, samples=700)
    assert_well_formed(data)
    assert data.x_train.shape == (700, *shape)
    assert data.x_test.shape == (175, *shape)
    assert torch.bincount(data.y_train).tolist() == [100] * 7
    assert data.owners is None
    if len(shape) == 3:
        assert_normalised_by_mean_and_std(data)


def test_synthetic_data_are_the_same_every_time_but_differ_within():
    first, again = (load("synthetic", shape=(1, 4, 4), samples=300) for _ in range(2))
    assert torch.equal(first.x_train, again.x_train)
    assert torch.equal(first.x_test, again.x_test)
    assert len(rows(first.x_train) | rows(first.x_test)) == 375


@pytest.mark.parametrize("separation", [0.0, 2.0, 8.0])
def test_separation_determines_the_error_of_the_best_classifier(separation):
    data = load("synthetic", shape=(3, 8, 8), n_labels=2, samples=8000, separation=separation)
    x = data.x_train.float().flatten(1)
    centre = torch.stack([x[data.y_train == label].mean(dim=0) for label in (0, 1)])
    nearest = torch.cdist(data.x_test.float().flatten(1), centre).argmin(dim=1)
    mistaken = float((nearest != data.y_test).float().mean())
    assert mistaken == pytest.approx(0.5 * math.erfc(separation / 2 / math.sqrt(2)), abs=0.04)


def test_synthetic_owners_are_as_many_as_asked_for():
    data = load("synthetic", shape=(1, 4, 4), samples=1000, owners=5)
    assert_well_formed(data)
    assert data.owner_names == tuple("01234")
    assert torch.bincount(data.owners).min() > 150


@pytest.mark.parametrize("shape", [(3, 4, 4), (6,)])
def test_synthetic_data_without_pixels_have_the_same_training_labels(shape):
    real = load("synthetic", shape=shape, samples=100)
    black = load("synthetic", shape=shape, samples=100, pixels=False)
    assert torch.equal(black.y_train, real.y_train)
    assert black.x_train.shape == real.x_train.shape
    assert black.x_test.shape == real.x_test.shape
    assert not black.x_train.any()


def test_synthetic_owners_are_the_same_without_pixels():
    real, timed = (load("synthetic", shape=(1, 4, 4), samples=100, owners=5, pixels=pixels) for pixels in (True, False))
    assert torch.equal(timed.owners, real.owners)


def test_large_images_are_drawn_in_little_memory():
    tracemalloc.start()
    try:
        load("synthetic", shape=(3, 224, 224), samples=100)  # 120 MB of float64, 15 MB of uint8
        assert tracemalloc.get_traced_memory()[1] < 250e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(), (28, 28)])
def test_a_shape_of_neither_images_nor_text_is_refused(shape):
    with refused("data.shape"):
        load("synthetic", shape=shape)
