"""Small labelled data and what every partition of them must keep, for the tests of partitions and test sets."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from sfl_sim.data.partition import label_counts, partition
from sfl_sim.data.samples import Samples
from sfl_sim.rng import stream

quick = settings(max_examples=60)
class_sizes = st.lists(st.integers(10, 60), min_size=2, max_size=6)
seeds = st.integers(0, 2**31)


def samples_of(sizes: list[int], owners: list[int] | None = None) -> Samples:
    """Shuffled samples, `sizes[l]` of label l."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Samples(labels, len(sizes), None if owners is None else np.array(owners))


def dealt(kind: str, samples: Samples, n_clients: int | None = None, seed: int = 0, **options: object) -> np.ndarray:
    """(C, L) samples of each label for each client, after a check that no sample is dealt twice."""
    parts = partition(kind, samples, n_clients, stream(seed, "partition"), **options)
    assert_disjoint(parts)
    return label_counts(samples.labels, parts, samples.n_labels)


def assert_disjoint(parts: list[np.ndarray]) -> None:
    everyone = np.concatenate(parts)
    assert len(np.unique(everyone)) == len(everyone)
