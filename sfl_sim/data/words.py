"""Texts of many people as sequences of words: Sentiment140 and Reddit in LEAF's files, and Stack Overflow."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import Dataset, drawn, joined
from sfl_sim.data.download import absent, data_root
from sfl_sim.data.leaf import read_leaf
from sfl_sim.errors import ScenarioError

N_WORDS = 10_000
"""Largest size of a vocabulary, with `PAD` and `UNKNOWN`: that of LEAF's Reddit."""
PAD, UNKNOWN = "<PAD>", "<UNK>"
"""Words 0 and 1 of a vocabulary: what fills a sequence up, and any word that is not in it."""
TWEET, COMMENT, POST = 25, 10, 20
"""Words of a sequence of Sentiment140 and Reddit (LEAF), and of Stack Overflow (Reddi et al. 2021)."""
Texts = tuple[list[list[str]], list[Any]]
"""Sequences of words of one person, and for each a label or the next word."""


def sent140(root: str | Path | None = None, owners: int | None = None) -> Dataset:
    """Sentiment140 (Go et al. 2009; LEAF): the first 25 words of tweets, negative or positive, by user.

    LEAF takes the words of GloVe; here they are the 10,000 most frequent ones of the training samples, in lower case.

    Args:
        root: folder of all data sets; LEAF's data/train and data/test are in its folder sent140.
        owners: keep so many users, drawn at random; None keeps all.
    """
    folder = data_root(root) / "sent140"

    def decode(x: list[Any], y: list[Any]) -> Texts:
        if not {int(label) for label in y} <= {0, 1}:
            raise ValueError("a label is neither 0 nor 1")
        return [re.findall(r"[\w']+|[.,!?;]", row[4].lower())[:TWEET] for row in x], [int(label) for label in y]

    def read() -> Dataset:
        parts = read_leaf("sent140", folder, "-s niid --sf 1.0 -k 3 -t sample", decode)
        return _dataset("sent140", *parts, owners=owners, length=TWEET, labels=("negative", "positive"))

    return cached(data_root(root), "sent140", {"owners": owners}, [folder], read)


def reddit(root: str | Path | None = None, owners: int | None = None) -> Dataset:
    """Reddit (Caldas et al. 2018; LEAF): 10 words of comments with the next one as label, by user.

    Comments are filled up: with `data.targets: all`, set `train.ignore_index: 0`.

    Args:
        root: folder of all data sets; LEAF's data/train and data/test are in its folder reddit.
        owners: keep so many users, drawn at random; None keeps all.
    """
    folder = data_root(root) / "reddit"

    def decode(x: list[Any], y: list[Any]) -> Texts:
        sequences = list(chain.from_iterable(x))
        if any(len(sequence) != COMMENT for sequence in sequences):
            raise ValueError(f"a sequence is not {COMMENT} words")
        return sequences, [words[-1] for about in y for words in about["target_tokens"]]

    def read() -> Dataset:
        parts = read_leaf("reddit", folder, "", decode)
        return _dataset("reddit", *parts, owners=owners, length=COMMENT)

    return cached(data_root(root), "reddit", {"owners": owners}, [folder], read)


def stackoverflow(root: str | Path | None = None, owners: int | None = None) -> Dataset:
    """Stack Overflow (Reddi et al. 2021): 20 words of posts with the next one as label, by user.

    Only users of the published training file that the test file has as well. Posts are cut after their 20th word, and
    filled up: with `data.targets: all`, set `train.ignore_index: 0`. Needs h5py.

    Args:
        root: folder of all data sets; stackoverflow_train.h5 and stackoverflow_test.h5 of TensorFlow Federated are in
            its folder stackoverflow.
        owners: keep so many users, drawn at random; None keeps all: far more than fit in memory.
    """
    folder = data_root(root) / "stackoverflow"

    def read() -> Dataset:
        train, test = (_read_posts(folder, f"stackoverflow_{part}.h5") for part in ("train", "test"))
        with train, test:
            posts = [file["examples"] for file in (train, test)]
            kept = drawn(sorted(posts[0].keys() & posts[1].keys()), owners, "stackoverflow")
            parts = [{user: _posts(of[user]["tokens"][()]) for user in kept} for of in posts]
        return _dataset("stackoverflow", *parts, owners=None, length=POST)

    return cached(data_root(root), "stackoverflow", {"owners": owners}, [folder], read)


def _read_posts(folder: Path, name: str) -> Any:
    """Open a file of TensorFlow Federated: its group `examples` has one of each user, with an array `tokens`."""
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise ScenarioError("needs h5py: pip install h5py", key="data.name", found="stackoverflow") from error
    path = folder / name
    if not path.is_file():
        remedy = "load it once with tff.simulation.datasets.stackoverflow.load_data, copy its *.h5"
        raise absent("stackoverflow", folder, f"{name} is missing", remedy)
    try:
        file = h5py.File(path, "r")
        if "examples" not in file:
            raise OSError("no group `examples`")
    except OSError as error:
        raise ScenarioError(f"{path} is no file of TensorFlow Federated: {error}", key="data.name") from error
    return file


def _posts(posts: Iterable[bytes]) -> Texts:
    """Cut posts of one user to the first words and the word after them, between a begin and an end."""
    texts: Texts = ([], [])
    for post in posts:
        words = ["<BOS>", *post.decode("utf-8", "replace").split(), "<EOS>"]
        words = (words + [PAD] * (POST + 1))[: POST + 1]
        texts[0].append(words[:POST])
        texts[1].append(words[POST])
    return texts


def vocabulary(words: Iterable[str]) -> tuple[str, ...]:
    """Return the most frequent words, those of equal frequency by name, after `PAD` and `UNKNOWN`.

    >>> vocabulary(["b", "a", "c", "a", "<PAD>", "b"])
    ('<PAD>', '<UNK>', 'a', 'b', 'c')
    """
    counts = Counter(words)
    ranked = sorted(counts.keys() - {PAD, UNKNOWN}, key=lambda word: (-counts[word], word))
    return PAD, UNKNOWN, *ranked[: N_WORDS - 2]


def _dataset(
    name: str,
    train: Mapping[str, Texts],
    test: Mapping[str, Texts],
    *,
    owners: int | None,
    length: int,
    labels: Sequence[str] = (),
) -> Dataset:
    """Make a data set of texts by person; without `labels`, the label of a text is the word after it."""
    said = (words for texts, after in train.values() for words in (*texts, [] if labels else after))
    words = vocabulary(chain.from_iterable(said))
    number = {word: i for i, word in enumerate(words)}

    def numbered(part: Mapping[str, Texts]) -> dict[str, Any]:
        found = {}
        for person, (texts, after) in part.items():
            x = np.zeros((len(texts), length), dtype=np.int32)
            for row, text in zip(x, texts, strict=True):
                row[: len(text)] = [number.get(word, 1) for word in text]
            y = after if labels else [number.get(word, 1) for word in after]
            found[person] = x, np.asarray(y, dtype=np.int64)
        return found

    enough = [person for person in train if train[person][1] and test[person][1]]
    return joined(name, numbered(train), numbered(test), drawn(enough, owners, name), labels or words)
