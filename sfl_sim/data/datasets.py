"""Labelled image sets, kept in memory as uint8, and where they come from.

A data set is the same in every run: splits and subsets have streams of their own, apart from the run's seed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sfl_sim.data.image_files import channels_first, list_images, read_images
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

TEST_SHARE = 0.2
"""Share of the samples that become test samples where a data set comes without a split."""


@dataclass(frozen=True, eq=False, slots=True)
class Dataset:
    """Training and test images with their labels.

    Attributes:
        name: as in `DATASETS`.
        x_train, x_test: uint8 (N, C, H, W).
        y_train, y_test: int64 (N,), labels 0 .. n_labels - 1.
        label_names: one for each label.
        mean, std: float32 (C,), of pixel values in [0, 1], to normalise with.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    label_names: tuple[str, ...]
    mean: Tensor
    std: Tensor

    @property
    def n_labels(self) -> int:
        """L."""
        return len(self.label_names)


def load(
    name: str,
    *,
    path: str | Path | None = None,
    image_size: int | None = None,
    root: str | Path | None = None,
    download: bool = True,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Dataset:
    """The data set `name` of `DATASETS`.

    Args:
        name: a key of `DATASETS`.
        path: folder of the user's own images (`image_folder`).
        image_size: pixels of each side that images are resized to (`image_folder`); None keeps their own.
        root: torchvision's folder (`cifar10`, `fashion_mnist`); None is $SFL_SIM_DATA or ~/.cache/sfl-sim.
        download: fetch torchvision's files if they are not in `root`.
        train_samples, test_samples: keep so many, stratified and the same in every run; None keeps all.

    Raises:
        ScenarioError: unknown name, an option that the data set does not have, missing or unreadable files,
            more samples wanted than there are.
    """
    if name not in DATASETS:
        raise ScenarioError("unknown data set", key="data.name", found=name, allowed=DATASETS)
    loader = DATASETS[name]
    accepted = inspect.signature(loader).parameters
    options = {"path": path, "image_size": image_size, "root": root}
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option not in accepted:
            raise ScenarioError(f"not an option of {name}", key=f"data.{option}", found=str(value))
    if "download" in accepted:
        given["download"] = download
    data = loader(**given)
    x_train, y_train = _subset(data.x_train, data.y_train, train_samples, "data.train_samples")
    x_test, y_test = _subset(data.x_test, data.y_test, test_samples, "data.test_samples")
    return replace(data, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def digits() -> Dataset:
    """scikit-learn's handwritten digits: 1,797 grey images of 8 x 8; needs no files and no network."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    y = torch.from_numpy(bunch.target).long()
    return _split_off_test("digits", x, y, [str(label) for label in bunch.target_names])


def fashion_mnist(root: str | Path | None = None, download: bool = True) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28."""
    train, test = _torchvision("FashionMNIST", "fashion_mnist", root, download)
    return _from_torchvision("fashion_mnist", train, test, mean=(0.2860,), std=(0.3530,))


def cifar10(root: str | Path | None = None, download: bool = True) -> Dataset:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32."""
    train, test = _torchvision("CIFAR10", "cifar10", root, download)
    return _from_torchvision("cifar10", train, test, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))


def image_folder(path: str | Path | None = None, image_size: int | None = None) -> Dataset:
    """The user's own images: one folder for each class, in `path` or in both `path`/train and `path`/test.

    Without train and test folders a stratified fifth of the images becomes the test set. Images are grey if
    all files are, else RGB.

    Raises:
        ScenarioError: no path, fewer than two classes, unequal classes in train and test, an unreadable file,
            or files of unequal size without an `image_size`.
    """
    if path is None:
        raise ScenarioError("image_folder needs the folder of the images", key="data.path")
    folder = Path(path).expanduser()
    if not ((folder / "train").is_dir() and (folder / "test").is_dir()):
        files, y, names = list_images(folder)
        return _split_off_test("image_folder", read_images(files, image_size), y, names)
    train_files, y_train, names = list_images(folder / "train")
    test_files, y_test, test_names = list_images(folder / "test")
    if names != test_names:
        differing = ", ".join(sorted(set(names) ^ set(test_names)))
        raise ScenarioError(f"train and test in {folder} do not share the classes {differing}", key="data.path")
    x_train, x_test = read_images(train_files + test_files, image_size).tensor_split([len(train_files)])
    return _measured("image_folder", x_train, y_train, x_test, y_test, names)


DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "image_folder": image_folder,
}


def _torchvision(class_name: str, name: str, root: str | Path | None, download: bool) -> list[Any]:
    """torchvision's training and test set."""
    import torchvision

    folder = Path(root or os.environ.get("SFL_SIM_DATA") or "~/.cache/sfl-sim").expanduser()

    def open_sets(download: bool) -> list[Any]:
        dataset_class = getattr(torchvision.datasets, class_name)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return [dataset_class(folder, train=train, download=download) for train in (True, False)]

    try:
        return open_sets(download=False)
    except RuntimeError:
        reason = "data.download is off"
    if download:
        try:
            return open_sets(download=True)
        except (RuntimeError, OSError) as error:
            reason = f"downloading it failed ({' '.join(str(error).split())})"
    raise ScenarioError(
        f"{name} is not in {folder} and {reason}: put torchvision's files there, or set SFL_SIM_DATA or "
        "data.root to a folder that has them",
        key="data.name",
    )


def _from_torchvision(name: str, train: Any, test: Any, mean: Sequence[float], std: Sequence[float]) -> Dataset:
    return Dataset(
        name,
        x_train=channels_first(train.data), y_train=torch.as_tensor(train.targets),
        x_test=channels_first(test.data), y_test=torch.as_tensor(test.targets),
        label_names=tuple(train.classes), mean=torch.tensor(mean), std=torch.tensor(std),
    )  # fmt: skip


def _split_off_test(name: str, x: Tensor, y: Tensor, label_names: Sequence[str]) -> Dataset:
    """A data set that comes without a split gets a stratified one."""
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[_stratified(y, round(TEST_SHARE * len(y)), f"{name} test split")] = True
    return _measured(name, x[~is_test], y[~is_test], x[is_test], y[is_test], label_names)


def _measured(
    name: str, x_train: Tensor, y_train: Tensor, x_test: Tensor, y_test: Tensor, label_names: Sequence[str]
) -> Dataset:
    """A data set whose mean and std are those of its training images."""
    std, mean = torch.std_mean(x_train.float(), dim=(0, 2, 3), correction=0)
    std = std.clamp_min(1)  # so that a constant channel can be divided by it
    return Dataset(name, x_train, y_train, x_test, y_test, tuple(label_names), mean / 255, std / 255)


def _subset(x: Tensor, y: Tensor, n_samples: int | None, key: str) -> tuple[Tensor, Tensor]:
    """`n_samples` of the samples, stratified; all for None."""
    if n_samples is None:
        return x, y
    if not 1 <= n_samples <= len(y):
        raise ScenarioError("not so many samples there", key=key, found=n_samples, allowed=f"1 to {len(y)}")
    chosen = _stratified(y, n_samples, key)
    return x[chosen], y[chosen]


def _stratified(y: Tensor, n_samples: int, stream_name: str) -> Tensor:
    """Ascending indices of `n_samples` samples: of each label its share, rounded down or up."""
    shuffled = torch.from_numpy(stream(0, stream_name).permutation(len(y)))
    sorted_by_label = shuffled[y[shuffled].argsort(stable=True)]
    evenly_spaced = torch.arange(n_samples) * len(y) // n_samples
    return sorted_by_label[evenly_spaced].sort().values
