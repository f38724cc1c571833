import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic_run import World, write_run

from sfl_sim.errors import ScenarioError
from sfl_sim.report.load import load
from sfl_sim.store.columns import BREAKDOWN


def test_a_run_reads_back_as_frames(run_folder: Path) -> None:
    run = load(run_folder)

    assert run.name == "heterogeneous_bw"
    assert len(run.summary) == 6
    assert len(run.rounds) == 6 * 30
    assert len(run.labels) == 6 * 30 * 10
    assert len(run.clients) == 6 * 10


def test_operations_are_read_by_column_and_row(run_folder: Path) -> None:
    ops = load(run_folder).rows("ops", ["client", "started_s"], variant="hydra, cyclic", seed=1, node="server", round=7)

    everything = pd.read_parquet(run_folder / "ops.parquet")
    expected = everything.query("variant == 'hydra, cyclic' and seed == 1 and node == 'server' and round == 7")
    assert list(ops.columns) == ["client", "started_s"]
    assert ops["started_s"].tolist() == expected["started_s"].tolist()
    assert len(ops) == 10 * 8


def test_a_timing_only_run_has_no_labels_and_nan_for_what_was_not_measured(tmp_path: Path, small: World) -> None:
    run = load(write_run(tmp_path / "run", replace(small, trained=False)))

    assert run.labels.empty
    assert run.rounds["accuracy"].isna().all()
    assert run.summary["time_to_accuracy_s"].isna().all()


@pytest.mark.parametrize("name", ["summary.json", "ops.parquet", "scenario.yaml"])
def test_an_incomplete_folder_is_named_with_what_it_lacks(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(ScenarioError, match=f"{folder}.*{name}") as raised:
        load(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", '{"variants": [{"name": "a"}]}'),
        ("manifest.json", "not JSON"),
        ("scenario.yaml", "a: [1"),
        ("scenario.yaml", ""),
        ("rounds.parquet", "not Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_gives_one_line(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)

    with pytest.raises(ScenarioError, match="cannot be read") as raised:
        load(folder)
    assert "\n" not in str(raised.value)


def test_a_run_without_a_finished_round_has_nothing_to_report(folder: Path) -> None:
    pd.read_parquet(folder / "rounds.parquet").head(0).to_parquet(folder / "rounds.parquet")

    with pytest.raises(ScenarioError, match="nothing to report"):
        load(folder)


def test_a_missing_column_is_an_error_and_not_a_hole(folder: Path) -> None:
    pd.read_parquet(folder / "rounds.parquet").drop(columns="queue_s").to_parquet(folder / "rounds.parquet")

    with pytest.raises(ScenarioError, match="queue_s"):
        load(folder)


def test_the_fixture_is_what_the_store_promises(run_folder: Path) -> None:
    rounds = load(run_folder).rounds
    parts = [f"{part}_s" for part in BREAKDOWN]

    assert (rounds[parts] >= -1e-9).all(axis=None)
    assert (rounds[parts].sum(axis=1) - (rounds["ended_s"] - rounds["started_s"])).abs().max() < 1e-6
    assert json.loads((run_folder / "summary.json").read_text())["scenario"] == "heterogeneous_bw"
