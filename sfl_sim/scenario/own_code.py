"""Code of a user's own, which a scenario names as `package.module:thing`: which of it may run.

A scenario that somebody sends cannot run code, nor allow itself to. So permission is no part of it: it comes from who
starts the program (`--allow-code`, `allow_code=True`) or hands over a function itself, from Python. It is asked where
code is imported, and goes along to other processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sfl_sim.errors import ScenarioError


class Forbidden(ScenarioError):
    """A scenario names code that may not run."""


@dataclass(frozen=True)
class Permission:
    """Permission to run all code that is named, or what has these paths."""

    everything: bool = False
    paths: frozenset[str] = frozenset()


_given: ContextVar[Permission] = ContextVar("permission", default=Permission())  # noqa: B039  (it cannot change)
_handed_over: set[str] = set()


def permission() -> Permission:
    """Return what may run here, for a process that is to do a part of the work."""
    given = _given.get()
    return Permission(given.everything, given.paths | _handed_over)


@contextmanager
def permitted(given: Permission) -> Iterator[None]:
    """Let run what is `given`, until the block is done."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def hand_over(path: str) -> None:
    """Let `path` run in this process: somebody has given the thing itself."""
    _handed_over.add(path)


def require_permission(path: str, key: str) -> None:
    """Raise Forbidden if what the scenario names as `path` may not run."""
    now = permission()
    if not (now.everything or path in now.paths):
        problem = "names code of your own; --allow-code lets it run (from Python: allow_code=True)"
        raise Forbidden(problem, key=key, found=path)
