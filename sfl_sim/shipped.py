"""The scenarios that come with sfl-sim."""

from __future__ import annotations

from pathlib import Path

from sfl_sim.errors import ScenarioError

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios")  # in a wheel, in a checkout


def scenario_file(name: str | Path) -> Path:
    """The file itself; or, if there is no such file, the shipped scenario of that name."""
    path = Path(name)
    if path.exists():
        return path
    shipped = {file.stem: file for file in _files()}
    if path.parent.name in {"", "scenarios"} and path.stem in shipped:
        return shipped[path.stem]
    raise ScenarioError("no such file, nor a scenario that comes with sfl-sim", found=str(name), allowed=shipped)


def scenario_names() -> dict[str, str]:
    """The shipped scenarios, with the first line of their comment."""
    return {file.stem: file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ") for file in _files()}


def _files() -> list[Path]:
    return sorted(next((folder for folder in _FOLDERS if folder.is_dir()), _PACKAGE).glob("*.yaml"))
