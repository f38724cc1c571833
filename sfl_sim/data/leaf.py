"""FEMNIST, CelebA, and the JSON files of LEAF (Caldas et al. 2018) with the samples of each user."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import XY, Dataset, drawn, joined, measured
from sfl_sim.data.download import absent, data_root
from sfl_sim.errors import ScenarioError

LABELS = string.digits + string.ascii_uppercase + string.ascii_lowercase
FACE = 84
"""Height and width of a face, as LEAF's model resizes it."""
MIN_SAMPLES = 64
"""Fewest samples, training and test together, of a writer that is kept: LEAF's `-k 64` (docs/methods/partitions.md)."""


def femnist(root: str | Path | None = None, owners: int | None = None) -> Dataset:
    """FEMNIST (Caldas et al. 2018): grey images of 28 x 28, 62 handwritten digits and letters, by writer.

    Writers with fewer than `MIN_SAMPLES` samples are left out.

    Args:
        root: folder of all data sets; LEAF's data/train and data/test are in its folder femnist.
        owners: keep so many writers, drawn at random; None keeps all.
    """
    folder = data_root(root) / "femnist"

    def read() -> Dataset:
        train, test = read_leaf("femnist", folder, "-s niid --sf 1.0 -k 64 -t sample", _decode)
        enough = [writer for writer in train if len(train[writer][1]) + len(test[writer][1]) >= MIN_SAMPLES]
        return measured(joined("femnist", train, test, drawn(enough, owners, "femnist"), LABELS))

    return cached(data_root(root), "femnist", {"owners": owners}, [folder], read)


def celeba(root: str | Path | None = None, owners: int | None = None) -> Dataset:
    """CelebA (Liu et al. 2015; LEAF): faces of 84 x 84, smiling or not, by celebrity.

    Args:
        root: folder of all data sets; LEAF's data/train, data/test and data/raw/img_align_celeba are in its folder
            celeba.
        owners: keep so many celebrities, drawn at random; None keeps all, which take 4 GB.
    """
    folder = data_root(root) / "celeba"
    images = folder / "raw" / "img_align_celeba"

    def decode(x: list[Any], y: list[Any]) -> tuple[list[str], NDArray[np.int64]]:
        labels = np.asarray(y, dtype=np.int64)
        if not (labels == np.asarray(y)).all() or not set(labels.tolist()) <= {0, 1}:
            raise ValueError("a label is neither 0 nor 1")
        if any(name != Path(name).name for name in x):
            raise ValueError("an image is not named by its file alone")
        return x, labels

    def faces(name: str) -> NDArray[np.uint8]:
        with Image.open(images / name) as image:
            small = image.convert("RGB").resize((FACE, FACE))
            return np.asarray(small, dtype=np.uint8).transpose(2, 0, 1)

    def read() -> Dataset:
        parts = read_leaf("celeba", folder, "-s niid --sf 1.0 -k 5 -t sample", decode)
        kept = drawn(sorted(parts[0]), owners, "celeba")
        train, test = ({who: (np.stack([*map(faces, part[who][0])]), part[who][1]) for who in kept} for part in parts)
        return measured(joined("celeba", train, test, kept, ("not smiling", "smiling")))

    return cached(data_root(root), "celeba", {"owners": owners}, [folder], read)


SamplePair = TypeVar("SamplePair", bound="tuple[Any, Any]")


def read_leaf(
    name: str, folder: Path, arguments: str, decode: Callable[[list[Any], list[Any]], SamplePair]
) -> tuple[dict[str, SamplePair], dict[str, SamplePair]]:
    """Read training and test samples of each user from the JSON files in `folder`/train and `folder`/test.

    Args:
        name: name of the data set.
        folder: folder of the files.
        arguments: arguments of LEAF's preprocess.sh that make the files, for the error if there are none.
        decode: converts x and y of a user from JSON to samples and labels, equally many.

    Raises ScenarioError for no files, unreadable files, a user in two of them, or a split by user instead of by sample.
    """
    parts = []
    for part in ("train", "test"):
        files = sorted((folder / part).glob("[!.]*.json"))  # without what a Mac adds on foreign disks
        if not files:
            script = f"run `data/{name}/preprocess.sh {arguments}`" if arguments else f"follow data/{name}/README.md"
            remedy = f"{script} of https://github.com/TalwalkarLab/leaf, copy"
            raise absent(name, folder, f"{part}/*.json is missing", f"{remedy} its data/train and data/test")
        users: dict[str, SamplePair] = {}
        for file in files:
            try:
                content = json.loads(file.read_bytes())
                for user in content["users"]:  # user_data holds others too, without samples
                    if user in users:
                        raise ValueError(f"{user} is there already")
                    users[user] = decode(content["user_data"][user]["x"], content["user_data"][user]["y"])
                    if len(users[user][0]) != len(users[user][1]):
                        raise ValueError(f"{user} has not as many x as y")
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise ScenarioError(f"{file} is not {name} in LEAF's JSON: {error}", key="data.name") from error
        parts.append(users)
    train, test = parts
    if strangers := sorted(train.keys() ^ test.keys()):
        raise ScenarioError(
            f"{folder} must hold the same users in train and test (LEAF's `-t sample`), unlike {strangers[0]}",
            key="data.name",
        )
    return train, test


def _decode(x: list[Any], y: list[Any]) -> XY:
    pixels = np.asarray(x, dtype=np.float32).reshape(-1, 1, 28, 28) * 255
    labels = np.asarray(y, dtype=np.int64)
    if not (((pixels >= 0) & (pixels <= 255)).all() and ((labels >= 0) & (labels < len(LABELS))).all()):
        raise ValueError(f"pixels are not in 0 to 1, or labels not in 0 to {len(LABELS) - 1}")
    return pixels.round().astype(np.uint8), labels
