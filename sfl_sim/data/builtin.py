"""Data sets that need no files and no network."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from sfl_sim.data.dataset import TEST_SHARE, Dataset, measured, numbered, split_off_test, with_targets
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream

PIECE_BYTES = 32 << 20
"""Size of the pieces in which floating noise is drawn, since it takes eight times as much memory as the pixels."""

INK = 64
"""A pixel of a digit is darker than this, of 255."""

MAX_SYNTHETIC_BYTES = 2_000_000_000
"""Largest size of the training samples; noise for so many takes a minute to draw."""


def digits() -> Dataset:
    """Handwritten digits of scikit-learn: 1,797 grey images of 8 x 8, in 10 classes."""
    table = _shipped("digits.csv.gz", delimiter=",")
    x = torch.from_numpy(table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    return split_off_test("digits", x, torch.from_numpy(table[:, -1]).long(), list("0123456789"))


def _shipped(file: str, **reading: Any) -> NDArray[np.float64]:
    """Read a table of scikit-learn without importing it, which takes as long as importing torch."""
    sklearn = find_spec("sklearn")
    assert sklearn is not None
    assert sklearn.origin is not None
    return np.loadtxt(Path(sklearn.origin).parent / "datasets/data" / file, **reading)


def digit_pairs() -> Dataset:
    """Two digits of scikit-learn side by side, 8 x 16, and the set of labels that are there: one or two of 10."""
    data = digits()

    def paired(part: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pairs, partner = _pairs(part, x)
        sets = torch.zeros(len(y), data.n_labels, dtype=torch.uint8)
        return pairs, sets.scatter_(1, torch.stack([y, y[partner]], dim=1), 1)

    x_train, sets = paired("training", data.x_train, data.y_train)
    x_test, test_sets = paired("test", data.x_test, data.y_test)
    return measured(with_targets("digit_pairs", x_train, sets, x_test, test_sets, data.label_names))


def digit_masks() -> Dataset:
    """Two digits of scikit-learn side by side, 8 x 16, and each pixel's label: that of its digit, or the background."""
    data = digits()

    def paired(part: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pairs, partner = _pairs(part, x)
        left, right = (which[:, None, None].expand(-1, *x.shape[2:]) for which in (y, y[partner]))
        labels = torch.cat([left, right], dim=2) + 1
        return pairs, torch.where(pairs[:, 0] > INK, labels, 0).to(torch.uint8)

    x_train, masks = paired("training", data.x_train, data.y_train)
    x_test, test_masks = paired("test", data.x_test, data.y_test)
    names = ("background", *data.label_names)
    return measured(with_targets("digit_masks", x_train, masks, x_test, test_masks, names))


def _pairs(part: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Put another digit of the same part beside each; gives the images, and which one it is."""
    partner = torch.from_numpy(stream(0, f"{part} pairs of digits").permutation(len(x)))
    return torch.cat([x, x[partner]], dim=3), partner


def diabetes() -> Dataset:
    """Disease progression of 442 diabetes patients (scikit-learn), to be predicted from 10 numbers each.

    All numbers, the target included, are standardised by the training samples.
    """
    x = torch.from_numpy(_shipped("diabetes_data_raw.csv.gz")).float()
    y = torch.from_numpy(_shipped("diabetes_target.csv.gz")).float()[:, None]
    order = torch.from_numpy(stream(0, "diabetes test split").permutation(len(x)))
    test, train = order[: (n_tests := round(TEST_SHARE * len(x)))], order[n_tests:]
    x, y = ((of - of[train].mean(dim=0)) / of[train].std(dim=0) for of in (x, y))
    return with_targets("diabetes", x[train], y[train], x[test], y[test], ("progression",))


def synthetic(
    shape: Sequence[int] = (3, 32, 32),
    n_labels: int = 10,
    samples: int = 10_000,
    separation: float = 10.0,
    owners: int | None = None,
    pixels: bool = True,
) -> Dataset:
    """Seeded noise around one pattern per label, of any shape and size: for tests and capacity planning.

    Image patterns are coarse, of 4 x 4 patches, so that convolutional networks learn them quickly.

    Args:
        shape: shape of one sample: (channels, height, width), or (tokens,) for sequences of tokens 0 .. n_labels - 1.
        n_labels: number of labels, all equally frequent.
        samples: number of training samples; a quarter as many test samples are drawn in addition.
        separation: approximate distance of two patterns, in standard deviations of the noise; the best classifier
            takes one label for a given other one with probability Phi(-separation / 2).
        owners: number of people to whom the samples are assigned at random; None for no owners.
        pixels: False if labels and owners of the training samples suffice: then samples without owners are black, and
            the labels of the test samples have another order.

    Raises ScenarioError for a shape that is neither an image's nor a sequence's, more than 256 different tokens, more
    labels or owners than samples, or more of it all than `MAX_SYNTHETIC_BYTES`.
    """
    if len(shape) not in (1, 3):
        raise ScenarioError("is neither [channels, height, width] nor [tokens]", key="data.shape", found=list(shape))
    if len(shape) == 1 and n_labels > 256:
        raise ScenarioError("a token is a byte", key="data.n_labels", found=n_labels, allowed="1 to 256")
    for key, number in (("n_labels", n_labels), ("owners", owners or 1)):
        if number > samples:
            raise ScenarioError("more than samples", key=f"data.{key}", found=number, allowed=f"1 to {samples}")
    if samples * math.prod(shape) > MAX_SYNTHETIC_BYTES:
        problem = f"more than {MAX_SYNTHETIC_BYTES:,} bytes, one for each number of a sample"
        raise ScenarioError(problem, key="data.samples", found=samples)
    rng = stream(0, "synthetic", *shape, n_labels)
    patterns = _patterns(shape, n_labels, rng) * (separation / np.sqrt(2))
    levels = 256 if len(shape) == 3 else n_labels
    drawn = pixels or owners  # owners are drawn after the pixels

    def draw(n: int) -> tuple[Tensor, Tensor, Tensor]:
        y = rng.permutation(np.arange(n) % n_labels)
        if not drawn:
            black = torch.zeros(1, dtype=torch.uint8).expand(n, *shape)
            return black, torch.from_numpy(y), torch.zeros(n, dtype=torch.int64)
        x = np.empty((n, *shape), dtype=np.uint8)
        step = max(1, PIECE_BYTES // patterns[0].nbytes)
        for first in range(0, n, step):
            piece = slice(first, first + step)
            x[piece] = _noisy(patterns[y[piece]], levels, rng)
        return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(rng.integers(owners or 1, size=n))

    x_train, y_train, train_owners = draw(samples)
    x_test, y_test, test_owners = draw(max(1, samples // 4))
    data = Dataset("synthetic", x_train, y_train, x_test, y_test, numbered(n_labels))
    if owners:
        data = replace(data, owners=train_owners, test_owners=test_owners, owner_names=numbered(owners))
    if len(shape) == 1:
        return data
    return measured(data) if drawn else replace(data, mean=torch.zeros(shape[0]), std=torch.ones(shape[0]))


def _patterns(shape: Sequence[int], n_labels: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw random directions of length 1, (n_labels, *shape); those of images are constant in each of 4 x 4 patches."""
    if len(shape) == 3:
        channels, *sides = shape
        patches = rng.standard_normal((n_labels, channels, *(min(side, 4) for side in sides)))
        flat = interpolate(torch.from_numpy(patches), sides).reshape(n_labels, -1)
    else:
        flat = torch.from_numpy(rng.standard_normal((n_labels, *shape)))
    unit: NDArray[np.float64] = (flat / flat.norm(dim=1, keepdim=True)).reshape(n_labels, *shape).numpy()
    return unit


def _noisy(patterns: NDArray[np.float64], levels: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Add noise of standard deviation 1, and quantise a range of 8 deviations to the integers 0 .. levels - 1."""
    noisy = patterns + rng.standard_normal(patterns.shape)
    return ((noisy / 8 + 0.5) * levels).clip(0, levels - 1).astype(np.uint8)
