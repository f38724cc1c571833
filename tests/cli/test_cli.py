"""The command line as a person uses it: exit codes, what is printed, what is left on disk."""

import gzip
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.main import get_command

from sfl_sim.api import run
from sfl_sim.cli import main
from sfl_sim.cli.app import app
from sfl_sim.engine.catalogue import catalogue
from sfl_sim.methods import METHODS
from sfl_sim.scenario.load import load
from sfl_sim.scenario.sections import Scenario

pytestmark = pytest.mark.usefixtures("without_pages")

TINY = """\
name: tiny
data: {name: digits, train_samples: 200, test_samples: 100, partition: {kind: dominant_label, p: 0.9, phi: 1}}
model: {name: cnn_small, cut: 1}
clients: {compute: ai_benchmark, network: mobiperf}
train: {rounds: 2, batch_size: 8}
grid:
  - {method.name: splitfed_v1}
  - {method.name: splitfed_v2, server.order: [fcfs, cyclic]}
report: {target_accuracy: 0.15}
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def sfl_sim(*arguments, code=0):
    """Run the command in this process and check its exit code."""
    found = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        found = stop.code
    assert found == code


def summary(folder):
    return json.loads((folder / "summary.json").read_text())["variants"]


def digests(folder):
    return [(v["timeline_digest"], v["weights_digest"]) for v in summary(folder)]


@pytest.mark.pages
def test_a_run_leaves_the_folder_that_the_design_describes(scenario, tmp_path, capsys):
    sfl_sim(scenario)
    out = tmp_path / "reports" / "tiny"
    names = {p.name for p in out.iterdir()}
    assert names == {
        "report.html", "summary.json", "rounds.parquet", "labels.parquet", "ops.parquet", "clients.parquet",
        "layers.parquet", "retimed.parquet", "trace.json.gz", "scenario.yaml", "manifest.json", "checkpoints",
        "SHA256SUMS",
    }  # fmt: skip
    found = summary(out)
    assert [v["name"] for v in found] == ["splitfed_v1", "splitfed_v2, fcfs", "splitfed_v2, cyclic"]
    assert set(found[0]) == {
        "name", "method", "method_options", "seed", "rounds", "simulated_s", "accuracy", "client_accuracy",
        "performance_gap", "accuracy_spread", "backward_transfer", "best_accuracy", "reference", "hybrid_accuracy",
        "device_accuracy", "server_accuracy", "offload_probability", "rho",
        "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy", "bytes_up", "bytes_down",
        "joule", "timeline_digest", "weights_digest", "breakdown_s", "executor", "threads", "key",
        "peak_graphs", "server_model_bytes",
    }  # fmt: skip
    parts = {"device", "uplink", "queue", "assistants", "server", "downlink", "barrier", "aggregate"}
    assert set(found[0]["breakdown_s"]) == parts
    for v in found:
        assert sum(v["breakdown_s"].values()) == pytest.approx(v["simulated_s"])
    rounds = pd.read_parquet(out / "rounds.parquet")
    assert len(rounds) == 6
    assert rounds["accuracy"].between(0, 1).all()
    labels = pd.read_parquet(out / "labels.parquet")
    assert labels.groupby(["variant", "round"])["position"].apply(sorted).map(lambda p: p == list(range(10))).all()
    events = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(pd.read_parquet(out / "ops.parquet"))
    printed = capsys.readouterr()
    assert printed.out.rstrip().endswith("reports/tiny/report.html")
    assert "splitfed_v1  round 2/2" in printed.err


@pytest.mark.pages
def test_devices_with_exits_and_the_last_layer_s_view_are_in_summary_tables_and_report(scenario, tmp_path):
    """Every client trains on one label, and is tested on that alone."""
    text = TINY.replace("phi: 1}", "phi: 1}, test: {kind: rho_ood, rho: 0}").replace("p: 0.9", "p: 1.0")
    text = text.replace("{target_accuracy: 0.15}", "{representations: 30}")
    scenario.write_text(re.sub("grid:.*(?=report)", "method: {name: multiexit}\n", text, flags=re.DOTALL))
    sfl_sim(scenario, "-q", "--set", "train.lr=0.1")
    out = tmp_path / "reports" / "tiny"
    (found,) = summary(out)
    answers = pd.read_parquet(out / "answers.parquet")
    assert answers["seen"].all()
    assert found["rho"] == 0
    assert found["device_accuracy"] == answers.groupby("client")["device_correct"].mean().mean()
    assert found["server_accuracy"] == pytest.approx(answers.groupby("client")["server_correct"].mean().mean())
    assert found["hybrid_accuracy"] >= found["device_accuracy"] > 0
    assert len(pd.read_parquet(out / "representations.parquet")) == 30
    page = (out / "report.html").read_text()
    assert "<h2>Early exits</h2>" in page
    assert "<h2>Inputs of the last layer</h2>" in page


def test_the_resolved_scenario_runs_again_as_it_is(scenario, tmp_path):
    sfl_sim(scenario, "--timing-only", "-q", "--out", "first")
    sfl_sim("first/scenario.yaml", "--timing-only", "-q", "--fresh", "--out", "second")
    assert digests(tmp_path / "first") == digests(tmp_path / "second")


def test_training_timing_only_and_side_by_side_runs_have_one_timeline_and_one_result(scenario, tmp_path):
    # at batch 64 a step is worth several threads, whose number must not depend on the number of jobs
    scenario.write_text(TINY.replace("batch_size: 8", "batch_size: 64"))
    brief = ["-q", "--set", "train.rounds=1", "--set", "grid={}", "--set", "repeats=2"]
    sfl_sim(scenario, *brief, "--threads", "2", "--out", "trained")
    sfl_sim(scenario, *brief, "--threads", "2", "--out", "apart", "--jobs", "2", "--fresh")
    sfl_sim(scenario, *brief, "--out", "timed", "--timing-only")
    assert digests(tmp_path / "trained") == digests(tmp_path / "apart")
    assert [t for t, _ in digests(tmp_path / "timed")] == [t for t, _ in digests(tmp_path / "trained")]
    assert all(v["accuracy"] is None and v["weights_digest"] is None for v in summary(tmp_path / "timed"))


def test_results_do_not_depend_on_python_s_hash_seed(scenario, tmp_path):
    """This process has a seed of its own, at random."""
    brief = [scenario, "-q", "--fresh", "--set", "train.rounds=1", "--set", "grid={}"]
    command = [sys.executable, "-m", "sfl_sim", *brief, "--out", "other"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True)
    sfl_sim(*brief, "--out", "own")
    assert digests(tmp_path / "other") == digests(tmp_path / "own")


def test_a_different_scenario_of_the_same_name_gets_a_folder_of_its_own(scenario, tmp_path, capsys):
    sfl_sim(scenario, "-q", "--timing-only")
    sfl_sim(scenario, "-q", "--timing-only")
    sfl_sim(scenario, "-q", "--timing-only", "--set", "train.rounds=1")
    assert capsys.readouterr().out.split() == ["reports/tiny/report.html"] * 2 + ["reports/tiny-2/report.html"]
    assert summary(tmp_path / "reports" / "tiny")[0]["rounds"] == 2
    sfl_sim(scenario, "-q", "--out", "reports/tiny", code=2)


def test_ctrl_c_leaves_a_readable_partial_run_and_resume_finishes_it(scenario, tmp_path):
    command = [
        sys.executable,
        "-m",
        "sfl_sim",
        str(scenario),
        "--set",
        "train.rounds=12",
        "--threads",
        "1",
        "--out",
        "run",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "fcfs  round" not in (line := process.stderr.readline()):  # the second of three variants is under way
            assert line, "ended before it could be interrupted"
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert rest.rstrip().endswith("sfl-sim: interrupted; the same command with --resume goes on from there")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "interrupted"
    rounds = pd.read_parquet(tmp_path / "run" / "rounds.parquet").groupby("variant", sort=False).size()
    assert rounds.iloc[0] == 12
    assert 0 < rounds.iloc[1] < 12
    assert (tmp_path / "run" / "report.html").stat().st_size > 1e6
    sfl_sim(scenario, "--set", "train.rounds=12", "--threads", "1", "-q", "--out", "run", "--resume")
    sfl_sim(scenario, "--set", "train.rounds=12", "--threads", "1", "-q", "--fresh", "--out", "unbroken")
    assert digests(tmp_path / "run") == digests(tmp_path / "unbroken")


def test_a_killed_run_leaves_nothing_that_looks_complete(scenario, tmp_path):
    command = [sys.executable, "-m", "sfl_sim", str(scenario), "--set", "train.rounds=200", "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()
        process.kill()
    assert not (tmp_path / "run").exists()
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run", code=2)  # the unfinished one is of another scenario
    sfl_sim(scenario, "-q", "--set", "train.rounds=200", "--timing-only", "--out", "other")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_or_kill_before_anything_is_trained_is_said_and_leaves_nothing(scenario, tmp_path, name):
    """Newer versions of typer turn Ctrl-C into an exit code of their own; a shell's background job ignores it."""
    code = (
        "import os, signal, sfl_sim.studies.train as s; from sfl_sim.cli import main; "
        f"s.check = lambda *_: os.kill(os.getpid(), signal.{name}); "
        "signal.signal(signal.SIGINT, signal.default_int_handler); main(['tiny.yaml', '--out', 'run'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 130
    assert found.stderr.strip() == "sfl-sim: interrupted"
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.pages
def test_a_report_that_cannot_be_written_leaves_the_earlier_one_whole(scenario, tmp_path, monkeypatch, capsys):
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run")
    before = (tmp_path / "run" / "report.html").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sfl_sim.store.files.os.fsync", full)
        sfl_sim("report", "run", code=2)
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").read_bytes() == before
    assert not (tmp_path / "run" / "report.html.part").exists()


@pytest.mark.pages
def test_divergence_is_said(scenario, tmp_path, capsys):
    diverging = ["--set", "train.lr=1e30", "--set", "grid=[]"]
    sfl_sim(scenario, *diverging, "--out", "stopped", code=1)
    assert re.search(
        r"the loss of train of mini-batch \d+ of client \d+, at the server is nan", capsys.readouterr().err
    )
    sfl_sim(scenario, *diverging, "--set", "train.on_nan=skip", "--out", "run")
    assert "diverged, loss nan" in capsys.readouterr().err
    assert "diverged in round 1" in (tmp_path / "run" / "report.html").read_text()


def test_the_help_and_bare_sfl_sim(capsys):
    for option in ("-h", "--help"):
        sfl_sim(option)
        assert "Run a scenario" in capsys.readouterr().out
    sfl_sim(code=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("name=../evil", "name: cannot name a folder"),
        ("seed=99999999999999999999", "seed: "),
        ("server.order=os.path:join", "server.order: is not a function that makes a policy of a roster"),
        ("method.name=splitfed_v3x", "method.name: no such name"),
        ("method.name=os:path", "method.name: is not a subclass of sfl_sim.methods.Method (found 'os:path')"),
        ("method.name=no_such_module:X", "method.name: cannot be imported"),
        ("method.server_agg_ever=step", "method.server_agg_ever: unknown key of splitfed_v1"),
        (
            "method.server_agg_every=steps",
            "method.server_agg_every: unknown choice (found 'steps'; allowed: step, epoch",
        ),
        ("model.cut=9", "model.cut: a cut of cnn_small comes after one of its layers 1 to 3 (found 9"),
        ("model.cut=conv33", "1 to 3, did you mean 'conv3'? (found 'conv33'; allowed: 1 conv1, 2 conv2, 3 conv3)"),
        ("model.cut=1.5", "model.cut: must be a whole number of at least 1 or text or a number above 0 and below 1"),
        ("model.cut={by: client, values: [1]}", "model.cut.values: needs one cut for each client (found 1; allowed"),
        ("model.factory=os.path", "model.factory: is not a package.module:name of your own (found 'os.path')"),
        ("model.factory=no_such_module:make", "model.factory: cannot be imported: No module named 'no_such_module'"),
        ("model.factory=os:sep", "model.factory: is no model (found '/'"),
        ("model.name=cnn_smal", "did you mean 'cnn_small'?"),
        ("clients.count=7", "clients.count: "),
        (
            "grid={method.name: hydra, method.cut2: 1.5}",
            "method.cut2: must be a whole number or text or a number above 0 and below 1 or null (found 1.5)",
        ),
        ("grid={method.name: korea, method.proportion: of}", "did you mean 'off'?"),
        (
            "grid={method.name: korea, method.p0: 30%}",
            "method.p0: must be a number above 0 and at most 1 (found '30%')",
        ),
        ("grid={method.name: splitfed_v2, method.l2_on: model}", "method.l2_on: there is no penalty without method.l2"),
        ("grid={server.order: client_level, server.max_wait_s: 2}", "server.max_wait_s: cannot be given together with"),
        ("grid={method.name: splitnn, report.snapshots.rounds: [[1]]}", "report.snapshots: splitnn cannot be asked"),
        ("server.burst=2", "server.burst: fcfs serves one job at a time"),
        ("server.order=cyclyc", "did you mean 'cyclic'?"),
        ("clients.compute=ai_bench", "clients.compute"),
        ("clients.network=missing.csv", "clients.network"),
        ("data.name=digit", "did you mean 'digits'?"),
        ("data.partition={kind: dirichlet, alpha: 0.01, min_size: 0}", "data.partition: "),
        ("data.partition={kind: natural}", "data.partition.kind: the owners of this data set's samples are unknown"),
        ("data.test={kind: rho_ood, rho: 0.001}", "data.test.rho: no client gets a test sample of a label"),
        ("train.batch_size=1000 train.drop_last=true", "fewer than one whole batch"),
        ("roundz=3", "roundz: "),
        ("rounds=3", "did you mean 'train.rounds'?"),
        ("train.rounds=many", "train.rounds: "),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2_and_leaves_nothing(setting, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = yaml.safe_load(TINY)
    base["method"] = {"name": "splitfed_v1"}
    del base["grid"]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(base))
    sets = [word for part in (setting.split() if "{" not in setting else [setting]) for word in ("--set", part)]
    sfl_sim("tiny.yaml", *sets, "--allow-code", code=2)
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert line in printed
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_mistake_in_the_file_is_named_with_file_and_line(scenario, capsys):
    scenario.write_text(TINY.replace("server.order: [fcfs, cyclic]", "server.order: [fcfs, cyclical]"))
    sfl_sim(scenario, code=2)
    printed = capsys.readouterr().err
    assert f"{scenario}:8: " in printed
    assert "did you mean 'cyclic'?" in printed


def test_other_failures_are_one_line_with_exit_code_1(scenario, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sfl_sim.store.TrialWriter.add_round", full)
    sfl_sim(scenario, code=1)
    assert "No space left on device" in capsys.readouterr().err.splitlines()[-1]


def test_debug_shows_the_traceback(scenario):
    with pytest.raises(ValueError, match=r"model\.cut"):
        main([str(scenario), "--set", "model.cut=9", "--debug"])


def test_debug_says_why_a_timing_only_run_needs_the_event_loop(scenario, capsys):
    splitnn = ("-q", "--timing-only", "--set", "grid={method.name: splitnn}")
    sfl_sim(scenario, *splitnn)
    assert "event loop" not in capsys.readouterr().err
    sfl_sim(scenario, *splitnn, "--fresh", "--debug")
    assert capsys.readouterr().err.count("the event loop is used: rounds of the same clients may differ") == 1


def test_validate_checks_without_running(scenario, tmp_path, capsys):
    sfl_sim("validate", scenario)
    assert "fine (3 runs: splitfed_v1; splitfed_v2, fcfs; splitfed_v2, cyclic)" in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()


def test_workers_that_a_method_cannot_use_are_told_once(scenario, capsys):
    told = "warning: --set: server.workers: more than one has no effect: splitfed_v2 changes one model there, "
    sfl_sim("validate", scenario, "--set", "server.workers=2")
    assert capsys.readouterr().err.splitlines() == [f"{told}one job after the other"]
    sfl_sim(scenario, "-q", "--timing-only", "--set", "server.workers=2")
    assert capsys.readouterr().err.splitlines() == [f"{told}one job after the other"]
    sfl_sim("validate", scenario, "--set", "server.workers=2", "--set", "grid={method.name: [fedavg]}")
    assert "no effect: fedavg trains nothing there" in capsys.readouterr().err
    for enough in ("server.workers=unlimited", "method=splitfed_v1"):
        sfl_sim("validate", scenario, "--set", "server.workers=2", "--set", "grid={}", "--set", enough)
        assert not capsys.readouterr().err


def test_what_the_cut_gives_away_is_shown_for_every_cut(scenario, tmp_path, capsys):
    attacks = "report.leakage={samples: 20, epochs: 1, aux_share: 0.2}"
    sfl_sim("privacy", scenario, "--vary", "model.cut=1,3", "--set", "grid={}", "--set", attacks)
    printed = capsys.readouterr().out
    assert "cut=1" in printed
    assert "SSIM" in printed
    assert printed.rstrip().endswith("reports/tiny-privacy/privacy.html")
    folder = tmp_path / "reports" / "tiny-privacy"
    assert (folder / "report.html").exists()
    table = pd.read_parquet(folder / "leakage.parquet")
    assert set(zip(table["variant"], table["cut"], strict=True)) == {(f"cut={n}", at) for n in (1, 3) for at in (0, n)}
    (folder / "privacy.html").unlink()
    sfl_sim("report", folder)
    assert capsys.readouterr().out.split() == [str(folder / "report.html"), str(folder / "privacy.html")]
    sfl_sim("report", folder, "--out", tmp_path / "one.html")
    assert capsys.readouterr().out.split() == [str(tmp_path / "one.html"), str(tmp_path / "one-privacy.html")]
    sfl_sim("privacy", scenario, "--vary", "model.cuts=1", "--set", "grid={}", code=2)
    assert "unknown key" in capsys.readouterr().err


def test_a_partition_is_shown_before_anyone_trains(scenario, tmp_path, capsys):
    sfl_sim("partition", scenario, "--set", "data.partition.phi=2", "--set", "repeats=2")
    printed = capsys.readouterr().out
    assert "dominant_label, p=0.9, phi=2" in printed
    assert re.search(r"Same for all 2 seeds +20 +0 ", printed)
    assert printed.rstrip().endswith("reports/tiny-partition.html")
    assert "Labels held by each client" in (tmp_path / "reports" / "tiny-partition.html").read_text()
    sfl_sim("partition", scenario, "--set", "clients.count=7", "--out", "mine.html", code=2)
    assert "--set: clients.count: dominant_label needs phi clients for each label" in capsys.readouterr().err
    assert not (tmp_path / "mine.html").exists()


def test_the_schema_is_json_and_knows_names_and_options(capsys):
    sfl_sim("schema")
    text = capsys.readouterr().out
    assert json.loads(text)["properties"]
    for word in ("splitfed_v2", "server_agg_every", "cyclic_reverse", "mobilenet_v1", "fashion_mnist"):
        assert word in text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["fedavg", "splitnn", "splitfed_v1", "splitfed_v2"]),
        ("models", ["lenet5", "cnn_small", "cnn8", "mobilenet_v1", "resnet18"]),
        ("datasets", ["digits", "fashion_mnist", "cifar10", "image_folder"]),
        ("orders", ["fcfs", "cyclic", "random_job", "bounded_wait", "hydra_code"]),
        ("partitions", ["iid", "dominant_label", "sharding", "label_shards", "dirichlet", "quantity_skew", "natural"]),
        ("profiles", ["ai_benchmark", "mobiperf", "hsdpa_bus"]),
    ],
)
def test_list_names_and_explains(what, names, capsys):
    sfl_sim("list", what)
    lines = capsys.readouterr().out.splitlines()
    for name in names:
        assert any(line.startswith(name) and len(line.split()) > 3 for line in lines)


def test_list_names_every_method_s_paper_its_year_and_its_options(capsys):
    sfl_sim("list", "methods")
    printed = " ".join(capsys.readouterr().out.split())
    for name, about in catalogue()["methods"].items():
        _, paper, *options = about.split("\n")
        assert re.fullmatch(r"\w+ et al\..* (19|20)\d\d", paper)
        assert all(field in options[0] for field in METHODS[name].Options.model_fields)
        assert f"{name} {' '.join(about.split())}" in printed


MY_NETS = """\
from torch import nn

def make(input_shape, n_labels):
    channels, height, width = input_shape
    features = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 12), nn.ReLU())
    return nn.Sequential(features, nn.Linear(12, 8), nn.Linear(8, n_labels))

ready = make((1, 8, 8), 10)
"""


@pytest.fixture
def my_nets(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(MY_NETS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_nets")
    sys.modules.pop("my_nets")


@pytest.mark.parametrize("thing", ["make", "ready"])
def test_a_network_of_one_s_own_takes_the_name_s_place(thing, my_nets, scenario, tmp_path):
    sets = ["--set", f"model.factory=my_nets:{thing}", "--set", "model.cut=2"]
    sfl_sim(scenario, "-q", "--allow-code", *sets, "--out", "mine")
    layers = pd.read_parquet(tmp_path / "mine" / "layers.parquet")
    assert layers.groupby("variant")["name"].apply(list).tolist() == [["0", "1", "2"]] * 3
    assert layers["model"].unique().tolist() == [f"my_nets:{thing}"]


def test_a_network_of_one_s_own_from_python(my_nets, scenario, tmp_path):
    settings = yaml.safe_load(TINY) | {"model": {"factory": my_nets.make, "cut": 0.5}}
    results = run(settings, out=tmp_path / "mine", jobs=2)
    assert results.layers["model"].unique().tolist() == ["my_nets:make"]
    assert results.clients["cut"].unique().tolist() == [2]


def test_the_layers_of_a_model_with_their_costs(my_nets, capsys):
    sfl_sim("model", "my_nets:make", "--input", "3x4x4", "--labels", "7", "--allow-code")
    title, data, _, *rows, _ = capsys.readouterr().out.splitlines()
    assert title.startswith("my_nets:make: 3 layers")
    assert data == "for samples of 3x4x4 and 7 labels"
    assert [row.split()[2] for row in rows] == ["12", "8", "7"]


def test_the_layers_of_a_model_of_the_zoo_without_saying_for_which_data(capsys):
    sfl_sim("model", "lenet5")
    assert "for samples of 1x28x28 and 10 labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lenet"], "did you mean 'lenet5'?"),
        (["lenet5", "--input", "28"], "cannot take inputs of shape 28"),
        (["lenet5", "--input", "3x0"], "--input: is not the shape of a sample (found '3x0'"),
        (["lenet5", "--input", "٣x٣x٣"], "--input: is not the shape of a sample (found '٣x٣x٣'"),
        (["lenet5", "--input", ""], "--input: is not the shape of a sample (found ''"),
    ],
)
def test_a_model_that_cannot_be_shown_is_one_line(arguments, line, capsys):
    sfl_sim("model", *arguments, code=2)
    assert line in capsys.readouterr().err


def test_list_of_something_else_says_what_there_is(capsys):
    sfl_sim("list", "method", code=2)
    assert "did you mean 'methods'?" in capsys.readouterr().err


@pytest.mark.pages
def test_the_report_of_stored_runs_can_be_made_again_and_side_by_side(scenario, tmp_path):
    sfl_sim(scenario, "-q", "--timing-only", "--out", "a")
    sfl_sim(scenario, "-q", "--timing-only", "--out", "b", "--set", "server.speedup=10")
    (tmp_path / "a" / "report.html").unlink()
    sfl_sim("report", "a")
    assert (tmp_path / "a" / "report.html").exists()
    sfl_sim("report", "a", "b", code=2)
    sfl_sim("report", "a", "b", "--out", "both.html")
    assert (tmp_path / "both.html").stat().st_size > 1e6
    sfl_sim("report", "a", "b", "--out", "both.html", "--plotly", "directory")
    assert (tmp_path / "both.html").stat().st_size < 1e6 < (tmp_path / "plotly.min.js").stat().st_size
    sfl_sim("report", "a", "--plotly", "elsewhere", code=2)
    sfl_sim("report", "nowhere", code=2)


def test_a_shipped_scenario_runs_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sfl_sim("validate", "heterogeneous_bw")
    assert "fine" in capsys.readouterr().out
    sfl_sim("validate", "heterogenous_bw", code=2)


def test_a_missing_scenario_and_a_wrong_option_are_clear(capsys):
    sfl_sim("heterogenous_bw", code=2)
    assert "did you mean 'heterogeneous_bw'?" in capsys.readouterr().err
    sfl_sim("heterogeneous_bw", "--out", "/", code=2)
    sfl_sim("nowhere.yaml", code=2)
    assert "nowhere.yaml" in capsys.readouterr().err
    sfl_sim("heterogeneous_bw", "--rounds", "3", code=2)
    assert capsys.readouterr().err.endswith("No such option: --rounds (did you mean --set train.rounds=VALUE?)\n")
    sfl_sim("heterogeneous_bw", "--frsh", code=2)
    assert "--fresh" in capsys.readouterr().err


@pytest.mark.pages
def test_a_variant_that_fails_does_not_stop_the_others_and_its_error_is_in_the_report(scenario, tmp_path, capsys):
    """Fail the poisoned variant, in round 2 of 2."""
    (tmp_path / "poison").write_text("no <more>")
    method = {"name": "small_study:Poisoned", "poison": str(tmp_path)}
    sets = ["--set", f"method={json.dumps(method)}", "--set", "grid={train.lr: [0.1, 0.2]}", "--timing-only"]
    sets.append("--allow-code")
    sfl_sim(scenario, *sets, code=1)
    printed = capsys.readouterr()
    assert re.search(r"lr=0\.2  failed: RuntimeError: no <more>, at .*small_study\.py:44 \(round 2\)", printed.err)
    assert printed.err.splitlines()[-1].startswith("sfl-sim: failed: 1 of 2 runs failed: lr=0.2 (seed 0): ")
    assert printed.out.rstrip().endswith("reports/tiny/report.html")
    page = (tmp_path / "reports" / "tiny" / "report.html").read_text()
    assert "lr=0.2 with seed 0 failed: RuntimeError: no &lt;more&gt;, at " in page
    assert "small_study.py:44. What follows has its first 1 round." in page
    (tmp_path / "poison").unlink()
    sfl_sim(scenario, *sets, "--resume")
    assert "lr=0.1  reused from reports/tiny\n" in capsys.readouterr().err
    assert [v["rounds"] for v in summary(tmp_path / "reports" / "tiny")] == [2, 2]


def test_what_has_been_run_is_said_to_be_reused_unless_a_fresh_run_is_asked_for(scenario, capsys):
    sfl_sim(scenario, "--timing-only")
    capsys.readouterr()
    sfl_sim(scenario, "--timing-only", "--set", "grid={method.name: [splitfed_v1, fedavg]}")
    warning, first, *rest = capsys.readouterr().err.splitlines()
    assert warning.endswith("this run goes to reports/tiny-2")
    assert first == "splitfed_v1  reused from reports/tiny"
    assert {line.partition("  ")[0] for line in rest} == {"fedavg"}
    sfl_sim(scenario, "--timing-only", "--fresh")
    assert "reused from" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("", "cannot be written: Is a directory"),
        ("folder", "cannot be written: Is a directory"),
        ("pipe", "cannot be written: Is no regular file"),  # it would be replaced, as /dev/null would
        ("tiny.yaml/page.html", "cannot be written: File exists"),
        ("x" * 300, "cannot be written: File name too long"),
        (os.fsdecode(b"\xff"), "is not UTF-8 text"),
    ],
)
def test_a_page_that_cannot_be_written_there_is_refused_first(place, line, scenario, tmp_path, capsys, monkeypatch):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("sfl_sim.studies.partition_preview.preview", lambda study: pytest.fail("too late"))
    sfl_sim("partition", scenario, "--out", place, code=2)
    assert capsys.readouterr().err.startswith(f"sfl-sim: --out: {line} (found ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe", "tiny.yaml"]


@pytest.mark.parametrize("command", ["report", "landscape", "reprice"])
def test_a_run_whose_name_no_file_can_have_is_one_short_line(command, capsys):
    sfl_sim(command, "x" * 5000, code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sfl-sim: File name too long (found 'xxx")
    assert len(line) < 300


def test_an_error_without_words_is_named(capsys, monkeypatch):
    monkeypatch.setattr("sfl_sim.engine.catalogue.catalogue", lambda: (_ for _ in ()).throw(MemoryError))
    sfl_sim("list", "methods", code=1)
    assert capsys.readouterr().err.startswith("sfl-sim: failed: MemoryError, at ")


def test_a_new_scenario_has_every_key_with_its_default_and_is_not_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sfl_sim("init", "mine.yaml")
    assert capsys.readouterr().out == "mine.yaml\n"
    assert load("mine.yaml").base.model_copy(update={"name": None}) == Scenario()
    text = Path("mine.yaml").read_text()
    for key in ("cut", "uplink_bps", "max_wait_s", "stop", "on_nan"):
        assert re.search(rf"^ *(# )?{key}:", text, re.MULTILINE)
    Path("mine.yaml").write_text(text.replace("  # macs_per_s:", "  macs_per_s: 1e9", 1).replace("profile: ai_b", "# "))
    assert load("mine.yaml").base.clients.compute.macs_per_s == 1e9
    sfl_sim("init", "mine.yaml", code=2)
    assert "FILE: cannot be written: File exists (found 'mine.yaml')" in capsys.readouterr().err


def test_the_page_of_a_run_is_opened_by_folder_or_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for page in ("reports/mine/report.html", "asked/whatif.html"):
        Path(page).parent.mkdir(parents=True)
        Path(page).touch()
    for folder in ("mine", "reports/mine", "asked"):
        sfl_sim("open", folder)
    assert opened == [(tmp_path / page).as_uri() for page in ("reports/mine/report.html",) * 2 + ("asked/whatif.html",)]
    sfl_sim("open", "nothing", code=2)
    assert "RUN: has no page (found 'nothing'" in capsys.readouterr().err


COMMANDS = {command.name or command.callback.__name__.rstrip("_"): command for command in app.registered_commands}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_it_understands(name, capsys):
    sfl_sim(name, "--help")
    assert "Example: sfl-sim" in capsys.readouterr().out
    example = re.search(r"Example: sfl-sim (.*)", COMMANDS[name].callback.__doc__)[1]
    said, *arguments = shlex.split(example.partition(" > ")[0])
    assert said == name
    get_command(app).commands[name].make_context(name, arguments)
