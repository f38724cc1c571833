"""Small JSON files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` beside its place and move it there, so that nobody reads half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty if there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The folder's manifest.json; empty if there is none."""
    return read_json(folder / "manifest.json")
