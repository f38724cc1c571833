"""Training that ends early is training with as many rounds, however it was told to end."""

import json
import sys
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from small_study import SCENARIO, study

from sfl_sim.engine import checkpointing
from sfl_sim.engine.leakage import Meter
from sfl_sim.engine.stopping import Stopping
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.news import Ended
from sfl_sim.runs.trial import Settings
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.train import run_study

pytestmark = pytest.mark.usefixtures("without_pages")

TRAINING = Settings(device="cpu", threads=1)
TRAIN = SCENARIO["train"] | {"rounds": 5}
TIMING = Settings(timing_only=True, threads=1)
POWER = SCENARIO["clients"] | {"power": {"compute_w": 2.0, "uplink_w": 1.0, "downlink_w": 1.0, "idle_w": 0.5}}


def ran(out, settings=TRAINING, notify=lambda news: None, **sections):
    """Run a study of one trial; gives its summary and its rounds."""
    folder = run_study(study(**sections), out, settings, notify).folder
    return json.loads((folder / "summary.json").read_text())["variants"][0], pd.read_parquet(folder / "rounds.parquet")


def stopping(**rules):
    return TRAIN | {"stop": rules}


@pytest.mark.parametrize("settings", [TRAINING, Settings(timing_only=True, threads=1)])
@pytest.mark.parametrize("method", ["splitfed_v2", "harmony"])
def test_a_run_that_stops_is_to_the_bit_one_with_as_many_rounds(method, settings, tmp_path):
    """Also where clients download and adapt their models after the last round."""
    two = {"method": {"name": method}, "clients": POWER}
    short, rounds = ran(tmp_path / "short", settings, train=TRAIN | {"rounds": 2}, **two)
    time_s = rounds["started_s"].iloc[-1] + 1e-9
    stopped, stopped_rounds = ran(tmp_path / "stopped", settings, train=stopping(time_s=time_s), **two)
    assert stopped["stopped"] == f"{time_s:g} s have passed"
    for figure in ("rounds", "timeline_digest", "weights_digest", "hybrid_accuracy", "bytes_down", "simulated_s"):
        assert stopped[figure] == short[figure]
    assert stopped["joule"] == pytest.approx(short["joule"])
    pd.testing.assert_frame_equal(stopped_rounds, rounds)
    answers = [place / "answers.parquet" for place in (tmp_path / "short", tmp_path / "stopped")]
    assert [place.exists() for place in answers] == [method == "harmony" and settings is TRAINING] * 2


def test_after_its_time_no_round_begins_though_the_last_one_ended_before(tmp_path):
    """All clients come back every 10,000 s, for as long as a few rounds take."""
    _, rounds = ran(tmp_path / "always", TIMING, train=TRAIN)
    logs = "".join(f"{name},0,{rounds['ended_s'][1] + 1e-3},10000\n" for name in "abc")
    (tmp_path / "daily.csv").write_text(f"client,start_s,end_s,period_s\n{logs}")
    clients = SCENARIO["clients"] | {"availability": {"profile": str(tmp_path / "daily.csv"), "lost": "drop"}}
    summary, rounds = ran(tmp_path / "daily", TIMING, train=stopping(time_s=1000), clients=clients)
    assert summary["stopped"] == "1000 s have passed"
    assert 2 <= len(rounds) < 5
    assert rounds["started_s"].max() < 1000


def test_patience_counts_the_rounds_without_a_better_accuracy(tmp_path):
    train = stopping(patience=2) | {"rounds": 40, "lr": 0.3}
    summary, rounds = ran(tmp_path / "run", train=train)
    accuracy = rounds["accuracy"].to_numpy()
    assert summary["stopped"] == "no better accuracy in 2 rounds"
    assert accuracy[-3] == accuracy.max() > accuracy[-2:].max() - 1e-12
    assert all(accuracy[n : n + 2].max() > accuracy[:n].max() for n in range(1, len(accuracy) - 2))


def test_an_accuracy_that_is_as_good_as_the_best_is_not_better():
    stop = Stopping(study(train=stopping(patience=2)).base.train)
    ends = [why(stop, n, accuracy) for n, accuracy in enumerate([0.4, 0.5, 0.5, 0.5], start=1)]
    assert ends == [None, None, None, "no better accuracy in 2 rounds"]


def test_the_test_set_ends_nothing_where_validation_samples_are_set_aside():
    """Here it gets better in every round, and they do not."""
    stop = Stopping(study(train=stopping(patience=2)).base.train)
    ends = [why(stop, n, n / 10, validation_score=score) for n, score in enumerate([0.5, 0.4, 0.5], start=1)]
    assert ends == [None, None, "no better validation accuracy in 2 rounds"]


def test_rounds_that_a_resumed_run_takes_over_count_but_are_not_shown_again():
    shown = []

    def look(round, experiment):
        shown.append(round.row["round"])

    stop = Stopping(study(train=stopping(patience=2) | {"on_round_end": look}).base.train)
    assert why(stop, 1, 0.3, is_new=False) is None
    assert why(stop, 2, 0.2, is_new=False) is None
    assert why(stop, 3, 0.3) == "no better accuracy in 2 rounds"
    assert shown == [3]


def why(stop, n, accuracy, is_new=True, **scores):
    """Ask why training ends with round n."""
    round = SimpleNamespace(row={"round": n, "accuracy": accuracy, **scores})
    return stop.why(round, None, lambda: float(n), is_new=is_new)


def test_an_accuracy_ends_training_with_the_round_that_reaches_it_but_no_run_that_times_only(tmp_path):
    _, rounds = ran(tmp_path / "all", train=TRAIN | {"lr": 0.3})
    train = stopping(accuracy=rounds["accuracy"].iloc[2]) | {"lr": 0.3}
    summary, stopped = ran(tmp_path / "stopped", train=train)
    reached = (rounds["accuracy"] >= train["stop"]["accuracy"]).to_numpy().argmax()
    assert summary["rounds"] == len(stopped) == reached + 1
    assert summary["accuracy"] == stopped["accuracy"].iloc[-1] >= train["stop"]["accuracy"]
    assert ran(tmp_path / "timed", Settings(timing_only=True), train=train)[0]["rounds"] == 5


def test_a_run_that_is_resumed_stops_where_it_would_have_stopped_and_is_then_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "SHARE", 1e9)  # a checkpoint after every round
    train = stopping(patience=2) | {"rounds": 40, "lr": 0.3}
    whole, _ = ran(tmp_path / "whole", train=train)

    def pressed(news):
        if isinstance(news, Ended) and news.round.row["round"] == whole["rounds"] - 1:
            raise KeyboardInterrupt

    ran(tmp_path / "run", notify=pressed, train=train)
    resume = Settings(device="cpu", threads=1, resume=True)
    began = []
    resumed, rounds = ran(tmp_path / "run", resume, began.append, train=train)
    assert len(rounds) == whole["rounds"]
    assert all(resumed[key] == whole[key] for key in ("stopped", "weights_digest", "timeline_digest"))
    assert any(getattr(news, "after", 0) == whole["rounds"] - 2 for news in began)
    news = []
    ran(tmp_path / "run", resume, news.append, train=train)
    assert not news  # nothing is left to do


def test_one_s_own_function_sees_every_round_and_may_end_training(tmp_path):
    seen = []

    def look(round, experiment):
        seen.append((round.row["round"], round.row["accuracy"], len(experiment.weights())))
        return round.row["round"] == 2

    summary, rounds = ran(tmp_path / "run", train=TRAIN | {"on_round_end": look})
    assert summary["stopped"] == "on_round_end says so"
    numbers, accuracies, tensors = zip(*seen, strict=True)
    assert list(numbers) == rounds["round"].to_list()
    assert list(accuracies) == rounds["accuracy"].to_list()
    assert all(tensors)


def test_one_s_own_metric_is_a_column(tmp_path):
    def surest(logits, labels):
        assert len(logits) == len(labels) == 20
        return logits.softmax(1).max(1).values.mean()

    def right(logits, labels):
        return (logits.argmax(1) == labels).float().mean()

    metrics = {"metrics": {"surest": surest, "right": right}}
    summary, rounds = ran(tmp_path / "run", report=metrics)
    assert summary["metrics"] == rounds[["surest", "right"]].tail(5).astype(float).median().to_dict()
    assert rounds["right"].to_numpy() == pytest.approx(rounds["accuracy"].to_numpy(), abs=1e-6)
    assert rounds["surest"].between(0.1, 1).all()
    assert "surest" not in ran(tmp_path / "timed", Settings(timing_only=True), report=metrics)[1]


def test_a_metric_that_fails_or_ends_the_program_is_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"^report.metrics.odd: fails with TypeError: .*list"):
        ran(tmp_path / "run", report={"metrics": {"odd": lambda logits, labels: [1, 2]}})
    with pytest.raises(ScenarioError, match=r"^report.metrics.odd: fails with SystemExit"):
        ran(tmp_path / "run", report={"metrics": {"odd": lambda logits, labels: sys.exit()}})


def test_a_function_that_ends_the_program_ends_its_trial_alone(tmp_path):
    with pytest.raises(TrialsFailed, match="SystemExit"):
        ran(tmp_path / "run", train=TRAIN | {"on_round_end": lambda round, experiment: sys.exit()})


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("train.stop.accuracy", {"train": TRAIN | {"stop": {}}}),
        ("train.on_round_end", {"train": TRAIN | {"on_round_end": "os:sep"}}),
        ("report.metrics.accuracy", {"report": {"metrics": {"accuracy": len}}}),
        ("report.metrics.replay_gradient_norm", {"report": {"metrics": {"replay_gradient_norm": len}}}),
    ],
)
def test_what_cannot_be_used_is_one_line(key, sections, tmp_path):
    with pytest.raises(ScenarioError, match=f"^{key}: "):
        ran(tmp_path / "run", **sections)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError("the decoder fails")])
def test_a_run_that_ends_in_the_work_after_its_last_round_is_not_complete_and_resumes_to_the_same(
    problem, tmp_path, monkeypatch
):
    """Ctrl-C, or a failure, while the leakage meter trains after a round that turned out to be the last."""
    leakage = {"samples": 20, "epochs": 2, "aux_share": 0.5}
    leaky = {"method": "splitfed_v1", "train": stopping(patience=1), "report": {"leakage": leakage}}
    whole, rounds = ran(tmp_path / "whole", **leaky)
    assert whole["stopped"]

    def ends(meter, number):
        raise problem

    with monkeypatch.context() as patch, suppress(TrialsFailed):
        patch.setattr(Meter, "measure", ends)
        run_study(study(**leaky), tmp_path / "resumed", TRAINING, lambda news: None)
    (part,) = json.loads((tmp_path / "resumed" / "summary.json").read_text())["variants"]
    assert (part["stopped"], part["rounds"]) == (None, whole["rounds"] - 1)
    assert json.loads((tmp_path / "resumed" / "manifest.json").read_text())["status"] != "complete"
    shorter, _ = ran(tmp_path / "shorter", **leaky | {"train": TRAIN | {"rounds": part["rounds"]}})
    assert part["weights_digest"] == shorter["weights_digest"]
    resumed, resumed_rounds = ran(tmp_path / "resumed", replace(TRAINING, resume=True), **leaky)
    assert resumed == whole
    pd.testing.assert_frame_equal(resumed_rounds, rounds)
    tables = [pd.read_parquet(tmp_path / name / "leakage.parquet") for name in ("whole", "resumed")]
    pd.testing.assert_frame_equal(*tables)
