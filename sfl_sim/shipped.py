"""Where the scenarios lie that come with sfl-sim."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def scenario_file(name: str | Path) -> Path:
    """The file itself; or, if there is no such file, the shipped scenario of that name."""
    path = Path(name)
    if path.exists():
        return path
    for folder in (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios"):  # in a wheel, in a checkout
        candidate = folder / f"{path.stem}.yaml"
        if path.parent.name in {"", "scenarios"} and candidate.is_file():
            return candidate
    return path
