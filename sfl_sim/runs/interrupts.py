"""Ctrl-C and `kill`: they wait while files are written, and none of them is lost."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_pressed: list[int] = []
"""Signals that have come within `interruptible`."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Note Ctrl-C and `kill` within the block: the next `uninterrupted` block raises again what Python has dropped.

    Python drops whatever is raised while a weak reference's callback or `__del__` runs, and tensors are freed all the
    time: one interrupt of 150 was lost so.
    """

    def noting(handler: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], Any]:
        def note(number: int, frame: FrameType | None) -> Any:
            _pressed.append(number)
            return handler(number, frame)

        return note

    try:
        with _handled(lambda handler: noting(handler) if callable(handler) else handler):
            yield
    finally:
        _pressed.clear()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and `kill` until the block is done, so that no file is written in part.

    A signal that is ignored, as a shell's background jobs ignore Ctrl-C, stays so.
    """
    delayed: list[int] = []
    with _handled(lambda handler: handler if handler == signal.SIG_IGN else lambda number, _: delayed.append(number)):
        yield
    if delayed or _pressed:
        raise KeyboardInterrupt


@contextmanager
def shielded() -> Iterator[None]:
    """Delay them as `uninterrupted` does, and let processes that begin within the block never get any."""
    with uninterrupted():
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            yield
            return
        resource_tracker.ensure_running()  # which would let them through when it begins
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _handled(change: Callable[[Any], Any]) -> Iterator[None]:
    """Change how Ctrl-C and `kill` are handled for the block; threads other than the main one get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in before.items():
            signal.signal(number, change(handler))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Let this process end as soon as its parent has ended.

    It lies here because the process that holds the news of others imports this module alone, and not torch: an
    interrupt waits until that process has begun.
    """
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
