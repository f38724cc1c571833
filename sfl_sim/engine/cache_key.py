"""Cache keys: a digest of everything that decides the content of a trial, by which finished trials are found."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sfl_sim.scenario.concerns import without
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.sections import Scenario

PACKAGES = ["torch", "torchvision", "numpy", "scipy", "pandas", "simpy", "scikit-learn", "fvcore"]
"""Packages that compute, whose versions are part of the key."""
SHOWING = {"report", "cli", "profiles", "scenarios"}
"""Rooms of the package that no result depends on. The last two exist in an installed package only and contain scripts;
the content of the profiles is part of the key all the same."""
NOT_STORED = {Concern.SHOWING}
"""Concerns of a scenario that do not change what its trials store."""


@cache
def code_version() -> str:
    """Return 32 hex digits, equal if sfl-sim's code, its profiles and the packages that compute are equal."""
    package = Path(__file__).parents[1]
    profiles = next(place for place in (package / "profiles", package.parent / "profiles") if place.is_dir())
    digest = hashlib.blake2b(" ".join(f"{name} {version(name)}" for name in PACKAGES).encode(), digest_size=16)
    for root, kind in ((package, "*.py"), (profiles, "*.csv")):
        for path in sorted(root.rglob(kind)):
            inside = path.relative_to(root)
            if inside.parts[0] not in SHOWING:
                digest.update(f"\0{inside.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


LEAF = {"femnist", "shakespeare"}
"""Data sets whose files the user has made with LEAF, by settings that we do not know."""


def trial_key(scenario: Scenario, meaning: str) -> str | None:
    """Return 32 hex digits, equal for two trials with equal content; None if equality cannot be known.

    The key covers the scenario without the keys that concern pages alone, the content of files that it names, the code,
    and the `meaning` of the settings. There is no key for a user's own code, folders of images and LEAF's files, whose
    content may have changed.
    """
    path = scenario.data.path
    in_folder = scenario.data.name in LEAF if path is None else os.path.isdir(os.path.expanduser(path))
    if names_own_code(scenario) or in_folder:
        return None
    values = without(scenario, NOT_STORED) | {"is served": scenario.serving is not None}
    named = {text: Path(os.path.expanduser(text)) for text in _texts(values)}
    files = {text: _content(path) for text, path in named.items() if os.path.isfile(path)}
    canonical = json.dumps([values, files, code_version(), meaning], sort_keys=True, allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def names_own_code(scenario: Scenario) -> bool:
    """Return True if a scenario names a user's own code, as package.module:thing."""
    return any(":" in text for text in _texts(without(scenario, NOT_STORED)))


def _texts(value: Any) -> Iterator[str]:
    """Generate all texts in nested mappings and lists, without the keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _content(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
