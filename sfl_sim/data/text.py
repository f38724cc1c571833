"""Next-character prediction in Shakespeare's plays, by role: LEAF's files, or a text with speaker headings."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import TEST_SHARE, XY, Dataset, drawn, joined
from sfl_sim.data.download import data_root, own_path
from sfl_sim.data.leaf import read_leaf
from sfl_sim.errors import IS_POINTER, POINTER, ScenarioError
from sfl_sim.rng import stream

LENGTH = 80
"""Characters of a sequence, whose next character is the label."""
MAX_TEXT_BYTES = 20_000_000
"""Largest size of a text: its samples take a hundred times as much memory."""
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""Characters of LEAF, 80 of them; a token is an index into them. Any other character counts as a space."""


def shakespeare(
    root: str | Path | None = None,
    path: str | Path | None = None,
    owners: int | None = None,
    samples_per_owner: int | None = None,
) -> Dataset:
    """Shakespeare (McMahan et al. 2017; LEAF): sequences of 80 characters with the next one as label, by role.

    Args:
        root: folder of all data sets; LEAF's data/train and data/test are in its folder shakespeare.
        path: read this text instead: blocks of a line `ROLE:` and a speech, with empty lines between them, such as
            tinyshakespeare.txt. The last fifth of each role's text becomes test samples.
        owners: keep so many roles, drawn at random; None keeps all.
        samples_per_owner: keep a random window of so many training samples in a row of each role, and of a fifth as
            many test samples, and drop roles that do not have more (FedNAR and SMoFi: 2000;
            docs/methods/partitions.md#natural). None keeps all.
    """
    folder = data_root(root) / "shakespeare"
    play = own_path(path) if path else None

    def read() -> Dataset:
        if play:
            train, test = _read_play(play)
        else:
            train, test = read_leaf("shakespeare", folder, "-s niid --sf 1.0 -k 0 -t sample -tf 0.8", _decode)
        if samples_per_owner:
            train, test = _windows(train, samples_per_owner), _windows(test, max(1, samples_per_owner // 5))
        enough = sorted(train.keys() & test.keys())
        if not enough:
            raise ScenarioError("no role has so many", key="data.samples_per_owner", found=samples_per_owner)
        names = tuple({"\n": "newline", " ": "space"}.get(letter, letter) for letter in ALPHABET)
        return joined("shakespeare", train, test, drawn(enough, owners, "shakespeare"), names)

    options = {"path": str(play) if play else None, "owners": owners, "samples_per_owner": samples_per_owner}
    return cached(data_root(root), "shakespeare", options, [play or folder], read)


def _windows(part: dict[str, XY], n: int) -> dict[str, XY]:
    """Keep a random window of `n` samples of each role, the same in every run, and no role without more than `n`."""
    windows = {}
    for role, (x, y) in part.items():
        if len(y) > n:
            start = int(stream(0, f"window of {role}").integers(len(y) - n + 1))
            windows[role] = x[start : start + n], y[start : start + n]
    return windows


def _decode(x: list[Any], y: list[Any]) -> XY:
    if any(len(sequence) != LENGTH for sequence in x) or any(len(letter) != 1 for letter in y):
        raise ValueError(f"a sample is not {LENGTH} characters and the next one")
    return _tokens("".join(x)).reshape(-1, LENGTH), _tokens("".join(y)).astype(np.int64)


def _tokens(text: str) -> NDArray[np.uint8]:
    table = np.full(128, ALPHABET.index(" "), dtype=np.uint8)
    table[[ord(letter) for letter in ALPHABET]] = range(len(ALPHABET))
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    tokens: NDArray[np.uint8] = table[np.minimum(codes, 127)]  # 127 is no character
    return tokens


def _read_play(file: Path) -> tuple[dict[str, XY], dict[str, XY]]:
    try:
        if not 0 < file.stat().st_size <= MAX_TEXT_BYTES:  # files that end never have no size
            raise OSError(f"not of 1 to {MAX_TEXT_BYTES:,} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot be read: {error}", key="data.path", found=str(file)) from error
    if text.startswith(POINTER.decode()):
        raise ScenarioError(IS_POINTER, key="data.path", found=str(file))
    speeches = defaultdict(list)
    for block in re.split(r"\n\s*\n", text):
        role, _, speech = block.partition("\n")
        role = role.rstrip()
        if speech and role.endswith(":"):
            role = role[:-1]
            speeches[role].append(speech)
    if not speeches:
        raise ScenarioError("has no speeches below headings `ROLE:`", key="data.path", found=str(file))
    train, test = {}, {}
    for role, spoken in speeches.items():
        x, y = _sequences(spoken)
        first = len(y) - round(TEST_SHARE * len(y))
        train[role], test[role] = (x[:first], y[:first]), (x[first:], y[first:])
    return train, test


def _sequences(speeches: Iterable[str]) -> XY:
    """Cut speeches into sequences and next characters: each is one line after 80 spaces, as in LEAF's first version.

    The first test sequences of a role may look back into its training text, as in `shakespeare` of docs/datasets.md.
    """
    lines = [_tokens(" " * LENGTH + " ".join(speech.split()) + "\n") for speech in speeches]
    slices = np.concatenate([np.lib.stride_tricks.sliding_window_view(line, LENGTH + 1) for line in lines])
    return slices[:, :LENGTH], slices[:, LENGTH].astype(np.int64)
