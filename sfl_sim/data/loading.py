"""Data sets by name. Exact settings, layouts on disk and sources are in docs/datasets.md.

A data set is the same in every run: splits and subsets are drawn from streams that do not depend on the run's seed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from sfl_sim.data.builtin import diabetes, digit_masks, digit_pairs, digits, synthetic
from sfl_sim.data.dataset import Dataset
from sfl_sim.data.download import Absent
from sfl_sim.data.folders import cinic10, image_folder, tiny_imagenet
from sfl_sim.data.known import FOR_TIMING, KNOWN, tokens, without_pixels
from sfl_sim.data.leaf import celeba, femnist
from sfl_sim.data.own import as_dataset
from sfl_sim.data.speech import speech_commands
from sfl_sim.data.text import shakespeare
from sfl_sim.data.torchvision_sets import cifar10, cifar100, fashion_mnist, mnist, svhn
from sfl_sim.data.words import reddit, sent140, stackoverflow
from sfl_sim.errors import ScenarioError
from sfl_sim.installed import find

__all__ = ["DATASETS", "Dataset", "load"]

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

    Raises:
        ScenarioError: unknown name, an option that the data set does not have, missing or unreadable files,
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
