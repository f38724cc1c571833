"""Data sets of torchvision, which knows where they are published, and unpacks, verifies and reads them."""

import contextlib
import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import Dataset
from sfl_sim.data.download import Remote, data_root, fetch, locked
from sfl_sim.data.transforms import channels_first

Published = Callable[[Any, Path], list[Remote]]

DIGITS = tuple("0123456789")
UNSOUND = (RuntimeError, ValueError, TypeError, LookupError, AssertionError)
"""Errors that torchvision raises for missing or damaged files."""


def mnist(root: str | Path | None = None, download: bool = True) -> Dataset:
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 grey images of 28 x 28, handwritten digits."""
    return _load("mnist", "MNIST", root, download, _idx_files, ["MNIST/raw"], (0.1307,), (0.3081,), DIGITS)


def fashion_mnist(root: str | Path | None = None, download: bool = True) -> Dataset:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28 x 28."""
    files = ["FashionMNIST/raw"]
    return _load("fashion_mnist", "FashionMNIST", root, download, _idx_files, files, (0.2860,), (0.3530,))


def cifar10(root: str | Path | None = None, download: bool = True) -> Dataset:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 colour images of 32 x 32."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _load("cifar10", "CIFAR10", root, download, _cifar_archive, ["cifar-10-batches-py"], mean, std)


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
        return _dataset("cifar100", train, test, names, mean, std)

    return cached(folder, "cifar100", {"superclasses": superclasses}, [pickles], read)


def svhn(root: str | Path | None = None, download: bool = True) -> Dataset:
    """SVHN (Netzer et al. 2011): 73,257 + 26,032 colour images of 32 x 32, digits of house numbers."""
    files = ["train_32x32.mat", "test_32x32.mat"]
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return _load("svhn", "SVHN", root, download, _mat_files, files, mean, std, DIGITS)


def _load(
    name: str,
    class_name: str,
    root: str | Path | None,
    download: bool,
    published: Published,
    files: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    label_names: Sequence[str] | None = None,
) -> Dataset:
    """Read a data set by torchvision's class of it, from the cache if its unpacked `files` did not change."""
    folder = data_root(root)

    def read() -> Dataset:
        train, test = _opened(name, class_name, folder, download, published)
        return _dataset(name, train, test, label_names or train.classes, mean, std)

    return cached(folder, name, {}, [folder / file for file in files], read)


def _opened(
    name: str,
    class_name: str,
    folder: Path,
    download: bool,
    published: Published,
) -> list[Any]:
    """Open torchvision's training and test set, and download them first if needed."""
    from torchvision import datasets  # torchvision takes a second to import

    dataset_class = getattr(datasets, class_name)
    parts = [{"split": "train"}, {"split": "test"}] if class_name == "SVHN" else [{"train": True}, {"train": False}]

    def open_both(unpack: bool) -> list[Any]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            opened = [dataset_class(folder, download=unpack, **part) for part in parts]
        for part in opened:
            x, y = len(part.data), len(_targets(part))
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


def _targets(part: Any) -> Any:
    return part.targets if hasattr(part, "targets") else part.labels  # SVHN's


def _images(part: Any) -> torch.Tensor:
    """Return the images as a contiguous tensor (N, C, H, W), as which only SVHN's are stored."""
    images = channels_first(part.data) if hasattr(part, "targets") else torch.from_numpy(part.data)
    return images.contiguous()


def _unpickled(file: Path) -> Any:
    return pickle.loads(file.read_bytes(), encoding="latin1")


def _dataset(
    name: str, train: Any, test: Any, label_names: Sequence[str], mean: Sequence[float], std: Sequence[float]
) -> Dataset:
    """Convert torchvision's training and test set; `mean` and `std` are those that the literature normalises with."""
    y_train, y_test = (torch.as_tensor(_targets(part)) for part in (train, test))
    return Dataset(
        name, _images(train), y_train, _images(test), y_test, tuple(label_names), torch.tensor(mean), torch.tensor(std)
    )
