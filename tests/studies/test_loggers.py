"""Loggers are told every round, live or stored, in real folders of TensorBoard, Weights & Biases and MLflow."""

import os
import sys
from types import SimpleNamespace

import pytest
import yaml
from command import sfl_sim as command
from synthetic_run import World, write_run

import sfl_sim
from sfl_sim.errors import ScenarioError
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.loggers import LoggedStudy, log_runs, tensorboard

SCENARIO = {
    "name": "ill", "data": {"name": "diabetes"}, "model": {"name": "mlp"}, "clients": {"count": 2},
    "train": {"rounds": 2}, "grid": {"method.name": ["fedavg", "splitfed_v2"]},
}  # fmt: skip
PACKAGES = "tensorboard", "wandb", "mlflow"


pytestmark = pytest.mark.usefixtures("no_reports")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr("os.environ", os.environ.copy())  # MLflow is told by variables that would outlast the test


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run that all loggers were told of: its results, its folder's parent, and what the function was told."""
    place, told = tmp_path_factory.mktemp("logged"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", os.environ.copy() | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
        os.environ["WANDB_DIR"] = str(place)
        for package in PACKAGES:
            pytest.importorskip(package)
        log = [lambda *news: told.append(news), f"tensorboard={place}/runs", "wandb=sfl", f"mlflow={place}/mlruns"]
        return sfl_sim.run(SCENARIO, out=place / "run", log=log, fresh=True), place, told


def mlflow_runs(store, experiment):
    """The client, the parents and the runs of trials, by name, in a store's experiment."""
    from mlflow import MlflowClient

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient(store.as_uri())
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    children = {run.info.run_name: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    return client, [run for run in runs if run.info.run_name not in children], children


def test_a_function_gets_the_numbers_of_every_trial(logged):
    results, _, told = logged
    assert [(name, number) for name, number, _ in told] == [
        (name, number) for name in ("fedavg", "splitfed_v2") for number in (1, 2)
    ]
    assert [numbers["r2"] for *_, numbers in told] == results.rounds["r2"].tolist()
    assert "accuracy" not in told[0][2]


def test_tensorboard_holds_a_curve_for_each_trial(logged):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results, place, _ = logged
    events = EventAccumulator(str(place / "runs" / "fedavg"))
    events.Reload()
    ours = results.rounds[results.rounds["variant"] == "fedavg"]
    assert [event.step for event in events.Scalars("loss")] == [1, 2]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(ours["loss"].tolist(), rel=1e-6)


def test_tensorboard_has_a_folder_for_each_of_two_like_names(tmp_path):
    pytest.importorskip("tensorboard")
    with tensorboard(str(tmp_path), LoggedStudy("study", {"a/b": {}, "a_b": {}})) as log:
        for name in ("a_b", "a/b"):
            log(name, 1, {"loss": 0.5})
    assert {folder.name for folder in tmp_path.iterdir()} == {"a_b", "a_b-2"}


def test_wandb_keeps_runs_here_when_it_is_offline(logged):
    _, place, _ = logged
    assert len(list(place.glob("wandb/offline-run-*"))) == 2


def test_mlflow_holds_a_run_for_each_trial_with_its_settings_and_rounds(logged):
    results, place, _ = logged
    client, (parent,), runs = mlflow_runs(place / "mlruns", "ill")
    assert runs.keys() == {"fedavg", "splitfed_v2"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    assert runs["fedavg"].data.params.items() >= {"method.name": "fedavg", "train.rounds": "2"}.items()
    rounds = results.rounds.query("variant == 'fedavg'")
    history = client.get_metric_history(runs["fedavg"].info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == list(zip(rounds["round"], rounds["loss"], strict=True))
    waited_ms = history[1].timestamp - history[0].timestamp  # the axis of time is simulated
    assert waited_ms == pytest.approx(1000 * rounds["ended_s"].diff().iloc[1], abs=1)


def test_a_stored_run_tells_what_it_has_told_while_it_ran(logged, tmp_path, capsys):
    results, place, _ = logged
    command("report", results.folder, "--log", f"mlflow={tmp_path}")
    assert "2 runs" in capsys.readouterr().out
    live, stored = (mlflow_runs(store, "ill")[-1] for store in (place / "mlruns", tmp_path))
    assert stored.keys() == live.keys()
    assert stored["fedavg"].data.params == live["fedavg"].data.params
    assert live["fedavg"].data.metrics.items() <= stored["fedavg"].data.metrics.items()


def interrupts(name, number, numbers):
    if name == "splitfed_v2":
        raise KeyboardInterrupt


def fails(round, experiment):
    if round.row["round"] == 2:
        raise ValueError


@pytest.mark.parametrize(
    ("ending", "error", "status"),
    [({"log": [interrupts]}, KeyboardInterrupt, "KILLED"), ({"on_round_end": [fails]}, TrialsFailed, "FAILED")],
)
def test_loggers_are_closed_when_a_study_is_interrupted_or_fails(ending, error, status, logged, tmp_path, monkeypatch):
    codes, closed = [], []
    run = SimpleNamespace(log=lambda numbers, step: None, finish=lambda exit_code: codes.append(exit_code))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", lambda writer: closed.append(writer.log_dir))
    log = [f"mlflow={tmp_path}/mlruns", "wandb=sfl", f"tensorboard={tmp_path}/runs", *ending.get("log", [])]
    with pytest.raises(error):
        sfl_sim.run(SCENARIO, out=tmp_path / "run", fresh=True, **ending | {"log": log})
    _, (parent,), runs = mlflow_runs(tmp_path / "mlruns", "ill")
    assert {run.info.status for run in (parent, *runs.values())} == {status}
    assert codes == [1] * len(closed) == [1] * len(runs) != []


def test_mlflow_is_told_of_ctrl_c_also_after_a_trial_has_finished(logged, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pressed", SimpleNamespace(log=interrupts))
    (tmp_path / "ill.yaml").write_text(yaml.safe_dump(SCENARIO))
    log = ["--log", "mlflow=mlruns", "--log", "pressed:log", "--allow-code"]
    command("run", "ill.yaml", "--fresh", "--quiet", *log, code=130)
    assert "--resume" in capsys.readouterr().err
    _, (parent,), runs = mlflow_runs(tmp_path / "mlruns", "ill")
    assert {run.info.status for run in (parent, *runs.values())} == {"KILLED"}


def test_a_store_that_breaks_down_is_one_line(logged, tmp_path, monkeypatch):
    def down(*_, **__):
        raise OSError("server is down")

    for told in ("log_batch", "set_terminated"):
        monkeypatch.setattr(f"mlflow.MlflowClient.{told}", down)
    with pytest.raises(ScenarioError) as raised:
        log_runs([logged[0].folder], f"mlflow={tmp_path}")
    assert raised.value.key == "--log"


def test_trials_of_several_seeds_are_called_by_them(tmp_path):
    world = World(clients=2, batches=1, seeds=(0, 1), trained=False)
    assert log_runs([write_run(tmp_path / "stored", world)] * 2, f"mlflow={tmp_path}/mlruns") == 6
    _, _, runs = mlflow_runs(tmp_path / "mlruns", "heterogeneous_bw")
    assert runs.keys() == {f"{variant.name} (seed {seed})" for variant in world.variants for seed in world.seeds}
    assert all("ended_s" in run.data.metrics and "accuracy" not in run.data.metrics for run in runs.values())


def test_a_trial_that_is_reused_warns_and_logs_nothing(logged, tmp_path, capsys):
    results, _, _ = logged
    told = []
    sfl_sim.run(SCENARIO, out=results.folder.with_name("again"), log=[lambda *news: told.append(news)], progress=True)
    assert told == []
    assert "--fresh" in capsys.readouterr().err


def test_a_logger_that_fails_warns_once_and_the_study_goes_on(tmp_path, capsys):
    calls = []

    def fails(name, number, numbers):
        calls.append(number)
        raise OSError("server is down")

    results = sfl_sim.run(SCENARIO, out=tmp_path, log=[fails], progress=True, fresh=True)
    assert calls == [1]
    assert len(results.rounds) == 4
    assert "server is down" in (shown := capsys.readouterr()).err + shown.out


@pytest.mark.parametrize("logger", ["tensorbord=runs", "tensorboard", "wandb="])
def test_an_unknown_logger_is_one_line(logger, tmp_path):
    with pytest.raises(ScenarioError) as raised:
        sfl_sim.run(SCENARIO, out=tmp_path, log=[logger])
    assert raised.value.key == "--log"
    assert raised.value.allowed == [f"{known}=PLACE" for known in PACKAGES]


@pytest.mark.parametrize("store", ["nowhere://x", __file__, "http://127.0.0.1:9", "http://[::1"])
def test_a_store_that_cannot_be_used_is_one_line(logged, store):
    os.environ["MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR"] = "0"
    with pytest.raises(ScenarioError) as raised:
        log_runs([logged[0].folder], f"mlflow={store}")
    assert raised.value.key == "--log"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_told_with_its_command(package, logged, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ScenarioError, match=r"sfl-sim\[loggers\]") as raised:
        log_runs([logged[0].folder], f"{package}=anything")
    assert raised.value.found == f"{package}=anything"


def test_functions_at_the_end_of_a_round_may_be_a_list(tmp_path):
    seen = []
    looks = [lambda round, _: seen.append(("a", round.row["round"])), lambda round, _: round.row["round"] == 1]
    results = sfl_sim.run({**SCENARIO, "grid": {}}, out=tmp_path, on_round_end=looks)
    assert seen == [("a", 1)]
    assert results.summary["stopped"].tolist() == ["on_round_end says so"]
