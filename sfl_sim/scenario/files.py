"""Text files of users, read with bounds, and the scenarios that come with sfl-sim."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from sfl_sim.errors import IS_POINTER, POINTER, ScenarioError
from sfl_sim.json_text import parsed_json

MAX_SCENARIO_BYTES = 1_000_000
MAX_TABLE_BYTES = 20_000_000
_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios")  # in a wheel, in a checkout


def read_text(path: Path, max_bytes: int, key: str | None = None) -> str:
    """Read a text file, whose path may begin with ~; a pipe or device, which could block, is not opened.

    Raises ScenarioError with the scenario `key` that named the file, if it cannot be read, is larger than `max_bytes`,
    or is not UTF-8.
    """
    error = partial(ScenarioError, key=key, file=str(path))
    try:
        path = Path(os.path.expanduser(path))
        if path.exists() and not os.path.isfile(path):
            raise error("cannot be read: Is a directory" if path.is_dir() else "cannot be read: Is no regular file")
        with path.open("rb") as file:
            # Some files of /proc never end, and have no size.
            raw = file.read(max_bytes + 1) if os.path.getsize(path) else b""
    except (OSError, ValueError) as reason:  # a ValueError tells of a name that no file can have
        if isinstance(reason, ScenarioError):
            raise
        raise error(f"cannot be read: {getattr(reason, 'strerror', reason)}") from None
    if len(raw) > max_bytes:
        raise error("is too large", found=f"{os.path.getsize(path)} bytes", allowed=f"at most {max_bytes}")
    if raw.startswith(POINTER):
        raise error(IS_POINTER)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        raise error("is not UTF-8 text", found=raw[reason.start : reason.end], line=line) from None
    if "\0" in text:
        raise error("is not text", found="\0", line=1 + text.count("\n", 0, text.index("\0")))
    return text


def read_json(path: Path, max_bytes: int, key: str | None = None) -> Any:
    """Read a JSON file. Raises ScenarioError, with the line, as `read_text` and `parsed_json` do."""
    return parsed_json(read_text(path, max_bytes, key), path, key=key)


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
        problem = "no such file, nor a scenario that comes with sfl-sim: `sfl-sim list scenarios` shows them"
        raise ScenarioError(problem, found=str(name), allowed=shipped)
    return file


def scenario_names() -> dict[str, str]:
    """List the shipped scenarios, each with the first line of its comment."""
    return {name: file.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ") for name, file in _files().items()}


def _files() -> dict[str, Path]:
    """List the shipped files by name: the path below the folder of scenarios, without its suffix."""
    home = next((folder for folder in _FOLDERS if folder.is_dir()), _PACKAGE)
    return {file.relative_to(home).with_suffix("").as_posix(): file for file in sorted(home.rglob("*.yaml"))}
