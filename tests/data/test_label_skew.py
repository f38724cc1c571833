"""Dominant labels, groups of them, and shards: properties and golden values (docs/methods/partitions.md)."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import refused
from small_partitions import class_sizes, dealt, quick, samples_of, seeds


def dominant_counts(sizes, p, phi):
    return dealt("dominant_label", samples_of(sizes), phi * len(sizes), p=p, phi=phi)


# Dominant label


@quick
@given(class_sizes, st.integers(1, 4), st.floats(0.05, 1), seeds)
def test_dominant_label_uses_every_sample_and_splits_each_class_evenly_inside_each_group(sizes, phi, p, seed):
    counts = dealt("dominant_label", samples_of(sizes), None, seed, p=p, phi=phi)
    assert counts.sum(axis=0).tolist() == sizes
    for label, size in enumerate(sizes):
        is_dominant = np.arange(len(counts)) // phi == label
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


@pytest.mark.parametrize(
    ("sizes", "p", "phi", "by_label"),
    [
        ([20, 20, 20], 0.7, 2, [[7, 7, 2, 2, 1, 1], [1, 1, 7, 7, 2, 2], [2, 2, 1, 1, 7, 7]]),
        ([50, 50], 0.29, 1, [[15, 35], [35, 15]]),  # half up as written: 0.29 * 50 < 14.5 in floats
        ([40] * 4, 0.25, 2, [[5] * 8] * 4),  # 1 / L is iid
        ([900, 100], 0.8, 1, [[720, 180], [20, 80]]),
    ],
)
def test_dominant_label_golden_values(sizes, p, phi, by_label):
    assert dominant_counts(sizes, p, phi).T.tolist() == by_label


def test_dominant_label_evens_out_sizes_through_a_client_in_between():
    assert set(dominant_counts([6] * 4, p=0.1, phi=3).sum(axis=1)) == {2}


def as_written_in_methods(sizes, p, phi):
    """Loop of docs/methods/partitions.md#dominant-labels, line by line, without the repair of sizes."""
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
def test_dominant_label_gives_leftovers_as_the_specification_says(n_labels, phi, per_class, p):
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


# Sharding: several dominant labels


def test_sharding_at_paper_scale():
    counts = dealt("sharding", samples_of([5000] * 10))
    for group, row in enumerate(counts.tolist()):
        dominants = {group, (group + 1) % 10}
        assert row == [2000 if label in dominants else 125 for label in range(10)]


@quick
@given(st.integers(3, 7), st.integers(1, 4), st.integers(1, 3), st.floats(0, 1), seeds)
def test_sharding_gives_p_of_every_label_to_its_groups_and_equal_sizes(n_labels, dominants, phi, p, seed):
    dominants = min(dominants, n_labels - 1)
    size = 10 * phi * n_labels
    counts = dealt("sharding", samples_of([size] * n_labels), None, seed, p=p, phi=phi, dominants=dominants)
    group = np.arange(len(counts)) // phi
    for label in range(n_labels):
        is_dominant = (label - group) % n_labels < dominants
        assert abs(counts[is_dominant, label].sum() - p * size) <= 0.5
        assert np.ptp(counts[is_dominant, label]) <= 1
        assert np.ptp(counts[~is_dominant, label]) <= 1
    assert counts.sum(axis=0).tolist() == [size] * n_labels
    assert np.ptp(counts.sum(axis=1)) <= 1


@quick
@given(class_sizes, st.integers(1, 3), st.floats(0, 1), seeds)
def test_sharding_with_one_dominant_label_is_dominant_label(sizes, phi, p, seed):
    one, other = (
        dealt(kind, samples_of(sizes), None, seed, p=p, phi=phi, **more)
        for kind, more in (("sharding", {"dominants": 1}), ("dominant_label", {}))
    )
    assert np.array_equal(one, other)


# Shards of the sorted samples


def test_shards_of_cifar_10_hold_one_label_each():
    counts = dealt("label_shards", samples_of([5000] * 10), 50, shards=2)
    assert set(counts[counts > 0]) <= {500, 1000}
    assert set(counts.sum(axis=1)) == {1000}
    assert counts.sum(axis=0).tolist() == [5000] * 10


@quick
@given(class_sizes, st.integers(1, 5), st.integers(1, 20), seeds)
def test_every_client_draws_so_many_shards_of_equal_size_and_the_others_stay_unused(sizes, shards, n_clients, seed):
    n_samples = sum(sizes)
    counts = dealt("label_shards", samples_of(sizes), n_clients, seed, shards=shards)
    assert counts.sum(axis=1).min() >= shards * (n_samples // 100)
    assert counts.sum(axis=1).max() <= shards * -(-n_samples // 100)
    # Shards are contiguous: one has no label between two of its own, so its labels are as few as may be.
    assert (counts > 0).sum(axis=1).max() <= 2 * shards
    if shards * n_clients == 100:
        assert counts.sum(axis=0).tolist() == sizes


def test_a_small_fleet_holds_all_labels_if_there_are_as_many_shards_as_it_draws():
    counts = dealt("label_shards", samples_of([100] * 10), 20, shards=2, n_shards=40)
    assert set(counts.sum(axis=1)) == {50}
    assert counts.sum(axis=0).tolist() == [100] * 10


@pytest.mark.parametrize(
    ("kind", "labels", "n_clients", "options", "key"),
    [
        ("dominant_label", 3, 7, {"phi": 2}, "clients.count"),
        ("sharding", 3, 7, {"phi": 2}, "clients.count"),
        ("sharding", 3, None, {"dominants": 3}, "data.partition.dominants"),
        ("label_shards", 3, 51, {"shards": 2}, "data.partition.shards"),
        ("dominant_label", 1, None, {}, "data.partition.kind"),
    ],
)
def test_what_cannot_be_dealt_is_refused_at_its_key(kind, labels, n_clients, options, key):
    with refused(key):
        dealt(kind, samples_of([500] * labels), n_clients, **options)
