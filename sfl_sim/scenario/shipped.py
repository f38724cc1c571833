"""The scenarios that come with sfl-sim."""

from __future__ import annotations

import os
from pathlib import Path

from sfl_sim.errors import ScenarioError

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios")  # in a wheel, in a checkout


def scenario_file(name: str | Path) -> Path:
    """Find a file, or else the shipped scenario of that name, such as forgetting/table3."""
    path = Path(name)
    parts = (*path.parts[:-1], path.stem)
    shipped = _files()
    is_name = path.suffix in ("", ".yaml") and not str(name).startswith(("./", "../"))
    file = shipped.get("/".join(parts[1:] if parts[:1] == ("scenarios",) else parts)) if is_name else None
    if os.path.isfile(path) or (file is None and os.path.exists(name)):  # a run's folder of that name is not meant
        return path
    if file is None:
        raise ScenarioError("no such file, nor a scenario that comes with sfl-sim", found=str(name), allowed=shipped)
    return file


def scenario_names() -> dict[str, str]:
    """List the shipped scenarios, each with the first line of its comment."""
    return {name: file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ") for name, file in _files().items()}


def _files() -> dict[str, Path]:
    """List the shipped files by name: the path below the folder of scenarios, without its suffix."""
    home = next((folder for folder in _FOLDERS if folder.is_dir()), _PACKAGE)
    return {file.relative_to(home).with_suffix("").as_posix(): file for file in sorted(home.rglob("*.yaml"))}
