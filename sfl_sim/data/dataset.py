"""What a data set is: labelled samples in memory as uint8, and who each of them belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

TEST_SHARE = 0.2
"""Share of the samples that become test samples where a data set comes without a split."""


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Training and test samples with their labels.

    Attributes:
        name: as in `DATASETS`.
        x_train, x_test: uint8 (N, C, H, W) images, or uint8 (N, T) tokens 0 .. n_labels - 1.
        y_train, y_test: int64 (N,), labels 0 .. n_labels - 1.
        label_names: one for each label.
        mean, std: float32 (C,), of pixel values in [0, 1], to normalise with; None for tokens.
        owners, test_owners: int64 (N,), who wrote or spoke each sample, as index into `owner_names`; None where
            nobody is known, and for test samples of people who have no training samples.
        owner_names: one for each owner.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    label_names: tuple[str, ...]
    mean: Tensor | None = None
    std: Tensor | None = None
    owners: Tensor | None = None
    test_owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()

    @property
    def n_labels(self) -> int:
        """L."""
        return len(self.label_names)

    def subset(self, train_samples: int | None, test_samples: int | None) -> Dataset:
        """So many of the samples, stratified and the same every time, with their owners; all for None."""
        data = self
        if train_samples is not None:
            i = _chosen(self.y_train, train_samples, "data.train_samples")
            owners = None if self.owners is None else self.owners[i]
            data = replace(data, x_train=self.x_train[i], y_train=self.y_train[i], owners=owners)
        if test_samples is not None:
            i = _chosen(self.y_test, test_samples, "data.test_samples")
            owners = None if self.test_owners is None else self.test_owners[i]
            data = replace(data, x_test=self.x_test[i], y_test=self.y_test[i], test_owners=owners)
        return data


def split_off_test(name: str, x: Tensor, y: Tensor, label_names: Sequence[str]) -> Dataset:
    """A set of images that comes without a split gets a stratified one."""
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[_stratified(y, round(TEST_SHARE * len(y)), f"{name} test split")] = True
    return measured(Dataset(name, x[~is_test], y[~is_test], x[is_test], y[is_test], tuple(label_names)))


def measured(data: Dataset) -> Dataset:
    """A set of images normalised by the mean and standard deviation of its training images."""
    value = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in data.x_train.unbind(1)])
    share = counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = share @ value
    variance = (share * (value - mean[:, None]) ** 2).sum(dim=1)
    std = variance.sqrt().clamp_min(1 / 255)  # so that a constant channel can be divided by it
    return replace(data, mean=mean.float(), std=std.float())


def _chosen(y: Tensor, n_samples: int, key: str) -> Tensor:
    if not 1 <= n_samples <= len(y):
        raise ScenarioError("not so many samples there", key=key, found=n_samples, allowed=f"1 to {len(y)}")
    return _stratified(y, n_samples, key)


def _stratified(y: Tensor, n_samples: int, stream_name: str) -> Tensor:
    """Ascending indices of `n_samples` samples: of each label its share, rounded down or up."""
    shuffled = torch.from_numpy(stream(0, stream_name).permutation(len(y)))
    sorted_by_label = shuffled[y[shuffled].argsort(stable=True)]
    evenly_spaced = torch.arange(n_samples) * len(y) // n_samples
    return sorted_by_label[evenly_spaced].sort().values
