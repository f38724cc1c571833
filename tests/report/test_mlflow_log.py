"""What MLflow holds of stored runs, read back from a real store in a folder."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command import sfl_sim
from synthetic_run import World, write_run

from sfl_sim.errors import ScenarioError
from sfl_sim.report.mlflow_log import log_runs

pytest.importorskip("mlflow")


@pytest.fixture
def world(small: World) -> World:
    """Two variants with two seeds."""
    return replace(small, clients=2, batches=1, seeds=(0, 1))


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", os.environ.copy())  # log_runs sets what would outlast the test


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "mlruns"


def client_of(store: Path):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store.as_uri())


def found_in(store: Path, name: str = "heterogeneous_bw") -> tuple[list, list]:
    """The runs of an experiment: those of folders, and those of variants with their seeds."""
    client = client_of(store)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    return [run for run in runs if run not in children], children


def test_each_variant_and_seed_is_a_run_with_its_rounds_settings_and_results(
    world: World, tmp_path: Path, store: Path
) -> None:
    folder = write_run(tmp_path / "stored", world)
    (folder / "report.html").write_text("the page", encoding="utf-8")

    assert str(log_runs([folder], str(store))) == "4 runs logged"

    (parent,), children = found_in(store)
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert {run.info.run_name for run in children} == {
        f"{setting.name}, seed {seed}" for setting in world.variants for seed in world.seeds
    }
    one = next(run for run in children if run.info.run_name == "splitfed_v2, cyclic, seed 1")
    assert one.info.status == "FINISHED"
    assert one.data.params.items() >= {"server.order": "cyclic", "seed": "1", "train.lr": "0.05"}.items()
    assert one.data.tags["sfl_sim.versions.torch"] == "2.15.0"
    assert one.data.metrics["final/rounds"] == world.rounds

    rounds = pd.read_parquet(folder / "rounds.parquet").query("variant == 'splitfed_v2, cyclic' and seed == 1")
    for metric, column in [("accuracy", "accuracy"), ("simulated_s", "ended_s"), ("bytes_up", "bytes_up")]:
        history = client_of(store).get_metric_history(one.info.run_id, metric)
        assert [(at.step, at.value) for at in history] == list(zip(rounds["round"], rounds[column], strict=True))
    waited_ms = history[1].timestamp - history[0].timestamp  # the time axis is simulated
    assert waited_ms == pytest.approx(1000 * rounds["ended_s"].diff().iloc[1], abs=1)

    files = {file.path for file in client_of(store).list_artifacts(parent.info.run_id)}
    assert files == {"report.html", "summary.json", "scenario.yaml"}


def test_logging_again_adds_nothing(world: World, tmp_path: Path, store: Path, capsys) -> None:
    folder = write_run(tmp_path / "stored", world)

    for told in ("4 runs logged", "0 runs logged, 4 there already"):
        sfl_sim("report", folder, "--log", f"mlflow={store}")
        assert capsys.readouterr().out.strip() == f"{store}: {told}"
    assert [len(runs) for runs in found_in(store)] == [1, 4]


def test_a_run_that_has_come_farther_since_takes_the_place_of_what_it_was(
    world: World, tmp_path: Path, store: Path
) -> None:
    early = replace(world, rounds=2, status="interrupted", seeds=(0,))
    for each, told in [(early, "2 runs logged"), (world, "2 runs logged, 2 replaced, which had")]:
        folder = write_run(tmp_path / "stored", each)
        summary = json.loads((folder / "summary.json").read_text())
        for variant in summary["variants"]:  # what a digest is made of
            variant["timeline_digest"] += str(each.rounds)
        (folder / "summary.json").write_text(json.dumps(summary))
        assert str(log_runs([folder], str(store))).startswith(told)

    (parent,), children = found_in(store)
    assert len(children) == 4
    assert {run.data.metrics["final/rounds"] for run in children} == {world.rounds}
    assert parent.info.status == "FINISHED"


def test_a_timing_only_run_has_no_accuracy_and_is_logged_all_the_same(
    world: World, tmp_path: Path, store: Path
) -> None:
    log_runs([write_run(tmp_path / "stored", replace(world, trained=False))], str(store))

    _, children = found_in(store)
    assert all("accuracy" not in run.data.metrics and "simulated_s" in run.data.metrics for run in children)


@pytest.mark.parametrize("unusable", ["nowhere://x", __file__, "http://127.0.0.1:9"])
def test_a_store_that_cannot_be_used_is_one_line(small_folder: Path, unusable: str) -> None:
    os.environ["MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"] = "0"
    with pytest.raises(ScenarioError, match="--log") as raised:
        log_runs([small_folder], unusable)
    assert "\n" not in str(raised.value)


def test_without_mlflow_the_extra_is_named(
    small_folder: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    sfl_sim("report", small_folder, "--log", f"mlflow={store}", code=2)
    assert capsys.readouterr().err.strip().endswith("MLflow is not installed: pip install 'sfl-sim[mlflow]'")
    assert not store.exists()


def test_an_address_that_is_none_is_refused_as_the_store(world: World, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "stored", world)
    with pytest.raises(ScenarioError, match=r"--log: Invalid IPv6 URL \(found 'http://\[::1'\)"):
        log_runs([folder], "http://[::1")
