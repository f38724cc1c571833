"""Cache of data sets as they were read: one file each, mapped into memory, so that parallel runs share its pages."""

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfl_sim.data.dataset import Dataset

FOLDER = "sfl-sim-cache"
VERSION = 1
"""Version of the loaders: raise it when one of them reads the same files differently."""


def cached(
    root: Path,
    name: str,
    options: Mapping[str, str | int | None],
    sources: Sequence[Path],
    read: Callable[[], Dataset],
) -> Dataset:
    """Return the result of `read()`, taken from the cache if these sources were read with these options before.

    A cache file that is damaged, unknown or older than its sources is written again. Nothing is cached where files
    cannot be written, nor if the sources change while they are read: data that `read` downloads is cached by the next
    run. The tensors are private mappings of the file: writing to one changes neither the file nor another process.

    Args:
        root: folder of the data sets, in which the cache is the folder `FOLDER`.
        name: name of the data set.
        options: all else on which the result depends.
        sources: files and folders that are read; any changed name, size or time below them is noticed.
        read: reads the sources, downloading them first if needed.
    """
    asked = json.dumps([VERSION, name, dict(options)])
    file = root / FOLDER / f"{name}-{hashlib.blake2b(asked.encode(), digest_size=4).hexdigest()}.safetensors"
    fingerprint = _fingerprint(sources)
    dataset = _open(file, asked, fingerprint)
    if dataset is None:
        dataset = read()
        if _fingerprint(sources) == fingerprint:
            _save(file, asked, fingerprint, dataset)
            dataset = _open(file, asked, fingerprint) or dataset
    return dataset


def _open(file: Path, asked: str, fingerprint: str) -> Dataset | None:
    try:
        with safe_open(file, "pt") as archive:
            notes = archive.metadata() or {}
            if (notes["asked"], notes["sources"]) != (asked, fingerprint):
                return None
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118  (it is no mapping)
        if notes["checksum"] != _checksum(tensors):
            return None
        names: dict[str, Any] = {key: tuple(json.loads(notes[key])) for key in ("label_names", "owner_names")}
        return Dataset(notes["name"], **tensors, **names)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):  # not there, or not made by `_save`
        return None


def _save(file: Path, asked: str, fingerprint: str, data: Dataset) -> None:
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    tensors = {key: value.contiguous() for key, value in values.items() if isinstance(value, Tensor)}
    notes = {
        "asked": asked, "sources": fingerprint, "checksum": _checksum(tensors), "name": data.name,
        "label_names": json.dumps(data.label_names), "owner_names": json.dumps(data.owner_names),
    }  # fmt: skip
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(tensors, partial, notes)
            partial.chmod(0o666 & ~_umask())  # safetensors lets nobody else read it
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, SafetensorError):  # a disk that is full or only to be read: the next run reads the sources again
        pass


def _umask() -> int:
    umask = os.umask(0)  # it cannot be read without being set
    os.umask(umask)
    return umask


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    checksum = 0
    for key in sorted(tensors):
        checksum = zlib.crc32(tensors[key].numpy().data, checksum)
    return str(checksum)


def _fingerprint(sources: Sequence[Path]) -> str:
    """Hash the names, sizes and times of all files, relative to their sources.

    Raises OSError for what is neither a file nor a folder, such as a pipe, and would be read for ever.
    """
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        for file in _files(source):
            try:
                about = os.stat(file)
            except OSError:  # a link to nowhere
                continue
            if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                raise OSError(errno.EINVAL, "is neither a file nor a folder", file)
            name = os.fsencode(os.path.relpath(file, source))
            digest.update(name + f"\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _files(source: Path) -> Iterator[str]:
    yield str(source)
    for folder, names in walk(source):
        yield from (os.path.join(folder, name) for name in names)


def walk(source: Path) -> Iterator[tuple[str, list[str]]]:
    """Generate the folders below `source` and itself, each with the sorted names of its files.

    Links are followed, but no folder is entered twice: they may lead back. Those that are not entered count as files.
    """
    entered = {os.path.realpath(source)}
    for folder, folders, names in os.walk(source, followlinks=True):
        new = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders.clear()
        for name, real in new.items():
            (names if real in entered else folders).append(name)
            entered.add(real)
        yield folder, sorted(names)
