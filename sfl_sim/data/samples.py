"""What every partition starts from and ends with: samples grouped by label, dealt to clients in given numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Samples:
    """All that a partition may know of a data set.

    Attributes:
        labels: (N,), the label in 0 .. n_labels - 1 of each sample.
        n_labels: L.
        owners: (N,), the person each sample came from; None if the data set does not tell.
    """

    labels: Ints
    n_labels: int
    owners: Ints | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def by_label(self, rng: np.random.Generator) -> list[Ints]:
        """The sample indices of each label, in random order."""
        shuffled = rng.permutation(len(self))
        sorted_by_label = shuffled[np.argsort(self.labels[shuffled], kind="stable")]
        return np.split(sorted_by_label, np.cumsum(np.bincount(self.labels, minlength=self.n_labels))[:-1])


def deal(by_label: Sequence[Ints], counts: Ints) -> list[Ints]:
    """Hand out the indices of each label from the first on, `counts[c, l]` of label l to client c.

    Args:
        by_label: L arrays of sample indices.
        counts: (C, L); indices of a label that exceed its column's sum go to nobody.

    Returns:
        Each client's indices, label by label.
    """
    used = np.concatenate([indices[:n] for indices, n in zip(by_label, counts.sum(axis=0), strict=True)])
    holders = np.concatenate([np.repeat(np.arange(len(counts)), wanted) for wanted in counts.T])
    return np.split(used[np.argsort(holders, kind="stable")], np.cumsum(counts.sum(axis=1))[:-1])
