"""Small JSON files that are complete or absent."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sfl_sim.errors import OutputError, ScenarioError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Errors that affect every file of the run, such as a full disk."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to a temporary file and move it to its place, so that no reader sees a part of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)


@contextmanager
def writing(run: Path) -> Iterator[None]:
    """Turn any error of writing to the folder of a run into an OutputError."""
    try:
        yield
    except Exception as error:
        if cannot := _unwritable(error, run):
            raise cannot from error
        raise


def _unwritable(error: Exception, run: Path) -> OutputError | None:
    if isinstance(error, OutputError):
        return None
    if not run.exists():
        return OutputError(f"cannot write to {run}: the folder is gone")
    cause = error.__cause__ if isinstance(error, ScenarioError) else error  # a report's, which may be written alone
    if isinstance(cause, OSError) and cause.errno in FULL:
        return OutputError(f"cannot write to {run}: {cause.strerror}; --resume goes on from what is there")
    return None


def read_regular(path: Path) -> bytes:
    """Read a file. Raises OSError if it is no regular file, such as a pipe, which could block for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return path.read_bytes()


def remove(path: Path) -> None:
    """Remove a file, folder or link, if there is one; the target of a link is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty if there is none."""
    try:
        found = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the folder's manifest.json; empty if there is none."""
    return read_json(folder / "manifest.json")
