"""Text files of users: scenarios and profiles, read with bounds."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from sfl_sim.errors import ScenarioError

MAX_SCENARIO_BYTES = 1_000_000
MAX_TABLE_BYTES = 20_000_000


def read_text(path: Path, max_bytes: int, key: str | None = None) -> str:
    """Read a text file, whose path may begin with ~; a pipe or device, which could block, is not opened.

    Raises:
        ScenarioError: with the scenario `key` that named the file, if it cannot be read, is larger than `max_bytes`, or
            is not UTF-8.
    """
    error = partial(ScenarioError, key=key, file=str(path))
    try:
        path = Path(os.path.expanduser(path))
        if path.exists() and not os.path.isfile(path):
            raise error("cannot be read: Is a directory" if path.is_dir() else "cannot be read: Is no regular file")
        with path.open("rb") as file:
            # Some files of /proc never end, and have no size.
            raw = file.read(max_bytes + 1) if os.path.getsize(path) else b""
    except (OSError, ValueError) as reason:  # a ValueError tells of a name that no file can have
        if isinstance(reason, ScenarioError):
            raise
        raise error(f"cannot be read: {getattr(reason, 'strerror', reason)}") from None
    if len(raw) > max_bytes:
        raise error("is too large", found=f"{os.path.getsize(path)} bytes", allowed=f"at most {max_bytes}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        raise error("is not UTF-8 text", found=raw[reason.start : reason.end], line=line) from None
    if "\0" in text:
        raise error("is not text", found="\0", line=1 + text.count("\n", 0, text.index("\0")))
    return text
