"""`sfl-sim serve`: what is trained for it and when not, what it leaves, and what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import command
import pandas as pd
import pytest
import yaml

import sfl_sim
from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.study import ServedStudy
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse

pytestmark = pytest.mark.usefixtures("no_reports")

ARRIVALS = {"kind": "poisson", "rate_per_s": 2}
TINY = {
    "name": "tiny",
    "repeats": 2,
    "data": {
        "name": "digits",
        "train_samples": 100,
        "test_samples": 100,
        "partition": {"kind": "label_shards", "shards": 25},
        "test": {"kind": "rho_ood", "rho": 0.5},
    },
    "model": {"name": "cnn_small", "cut": {"by": "client", "values": [1, 2, 1, 2]}},
    "train": {"rounds": 2, "batch_size": 16},
    "method": {"name": "multiexit"},
    "serving": {"arrivals": ARRIVALS, "requests": 120, "exit_probability": 0.5},
    "grid": {"method.name": ["splitfed_v1", "multiexit"], "serving.arrivals.rate_per_s": [1, 4]},
}
BRIEF = {"repeats": 1, "grid": {}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in whose reports/ the tiny study lies, trained."""
    place = tmp_path_factory.mktemp("trained")
    (place / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    sfl_sim.run(place / "tiny.yaml", out=place / "reports" / "tiny", threads=1)
    return place


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """A copy of it, as the current folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_page(monkeypatch):
    """Plotly is slow; most tests are not about the page."""
    monkeypatch.setattr("sfl_sim.features.serve.page.write_serving", lambda folder, out: out.write_text("a page"))


serve = partial(command.sfl_sim, "serve")


def trials(folder):
    return json.loads((Path(folder) / "serving.json").read_text())["trials"]


# What it leaves


def test_a_served_study_leaves_tables_and_a_page(here, capsys):
    serve("tiny.yaml")
    out = here / "reports" / "tiny-serving"
    assert {path.name for path in out.iterdir()} == {
        "serving.html", "serving.json", "requests.parquet", "fleet.parquet", "answers.parquet", "scenario.yaml",
        "manifest.json", "SHA256SUMS",
    }  # fmt: skip
    found = pd.DataFrame(trials(out))
    assert found.groupby("variant", sort=False)["seed"].apply(list).to_dict() == {
        f"{name}, rate_per_s={rate}": [0, 1] for name in ("splitfed_v1", "multiexit") for rate in (1, 4)
    }
    assert found.groupby("series", sort=False)["rate_per_s"].apply(list).to_dict() == {
        "splitfed_v1": [4, 4, 16, 16],
        "multiexit": [4, 4, 16, 16],
    }
    assert (found["trained"] == found["method"]).all()
    assert (found["rho"] == 0.5).all()
    requests = pd.read_parquet(out / "requests.parquet")
    assert list(requests) == [
        "variant", "seed", "request", "client", "arrived_s", "ended_s", "offloaded", "device_s", "uplink_s", "queue_s",
        "server_s", "downlink_s", "sample", "correct", "threshold",
    ]  # fmt: skip
    assert len(requests) == 8 * 120
    parts = requests[["device_s", "uplink_s", "queue_s", "server_s", "downlink_s"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx((requests["ended_s"] - requests["arrived_s"]).to_numpy())
    assert requests.groupby("variant")["offloaded"].mean()["splitfed_v1, rate_per_s=1"] == 1
    fleet = pd.read_parquet(out / "fleet.parquet")
    assert len(fleet) == 8 * 4
    assert fleet["cut"].tolist() == [1, 2, 1, 2] * 8
    whole = (fleet["front_parameters"] + fleet["server_parameters"]).groupby(fleet["variant"]).nunique()
    assert whole.eq(1).all()
    assert json.loads((out / "manifest.json").read_text())["run"] == "reports/tiny"
    assert load(out / "scenario.yaml").base == load("tiny.yaml").base
    printed = capsys.readouterr()
    assert "multiexit, rate_per_s=4 (seed 1)  request 0/120" in printed.err
    assert "Requests/s" in printed.out
    assert "Answers of reports/tiny." in printed.out
    assert printed.out.rstrip().endswith("reports/tiny-serving/serving.html")


def test_the_same_serving_is_the_same_to_the_bit_and_comes_to_the_same_place(here, no_page, capsys):
    for _ in range(2):
        serve("tiny.yaml", "-q", "--set", "repeats=1")
    serve("tiny.yaml", "-q", "--set", "repeats=1", "--set", "serving.requests=50")
    places = capsys.readouterr().out.split()
    assert places == ["reports/tiny-serving/serving.html"] * 2 + ["reports/tiny-serving-2/serving.html"]
    again = sfl_sim.serve("tiny.yaml", overrides=["repeats=1"], out="elsewhere")
    assert again.requests.equals(pd.read_parquet("reports/tiny-serving/requests.parquet"))
    assert again.summary["p95_s"].gt(0).all()
    assert again.fleet["group"].notna().all()


# What is trained for it


def training(log):
    return [line for line in log.splitlines() if "round" in line]


def test_what_lies_in_reports_is_not_trained_again_whatever_is_asked_of_it(here, no_page, capsys):
    before = (here / "reports" / "tiny" / "manifest.json").read_bytes()
    changes = "serving.threshold={kind: fixed, entropy: 1.0}", "serving.rho=0.2", "repeats=1"
    serve("tiny.yaml", *(word for change in changes for word in ("--set", change)))
    assert training(capsys.readouterr().err) == []
    assert (here / "reports" / "tiny" / "manifest.json").read_bytes() == before


def test_what_was_not_trained_yet_is_trained_once_for_all_ways_to_serve_it(here, no_page, capsys):
    serve("tiny.yaml", "--set", "train.rounds=1", "--set", "repeats=1")
    assert [line.split("  ")[0] for line in training(capsys.readouterr().err)] == ["splitfed_v1", "multiexit"]
    assert json.loads((here / "reports" / "tiny-2" / "manifest.json").read_text())["variants"] == 2


def test_what_another_version_trained_is_trained_again_unless_it_is_asked_for(here, no_page, monkeypatch, capsys):
    def training(study, out, settings, notify):
        raise ScenarioError("is trained")

    monkeypatch.setattr("sfl_sim.features.serve.study.run_study", training)
    monkeypatch.setattr("sfl_sim.runs.cache_key.code_version", lambda: "another")
    few = ["--set", "serving.requests=50", "--set", "repeats=1"]
    serve("tiny.yaml", "--run", "reports/tiny", *few)
    serve("tiny.yaml", *few, code=2)
    assert "is trained" in capsys.readouterr().err


def test_what_was_trained_from_a_file_that_has_changed_is_trained_again(tmp_path, monkeypatch, no_page, capsys):
    monkeypatch.chdir(tmp_path)
    partition = {"kind": "indices", "file": "clients.json"}
    scenario = TINY | BRIEF | {"data": TINY["data"] | {"partition": partition}, "train": {"rounds": 1}}
    Path("tiny.yaml").write_text(yaml.safe_dump(scenario))
    Path("clients.json").write_text(json.dumps([list(range(c, 100, 4)) for c in range(4)]))
    serve("tiny.yaml")
    serve("tiny.yaml")
    assert len(training(capsys.readouterr().err)) == 1
    Path("clients.json").write_text(json.dumps([list(range(25 * c, 25 * c + 25)) for c in range(4)]))
    serve("tiny.yaml")
    assert len(training(capsys.readouterr().err)) == 1


def test_a_rate_alone_means_poisson(here, no_page):
    plain = {key: value for key, value in TINY.items() if key != "serving"} | BRIEF
    Path("plain.yaml").write_text(yaml.safe_dump(plain))
    rate = ["--set", "serving.arrivals.rate_per_s=5", "--set", "serving.requests=60"]
    serve("plain.yaml", "-q", "--run", "reports/tiny", "--out", "out", *rate)
    assert trials("out")[0]["rate_per_s"] == 20


def test_a_run_of_the_scenario_trains_without_serving_and_is_found(tmp_path, monkeypatch, no_page, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump(TINY | {"repeats": 1}))
    command.sfl_sim("tiny.yaml", "-q", "--threads", 2)
    assert len(json.loads(Path("reports/tiny/summary.json").read_text())["variants"]) == 2
    serve("tiny.yaml")
    assert training(capsys.readouterr().err) == []


def test_a_scenario_without_serving_is_served_with_the_defaults(here, no_page):
    plain = {key: value for key, value in TINY.items() if key != "serving"} | BRIEF
    Path("plain.yaml").write_text(yaml.safe_dump(plain))
    serve("plain.yaml", "-q", "--run", "reports/tiny", "--out", "out", "--set", "serving.requests=60")
    (trial,) = trials("out")
    assert (trial["requests"], trial["rate_per_s"], trial["threshold"], trial["trained"]) == (
        60,
        4,
        "oracle",
        "multiexit",
    )


def test_a_trained_model_can_be_served_in_another_world(here, no_page):
    world = ["--set", "server.speedup=3", "--set", "clients.compute=1e9", "--set", "repeats=1"]
    serve("tiny.yaml", "-q", "--run", "reports/tiny", "--out", "out", *world)
    fleet = pd.read_parquet("out/fleet.parquet")
    assert fleet["group"].unique().tolist() == ["given"]
    assert fleet["macs_per_s"].unique().tolist() == [1e9]


def test_a_model_that_is_served_in_several_systems_has_its_answers_stored_once(here, no_page):
    changes = ["--set", "grid={clients.network.scale: [1, 2]}", "--set", "method.name=multiexit"]
    serve("tiny.yaml", "-q", "--run", "reports/tiny", "--out", "out", *changes)
    trained = pd.read_parquet("reports/tiny/answers.parquet").query("variant == 'multiexit'")
    assert len(pd.read_parquet("out/answers.parquet")) == len(trained)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["train.rounds=3"], "train.rounds: "),
        (["seed=1"], "seed: "),
        (["grid={method.name: splitfed_v2}", "model.cut=1", "serving.exit_probability=null"], ""),
        (["data.test.rho=0.6"], "data.test.rho: "),
        (["model.cut={by: device_speed, values: [1, 2]}"], "model.cut.by: "),
    ],
)
def test_a_run_that_trained_something_else_is_refused(settings, key, here, capsys):
    serve("tiny.yaml", "--run", "reports/tiny", *(word for setting in settings for word in ("--set", setting)), code=2)
    printed = capsys.readouterr().err
    assert f"{key}reports/tiny " in printed
    assert len(printed.splitlines()) == 1
    assert not (here / "reports" / "tiny-serving").exists()


def test_a_folder_without_answers_is_refused(here, capsys):
    command.sfl_sim("tiny.yaml", "--timing-only", "-q", "--out", "timing")
    for folder, line in [
        ("timing", "answers.parquet"),
        ("nowhere", "(found 'nowhere'; allowed: reports/tiny, timing)"),
        (".", "(found '.'"),
    ]:
        serve("tiny.yaml", "--run", folder, code=2)
        printed = capsys.readouterr().err
        assert "--run: " in printed
        assert line in printed
    answers = pd.read_parquet("reports/tiny/answers.parquet")
    answers[answers["seed"] == 0].to_parquet("reports/tiny/answers.parquet")
    serve("tiny.yaml", "--run", "reports/tiny", code=2)
    assert "SHA256SUMS" in capsys.readouterr().err
    Path("reports/tiny/SHA256SUMS").unlink()
    serve("tiny.yaml", "--run", "reports/tiny", code=2)
    assert "splitfed_v1 (seed 1)" in capsys.readouterr().err


# Without training


def test_timing_only_trains_nothing_and_needs_to_know_how_often_devices_answer(here, no_page, capsys):
    shutil.rmtree("reports")
    serve("tiny.yaml", "--timing-only")
    assert [path.name for path in Path("reports").iterdir()] == ["tiny-serving"]
    assert {trial["threshold"] for trial in trials("reports/tiny-serving")} == {"probability"}
    assert all(trial["accuracy"] is None and trial["trained"] is None for trial in trials("reports/tiny-serving"))
    capsys.readouterr()
    serve("tiny.yaml", "--timing-only", "--set", "serving.exit_probability=null", code=2)
    assert "--set: serving.exit_probability: " in capsys.readouterr().err
    serve("tiny.yaml", "--timing-only", "--run", "reports/tiny", code=2)
    assert "--run: " in capsys.readouterr().err


# Interruption and folders


def interrupted_at(trial, *, out):
    """Serve until the first request of the `trial`, counted from 0; the outcome of what was finished before."""
    study = ServedStudy(load("tiny.yaml"), Settings(threads=1))
    begun = []

    def notify(news):
        begun.extend([news.what] if news.done == 0 else [])
        if len(begun) > trial:
            raise KeyboardInterrupt

    return study.run(Path("reports/tiny"), out, notify)


def test_ctrl_c_keeps_the_trials_that_are_finished_and_the_next_serving_goes_on_from_there(here, no_page, capsys):
    outcome = interrupted_at(3, out=Path("out"))
    assert outcome.status == json.loads(Path("out/manifest.json").read_text())["status"] == "interrupted"
    assert len(trials("out")) == 3
    assert pd.read_parquet("out/requests.parquet").groupby(["variant", "seed"]).size().tolist() == [120] * 3
    serve("tiny.yaml", "--run", "reports/tiny", "--out", "out")
    assert capsys.readouterr().err.count("request 0/120") == 5
    whole = sfl_sim.serve("tiny.yaml", run="reports/tiny", out="whole")
    assert pd.read_parquet("out/requests.parquet").equals(whole.requests)


def test_trials_of_a_trace_that_has_changed_since_are_not_kept(here, no_page):
    arrivals = {"kind": "trace", "file": "trace.csv"}
    scenario = TINY | {"serving": {"arrivals": arrivals}, "grid": {"method.name": ["splitfed_v1", "multiexit"]}}
    Path("tiny.yaml").write_text(yaml.safe_dump(scenario))
    Path("trace.csv").write_text("time_s,client\n1,0\n2,1\n")
    interrupted_at(1, out=Path("out"))
    assert pd.read_parquet("out/requests.parquet")["arrived_s"].tolist() == [1, 2]
    Path("trace.csv").write_text("time_s,client\n3,0\n4,1\n")
    serve("tiny.yaml", "--run", "reports/tiny", "--out", "out")
    assert pd.read_parquet("out/requests.parquet")["arrived_s"].tolist() == [3, 4] * 4


def test_ctrl_c_before_anything_is_finished_leaves_nothing(here):
    with pytest.raises(KeyboardInterrupt):
        interrupted_at(0, out=Path("out"))
    assert sorted(path.name for path in here.iterdir()) == ["reports", "tiny.yaml"]


def test_ctrl_c_is_said_with_exit_code_130(here):
    code = (  # a shell's background job ignores Ctrl-C, and so would its children
        "import signal; from sfl_sim.cli import main; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "main(['serve', 'tiny.yaml', '--set', 'serving.requests=200000', '--set', 'repeats=1'])"
    )
    command = [sys.executable, "-c", code]
    root = str(Path(sfl_sim.__file__).parents[1])
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root}) as process:
        while "request" not in (line := process.stderr.readline()):
            assert line, "ended before it could be interrupted"
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert rest.rstrip().endswith("sfl-sim: interrupted")
    assert [path.name for path in (here / "reports").iterdir()] == ["tiny"]


def test_a_folder_that_holds_something_else_or_cannot_be_written_is_refused(here, capsys):
    serve("tiny.yaml", "--out", "reports/tiny", code=2)
    assert "--out: " in capsys.readouterr().err
    Path("file").write_text("")
    serve("tiny.yaml", "--out", "file/below", code=2)
    assert "file/below" in capsys.readouterr().err


# What cannot be used


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["serving.arivals={}"], "--set: serving.arivals: unknown key (found 'arivals'"),
        (["serving.batch.max_wait_s=0.1"], "--set: serving.batch.max_wait_s: "),
        (["serving.rho=0.9"], "--set: serving.rho: "),
        (["serving.arrivals={kind: trace, file: trace.csv}", "grid={}"], "trace.csv:3: serving.arrivals.file: column"),
        (["grid={method.name: splitfed_v3}", "model.cut=1", "serving.exit_probability=null"], "--set: method.name: "),
    ],
)
def test_bad_input_is_one_line_before_anything_is_trained(settings, line, here, capsys):
    shutil.rmtree("reports")
    Path("trace.csv").write_text("time_s,client\n1.0,2\n2.0,nobody\n")
    serve("tiny.yaml", *(word for setting in settings for word in ("--set", setting)), code=2)
    printed = capsys.readouterr().err
    assert line in printed
    assert len(printed.splitlines()) == 1
    assert not Path("reports").exists()


def test_validate_checks_the_serving_too(here, capsys):
    command.sfl_sim("check", "tiny.yaml")
    assert "fine (8 runs" in capsys.readouterr().out
    command.sfl_sim("check", "tiny.yaml", "--set", "grid={}", "--set", "serving.arrivals.rate_per_s=[1]", code=2)
    assert "serving.arrivals.rate_per_s: " in capsys.readouterr().err


def test_from_python_a_mistake_is_an_error_with_its_key():
    with pytest.raises(ScenarioError) as raised:
        sfl_sim.serve(TINY | BRIEF | {"serving": {}}, timing_only=True)
    assert raised.value.key == "serving.exit_probability"
    assert parse(TINY).variants[0].scenario.serving.requests == 120
