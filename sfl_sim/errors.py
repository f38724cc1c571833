"""The two ways a run can fail that a user should read in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
        close = difflib.get_close_matches(str(self.found), self.allowed, n=1, cutoff=0.5)
        return close[0] if close else None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = ": ".join(part for part in (where, self.key, self.problem) if part)
        notes = []
        if self.found is not None:
            notes.append(f"found {self.found!r}")
        if self.allowed is not None:
            allowed = self.allowed if isinstance(self.allowed, str) else ", ".join(self.allowed)
            notes.append(f"allowed: {allowed}")
        if self.nearest:
            notes.append(f"did you mean {self.nearest!r}?")
        return text + (f" ({'; '.join(notes)})" if notes else "")


class StuckError(RuntimeError):
    """The event queue drained while flows still wait: names who waits for what (exit code 1)."""
