"""Input and output of partitions: samples grouped by label, and their distribution to clients in given numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Labels and owners of a data set, all that a partition uses of it.

    Attributes:
        labels: (N,), the label in 0 .. n_labels - 1 of each sample.
        n_labels: number of labels, L.
        owners: (N,), the person from whom each sample comes; None if unknown.
    """

    labels: Ints
    n_labels: int
    owners: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def by_label(self, rng: np.random.Generator) -> list[Ints]:
        """Shuffle the sample indices of each label; gives L arrays."""
        shuffled = rng.permutation(len(self))
        sorted_by_label = shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        return np.split(sorted_by_label, np.cumsum(np.bincount(self.labels, minlength=self.n_labels))[:-1])


def deal(by_label: Sequence[Ints], counts: Ints) -> list[Ints]:
    """Deal the indices of each label from the first on, `counts[c, l]` of label l to client c.

    Args:
        by_label: L arrays of sample indices.
        counts: (C, L); indices of a label beyond the sum of its column stay unused.

    Returns:
        Each client's indices, label by label.
    """
    used = np.concatenate([indices[:n] for indices, n in zip(by_label, counts.sum(axis=0), strict=True)])
    holders = np.concatenate([np.repeat(np.arange(len(counts)), wanted) for wanted in counts.T])
    return np.split(used[np.argsort(holders, kind="stable")], np.cumsum(counts.sum(axis=1))[:-1])
