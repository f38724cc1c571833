"""Dirichlet partitions: over the clients, over the labels, of sizes; and their limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from small_partitions import class_sizes, dealt, quick, samples_of, seeds

from sfl_sim.data.dirichlet import dirichlet
from sfl_sim.data.partition import label_counts

WAYS = ["class", "class_plain", "client", "client_equal"]


@quick
@given(class_sizes, st.integers(1, 4), st.floats(0.5, 100), st.sampled_from(WAYS), st.integers(0, 2), seeds)
def test_every_sample_is_used_once_and_the_minimum_kept(sizes, n_clients, alpha, by, min_size, seed):
    counts = dealt("dirichlet", samples_of(sizes), n_clients, seed, alpha=alpha, by=by, min_size=min_size)
    assert counts.sum(axis=0).tolist() == sizes
    assert counts.sum(axis=1).min() >= min_size


@pytest.mark.parametrize("by", WAYS)
def test_a_large_alpha_is_nearly_iid(by):
    counts = dealt("dirichlet", samples_of([1000] * 5), 10, alpha=1e5, by=by)
    # By class, the last labels go to the clients below N/C alone, so only the first are free of the balancing;
    # a client that draws its samples one by one deviates by as much as draws do, and the last takes the rest.
    tolerance = 60 if by == "client_equal" else 10
    assert np.abs(counts[:, :3] - 100).max() < tolerance


@pytest.mark.parametrize("by", WAYS)
def test_with_a_small_alpha_clients_have_one_label_or_none(by):
    counts = dealt("dirichlet", samples_of([1000] * 2), 8, alpha=1e-4, by=by, min_size=0)
    assert (counts > 0).sum() <= 9  # where sizes are equal, one client may have to take a rest


# By class


def test_a_client_that_has_its_share_gets_no_more_samples():
    samples = samples_of([100] * 4)
    counts = dealt("dirichlet", samples, 4, alpha=0.1, min_size=1)
    held_before = np.cumsum(counts, axis=1) - counts
    assert (held_before >= 100).any()
    assert (counts[held_before >= 100] == 0).all()


def test_class_plain_does_not_balance_client_sizes():
    counts = dealt("dirichlet", samples_of([100] * 4), 4, alpha=0.1, by="class_plain", min_size=0)
    held_before = np.cumsum(counts, axis=1) - counts
    assert (counts[held_before >= 100] > 0).any()


# By client


class Wishes:
    """A generator whose Dirichlet draws are given."""

    def __init__(self, *draws):
        self.draws = np.array(draws)

    def permutation(self, n):
        return np.arange(n)

    def dirichlet(self, alpha, size):
        return self.draws


def test_a_label_is_split_in_proportion_to_the_weights_of_the_clients():
    samples = samples_of([30, 50])
    parts = dirichlet(samples, 2, Wishes([0.5, 0.5], [0.25, 0.75]), by="client")
    assert label_counts(samples.labels, parts, 2).tolist() == [[20, 20], [10, 30]]


def test_a_label_with_weight_0_at_all_clients_is_split_evenly():
    samples = samples_of([30, 50])
    parts = dirichlet(samples, 2, Wishes([0.0, 1.0], [0.0, 1.0]), by="client")
    assert label_counts(samples.labels, parts, 2).tolist() == [[15, 25], [15, 25]]


@quick
@given(class_sizes, st.integers(1, 150), st.floats(1e-3, 10), seeds)
def test_clients_of_equal_size_differ_by_a_sample_at_most(sizes, n_clients, alpha, seed):
    counts = dealt("dirichlet", samples_of(sizes), n_clients, seed, alpha=alpha, by="client_equal", min_size=0)
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert counts.sum(axis=0).tolist() == sizes


def test_drawing_all_samples_at_once_equals_drawing_them_one_by_one():
    """The first of two clients draws 3 of 1 + 5 samples: it misses the rare label with probability E(1 - q)^3 = 1/4."""
    samples = samples_of([1, 5])
    missed = [
        dealt("dirichlet", samples, 2, seed, alpha=1.0, by="client_equal", min_size=0)[0, 0] == 0
        for seed in range(1000)
    ]
    assert np.mean(missed) == pytest.approx(1 / 4, abs=0.04)


# Sizes


@quick
@given(class_sizes, st.integers(1, 4), st.floats(0.5, 100), st.integers(0, 2), seeds)
def test_quantity_skew_uses_every_sample_once_and_keeps_the_minimum(sizes, n_clients, beta, min_size, seed):
    counts = dealt("quantity_skew", samples_of(sizes), n_clients, seed, beta=beta, min_size=min_size)
    assert counts.sum(axis=0).tolist() == sizes
    assert counts.sum(axis=1).min() >= min_size


def test_quantity_skew_gives_unequal_sizes_and_equal_labels():
    counts = dealt("quantity_skew", samples_of([8000, 2000]), 10, beta=0.5, min_size=100)
    sizes = counts.sum(axis=1)
    assert sizes.max() > 5 * sizes.min()
    deviation = np.abs(counts[:, 1] / sizes - 0.2)
    assert (deviation < 4 * 0.4 / np.sqrt(sizes)).all()  # standard deviations of a draw


# The minimum


@pytest.mark.parametrize("kind", ["dirichlet", "quantity_skew"])
def test_a_minimum_that_is_not_reached_is_an_error(kind):
    with refused("data.partition.min_size", says=r"1,000 Dirichlet draws \((alpha 0.3|beta 0.5)\)"):
        dealt(kind, samples_of([20, 20]), 20, min_size=2)
    with refused("data.partition.min_size", found=6):
        dealt(kind, samples_of([10, 10]), 4, min_size=6)
