"""Tables of a run: joined from those of its trials, and split into trials again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sfl_sim.store.schema import FolderKind, tables

TrialKey = tuple[str, int]
"""Columns of the name and the seed of a trial, the first ones of its rows."""


def of_trials(kind: FolderKind) -> dict[str, bool]:
    """Return the names of the tables of trials, and whether every trial has one."""
    return {
        name: not table.only
        for name, table in tables(kind).items()
        if table.file == f"{name}.parquet" and not table.whole
    }


def opened(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a file for a table with this schema.

    Participants, who are sorted, are stored by their differences: where all of a million take part, in a fiftieth of
    a bit each.
    """
    is_sorted = set(schema.names) == set(tables("run")["participants"].columns)
    differences = ["round", "client"] if is_sorted else []
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in differences],
        column_encoding=dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
    )


def concatenate(sources: Sequence[Path], target: Path) -> None:
    """Write the rows of all `sources` to `target`, if there is any; null where a source lacks a column."""
    if not sources:
        return
    schemas = [pq.read_schema(source).remove_metadata() for source in sources]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    with opened(target, schema) as writer:
        for source in sources:
            with pq.ParquetFile(source) as file:
                for group in range(file.num_row_groups):
                    rows = [schema.empty_table(), file.read_row_group(group)]
                    writer.write_table(pa.concat_tables(rows, promote_options="permissive"))


def split_by_trial(source: Path, targets: Mapping[TrialKey, Sequence[tuple[Path, str]]], *, to_all: bool) -> None:
    """Write the rows of the trials in `targets` to a file for each, under another variant's name.

    One row group is in memory at a time. With `to_all`, trials without rows get an empty table, else none.
    """
    with ExitStack() as stack:
        file = stack.enter_context(pq.ParquetFile(source))
        schema = file.schema_arrow.remove_metadata()
        writers: dict[Path, pq.ParquetWriter] = {}

        def write(path: Path, rows: pa.Table) -> None:
            if path not in writers:
                writers[path] = stack.enter_context(opened(path, schema))
            writers[path].write_table(rows)

        for group in range(file.num_row_groups):
            for key, rows in _by_trial(file.read_row_group(group).replace_schema_metadata()):
                for path, name in targets.get(key, ()):
                    write(path, _renamed(rows, name))
        for path in {path for several in targets.values() for path, _ in several if to_all} - writers.keys():
            write(path, schema.empty_table())


def _by_trial(rows: pa.Table) -> Iterator[tuple[TrialKey, pa.Table]]:
    """Generate the rows of each trial; in the tables of a run a row group usually belongs to one."""
    names, seeds = rows["variant"].cast(pa.string()), rows["seed"]
    pairs = pa.table({"variant": names, "seed": seeds}).group_by(["variant", "seed"]).aggregate([]).to_pylist()
    for pair in pairs:
        key = pair["variant"], pair["seed"]
        mine = pc.and_(pc.equal(names, key[0]), pc.equal(seeds, key[1]))
        yield key, rows if len(pairs) == 1 else rows.filter(mine)


def _renamed(rows: pa.Table, name: str) -> pa.Table:
    place = rows.schema.get_field_index("variant")
    names = pa.repeat(name, len(rows)).cast(rows.schema.field(place).type)
    return rows.set_column(place, rows.schema.field(place), names)
