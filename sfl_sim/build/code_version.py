"""Version of the code, and what it says of itself: kept in the user's cache, since only torch can say it again."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ["torch", "torchvision", "numpy", "scipy", "pandas", "networkx", "simpy", "scikit-learn", "scikit-image"]
"""Packages that compute, whose versions are part of the code's."""
SHOWING = {"report", "console", "cli", "profiles", "scenarios"}
"""Rooms of the package that no result depends on. The last two exist in an installed package only and contain scripts;
the content of the profiles is part of the version all the same."""


@cache
def code_version() -> str:
    """Return 32 hex digits, equal if sfl-sim's code, its profiles and the packages that compute are equal."""
    package = Path(__file__).parents[1]
    profiles = next(folder for folder in (package / "profiles", package.parent / "profiles") if folder.is_dir())
    digest = hashlib.blake2b(" ".join(f"{name} {version(name)}" for name in PACKAGES).encode(), digest_size=16)
    for root, kind in ((package, "*.py"), (profiles, "*.csv")):
        for path in sorted(root.rglob(kind)):
            inside = path.relative_to(root)
            if inside.parts[0] not in SHOWING:
                digest.update(f"\0{inside.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def described(name: str, describe: Callable[[], Any]) -> Any:
    """Return JSON of `describe()`: from the user's cache, if this very code has written it there under this name.

    A cache that is damaged or cannot be written costs the time of `describe`, and nothing else.
    """
    code, file = [code_version(), version("pydantic")], f".cache/sfl-sim/described/{name}.json"
    with suppress(OSError, RuntimeError, TypeError, ValueError):
        written_by, description = json.loads(Path.home().joinpath(file).read_bytes())
        if written_by == code:
            return description
    text = json.dumps([code, describe()])
    with suppress(OSError, RuntimeError):
        path = Path.home() / file
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")  # another process may write at the same time
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    return json.loads(text)[1]
