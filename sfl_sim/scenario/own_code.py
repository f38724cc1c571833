"""Permission to run a user's own code, which a scenario names as `package.module:thing`.

A scenario from somebody else must not run code or permit itself to. So the permission is no part of a scenario: it
comes from the user who starts the program (`--allow-code`, `allow_code=True`) or passes a function from Python. It is
checked where code is imported, and passed on to other processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sfl_sim.errors import ScenarioError


class Forbidden(ScenarioError):
    """Code named by a scenario may not run."""


@dataclass(frozen=True)
class Permission:
    """Permission to run all code that a scenario names, or the code with these paths."""

    everything: bool = False
    paths: frozenset[str] = frozenset()


_given: ContextVar[Permission] = ContextVar("permission", default=Permission())  # noqa: B039  (it cannot change)
_handed_over: set[str] = set()


def permission() -> Permission:
    """Return the permission of this process, to pass it on to a process that does a part of the work."""
    given = _given.get()
    return Permission(given.everything, given.paths | _handed_over)


@contextmanager
def permitted(given: Permission) -> Iterator[None]:
    """Grant a permission until the block is done."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def hand_over(path: str) -> None:
    """Permit `path` in this process, because the caller has passed the object itself."""
    _handed_over.add(path)


def require_permission(path: str, key: str) -> None:
    """Raise Forbidden if the code that the scenario names as `path` may not run."""
    now = permission()
    if not (now.everything or path in now.paths):
        problem = "names code of your own; --allow-code lets it run (from Python: allow_code=True)"
        raise Forbidden(problem, key=key, found=path)
