"""One process at a time writes a run's folder."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from sfl_sim.errors import ScenarioError

try:
    import fcntl
except ImportError:  # Windows: two processes must not write one run
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A lock file beside `target`, held until it is released or this process ends, even if it is killed.

    It holds between machines too, where the disk that they share has locks. Raises ScenarioError if it is held.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.with_name(f".{target.name}.lock")
        while True:
            self._file = self._path.open("a+")
            if fcntl:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self._file.seek(0)
                    holder = self._file.read() or "another process"
                    self._file.close()
                    raise ScenarioError(f"{holder} is writing there", key="--out", found=str(target)) from None
                except OSError:  # a disk without locks
                    pass
            if self._is_there():
                break
            self._file.close()  # whoever held it has removed it meanwhile
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {platform.node()}")
        self._file.flush()

    def _is_there(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))
        return False

    def release(self) -> None:
        """Let others write."""
        if not self._file.closed:
            with suppress(OSError):  # it is of no use to anybody, and does no harm
                self._path.unlink()
            self._file.close()
