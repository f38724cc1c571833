"""Oracle for any input: exit code 0, or 2 with one line; in time, and in little memory."""

from __future__ import annotations

import contextlib
import io
import resource
import signal
from collections.abc import Iterator
from typing import Any

from sfl_sim.cli import main

CPU_S, WALL_S = 30, 300
MEMORY_BYTES = 2 * 2**30
MAX_LINE = 3000


class Hangs(BaseException):
    """A call has taken too long."""


def told(*arguments: Any) -> str | None:
    """Call the command in this process; the one line in which bad input was refused, or None if it was fine."""
    code, err = 0, io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()), _bounded():
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    line = err.getvalue()
    assert code in (0, 2), line
    if code == 0:
        return None
    assert line.startswith("sfl-sim: "), line
    assert line.removesuffix("\n").isprintable(), line
    assert len(line) < MAX_LINE, line
    return line


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hangs(f"longer than {CPU_S} s of computing, or {WALL_S} s")

    before = {number: signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as pages:
        in_use = int(pages.read().split()[0]) * resource.getpagesize()
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.alarm(WALL_S)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES, limits[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for number, handler in before.items():
            signal.signal(number, handler)
