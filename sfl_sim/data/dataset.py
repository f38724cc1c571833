"""Data sets: labelled samples in memory, with their owners where these are known, and groups of what has no label."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.errors import ScenarioError
from sfl_sim.goals import NO_LABEL, Goal
from sfl_sim.rng import stream

MAX_BYTE = 255
"""Largest token that takes a byte in memory; sequences with larger ones take four bytes a token."""

PADDING, UNCOUNTED = -1, -2
"""Stand, in sequences of which every next token is predicted, for what fills them up, and for token 0 where it is read
and not predicted; token t then is `UNCOUNTED` - t."""

TEST_SHARE = 0.2
"""Share of the samples that become test samples if a data set comes without a split."""

QUANTILES = 10
"""Groups of equally many training samples that stand for labels where numbers are predicted."""

XY = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Samples (n, ...) and labels (n,) of one owner."""


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Training and test samples with their labels.

    Attributes:
        name: name in `DATASETS`.
        x_train, x_test: samples: images, uint8 (N, C, H, W); sequences of tokens 0 .. n_labels - 1, uint8 (N, T), or
            int32 where one is larger than 255, or where some are marked (`PADDING`); or
            numbers of a user's own, float32 (N, ...), which are not normalised.
        y_train, y_test: labels 0 .. n_labels - 1, int64 (N,).
        label_names: name of each label.
        mean, std: mean and standard deviation of each channel's pixels in [0, 1], float32 (C,), for normalisation; None
            if the samples are no images.
        owners, test_owners: the person who wrote or spoke each sample, as index into `owner_names`, int64 (N,). None if
            unknown; `test_owners` is also None if the test samples are of people without training samples.
        owner_names: name of each owner.
        token_names: name of each token, if the next token is predicted at every position; otherwise empty. With names,
            x (N, T + 1) has one token more than a network reads, and the label of a sample is its owner.
        targets_train, targets_test: what is to be predicted of each sample other than its label (N, ...), as `Goal`
            says; None if it is the label, or tokens. A sample's label is then its group (`groups`).
        target_names: names of what these targets hold: numbers, or labels of sets and masks.
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
    token_names: tuple[str, ...] = ()
    targets_train: Tensor | None = None
    targets_test: Tensor | None = None
    target_names: tuple[str, ...] = ()

    @property
    def goal(self) -> Goal:
        """What is predicted of each sample."""
        if self.token_names:
            return Goal.TOKENS
        return Goal.LABEL if self.targets_train is None else goal_of(self.targets_train)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of what a network reads of a sample."""
        return (self.x_train.shape[1] - 1,) if self.token_names else tuple(self.x_train.shape[1:])

    @property
    def is_marked(self) -> bool:
        """True if sequences are filled up, or hold tokens that are not predicted."""
        return bool(self.token_names) and not self.x_train.is_floating_point() and int(self.x_train.min()) < 0

    @property
    def lengths(self) -> NDArray[np.int64] | None:
        """Positions (N,) that a network reads of each training sample; None if all are of one length."""
        if not self.is_marked:  # of a million images, the count below would take gigabytes
            return None
        lengths: NDArray[np.int64] = (self.x_train != PADDING).sum(dim=1).numpy() - 1
        return lengths if (lengths != lengths[0]).any() else None

    @property
    def answers(self) -> tuple[str, ...]:
        """Names of what a network chooses from, labels or tokens; or of the numbers that it predicts."""
        return self.token_names or self.target_names or self.label_names

    @property
    def n_labels(self) -> int:
        """Number of labels, L."""
        return len(self.label_names)

    @property
    def preparation(self) -> dict[str, Any]:
        """What somebody needs to use a trained model: the labels in order, and mean and std of images (x / 255)."""
        mean, std = ([] if values is None else values.tolist() for values in (self.mean, self.std))
        return {"labels": list(self.answers), "mean": mean or None, "std": std or None}

    def digest(self) -> str:
        """Return 32 hex digits, equal for equal data sets."""
        digest = hashlib.blake2b(digest_size=16)
        for field in fields(self):
            value = getattr(self, field.name)
            if "target" in field.name and not self.target_names:
                continue  # as data sets of labels were told apart before there were other targets
            if isinstance(value, torch.Tensor):
                digest.update(repr((field.name, value.dtype, value.shape)).encode())
                # a tensor of `without_pixels` repeats one number: the number and the shape say all
                digest.update((value[:1] if value.stride(0) == 0 else value).contiguous().numpy().data)
            else:
                digest.update(repr((field.name, value)).encode())
        return digest.hexdigest()

    @property
    def largest_token(self) -> int:
        """The largest token in the samples. They must be sequences of tokens."""
        parts = [x[: None if x.stride(0) else 1] for x in (self.x_train, self.x_test)]
        return max(max(int(x.max()), UNCOUNTED - int(x.min())) for x in parts)

    def predicting_all(self) -> Dataset:
        """Return the data set for prediction of the next token at every position.

        The label of each sample becomes its last token. Its owner becomes its label; without owners, all samples have
        one label. If labels are named by whole numbers, such as 17, the label is the token 17: some tokens may then
        never be labels.

        Raises ScenarioError if the samples are no sequences of tokens, or the labels no tokens.
        """
        if self.token_names:
            return self
        if self.x_train.ndim != 2 or self.x_train.is_floating_point():
            raise ScenarioError("needs sequences of tokens", key="data.targets", found="all", allowed=["last"])
        are_numbers = all(map(str.isdecimal, self.label_names))
        tokens = [int(name) if are_numbers else label for label, name in enumerate(self.label_names)]
        vocabulary = numbered(max(self.largest_token, *tokens) + 1) if are_numbers else self.label_names
        if self.largest_token >= len(vocabulary):
            problem = "needs labels that are tokens: more tokens than labels are there"
            raise ScenarioError(problem, key="data.targets", found="all", allowed=["last"])
        known = self.owners is not None and self.test_owners is not None

        def part(x: Tensor, y: Tensor, owners: Tensor | None) -> tuple[Tensor, Tensor]:
            labels = owners if known and owners is not None else torch.zeros_like(y)
            if x.stride(0) == 0:  # a tensor of `without_pixels`, which takes no memory
                return x[:, :1].expand(-1, x.shape[1] + 1), labels
            kept = torch.int32 if max(tokens) > MAX_BYTE else x.dtype
            return torch.cat([x.to(kept), torch.tensor(tokens)[y][:, None].to(kept)], dim=1), labels

        x_train, y_train = part(self.x_train, self.y_train, self.owners)
        x_test, y_test = part(self.x_test, self.y_test, self.test_owners)
        return replace(
            self, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, token_names=vocabulary,
            label_names=self.owner_names if known else ("all",),
        )  # fmt: skip

    def subset(self, train_samples: int | None, test_samples: int | None) -> Dataset:
        """Keep so many samples, stratified by label. They are the same in every run. None keeps all.

        Raises ScenarioError if there are fewer samples.
        """
        train = None if train_samples is None else _chosen(self.y_train, train_samples, "data.train_samples")
        test = None if test_samples is None else _chosen(self.y_test, test_samples, "data.test_samples")
        return self.picked(train, test)

    def picked(self, train: Tensor | None, test: Tensor | None) -> Dataset:
        """Keep the training and test samples with these indices. None keeps all."""
        data = self
        if train is not None:
            owners, targets = (None if of is None else of[train] for of in (self.owners, self.targets_train))
            x, y = _picked(self.x_train, train), self.y_train[train]
            data = replace(data, x_train=x, y_train=y, owners=owners, targets_train=targets)
        if test is not None:
            owners, targets = (None if of is None else of[test] for of in (self.test_owners, self.targets_test))
            x, y = _picked(self.x_test, test), self.y_test[test]
            data = replace(data, x_test=x, y_test=y, test_owners=owners, targets_test=targets)
        return data


def _picked(x: Tensor, i: Tensor) -> Tensor:
    """Return samples `i`. A tensor of `without_pixels` repeats one sample: it gives a view, which takes no memory."""
    return x[: len(i)] if x.stride(0) == 0 else x[i]


def numbered(n: int) -> tuple[str, ...]:
    """Return names for `n` labels or owners that have none."""
    return tuple(map(str, range(n)))


def split_off_test(name: str, x: Tensor, y: Tensor, label_names: Sequence[str]) -> Dataset:
    """Split images (N, C, H, W) into a training and a test set, stratified by label. It is the same in every run."""
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[_stratified(y, round(TEST_SHARE * len(y)), f"{name} test split")] = True
    return measured(Dataset(name, x[~is_test], y[~is_test], x[is_test], y[is_test], tuple(label_names)))


def with_targets(
    name: str, x_train: Tensor, targets: Tensor, x_test: Tensor, test_targets: Tensor, names: Sequence[str]
) -> Dataset:
    """Make a data set of which something other than labels is predicted (`Goal`); `names` are those of its targets."""
    y_train, y_test, label_names = groups(targets, test_targets, tuple(names))
    return Dataset(
        name, x_train, y_train, x_test, y_test, label_names,
        targets_train=targets, targets_test=test_targets, target_names=tuple(names),
    )  # fmt: skip


def measured(data: Dataset) -> Dataset:
    """Set `mean` and `std` of a data set of images to those of its training images."""
    value = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in data.x_train.unbind(1)])
    share = counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = share @ value
    variance = (share * (value - mean[:, None]) ** 2).sum(dim=1)
    std = variance.sqrt().clamp_min(1 / 255)  # so that a constant channel can be divided by it
    return replace(data, mean=mean.float(), std=std.float())


def with_std(data: Dataset, std: Sequence[float]) -> Dataset:
    """Replace the standard deviation of each channel.

    Raises ScenarioError for samples that are not normalised, or another number of channels.
    """
    if data.std is None:
        problem = "only images of whole numbers are normalised"
        raise ScenarioError(problem, key="data.std", found=list(std), allowed="null")
    if len(std) != len(data.std):
        raise ScenarioError(f"has one number for each of {len(data.std)} channels", key="data.std", found=list(std))
    return replace(data, std=torch.tensor(std))


def drawn(names: Sequence[str], n: int | None, set_name: str) -> list[str]:
    """Draw `n` of the owners at random. They are the same in every run, and sorted by name. None keeps all.

    Raises ScenarioError if there are fewer owners, or none at all.
    """
    if not names:
        raise ScenarioError("no client has enough samples", key="data.name", found=set_name)
    if n is None:
        return sorted(names)
    if n > len(names):
        problem = "not so many owners have enough samples"
        raise ScenarioError(problem, key="data.owners", found=n, allowed=f"1 to {len(names)}")
    return sorted(stream(0, f"{set_name} owners").permutation(sorted(names))[:n].tolist())


def joined(
    name: str,
    train: Mapping[str, XY],
    test: Mapping[str, XY],
    owner_names: Sequence[str],
    label_names: Sequence[str],
) -> Dataset:
    """Join the samples of these owners, one owner after another, to a data set."""

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


def _chosen(y: Tensor, n_samples: int, key: str) -> Tensor:
    if not 1 <= n_samples <= len(y):
        raise ScenarioError("not so many samples there", key=key, found=n_samples, allowed=f"1 to {len(y)}")
    return _stratified(y, n_samples, key)


def _stratified(y: Tensor, n_samples: int, stream_name: str) -> Tensor:
    """Choose `n_samples` indices, in ascending order. Each label gets its share, rounded down or up."""
    shuffled = torch.from_numpy(stream(0, stream_name).permutation(len(y)))
    sorted_by_label = shuffled[y[shuffled].argsort(stable=True)]
    evenly_spaced = torch.arange(n_samples) * len(y) // n_samples
    return sorted_by_label[evenly_spaced].sort().values


def goal_of(targets: Tensor) -> Goal:
    """Return what targets (N, ...) other than labels ask for: their type and shape say so."""
    if targets.is_floating_point():
        return Goal.NUMBERS
    return Goal.LABEL_SET if targets.ndim == 2 else Goal.PIXELS


def groups(targets: Tensor, test_targets: Tensor, names: tuple[str, ...]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Group samples by their targets: the groups take the place of labels where clients differ by labels.

    Numbers are grouped by the `QUANTILES` of the first of them among training samples. Sets of labels and masks are
    grouped by the label that fewest training samples have, among those that the sample has.

    Returns:
        Groups of training samples (N,) and of test samples (M,), int64, and the groups' names.
    """
    if targets.is_floating_point():
        return _by_quantile(targets[:, 0].double(), test_targets[:, 0].double())
    held = [_held(part, len(names)) for part in (targets, test_targets)]
    rarity = held[0].sum(dim=0).argsort(stable=True)  # the rarest label first
    place = [part[:, rarity].int().argmax(dim=1) for part in held]
    chosen = [rarity[at].masked_fill(~part.any(dim=1), len(names)) for part, at in zip(held, place, strict=True)]
    occurring, numbers = torch.unique(torch.cat(chosen), return_inverse=True)
    names_of_all = (*names, "none")
    return numbers[: len(targets)], numbers[len(targets) :], tuple(names_of_all[int(group)] for group in occurring)


def _by_quantile(first: Tensor, of_tests: Tensor) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Group numbers (N,) by quantiles of the training samples'; equal ones are in one group."""
    edges = torch.from_numpy(np.unique(np.quantile(first.numpy(), np.linspace(0, 1, QUANTILES + 1)[1:-1])))
    edges = edges[edges < first.max()]
    names = [f"up to {edge:.4g}" for edge in edges.tolist()]
    names.append(f"above {float(edges[-1]):.4g}" if names else "all")
    return torch.bucketize(first, edges), torch.bucketize(of_tests, edges), tuple(names)


def _held(targets: Tensor, n_labels: int) -> Tensor:
    """Mark the labels (N, L) that occur in sets (N, L) or masks (N, H, W)."""
    if targets.ndim == 2:
        return targets.bool()
    held = torch.zeros(len(targets), NO_LABEL + 1, dtype=torch.bool)
    held.scatter_(1, targets.flatten(1).long(), value=True)
    return held[:, :n_labels]
