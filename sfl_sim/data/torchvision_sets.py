"""The data sets that torchvision knows: it says where they are published, and unpacks, verifies and reads them."""

from __future__ import annotations

import contextlib
import io
import pickle
from typing import TYPE_CHECKING, Any

import torch

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import Dataset
from sfl_sim.data.download import Remote, data_root, fetch, locked
from sfl_sim.data.image_files import channels_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Published = Callable[[Any, Path], list[Remote]]

DIGITS = tuple("0123456789")
UNSOUND = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)
"""What torchvision raises for files that are not there or damaged."""


def mnist(root: str | Path | None = None, download: bool = True) -> Dataset:
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 grey images of 28 x 28, handwritten digits."""
    folder = data_root(root)

    def read() -> Dataset:
        train, test = _opened("mnist", "MNIST", folder, download, _idx_files)
        return _dataset("mnist", _images(train), _images(test), DIGITS, (0.1307,), (0.3081,))

    return cached(folder, "mnist", {}, [folder / "MNIST" / "raw"], read)


def fashion_mnist(root: str | Path | None = None, download: bool = True) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28."""
    folder = data_root(root)

    def read() -> Dataset:
        train, test = _opened("fashion_mnist", "FashionMNIST", folder, download, _idx_files)
        return _dataset("fashion_mnist", _images(train), _images(test), train.classes, (0.2860,), (0.3530,))

    return cached(folder, "fashion_mnist", {}, [folder / "FashionMNIST" / "raw"], read)


def cifar10(root: str | Path | None = None, download: bool = True) -> Dataset:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32."""
    folder = data_root(root)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

    def read() -> Dataset:
        train, test = _opened("cifar10", "CIFAR10", folder, download, _cifar_archive)
        return _dataset("cifar10", _images(train), _images(test), train.classes, mean, std)

    return cached(folder, "cifar10", {}, [folder / "cifar-10-batches-py"], read)


def cifar100(root: str | Path | None = None, download: bool = True, superclasses: bool = False) -> Dataset:
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32, 100 classes or 20 superclasses."""
    folder = data_root(root)
    pickles = folder / "cifar-100-python"
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)

    def read() -> Dataset:
        train, test = _opened("cifar100", "CIFAR100", folder, download, _cifar_archive)
        names = train.classes
        if superclasses:  # torchvision reads the fine labels only
            train.targets = _unpickled(pickles / "train")["coarse_labels"]
            test.targets = _unpickled(pickles / "test")["coarse_labels"]
            names = _unpickled(pickles / "meta")["coarse_label_names"]
        return _dataset("cifar100", _images(train), _images(test), names, mean, std)

    return cached(folder, "cifar100", {"superclasses": superclasses}, [pickles], read)


def svhn(root: str | Path | None = None, download: bool = True) -> Dataset:
    """SVHN (Netzer et al. 2011): 73,257 + 26,032 colour images of 32 x 32, digits of house numbers."""
    folder = data_root(root)
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

    def read() -> Dataset:
        parts = _opened("svhn", "SVHN", folder, download, _mat_files, ({"split": "train"}, {"split": "test"}))
        train, test = ((torch.from_numpy(part.data), part.labels) for part in parts)
        return _dataset("svhn", train, test, DIGITS, mean, std)

    return cached(folder, "svhn", {}, [folder / "train_32x32.mat", folder / "test_32x32.mat"], read)


def _opened(
    name: str,
    class_name: str,
    folder: Path,
    download: bool,
    published: Published,
    parts: Sequence[dict[str, Any]] = ({"train": True}, {"train": False}),
) -> list[Any]:
    """torchvision's training and test set, fetched first if need be."""
    from torchvision import datasets  # torchvision takes a second to import

    dataset_class = getattr(datasets, class_name)

    def open_both(unpack: bool) -> list[Any]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            opened = [dataset_class(folder, download=unpack, **part) for part in parts]
        for part in opened:
            x, y = len(part.data), len(part.labels if class_name == "SVHN" else part.targets)
            if x != y:
                raise RuntimeError(f"{name} has {x:,} images and {y:,} labels")
        return opened

    with contextlib.suppress(*UNSOUND):
        return open_both(unpack=False)
    remotes = published(dataset_class, folder)
    fetch(name, remotes, download)
    with locked(folder / name):
        with contextlib.suppress(*UNSOUND):
            return open_both(unpack=False)  # another process has unpacked them meanwhile
        for remote in remotes:
            if remote.file.suffixes == [".gz"]:  # MNIST's: torchvision takes any unpacked file for a sound one
                remote.file.with_suffix("").unlink(missing_ok=True)
        return open_both(unpack=True)  # it finds the sound archives and downloads none


def _cifar_archive(cifar: Any, folder: Path) -> list[Remote]:
    return [Remote((cifar.url,), folder / cifar.filename, f"md5:{cifar.tgz_md5}")]


def _idx_files(mnist: Any, folder: Path) -> list[Remote]:
    raw = folder / mnist.__name__ / "raw"
    return [
        Remote(tuple(mirror + file for mirror in mnist.mirrors), raw / file, f"md5:{md5}")
        for file, md5 in mnist.resources
    ]


def _mat_files(svhn: Any, folder: Path) -> list[Remote]:
    files = [svhn.split_list[split] for split in ("train", "test")]
    return [Remote((url,), folder / file, f"md5:{md5}") for url, file, md5 in files]


def _images(part: Any) -> tuple[torch.Tensor, Any]:
    return channels_first(part.data), part.targets


def _unpickled(file: Path) -> Any:
    return pickle.loads(file.read_bytes(), encoding="latin1")


def _dataset(
    name: str,
    train: tuple[torch.Tensor, Any],
    test: tuple[torch.Tensor, Any],
    label_names: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
) -> Dataset:
    """Of images (N, C, H, W) and labels, with the constants that the field normalises with."""
    x_train, x_test = train[0].contiguous(), test[0].contiguous()
    y_train, y_test = torch.as_tensor(train[1]), torch.as_tensor(test[1])
    names = tuple(label_names)
    return Dataset(name, x_train, y_train, x_test, y_test, names, torch.tensor(mean), torch.tensor(std))
