"""Tables of made-up folders, held against the schema as those of real ones are."""

from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

from sfl_sim.store.schema import FolderKind, StoredTable, tables


def assert_described(table: StoredTable, names: Iterable[str], further: Collection[str] = ()) -> None:
    """Every column is in the schema, or one of the `further` ones that the scenario decides, and none is missing."""
    found = set(names)
    assert found <= {*table.columns, *further}, (table.file, found - {*table.columns, *further})
    assert not further or table.further, table.file
    missing = [name for name, column in table.columns.items() if column.is_required and name not in found]
    assert not missing, (table.file, missing)


def untold(table: StoredTable, names: Iterable[str]) -> dict[str, None]:
    """Nulls for the columns that no folder may lack and that are not among the `names`."""
    return dict.fromkeys(name for name, column in table.columns.items() if column.is_required and name not in {*names})


def write_table(folder: Path, kind: FolderKind, name: str, frame: pd.DataFrame, further: Collection[str] = ()) -> None:
    """Write a described table into the folder; numbers and texts that the frame does not tell are null."""
    table = tables(kind)[name]
    frame = frame.assign(**untold(table, frame))
    assert_described(table, frame, further)
    frame.to_parquet(folder / table.file, index=False)
