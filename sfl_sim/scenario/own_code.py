"""A user's own code: permission to run what a scenario names, and the Python objects that stand in for its values.

A scenario from somebody else must not run code or permit itself to. So the permission is no part of a scenario: it
comes from the user who starts the program (`--allow-code`, `allow_code=True`) or passes an object from Python. It is
checked where code is imported, and passed on to other processes, with the objects that these need.
"""

import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sfl_sim.errors import ScenarioError, in_short

CODE, DATA = "python:", "python/"
"""Beginnings of the texts that stand for Python objects: code, and data, which a digest knows completely."""


class Forbidden(ScenarioError):
    """Code named by a scenario may not run."""


@dataclass(frozen=True)
class Permission:
    """Permission to run all code that a scenario names, or the code with these paths; and pickled objects, by text."""

    everything: bool = False
    paths: frozenset[str] = frozenset()
    objects: Mapping[str, bytes] = field(default_factory=dict)


_given: ContextVar[Permission] = ContextVar("permission", default=Permission())  # noqa: B039  (it cannot change)
_handed_over: set[str] = set()
_objects: dict[str, object] = {}


def permission(*values: object) -> Permission:
    """Return the permission of this process, to pass it on to a process that does a part of the work.

    Args:
        values: of scenarios; the objects that their texts stand for are passed on, too.

    Raises ScenarioError if an object cannot be sent to another process.
    """
    given = _given.get()
    objects = {text: _pickled(text) for text in sorted(set(texts(values))) if is_object(text)}
    return Permission(given.everything, given.paths | _handed_over, objects)


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


def keep_object(text: str, thing: object) -> None:
    """Let `text` stand for an object, until this process ends: a stored run may name it."""
    _objects[text] = thing


def is_object(text: str) -> bool:
    """Return True if a scenario's text stands for a Python object."""
    return text.startswith((CODE, DATA))


def object_name(text: str) -> str:
    """The name of the Python object for which a text of a scenario stands; any other text as it is."""
    match = re.fullmatch(rf"(?:{CODE}|{DATA})(.+)-[0-9a-f]{{12}}", text)
    return match[1] if match else text


def find_object(text: str, key: str) -> Any:
    """Return the object for which `text` stands. Raises ScenarioError if this process does not have it."""
    if text not in _objects:
        sent = _given.get().objects.get(text)
        if sent is None:
            problem = "is an object that another Python program has passed; pass it again (from Python)"
            raise ScenarioError(problem, key=key, found=text)
        _objects[text] = pickle.loads(sent)  # it comes from the process that has started this one, never from a file
    return _objects[text]


def texts(value: object) -> Iterator[str]:
    """Generate all texts in nested mappings and lists, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def require_permission(path: str, key: str) -> None:
    """Raise Forbidden if the code that the scenario names as `path` may not run."""
    now = permission()
    if not (now.everything or path in now.paths):
        problem = "names code of your own; --allow-code lets it run (from Python: allow_code=True)"
        raise Forbidden(problem, key=key, found=path)


def _pickled(text: str) -> bytes:
    """Pickle an object for another process, which must be able to import the code that it names."""
    if text not in _objects and text in (sent := _given.get().objects):
        return sent[text]
    remedy = "write it into a module (a .py file) and import it, or use jobs=1"
    try:
        pickled = pickle.dumps(find_object(text, "jobs"))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = f"cannot be sent to another process ({in_short(error)}): {remedy}"
        raise ScenarioError(problem, key="jobs", found=text) from error
    if b"__main__" in pickled and not hasattr(sys.modules["__main__"], "__file__"):
        problem = f"is made in a notebook, which no other process can import: {remedy}"
        raise ScenarioError(problem, key="jobs", found=text)
    return pickled
