"""Files that are complete or absent, and stay after a power failure; their checksums."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, get_args

from sfl_sim.errors import OutputError, ScenarioError
from sfl_sim.store.schema import FolderKind, tables

SUMS = "SHA256SUMS"
"""Name of the file that `seal` writes."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
"""Errors that affect every file of the run, such as a full disk."""


def as_file_names(texts: Iterable[str]) -> Iterator[str]:
    """Make texts, such as variants' names, the names of files or folders, which cannot lead to another folder.

    They differ: one that was given before gets a number, `name-2`.
    """
    taken: set[str] = set()
    for text in texts:
        name = re.sub(r"[^\w=.,-]+", "_", text).lstrip(".") or "_"
        name = next(free for n in count(1) if (free := f"{name}-{n}" if n > 1 else name) not in taken)
        taken.add(name)
        yield name


def write_file(path: Path, content: bytes) -> None:
    """Write a file beside its place, and move it there when it is on the disk: no reader sees a part of it.

    A link at either place is replaced, not followed: the folder may come from somebody else.
    """
    part = path.with_name(path.name + ".part")
    remove(part)
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:  # Ctrl-C, too
        remove(part)
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` as `write_file` does."""
    write_file(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def settle(folder: Path) -> None:
    """Wait until a folder's list of files is on the disk."""
    if os.name != "posix":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(folder: Path, *patterns: str) -> None:
    """Write the checksums of the files of a folder, as `sha256sum --check` reads them, when all are on the disk.

    Args:
        patterns: of the files' names, relative to the folder.
    """
    lines = []
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file()):
        with open(path, "r+b") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(folder).as_posix()}\n")
            os.fsync(file.fileno())
    write_file(folder / SUMS, "".join(lines).encode())
    settle(folder)


def damaged(folder: Path) -> list[str]:
    """Return the names of the files that are not what they were when the folder was sealed, or of the seal itself.

    So are files that commands read, but that have no checksum there.
    """
    try:
        sums = _sums(folder)
    except (OSError, ValueError):
        return [SUMS]
    if not sums:
        return [SUMS]
    changed = [name for name, expected in sums.items() if not _is_sound(folder / name, expected)]
    return changed + sorted(name for name in _readable(folder) - set(sums) if (folder / name).exists())


def _readable(folder: Path) -> set[str]:
    """Return the names that files have which commands read in folders of any kind."""
    described = [table for kind in get_args(FolderKind) for table in tables(kind).values() if not table.later]
    stored = {table.file for table in described}
    paths = [path for kind in ("safetensors", "json") for path in folder.glob(f"checkpoints/*.{kind}")]
    models = {path.relative_to(folder).as_posix() for path in paths}
    return stored | models | {"manifest.json", "scenario.yaml", "whatif.json"}


def sealed(folder: Path) -> set[str]:
    """Return the names of the files that have checksums in a folder; none if it is not sealed."""
    try:
        return set(_sums(folder))
    except (OSError, ValueError):
        return set()


def _sums(folder: Path) -> dict[str, str]:
    """Read the checksums of a folder's files, by name."""
    lines = [line.split("  ", 1) for line in read_regular(folder / SUMS).decode().splitlines()]
    return {name: expected for expected, name in lines}


def _is_sound(path: Path, expected: str) -> bool:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == expected
    except OSError:
        return False


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
        return OutputError(f"cannot write to {run}: {cause.strerror}")
    return None


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read it. Raises OSError if it is no regular file, such as a pipe, which could block for ever.

    What has no size, as the kernel's log has none, is read as empty: it could block, too.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return open(path if path.stat().st_size else os.devnull, "rb")


def read_regular(path: Path) -> bytes:
    """Read a file as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def remove(path: Path) -> None:
    """Remove a file, folder or link, if there is one; the target of a link is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def contents(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError or ValueError, with the file's name, if it cannot be read."""
    try:
        return json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty if there is none."""
    try:
        content = contents(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


MODEL = "checkpoint"
"""Name, without ending, of a trial's final model; those of rounds before it have more behind it (`kept_name`)."""


def kept_name(round: int | str = "") -> str:
    """Return the name, without ending, of the model that a trial keeps of a round, or calls so; "": how all begin."""
    return f"{MODEL}-{round:06d}" if isinstance(round, int) else f"{MODEL}-{round}"


def models_of(run: Path) -> dict[tuple[Any, Any], Path]:
    """Return the files of a run's final models, by variant and seed; without those that name none."""
    return {(variant, seed): max(files.items())[1] for (variant, seed), files in all_models_of(run).items()}


def all_models_of(run: Path) -> dict[tuple[Any, Any], dict[int, Path]]:
    """Return the files of a run's models by variant and seed, and then by round."""
    models: dict[tuple[Any, Any], dict[int, Path]] = {}
    for path in sorted((run / "checkpoints").glob("*.json")):  # that of the last round comes last
        about = read_json(path)
        if isinstance(variant := about.get("variant"), str) and isinstance(seed := about.get("seed"), int):
            models.setdefault((variant, seed), {})[about.get("round", 0)] = path.with_suffix(".safetensors")
    return models


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the folder's manifest.json; empty if there is none."""
    return read_json(folder / "manifest.json")
