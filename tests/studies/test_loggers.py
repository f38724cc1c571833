"""Loggers are told every round while a study runs, in real folders of TensorBoard, Weights & Biases and MLflow."""

import sys

import pytest

import sfl_sim
from sfl_sim.errors import ScenarioError

SCENARIO = {
    "data": {"name": "diabetes"}, "model": {"name": "mlp"}, "clients": {"count": 2}, "train": {"rounds": 2},
    "grid": {"method.name": ["fedavg", "splitfed_v2"]},
}  # fmt: skip


def test_a_function_gets_the_numbers_of_every_trial(tmp_path):
    told = []
    results = sfl_sim.run(SCENARIO, out=tmp_path, log=[lambda *news: told.append(news)], fresh=True)
    assert [(name, number) for name, number, _ in told] == [
        (name, number) for name in ("fedavg", "splitfed_v2") for number in (1, 2)
    ]
    assert [numbers["r2"] for *_, numbers in told] == results.rounds["r2"].tolist()
    assert "accuracy" not in told[0][2]


def test_a_trial_that_is_reused_says_that_nothing_is_logged(tmp_path, capsys):
    told = []
    sfl_sim.run(SCENARIO, out=tmp_path / "one")
    sfl_sim.run(SCENARIO, out=tmp_path / "two", log=[lambda *news: told.append(news)], progress=True)
    assert told == []
    assert "is reused, so that loggers are told nothing" in capsys.readouterr().err


def test_a_logger_that_fails_warns_once_and_the_study_goes_on(tmp_path, capsys):
    calls = []

    def fails(name, number, numbers):
        calls.append(number)
        raise OSError("server is down")

    results = sfl_sim.run(SCENARIO, out=tmp_path, log=[fails], progress=True, fresh=True)
    assert calls == [1]
    assert len(results.rounds) == 4
    assert "server is down" in (shown := capsys.readouterr()).err + shown.out


def test_tensorboard_holds_a_curve_for_each_trial(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results = sfl_sim.run(SCENARIO, out=tmp_path / "run", log=[f"tensorboard={tmp_path / 'runs'}"], fresh=True)
    events = EventAccumulator(str(tmp_path / "runs" / "fedavg"))
    events.Reload()
    ours = results.rounds[results.rounds["variant"] == "fedavg"]
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(ours["loss"].tolist(), rel=1e-6)


def test_wandb_keeps_runs_here_when_it_is_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    sfl_sim.run(SCENARIO, out=tmp_path / "run", log=["wandb=sfl"], fresh=True)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2


def test_mlflow_holds_a_run_for_each_trial(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    results = sfl_sim.run(SCENARIO, out=tmp_path / "run", log=[f"mlflow={tmp_path / 'mlruns'}"], fresh=True)
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("sfl-sim").experiment_id])
    assert {one.info.run_name for one in runs} == {"fedavg", "splitfed_v2"}
    (one,) = (one for one in runs if one.info.run_name == "fedavg")
    history = client.get_metric_history(one.info.run_id, "loss")
    assert [point.value for point in history] == results.rounds.query("variant == 'fedavg'")["loss"].tolist()


@pytest.mark.parametrize("logger", ["tensorbord=runs", "tensorboard", "wandb="])
def test_an_unknown_logger_is_one_line(logger, tmp_path):
    with pytest.raises(ScenarioError, match=r"--log: is no logger .*tensorboard=PLACE"):
        sfl_sim.run(SCENARIO, out=tmp_path, log=[logger])


def test_a_missing_package_is_told_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ScenarioError, match=r"--log: needs wandb: pip install 'sfl-sim\[loggers\]'"):
        sfl_sim.run(SCENARIO, out=tmp_path, log=["wandb=sfl"])


def test_functions_at_the_end_of_a_round_may_be_a_list(tmp_path):
    seen = []
    looks = [lambda round, _: seen.append(("a", round.row["round"])), lambda round, _: round.row["round"] == 1]
    results = sfl_sim.run({**SCENARIO, "grid": {}}, out=tmp_path, on_round_end=looks)
    assert seen == [("a", 1)]
    assert results.summary["stopped"].tolist() == ["on_round_end says so"]
