"""Properties of every partition (I18, docs/methods/README.md#identities), simple ones, and the cyclic client order."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from small_partitions import class_sizes, dealt, quick, samples_of, seeds

from sfl_sim.data.loading import DATASETS
from sfl_sim.data.partition import (
    PARTITIONS,
    Chunks,
    check_none_empty,
    cyclic_clients,
    iid,
    label_counts,
    label_order,
    partition,
    set_aside,
)
from sfl_sim.rng import stream

OWNED = samples_of([50] * 4, owners=[i % 7 for i in range(200)])
OPTIONS = {"dirichlet": {"min_size": 2}, "quantity_skew": {"min_size": 2}}


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind != "indices"])
def test_every_partition_is_disjoint_and_decided_by_its_stream(kind):
    first, again, other = (
        partition(kind, OWNED, None, stream(seed, "partition"), **OPTIONS.get(kind, {})) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert np.array_equal(np.sort(np.concatenate(first)), np.arange(200))
    if kind not in ("iid", "quantity_skew"):
        assert all((np.diff(OWNED.labels[part]) >= 0).all() for part in first)


@pytest.mark.parametrize(
    ("kind", "options", "n_clients"),
    [
        ("iid", {}, 10),
        ("dominant_label", {"phi": 3}, 12),
        ("sharding", {"phi": 2}, 8),
        ("label_shards", {}, 50),
        ("label_shards", {"shards": 3}, 33),
        ("dirichlet", {}, 10),
        ("quantity_skew", {"min_size": 2}, 10),
        ("natural", {}, 7),
    ],
)
def test_every_partition_has_its_usual_number_of_clients(kind, options, n_clients):
    assert len(dealt(kind, OWNED, None, **options)) == n_clients


def test_a_client_left_empty_is_named():
    parts = np.array_split(np.arange(4), 5)
    with refused("data.partition", says="client 4 of 5"):
        check_none_empty(parts)


def test_labels_of_chunks_are_counted_as_those_of_arrays():
    labels, chunks = np.arange(11) % 3, Chunks(np.arange(11)[::-1], 4)
    assert label_counts(labels, chunks, 3).tolist() == label_counts(labels, list(chunks), 3).tolist()
    assert chunks.sizes.tolist() == [3, 3, 3, 2]


def test_label_counts_count():
    assert label_counts(np.array([1, 0, 1, 2]), [np.array([0, 2]), np.array([], int), np.array([3])], 3).tolist() == [
        [0, 2, 0],
        [0, 0, 0],
        [0, 0, 1],
    ]


# IID


@quick
@given(class_sizes, st.integers(1, 12), seeds)
def test_iid_uses_every_sample_once_in_chunks_of_equal_size(sizes, n_clients, seed):
    counts = dealt("iid", samples_of(sizes), n_clients, seed)
    assert counts.sum(axis=0).tolist() == sizes
    assert np.ptp(counts.sum(axis=1)) <= 1


# Natural: one client for each owner


@quick
@given(st.lists(st.integers(0, 5), min_size=40, max_size=40), seeds)
def test_natural_gives_each_client_all_samples_of_one_owner(owners, seed):
    parts = partition("natural", samples_of([10] * 4, owners), None, stream(seed, "partition"))
    assert [np.unique(np.array(owners)[part]).tolist() for part in parts] == [[owner] for owner in sorted(set(owners))]
    assert [len(part) for part in parts] == [owners.count(owner) for owner in sorted(set(owners))]


def test_natural_draws_as_many_owners_as_there_are_to_be_clients():
    drawn = []
    for seed in range(10):
        parts = partition("natural", OWNED, 3, stream(seed, "partition"))
        assert all(len(np.unique(OWNED.owners[part])) == 1 for part in parts)
        drawn.append([int(OWNED.owners[part[0]]) for part in parts])
    assert all(owners == sorted(set(owners)) for owners in drawn)
    assert len(set(map(tuple, drawn))) > 5


@pytest.mark.parametrize("kind", ["dominant_label", "sharding"])
def test_more_clients_than_samples_are_refused_before_they_are_made(kind):
    with refused("clients.count", found=20000000):
        dealt(kind, samples_of([20, 20]), phi=10**7)


def test_natural_says_what_is_missing_and_which_sets_have_it():
    with refused("data.partition.kind") as failure:
        dealt("natural", samples_of([20, 20]))
    named = set(re.findall(r"\w+", failure.value.problem)) & set(DATASETS)
    assert named == {
        "femnist", "celeba", "shakespeare", "sent140", "reddit", "stackoverflow", "speech_commands", "synthetic",
    }  # fmt: skip
    with refused("clients.count", says=r"found 8; allowed: 1 to 7\)"):
        dealt("natural", OWNED, 8)


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


def test_what_is_set_aside_is_kept_by_no_client_also_where_clients_share_samples():
    """A quarter of 10 and of 30 samples are 3, rounded, and 8; others stay in their order."""
    one, two = np.arange(10)[::-1], np.arange(10, 40)
    kept, aside = set_aside([one, two], stream(0, "validation"), 0.25, None)
    assert [len(own) for own in kept] == [7, 22]
    assert np.array_equal(aside, np.unique(aside))
    assert (np.diff(kept[0]) < 0).all()
    assert np.array_equal(np.sort(np.concatenate([*kept, aside])), np.arange(40))
    kept, aside = set_aside([two, two[5:]], stream(0, "validation"), None, 12)
    assert len(aside) == 12
    assert not np.isin(np.concatenate(kept), aside).any()


@pytest.mark.parametrize(("share", "samples", "key"), [(0.04, None, "share"), (None, 20, "samples")])
def test_to_set_aside_nothing_or_everything_is_refused(share, samples, key):
    shares = [np.arange(10), np.arange(10, 20)]
    with refused(f"data.validation.{key}", found=share or samples):
        set_aside(shares, stream(0, "validation"), share, samples)


def test_chunks_are_what_numpy_splits_an_array_into():
    for n, clients in ((10, 3), (7, 7), (3, 5)):
        chunks = iid(samples_of([n]), clients, stream(0, "partition"))
        order = stream(0, "partition").permutation(n)
        expected = np.array_split(order, clients)
        assert all(np.array_equal(a, b) for a, b in zip(chunks, expected, strict=True))
        assert all(np.array_equal(chunks[number], expected[number]) for number in range(-clients, clients))
        with pytest.raises(IndexError):
            chunks[clients]
