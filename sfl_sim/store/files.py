"""Small JSON files that are whole or not there."""

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
"""Errors that no other file of the run would be spared."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` beside its place and move it there, so that nobody reads half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)


@contextmanager
def writing(run: Path) -> Iterator[None]:
    """Turn whatever fails because nothing can be written to the folder of a run into an OutputError."""
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
    """Return what is in a file; OSError if it is none, such as a pipe, on which one could wait for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return path.read_bytes()


def remove(path: Path) -> None:
    """Remove whatever lies there, if anything does; a link, but not what it leads to."""
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
