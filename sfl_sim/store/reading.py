"""Reader of stored tables."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError
from sfl_sim.store.files import contents
from sfl_sim.store.schema import StoredColumn, StoredTable

MAX_SMALL_ROWS = 1_000_000
"""Rows that a table may have whatever its size; a larger one has a byte a row at least, or equal rows fill memory."""
FURTHER = StoredColumn("", "", "value of a column whose name the scenario decides", only="what the scenario asks for")


def file_of(folder: Path, table: StoredTable) -> Path | None:
    """Return the file of a stored table; None if the folder lacks it."""
    path = folder / table.file
    return path if path.is_file() else None


def read_entries(folder: Path, table: StoredTable) -> list[dict[str, Any]]:
    """Return the rows of a stored table in a JSON file, as they are."""
    entries: list[dict[str, Any]] = contents(folder / table.file)[table.under]
    return entries


def read_table(folder: Path, table: StoredTable, columns: Sequence[str] | None = None, **where: object) -> pd.DataFrame:
    """Read a stored table; no rows without its file.

    Args:
        columns: names; what the folder lacks of them is null, NaN of a number. None: all that is stored, as it is.
        where: values that rows must have, by column.

    Raises ValueError if the folder lacks a column that none may lack. (Without rows, the store knows no columns.)
    """
    if table.under:
        names = {column.stored: name for name, column in table.columns.items() if column.stored}
        frame = pd.DataFrame(read_entries(folder, table)).rename(columns=names)
    elif path := file_of(folder, table):
        frame = _rows(path, columns or (), where)
    else:
        return pd.DataFrame(columns=list(columns or table.columns))
    if not columns:
        return frame
    described = {name: table.columns.get(name, FURTHER) for name in columns}
    missing = {name: column for name, column in described.items() if name not in frame}
    if len(frame) and (lacking := [name for name, column in missing.items() if column.is_required]):
        raise ValueError(f"{table.file} lacks {', '.join(lacking)}")
    unknown = {name: math.nan if column.is_number or column is FURTHER else None for name, column in missing.items()}
    frame = frame.assign(**unknown)[list(described)]
    numbers = [name for name, column in described.items() if column.is_number and frame[name].dtype == object]
    return frame.astype(dict.fromkeys(numbers, float)) if len(frame) else frame


def _rows(path: Path, columns: Sequence[str], where: dict[str, object]) -> pd.DataFrame:
    """Read those of the columns (or all) that a Parquet file has.

    Only row groups that may hold the variant are read; pyarrow's filters read all, since names are a dictionary.
    """
    with pq.ParquetFile(path) as file:
        n_rows, size_bytes = file.metadata.num_rows, path.stat().st_size
        if n_rows > max(MAX_SMALL_ROWS, size_bytes):
            problem = f"{path.name} says that it has {n_rows:,} rows in {size_bytes:,} bytes, which no run has written"
            raise ScenarioError(problem, key="run", found=str(path.parent))
        stored = file.schema_arrow.names
        known = [column for column in stored if not columns or column in columns]
        groups = list(range(file.num_row_groups))
        if "variant" in where:
            place = stored.index("variant")
            about = [file.metadata.row_group(group).column(place).statistics for group in groups]
            groups = [group for group in groups if _may_hold(about[group], where["variant"])]
        rows = file.read_row_groups(groups, columns=[*dict.fromkeys([*known, *where])])
    for column, value in where.items():
        rows = rows.filter(pc.equal(rows[column], value))
    rows = rows.select(known)
    frame: pd.DataFrame = rows.to_pandas(types_mapper=_as_lists, split_blocks=True, self_destruct=True)
    return frame


def _as_lists(kind: pa.DataType) -> pd.ArrowDtype | None:
    """Keep columns of lists as Arrow has them: an array for each of a million clients takes four times as much."""
    return pd.ArrowDtype(kind) if pa.types.is_list(kind) else None


def matrix(lists: pd.Series) -> NDArray[Any]:
    """Put lists of equal lengths, of which none is missing, into rows."""
    values: NDArray[Any] = pc.list_flatten(pa.array(lists.array)).to_numpy()
    return values.reshape(len(lists), -1)


def _may_hold(statistics: pq.Statistics | None, value: object) -> bool:
    """Return False if a column with these statistics surely lacks the value."""
    return statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max


def are_numbers(values: Sequence[Any]) -> bool:
    """Return True if all values that a user gave are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def as_stored(values: Sequence[Any]) -> list[Any]:
    """Return the values of a key that a what-if varies, given as JSON, as its tables hold them: numbers, or else text.

    Only if all values are numbers they are stored as numbers.
    """
    if are_numbers(values):
        return list(values)
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
