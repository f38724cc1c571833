"""Lock that lets one process at a time write a run's folder."""

import os
import platform
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock, SoftFileLock, Timeout

from sfl_sim.errors import ScenarioError

MOUNTS = Path("/proc/self/mounts")
"""Where Linux says which disk holds which folder."""
OF_ONE_MACHINE = {
    "nfs": {"nolock", "local_lock=all", "local_lock=flock"},
    "nfs4": {"local_lock=all", "local_lock=flock"},
    "lustre": {"localflock"},
}
"""Options with which locks on a disk that machines share hold within each of them alone, by its file system."""


class Lock:
    """A lock file beside `target`, held until it is released or this process ends, even if it is killed.

    It holds between machines too. Where no lock of the disk does, or it has none, the file itself is the lock, and
    names who has made it: one that a killed process of another machine has left stays until somebody removes it.

    Raises ScenarioError if it is held, and OSError if the folder takes no files.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.with_name(f".{target.name}.lock")
        self._is_held_by_its_disk = _reach_other_machines(target.parent)
        make = FileLock if self._is_held_by_its_disk else SoftFileLock
        self._lock = make(self._path, blocking=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise ScenarioError(f"{self._holder()} is writing there", key="--out", found=str(target)) from None
        if self._is_held_by_its_disk:
            self._path.write_text(f"process {os.getpid()} on {platform.node()}")

    def _holder(self) -> str:
        text = ""
        with suppress(OSError):
            text = self._path.read_text()
        if self._is_held_by_its_disk:
            return text or "another process"
        pid, machine, *_ = [*text.splitlines(), "?", "?"]
        return f"process {pid} on {machine} (or was, when it was killed: then remove {self._path})"

    def release(self) -> None:
        """Release the lock."""
        if self._lock.is_locked:
            with suppress(OSError):  # a file that stays does no harm
                self._path.unlink()
            self._lock.release()


def _reach_other_machines(folder: Path) -> bool:
    """Return False if a disk has no locks, or if those on it hold within this machine alone while others may see it.

    Raises OSError if the folder takes no files.
    """
    with TemporaryFile(dir=folder) as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            return True
        except OSError:
            return False
    lines = [line.split(" ") for line in MOUNTS.read_text().splitlines()] if MOUNTS.exists() else []
    place = str(folder.resolve()).replace(" ", "\\040") + "/"
    within = [line for line in lines if place.startswith(line[1].rstrip("/") + "/")]
    _, _, kind, options, *_ = max(within, key=lambda line: len(line[1]), default=("", "", "", ""))
    return OF_ONE_MACHINE.get(kind, set()).isdisjoint(options.split(","))
