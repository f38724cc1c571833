"""Tables of made-up folders, held against the schema as those of real ones are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.store.schema import tables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    import pandas as pd

    from sfl_sim.store.schema import FolderKind, StoredTable


def assert_described(table: StoredTable, names: Iterable[str], further: Collection[str] = ()) -> None:
    """Every column is in the schema, or one of the `further` ones that the scenario decides, and none is missing."""
    found = set(names)
    assert found <= {*table.columns, *further}, (table.file, found - {*table.columns, *further})
    assert not further or table.further, table.file
    missing = [name for name, column in table.columns.items() if column.is_required and name not in found]
    assert not missing, (table.file, missing)


def write_table(folder: Path, kind: FolderKind, name: str, frame: pd.DataFrame, further: Collection[str] = ()) -> None:
    """Write a described table into the folder; without rows it needs no columns."""
    table = tables(kind)[name]
    if len(frame):
        assert_described(table, frame, further)
    frame.to_parquet(folder / table.file, index=False)
