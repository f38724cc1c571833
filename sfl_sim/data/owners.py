"""Sets whose samples have owners: who is kept, how much of each, and all of it as one data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from sfl_sim.data.dataset import Dataset
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

XY = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""x (n, ...) and y (n,) of one owner."""


def drawn(names: Sequence[str], n: int | None, set_name: str) -> list[str]:
    """`n` of the owners, drawn at random and the same in every run; all for None. Sorted by name.

    Raises:
        ScenarioError: there are not so many, or none at all.
    """
    if not names:
        raise ScenarioError("nobody has enough samples", key="data.name", found=set_name)
    if n is None:
        return sorted(names)
    if n > len(names):
        raise ScenarioError("not so many owners have enough samples", key="data.owners", found=n,
                            allowed=f"1 to {len(names)}")  # fmt: skip
    return sorted(stream(0, f"{set_name} owners").permutation(sorted(names))[:n].tolist())


def window(samples: XY, n: int, stream_name: str) -> XY:
    """`n` samples in a row, from a random place that is the same in every run."""
    x, y = samples
    start = int(stream(0, stream_name).integers(len(y) - n + 1))
    return x[start : start + n], y[start : start + n]


def joined(
    name: str,
    train: Mapping[str, XY],
    test: Mapping[str, XY],
    owner_names: Sequence[str],
    label_names: Sequence[str],
) -> Dataset:
    """The training and test samples of the `owner_names`, owner by owner."""

    def join(part: Mapping[str, XY]) -> tuple[torch.Tensor, ...]:
        xs, ys = zip(*(part[owner] for owner in owner_names), strict=True)
        owners = np.repeat(np.arange(len(ys)), [len(y) for y in ys])
        return torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys)), torch.from_numpy(owners)

    x_train, y_train, owners = join(train)
    x_test, y_test, test_owners = join(test)
    return Dataset(
        name, x_train, y_train, x_test, y_test, tuple(label_names),
        owners=owners, test_owners=test_owners, owner_names=tuple(owner_names),
    )  # fmt: skip
