from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sfl_sim.data.partition import PARTITIONS, cyclic_clients, label_counts, label_order, partition
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream

quick = settings(max_examples=60, deadline=None)
class_sizes = st.lists(st.integers(10, 60), min_size=2, max_size=6)
seeds = st.integers(0, 2**31)


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Shuffled labels with `sizes[l]` samples of label l."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def assert_disjoint_and_complete(parts: list[np.ndarray], n_samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_samples))


def dominant_counts(sizes: list[int], p: float, phi: int) -> np.ndarray:
    labels = labels_of(sizes)
    n_labels = len(sizes)
    parts = partition("dominant_label", labels, phi * n_labels, n_labels, stream(0, "partition"), p=p, phi=phi)
    assert_disjoint_and_complete(parts, len(labels))
    return label_counts(labels, parts, n_labels)


# I18: what every partition promises


@quick
@given(class_sizes, st.integers(1, 12), seeds)
def test_iid_uses_every_sample_once_in_chunks_of_equal_size(sizes, n_clients, seed):
    labels = labels_of(sizes)
    parts = partition("iid", labels, n_clients, len(sizes), stream(seed, "partition"))
    assert_disjoint_and_complete(parts, len(labels))
    assert np.ptp([len(part) for part in parts]) <= 1


@quick
@given(class_sizes, st.integers(1, 4), st.floats(0.05, 1), seeds)
def test_dominant_label_uses_every_sample_and_splits_each_class_evenly_inside_each_group(sizes, phi, p, seed):
    n_labels = len(sizes)
    labels = labels_of(sizes)
    parts = partition("dominant_label", labels, phi * n_labels, n_labels, stream(seed, "partition"), p=p, phi=phi)
    assert_disjoint_and_complete(parts, len(labels))
    counts = label_counts(labels, parts, n_labels)
    for label, size in enumerate(sizes):
        is_dominant = np.arange(phi * n_labels) // phi == label
        assert abs(counts[is_dominant, label].sum() - p * size) <= 0.5
        assert np.ptp(counts[is_dominant, label]) <= 1
        assert np.ptp(counts[~is_dominant, label]) <= 1


@quick
@given(st.integers(2, 7), st.integers(1, 4), st.integers(2, 60), st.floats(0, 1))
def test_dominant_share_is_p_and_sizes_are_equal_if_classes_are(n_labels, phi, per_class, p):
    counts = dominant_counts([max(per_class, phi * n_labels)] * n_labels, p, phi)
    samples_each = max(per_class, phi * n_labels) / phi
    dominant = counts[np.arange(len(counts)), np.arange(len(counts)) // phi]
    assert np.abs(dominant - p * samples_each).max() < 1  # a share of p +- 1/m for a client of m samples
    assert np.ptp(counts.sum(axis=1)) <= 1


@quick
@given(class_sizes, st.integers(1, 4), st.floats(0.5, 100), st.integers(0, 2), seeds)
def test_dirichlet_uses_every_sample_once_and_keeps_the_minimum(sizes, n_clients, alpha, min_size, seed):
    labels = labels_of(sizes)
    rng = stream(seed, "partition")
    parts = PARTITIONS["dirichlet"](labels, n_clients, len(sizes), rng, alpha=alpha, min_size=min_size)
    assert_disjoint_and_complete(parts, len(labels))
    assert min(len(part) for part in parts) >= min_size


@pytest.mark.parametrize("kind", ["iid", "dominant_label", "dirichlet"])
def test_equal_streams_give_equal_partitions(kind):
    labels = labels_of([50] * 5)
    first, again, other = (
        partition(kind, labels, 5, 5, stream(seed, "partition")) for seed in (1, 1, 2)
    )  # fmt: skip
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


# Dominant label: the values of METHODS.md 2.1 and 18


def test_dominant_label_golden_values():
    counts = dominant_counts([20, 20, 20], p=0.7, phi=2)
    assert counts.T.tolist() == [[7, 7, 2, 2, 1, 1], [1, 1, 7, 7, 2, 2], [2, 2, 1, 1, 7, 7]]


def as_written_in_methods(sizes: list[int], p: float, phi: int) -> np.ndarray:
    """The loop of METHODS.md 2.1, line by line and without its repair."""
    n_clients = phi * len(sizes)
    counts = np.zeros((n_clients, len(sizes)), dtype=np.int64)
    ext = [0] * n_clients
    for label, size in enumerate(sizes):
        dominants = [c for c in range(n_clients) if c // phi == label]
        others = [c for c in range(n_clients) if c // phi != label]
        n_dominant = math.floor(Fraction(str(p)) * size + Fraction(1, 2))
        for k, clients in ((n_dominant, dominants), (size - n_dominant, others)):
            q, rem = divmod(k, len(clients))
            counts[clients, label] = q
            for c in sorted(clients, key=lambda c: (ext[c], (c - dominants[0] - 1) % n_clients))[:rem]:
                counts[c, label] += 1
                ext[c] += 1
    return counts


@quick
@given(st.integers(2, 7), st.integers(1, 4), st.integers(10, 60), st.sampled_from([0.1, 0.33, 0.5, 0.7, 0.8]))
def test_dominant_label_gives_leftovers_to_whom_methods_says(n_labels, phi, per_class, p):
    sizes = [per_class] * n_labels
    expected = as_written_in_methods(sizes, p, phi)
    assume(np.ptp(expected.sum(axis=1)) <= 1)  # else a repair follows
    assert np.array_equal(dominant_counts(sizes, p, phi), expected)


@pytest.mark.parametrize(
    ("n_labels", "per_class", "phi", "dominant", "others", "size"),
    [
        pytest.param(10, 5000, 1, 4000, {111, 112}, 5000, id="CIFAR-10, phi 1"),
        pytest.param(10, 5000, 10, 400, {11, 12}, 500, id="CIFAR-10, phi 10"),
        pytest.param(100, 500, 10, 40, {0, 1}, 50, id="CIFAR-100, phi 10"),
    ],
)
def test_dominant_label_at_paper_scale(n_labels, per_class, phi, dominant, others, size):
    counts = dominant_counts([per_class] * n_labels, p=0.8, phi=phi)
    is_dominant = np.arange(len(counts))[:, None] // phi == np.arange(n_labels)
    assert set(counts[is_dominant]) == {dominant}
    assert set(counts[~is_dominant]) == others
    assert set(counts.sum(axis=1)) == {size}


def test_dominant_label_rounds_half_up_as_written():
    assert dominant_counts([50, 50], p=0.29, phi=1).diagonal().tolist() == [
        15,
        15,
    ]  # 0.29 * 50 < 14.5 in floats


def test_dominant_label_evens_out_what_no_direct_move_can():
    assert set(dominant_counts([6] * 4, p=0.1, phi=3).sum(axis=1)) == {2}


def test_dominant_label_with_p_of_one_label_in_l_is_iid():
    assert set(dominant_counts([40] * 4, p=0.25, phi=2).flatten()) == {5}


def test_dominant_label_follows_unequal_classes():
    counts = dominant_counts([900, 100], p=0.8, phi=1)
    assert counts.tolist() == [[720, 20], [180, 80]]


# Dirichlet: its limits


def test_dirichlet_with_large_alpha_is_nearly_iid():
    labels = labels_of([1000] * 5)
    parts = partition("dirichlet", labels, 10, 5, stream(0, "partition"), alpha=1e5)
    counts = label_counts(labels, parts, 5)
    # The last labels go to the clients below N/C alone, so only the first are free of the balancing.
    assert np.abs(counts[:, :3] - 100).max() < 10


def test_dirichlet_with_small_alpha_gives_a_label_to_few_clients():
    labels = labels_of([1000] * 5)
    parts = partition("dirichlet", labels, 5, 5, stream(0, "partition"), alpha=1e-4)
    assert np.sort(label_counts(labels, parts, 5).flatten())[-5:].tolist() == [1000] * 5


def test_dirichlet_gives_nothing_more_to_a_client_with_its_share():
    labels = labels_of([100] * 4)
    parts = partition("dirichlet", labels, 4, 4, stream(0, "partition"), alpha=0.1, min_size=1)
    counts = label_counts(labels, parts, 4)
    held_before = np.cumsum(counts, axis=1) - counts
    assert (held_before >= 100).any()
    assert (counts[held_before >= 100] == 0).all()


def test_dirichlet_says_that_the_minimum_cannot_be_met():
    with pytest.raises(ScenarioError, match=r"1,000 Dirichlet draws") as failure:
        partition("dirichlet", labels_of([10, 10]), 4, 2, stream(0, "partition"), min_size=6)
    assert failure.value.key == "data.partition.min_size"
    assert failure.value.found == 6


# What cannot be done


def test_dominant_label_names_both_client_numbers():
    with pytest.raises(ScenarioError, match=r"found 7; allowed: 2 x 3 labels = 6") as failure:
        partition("dominant_label", labels_of([20] * 3), 7, 3, stream(0, "partition"), phi=2)
    assert failure.value.key == "clients.count"


def test_a_client_left_empty_is_named():
    with pytest.raises(ScenarioError, match="client 4 of 5") as failure:
        partition("iid", labels_of([2, 2]), 5, 2, stream(0, "partition"))
    assert failure.value.key == "data.partition"


def test_unknown_partition_and_option_are_named():
    with pytest.raises(ScenarioError, match="did you mean 'dirichlet'"):
        partition("dirichlett", labels_of([4, 4]), 2, 2, stream(0, "partition"))
    with pytest.raises(ScenarioError, match="not an option of iid"):
        partition("iid", labels_of([4, 4]), 2, 2, stream(0, "partition"), alpha=1.0)


# The cyclic order


@given(st.integers(1, 8), st.integers(1, 4), seeds)
@quick
def test_cyclic_clients_follow_the_label_order_with_the_clients_of_a_label_adjacent(n_labels, phi, seed):
    order = label_order(n_labels, stream(seed, "label order"))
    assert sorted(order) == list(range(n_labels))
    counts = np.repeat(np.eye(n_labels, dtype=np.int64), phi, axis=0) * 9 + 1
    clients = cyclic_clients(counts, order)
    assert clients == [label * phi + k for label in order for k in range(phi)]


def test_a_tie_goes_to_the_smallest_label():
    counts = np.array([[0, 5, 5], [5, 0, 5], [0, 0, 5]])
    assert cyclic_clients(counts, np.array([2, 1, 0])) == [2, 0, 1]
