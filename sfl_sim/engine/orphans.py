"""Processes that a study has begun end with it, even if it is killed: none of them waits for orders for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """Let this process end as soon as the one that began it has."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def end_with_parent_alone() -> None:
    """As `end_with_parent`, and not by a `kill` of the whole group, after which the parent still needs it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
