"""Description of every stored table, read from schema.toml: type, unit, meaning and null rule of each column."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

FolderKind = Literal["run", "serving", "whatif"]
"""Kinds of folders."""
TYPES = ("int", "float", "bool", "text", "list", "bytes", "mapping")
UNITS = {
    "^rounds": "",
    "macs_per_s$": "MAC/s",
    "_bps$": "bit/s",
    "_per_s$": "1/s",
    "_s$": "s",
    "bytes": "B",
    "macs$": "MAC",
    "joule$": "J",
    "(accuracy|share|probability)$": "share",
}
"""Units by what the name of a column holds; the first that fits."""


@dataclass(frozen=True)
class StoredColumn:
    """Column of a stored table; the head of schema.toml says what its attributes mean."""

    name: str
    type: str
    meaning: str
    unit: str = ""
    null: str = ""
    only: str = ""
    title: str = ""
    number: str = ""
    better: str = ""
    stored: str = ""

    @property
    def is_number(self) -> bool:
        """True if its values are numbers."""
        return self.type in ("int", "float")

    @property
    def is_required(self) -> bool:
        """True if it must not be missing."""
        return not self.only


@dataclass(frozen=True)
class StoredTable:
    """Stored table: a Parquet file, or a list of mappings in a JSON file; see the head of schema.toml."""

    file: str
    row: str
    columns: Mapping[str, StoredColumn]
    under: str = ""
    further: str = ""
    only: str = ""
    whole: bool = False
    later: bool = False

    @property
    def is_required(self) -> bool:
        """True if its file must not be missing."""
        return not self.only

    @property
    def of_trial(self) -> list[str]:
        """Names of its columns within a trial, whose variant and seed are known."""
        return [name for name in self.columns if name not in ("variant", "seed")]

    @property
    def shown(self) -> list[str]:
        """Names of the columns of numbers that pages and exports show."""
        return [name for name, column in self.columns.items() if column.is_number and column.title]


@cache
def tables(kind: FolderKind) -> dict[str, StoredTable]:
    """Return the tables of a kind of folder by name."""
    described = tomllib.loads((Path(__file__).parent / "schema.toml").read_text(encoding="utf-8"))
    return {name: _table(about, described) for name, about in described[kind].items()}


def _table(about: dict[str, Any], described: Mapping[str, Any]) -> StoredTable:
    if like := about.pop("like", None):
        kind, name = like.split(".")
        about = described[kind][name] | about
    shared = described["columns"]
    columns = {name: {} for name in about.pop("first", ())} | about.pop("columns", {})
    return StoredTable(
        **about, columns={name: _column(name, own, shared.get(name, {})) for name, own in columns.items()}
    )


def _column(name: str, own: dict[str, Any], shared: dict[str, Any]) -> StoredColumn:
    keys = dict(own) if own.keys() & set(TYPES) else shared | own
    column_type = next(key for key in keys if key in TYPES)
    meaning = keys.pop(column_type)
    if column_type in ("int", "float"):
        keys.setdefault("unit", next((unit for pattern, unit in UNITS.items() if re.search(pattern, name)), ""))
    return StoredColumn(name, column_type, meaning, **keys)
