"""Data sets by the shapes and label counts of their samples: all that the clock asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from sfl_sim.data.dataset import Dataset, numbered
from sfl_sim.errors import ScenarioError

ImageShape = tuple[int, int, int]


class KnownDataset(NamedTuple):
    """Shape of a sample (channels, height, width), and numbers of training and test samples of each label."""

    shape: ImageShape
    train: Sequence[int]
    test: Sequence[int]


KNOWN = {
    "mnist": KnownDataset(
        (1, 28, 28),
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
    "fashion_mnist": KnownDataset((1, 28, 28), [6_000] * 10, [1_000] * 10),
    "cifar10": KnownDataset((3, 32, 32), [5_000] * 10, [1_000] * 10),
    "cifar100": KnownDataset((3, 32, 32), [500] * 100, [100] * 100),
    "svhn": KnownDataset(
        (3, 32, 32),
        (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    ),
    "cinic10": KnownDataset((3, 32, 32), [9_000] * 10, [9_000] * 10),
    "tiny_imagenet": KnownDataset((3, 64, 64), [500] * 200, [50] * 200),
}
"""Label counts by data set (docs/datasets.md); labels are in the order of the published set."""


FOR_TIMING = {"tokens"}
"""Data sets that exist by their shapes alone."""


def tokens(
    shape: Sequence[int] = (512,), n_labels: int = 50_257, samples: int = 10_000, owners: int | None = None
) -> Dataset:
    """Sequences of tokens by their number and length alone, for timing: nothing can be learned from them.

    Args:
        shape: (tokens,) of a sequence.
        n_labels: number of different tokens.
        samples: number of training samples; a quarter as many test samples come in addition.
        owners: number of people who hold equally many of them; None for no owners.

    Raises:
        ScenarioError: the shape is not a sequence's.
    """
    if len(shape) != 1:
        raise ScenarioError("is not [tokens]", key="data.shape", found=list(shape))

    def part(n: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 1, dtype=torch.uint8).expand(n, *shape), torch.zeros(n, dtype=torch.int64)

    data = Dataset("tokens", *part(samples), *part(max(1, samples // 4)), numbered(n_labels))
    if owners is None:
        return data
    train, test = (torch.arange(len(y)) % owners for y in (data.y_train, data.y_test))
    return replace(data, owners=train, test_owners=test, owner_names=numbered(owners))


def without_pixels(name: str, superclasses: bool | None = None) -> Dataset:
    """Make a data set of black images with a published set's shapes and label counts; labels are named by number.

    The published set's samples lie in another order. All partitions give clients as many samples nevertheless, and all
    but `iid`, `quantity_skew` and `indices` as many of each label. `superclasses`: the 20 of CIFAR-100.
    """
    known = KNOWN[name]
    if superclasses:
        known = KnownDataset(known.shape, [2_500] * 20, [500] * 20)

    def part(counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        return torch.zeros(1, dtype=torch.uint8).expand(len(labels), *known.shape), labels

    channels = known.shape[0]
    return Dataset(
        name, *part(known.train), *part(known.test), tuple(str(label) for label in range(len(known.train))),
        torch.zeros(channels), torch.ones(channels),
    )  # fmt: skip
