"""The ways a run can fail that a user should read in one line."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_FOUND = 200
"""Characters of a value, or of a name, that an error shows."""


class ScenarioError(ValueError):
    """Something in the input cannot be used (exit code 2).

    Rooms raise it with what they know (`problem`, `key`, `found`, `allowed`); the config room adds `file` and `line`.
    `str(error)` is the one line that a user reads.
    """

    def __init__(
        self,
        problem: str,
        *,
        key: str | None = None,
        found: object = None,
        allowed: Iterable[object] | str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.key = key
        self.found = found
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else [str(a) for a in allowed]
        self.file = file
        self.line = line

    @property
    def nearest(self) -> str | None:
        """The allowed word most like what was found, if there is one."""
        if self.found is None or self.allowed is None or isinstance(self.allowed, str):
            return None
        close = difflib.get_close_matches(str(self.found)[:MAX_FOUND], self.allowed, n=1, cutoff=0.5)
        return close[0] if close else None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (where, self.key and _shortened(self.key), self.problem) if part)
        notes = []
        if self.found is not None:
            notes.append(f"found {_shortened(repr(self.found))}")
        if self.allowed is not None:
            allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
            notes.append(f"allowed: {allowed}")
        if self.nearest:
            notes.append(f"did you mean {self.nearest!r}?")
        return in_one_line(text + (f" ({'; '.join(notes)})" if notes else ""))


def in_one_line(text: str) -> str:
    """`text` as any terminal shows it: what ends a line, turns it around or cannot be seen is written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_FOUND else f"{text[:MAX_FOUND]}…"


class OutputError(RuntimeError):
    """A run cannot be written any more: where, and why (exit code 1). What it had written is as it was."""


@contextmanager
def blamed_on(*folders: object) -> Iterator[None]:
    """Say of stored runs that they are damaged if they cannot be read, or hold what no run would have stored."""
    try:
        yield
    except ScenarioError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):  # a disk, not a file
            raise
        problem = f"is damaged: {type(error).__name__}: {_shortened(' '.join(str(error).split()))}"
        raise ScenarioError(problem, key="run", found=", ".join(map(str, folders))) from error


class NonsenseError(RuntimeError):
    """A number came up that makes no sense, such as a loss that is NaN: names the first operation (exit code 1)."""


class StuckError(RuntimeError):
    """The event queue drained while flows still wait: names who waits for what (exit code 1)."""
