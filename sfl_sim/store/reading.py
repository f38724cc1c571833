"""Reader of stored tables, of this version and of older ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sfl_sim.store.schema import REQUIRED, Column, Table

FURTHER = Column("", "float", "number of a column whose name the scenario decides", absent=None)


def file_of(folder: Path, table: Table) -> Path | None:
    """Return the file of a stored table; None if the folder lacks it."""
    paths = [folder / name for name in (table.file, "" if table.under else table.formerly) if name]
    return next((path for path in paths if path.is_file()), None)


def read_entries(folder: Path, table: Table) -> list[dict[str, Any]]:
    """Return the rows of a stored table in a JSON file, as they are."""
    stored = json.loads((folder / table.file).read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = stored[table.under if table.under in stored else table.formerly]
    return entries


def read_table(folder: Path, table: Table, columns: Sequence[str] | None = None, **where: object) -> pd.DataFrame:
    """Read a stored table; no rows without its file.

    Only row groups that may hold the variant are read; pyarrow's filters read all, since names are a dictionary.

    Args:
        columns: names; what the folder lacks of them is as the schema says. None: all that is stored, as it is.
        where: values that rows must have, by column.

    Raises ValueError if the folder lacks a column that none may lack.
    """
    if table.under:
        names = {column.stored: name for name, column in table.columns.items() if column.stored}
        entries = pd.DataFrame(read_entries(folder, table)).rename(columns=names)
        return completed(entries, table, columns) if columns else entries
    path = file_of(folder, table)
    if path is None:
        return pd.DataFrame(columns=list(columns or table.columns))
    with pq.ParquetFile(path) as file:
        stored = file.schema_arrow.names
        known = [column for column in columns or stored if column in stored]
        groups = list(range(file.num_row_groups))
        if "variant" in where:
            place = stored.index("variant")
            about = [file.metadata.row_group(group).column(place).statistics for group in groups]
            groups = [group for group in groups if _may_hold(about[group], where["variant"])]
        rows = file.read_row_groups(groups, columns=[*dict.fromkeys([*known, *where])])
    for column, value in where.items():
        rows = rows.filter(pc.equal(rows[column], value))
    frame: pd.DataFrame = rows.select(known).to_pandas()
    frame = _with_values(frame, folder) if "axis_0" in frame else frame
    return completed(frame, table, columns) if columns else frame


def _may_hold(statistics: pq.Statistics | None, value: object) -> bool:
    """Return False if a column with these statistics surely lacks the value."""
    return statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max


def as_stored(values: Sequence[Any]) -> list[Any]:
    """Return the values of a key that a what-if varies, given as JSON, as its tables hold them: numbers, or else text.

    Only if all values are numbers they are stored as numbers.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(values)
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]


def _with_values(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Replace `axis_0`, `axis_1`, ..., which older what-ifs hold, by the values that they count, under their keys."""
    axes = json.loads((folder / "whatif.json").read_text(encoding="utf-8"))["axes"]
    values = {axis["key"]: as_stored(axis["values"]) for axis in axes}
    numbered = {key: frame.pop(f"axis_{number}") for number, key in enumerate(values)}
    return frame.assign(**{key: [values[key][index] for index in column] for key, column in numbered.items()})


def completed(frame: pd.DataFrame, table: Table, columns: Iterable[str]) -> pd.DataFrame:
    """Return these columns of a stored table; what it lacks is as the schema says, and unknown numbers are NaN.

    Raises ValueError if it lacks a column that none may lack. (Without rows, the store knows no columns either.)
    """
    described = {name: table.columns.get(name, FURTHER) for name in columns}
    absent = {name: column.absent for name, column in described.items() if name not in frame}
    if missing := [name for name, value in absent.items() if value is REQUIRED and len(frame)]:
        raise ValueError(f"{table.file} lacks {', '.join(missing)}")
    frame = frame.assign(**absent)[list(described)]
    numbers = [name for name, column in described.items() if column.is_number and frame[name].dtype == object]
    return frame.astype(dict.fromkeys(numbers, float)) if len(frame) else frame
