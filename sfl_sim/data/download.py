"""Folder of the data sets, and downloads of published ones: resumed if interrupted, and verified."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock

from sfl_sim.errors import ScenarioError

TIMEOUT_S = 30
"""Longest silence of a server."""
CHUNK_BYTES = 1 << 20


def data_root(root: str | Path | None) -> Path:
    """Return the folder of all data sets: `root`, or else $SFL_SIM_DATA, or else ~/.cache/sfl-sim."""
    return Path(os.path.expanduser(root or os.environ.get("SFL_SIM_DATA") or "~/.cache/sfl-sim"))


def own_path(path: str | Path) -> Path:
    """Return the absolute path, without links, of a user's own file or folder; ~ is the home folder."""
    return Path(os.path.realpath(os.path.expanduser(path)))


@dataclass(frozen=True)
class Remote:
    """Published file: the addresses it can be downloaded from, its local path, and `md5:...` or `sha256:...` of it."""

    urls: tuple[str, ...]
    file: Path
    checksum: str


def fetch(name: str, remotes: Sequence[Remote], download: bool) -> None:
    """Download those of the files of the data set `name` that are missing or damaged.

    Raises ScenarioError if some are missing, and `download` is off or failed.
    """
    missing = [remote for remote in remotes if not _is_sound(remote.file, remote.checksum)]
    if not missing:
        return
    reason = "data.download is off"
    if download:
        try:
            for remote in missing:
                _fetch_from_any(remote)
            return
        except (OSError, HTTPException) as error:
            reason = f"downloading it failed ({' '.join(str(error).split())})"
    raise absent(name, missing[0].file.parent, reason, "download " + ", ".join(remote.urls[0] for remote in missing))


def fetch_folder(name: str, folder: Path, remote: Remote, download: bool) -> None:
    """Make `folder`, if it is missing, from the published archive `remote`: its content, or its folder of that name.

    Raises ScenarioError if folder and archive are missing, and `download` is off or failed.
    """
    if folder.is_dir():
        return
    fetch(name, [remote], download)
    from torchvision.datasets.utils import extract_archive  # torchvision takes a second to import

    with locked(folder):
        if folder.is_dir():  # another process has unpacked it meanwhile
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        extract_archive(remote.file, partial)
        inner = partial / folder.name
        (inner if inner.is_dir() else partial).rename(folder)
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Let one process at a time make `target`. The lock, a file beside it, does not stay: who waits for it notices."""
    lock = target.with_name(f".{target.name}.lock")
    with FileLock(lock):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


class Absent(ScenarioError):
    """Failure to find the files of a data set."""


def absent(name: str, place: Path, reason: str, remedy: str) -> Absent:
    """Make the error for a data set that is missing."""
    return Absent(
        f"{name} is not in {place} and {reason}: {remedy} to that folder, "
        "or set SFL_SIM_DATA or data.root to one that has it",
        key="data.name",
    )


def _fetch_from_any(remote: Remote) -> None:
    remote.file.parent.mkdir(parents=True, exist_ok=True)
    with locked(remote.file):
        if _is_sound(remote.file, remote.checksum):  # another process has fetched it meanwhile
            return None
        for url in remote.urls[:-1]:
            try:
                return _fetch_from(url, remote)
            except (OSError, HTTPException):
                pass  # the next may do better
        return _fetch_from(remote.urls[-1], remote)


def _fetch_from(url: str, remote: Remote) -> None:
    """Download and verify a file. Raises OSError or HTTPException; what was received is kept for the next attempt."""
    part = remote.file.with_name(f"{remote.file.name}.part")
    resumed = part.exists()
    _append(url, part)
    if _is_sound(part, remote.checksum):
        part.replace(remote.file)
        return
    part.unlink()
    if not resumed:
        raise OSError(f"{url} is not the file with the checksum {remote.checksum}")
    _fetch_from(url, remote)  # the first part may have been of another file


def _append(url: str, part: Path) -> None:
    """Download the rest of `part`, or all of it from a server that cannot resume."""
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"User-Agent": "sfl-sim"} | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        response = urlopen(request, timeout=TIMEOUT_S)
    except HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # it is complete
        raise
    with response, part.open("ab" if response.status == HTTPStatus.PARTIAL_CONTENT else "wb") as file:
        print(f"downloading {url} ({(response.length or 0) / 1e6:.1f} MB)", file=sys.stderr)
        shutil.copyfileobj(response, file, CHUNK_BYTES)
        if response.length:
            raise OSError(f"{url} broke off {response.length:,} bytes before its end; run again to resume")


def _is_sound(file: Path, checksum: str) -> bool:
    if not file.is_file():
        return False
    kind, _, expected = checksum.partition(":")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest() == expected
