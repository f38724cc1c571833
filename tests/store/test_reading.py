"""Stored tables are read column by column as the schema says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused

from sfl_sim.store.columns import BREAKDOWN, OP_COLUMNS
from sfl_sim.store.files import contents, read_regular
from sfl_sim.store.reading import as_stored, matrix, read_table
from sfl_sim.store.schema import tables

RUN = tables("run")


def test_the_schema_has_what_the_code_knows_by_name():
    assert RUN["ops"].columns.keys() == {"variant", "seed", *OP_COLUMNS, "joule"}
    assert [name for name in RUN["rounds"].columns if name.removesuffix("_s") in BREAKDOWN] == [
        f"{part}_s" for part in BREAKDOWN
    ]
    for kind in ("run", "serving", "whatif"):
        for table in tables(kind).values():
            assert all(column.meaning for column in table.columns.values())


def test_a_column_that_only_some_runs_have_is_null_without_it(tmp_path):
    rounds = RUN["rounds"].columns
    required = [name for name, column in rounds.items() if column.is_required]
    pd.DataFrame({name: [1.0] for name in required}).to_parquet(tmp_path / "rounds.parquet")
    (row,) = read_table(tmp_path, RUN["rounds"], [*rounds, "metric"]).to_dict("records")
    assert pd.isna([row["perplexity"], row["lost"], row["metric"]]).all()


def test_a_column_that_no_folder_may_lack_is_an_error(tmp_path):
    pd.DataFrame({"variant": ["a"], "seed": [0]}).to_parquet(tmp_path / "presence.parquet")
    with pytest.raises(ValueError, match=r"presence\.parquet lacks from_s, until_s"):
        read_table(tmp_path, RUN["presence"], ["variant", "from_s", "until_s"])


def test_a_column_of_lists_is_a_matrix_also_of_some_of_its_rows(tmp_path):
    held = [[0, 5], [1, 1], [7, 2]]
    pq.write_table(pa.table({"client": [0, 1, 2], "label_samples": held}), tmp_path / "clients.parquet")
    column = read_table(tmp_path, RUN["clients"])["label_samples"]
    assert np.array_equal(matrix(column), held)
    assert np.array_equal(matrix(column[[False, True, True]]), held[1:])
    assert np.array_equal(matrix(pd.Series(held)), held)  # as of a table that was not stored


def test_only_numbers_are_stored_as_numbers():
    assert as_stored([1, 2.5]) == [1, 2.5]
    assert as_stored([1, "fc"]) == ["1", "fc"]
    assert as_stored([None, "bus", {"kind": "iid"}]) == ["null", "bus", '{"kind": "iid"}']
    assert as_stored([True, False]) == ["true", "false"]


def test_a_table_of_more_rows_than_bytes_is_refused_before_it_fills_memory(tmp_path):
    rows = pa.table({"variant": pa.repeat("a", 2_000_000), "seed": pa.repeat(0, 2_000_000)})
    pq.write_table(rows, tmp_path / "rounds.parquet")
    with refused("run", says="rounds.parquet.*2,000,000 rows"):
        read_table(tmp_path, tables("run")["rounds"])


@pytest.mark.parametrize("text", [1000 * "[", '{"a": 1', ""])
def test_json_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "summary.json").write_text(100 * text)
    with pytest.raises(ValueError, match=r"summary\.json: "):
        contents(tmp_path / "summary.json")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_file_without_a_size_that_could_block_is_read_as_empty():
    """As the log of the kernel, which is a regular file of no size."""
    assert read_regular(Path("/proc/self/status")) == b""
