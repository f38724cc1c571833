"""Lock that lets one process at a time write a run's folder."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from sfl_sim.errors import ScenarioError


class Lock:
    """A lock file beside `target`, held until it is released or this process ends, even if it is killed.

    It holds between machines too, where the disk that they share has locks. Raises ScenarioError if it is held,
    and OSError if the folder takes no files.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.with_name(f".{target.name}.lock")
        self._lock = FileLock(self._path, blocking=False, fallback_to_soft=False)
        try:
            self._lock.acquire()
        except Timeout:
            if not self._path.exists():
                self._path.touch()  # filelock takes a folder that takes no files for a locked one; this says why
            raise ScenarioError(f"{self._holder()} is writing there", key="--out", found=str(target)) from None
        except OSError:  # a disk without locks
            return
        self._path.write_text(f"process {os.getpid()} on {platform.node()}")

    def _holder(self) -> str:
        with suppress(OSError):
            return self._path.read_text() or "another process"
        return "another process"

    def release(self) -> None:
        """Release the lock."""
        if self._lock.is_locked:
            with suppress(OSError):  # a file that stays does no harm
                self._path.unlink()
            self._lock.release()
