"""Data sets by name. Exact settings, layouts on disk and sources are in docs/datasets.md.

A data set is the same in every run: splits and subsets are drawn from streams that do not depend on the run's seed. The
clock asks for no more than the shapes and label counts of samples, which are known of published sets without them.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfl_sim.data.builtin import diabetes, digit_masks, digit_pairs, digits, synthetic
from sfl_sim.data.dataset import Dataset, numbered
from sfl_sim.data.download import Absent
from sfl_sim.data.folders import cinic10, image_folder, tiny_imagenet
from sfl_sim.data.hugging_face import hf
from sfl_sim.data.leaf import celeba, femnist
from sfl_sim.data.own import as_dataset
from sfl_sim.data.speech import speech_commands
from sfl_sim.data.text import shakespeare
from sfl_sim.data.torchvision_sets import cifar10, cifar100, fashion_mnist, mnist, svhn
from sfl_sim.data.words import reddit, sent140, stackoverflow
from sfl_sim.errors import ScenarioError
from sfl_sim.installed import find

__all__ = ["DATASETS", "Dataset", "load"]

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

    Raises ScenarioError if the shape is not a sequence's, or there are more owners than samples.
    """
    if len(shape) != 1:
        raise ScenarioError("is not [tokens]", key="data.shape", found=list(shape))
    if owners is not None and owners > samples:
        raise ScenarioError("more than samples", key="data.owners", found=owners, allowed=f"1 to {samples}")

    def part(n: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 1, dtype=torch.uint8).expand(n, *shape), torch.zeros(n, dtype=torch.int64)

    data = Dataset("tokens", *part(samples), *part(max(1, samples // 4)), numbered(n_labels))
    if owners is None:
        return data
    train, test = (torch.arange(len(y)) % owners for y in (data.y_train, data.y_test))
    return replace(data, owners=train, test_owners=test, owner_names=numbered(owners))


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "digit_pairs": digit_pairs,
    "digit_masks": digit_masks,
    "diabetes": diabetes,
    "synthetic": synthetic,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "cinic10": cinic10,
    "tiny_imagenet": tiny_imagenet,
    "femnist": femnist,
    "celeba": celeba,
    "shakespeare": shakespeare,
    "sent140": sent140,
    "reddit": reddit,
    "stackoverflow": stackoverflow,
    "speech_commands": speech_commands,
    "image_folder": image_folder,
    "hf": hf,
    "tokens": tokens,
}


def load(
    name: str,
    *,
    loader: Callable[..., Dataset] | None = None,
    download: bool = True,
    pixels: bool = True,
    train_samples: int | None = None,
    test_samples: int | None = None,
    **options: Any,
) -> Dataset:
    """Load the data set `name`.

    Args:
        name: a key of `DATASETS`, the name in an installed package, or any name for what a `loader` gives.
        loader: gives the data set; None: the function of that name.
        download: download published files that are missing.
        pixels: False if labels suffice: the images of a published set whose files are missing (`KNOWN`) are then black,
            as those of `synthetic`.
        train_samples, test_samples: keep so many, stratified and the same in every run; None keeps all.
        options: keyword arguments of the data set's function; None stands for its default.

    Raises ScenarioError for an unknown name, an option that the data set does not have, missing or unreadable files,
    more samples wanted than there are, or no training or test samples at all.
    """
    if loader is None and name not in DATASETS:
        loader = partial(as_dataset, find("datasets", name, "data.name", DATASETS, "unknown data set"))
    if loader is None and name in FOR_TIMING and pixels:
        raise ScenarioError("is for timing alone: nothing can be learned from it", key="data.name", found=name)
    loader = loader or DATASETS[name]
    accepted = inspect.signature(loader).parameters
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option not in accepted:
            raise ScenarioError(f"not an option of {name}", key=f"data.{option}", found=str(value))
    if "pixels" in accepted:
        given["pixels"] = pixels
    if "download" in accepted:
        given["download"] = download and (pixels or name not in KNOWN)
    try:
        data = loader(**given)
    except Absent:
        if pixels or name not in KNOWN:
            raise
        data = without_pixels(name, given.get("superclasses"))
    except OSError as error:
        key = next((key for key in ("path", "root") if key in given), "name")
        found = str(error.filename or given.get(key, name))
        raise ScenarioError(f"cannot be read: {error.strerror or error}", key=f"data.{key}", found=found) from error
    for part, samples in (("training", data.y_train), ("test", data.y_test)):
        if not len(samples):
            raise ScenarioError(f"no {part} samples", key="data.name", found=name)
    return data.subset(train_samples, test_samples)


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
        name, *part(known.train), *part(known.test), numbered(len(known.train)),
        torch.zeros(channels), torch.ones(channels),
    )  # fmt: skip
