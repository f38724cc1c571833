"""Commands that run a scenario: what is printed, what is left on disk, also by Ctrl-C, a kill and a failure."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys

import pandas as pd
import pytest
import yaml
from command import TINY, digests, sfl_sim, summary

from sfl_sim.api import run
from sfl_sim.metrics.exit_metrics import THRESHOLDS

pytestmark = pytest.mark.usefixtures("without_pages")


@pytest.mark.pages
def test_a_run_leaves_the_folder_that_the_design_describes(scenario, tmp_path, capsys):
    sfl_sim(scenario)
    out = tmp_path / "reports" / "tiny"
    names = {p.name for p in out.iterdir()}
    assert names == {
        "report.html", "summary.json", "rounds.parquet", "labels.parquet", "ops.parquet", "clients.parquet",
        "layers.parquet", "participants.parquet", "speedups.parquet", "scenario.yaml",
        "manifest.json", "checkpoints", "SHA256SUMS",
    }  # fmt: skip
    variants = summary(out)
    assert [v["name"] for v in variants] == ["splitfed_v1", "splitfed_v2, fcfs", "splitfed_v2, cyclic"]
    assert set(variants[0]) == {
        "name", "method", "method_options", "seed", "rounds", "simulated_s", "accuracy", "client_accuracy",
        "performance_gap", "accuracy_spread", "worst_clients", "calibration_error",
        "backward_transfer", "best_accuracy", "reference", "hybrid_accuracy",
        "device_accuracy", "server_accuracy", "offload_probability", "rho",
        "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy", "bytes_up", "bytes_down",
        "joule", "timeline_digest", "weights_digest", "breakdown_s", "executor", "threads", "key",
        "peak_graphs", "server_model_bytes",
    }  # fmt: skip
    rounds = pd.read_parquet(out / "rounds.parquet")
    assert len(rounds) == 6
    assert rounds["accuracy"].between(0, 1).all()
    labels = pd.read_parquet(out / "labels.parquet")
    assert labels.groupby(["variant", "round"])["position"].apply(sorted).map(lambda p: p == list(range(10))).all()
    sfl_sim("report", out, "--format", "trace")
    events = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(pd.read_parquet(out / "ops.parquet"))
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-2:] == ["reports/tiny/report.html", str(out / "trace.json.gz")]
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
    by_threshold = pd.DataFrame({e: answers["device_correct"].where(answers["entropy"] <= e, answers["server_correct"])
                                 for e in THRESHOLDS})  # fmt: skip
    best = by_threshold.groupby(answers["client"]).mean().max(axis=1)
    assert found["hybrid_accuracy"] == pytest.approx(best.mean())
    assert len(pd.read_parquet(out / "representations.parquet")) == 30
    page = (out / "report.html").read_text()
    assert "<h2>Early exits</h2>" in page
    assert "<h2>Inputs of the last layer</h2>" in page


def test_the_resolved_scenario_runs_again_as_it_is(scenario, tmp_path):
    sfl_sim(scenario, "--timing-only", "-q", "--out", "first")
    sfl_sim("first/scenario.yaml", "--timing-only", "-q", "--fresh", "--out", "second")
    assert digests(tmp_path / "first") == digests(tmp_path / "second")


def test_results_depend_neither_on_processes_side_by_side_nor_on_python_s_hash_seed(scenario, tmp_path):
    """This process has a hash seed of its own, at random."""
    # at batch 64 a step is worth several threads, whose number must not depend on the number of jobs
    scenario.write_text(TINY.replace("batch_size: 8", "batch_size: 64"))
    brief = [scenario, "-q", "--fresh", "--set", "train.rounds=1", "--set", "grid={}", "--set", "repeats=2"]
    sfl_sim(*brief, "--threads", "2", "--out", "here")
    command = [sys.executable, "-m", "sfl_sim", *brief, "--threads", "2", "--jobs", "2", "--out", "apart"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True)
    assert digests(tmp_path / "apart") == digests(tmp_path / "here")
    sfl_sim(*brief, "--out", "timed", "--timing-only")
    assert [t for t, _ in digests(tmp_path / "timed")] == [t for t, _ in digests(tmp_path / "here")]
    assert all(v["accuracy"] is None and v["weights_digest"] is None for v in summary(tmp_path / "timed"))


def test_a_different_scenario_of_the_same_name_gets_a_folder_of_its_own(scenario, tmp_path, capsys):
    sfl_sim(scenario, "-q", "--timing-only")
    sfl_sim(scenario, "-q", "--timing-only")
    sfl_sim(scenario, "-q", "--timing-only", "--set", "train.rounds=1")
    assert capsys.readouterr().out.split() == ["reports/tiny/report.html"] * 2 + ["reports/tiny-2/report.html"]
    assert summary(tmp_path / "reports" / "tiny")[0]["rounds"] == 2
    sfl_sim(scenario, "-q", "--out", "reports/tiny", code=2)


def test_a_benchmark_that_is_interrupted_says_how_it_goes_on(scenario, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sfl_sim.studies.benchmark.run_benchmark", interrupted)
    sfl_sim("benchmark", scenario, "-q", code=130)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sfl-sim: interrupted; the same command")


def test_ctrl_c_leaves_a_readable_partial_run_and_resume_finishes_it(scenario, tmp_path):
    methods = "grid={method.name: [splitfed_v1, fedavg]}"
    brief = ["--set", "train.rounds=12", "--set", methods, "--threads", "1", "--out", "run"]
    code = (  # a shell's background job ignores Ctrl-C, and so would its children
        "import signal, sys; from sfl_sim.cli import main; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, scenario, *brief]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while "fedavg  round" not in (line := process.stderr.readline()):
            assert line, "ended before it could be interrupted"
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, rest
    assert "--resume" in rest.splitlines()[-1]
    assert status(tmp_path / "run") == "interrupted"
    rounds = pd.read_parquet(tmp_path / "run" / "rounds.parquet").groupby("variant", sort=False).size()
    assert rounds.iloc[0] == 12
    assert 0 < rounds.iloc[1] < 12
    assert (tmp_path / "run" / "report.html").stat().st_size > 1e6
    sfl_sim(scenario, *brief, "-q", "--resume")
    assert status(tmp_path / "run") == "complete"
    assert [v["rounds"] for v in summary(tmp_path / "run")] == [12, 12]


def status(run):
    return json.loads((run / "manifest.json").read_text())["status"]


def test_a_killed_run_leaves_nothing_that_looks_complete(scenario, tmp_path):
    command = [sys.executable, "-m", "sfl_sim", str(scenario), "--set", "train.rounds=200", "--out", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()
        process.kill()
    assert not (tmp_path / "run").exists()
    sfl_sim(scenario, "-q", "--timing-only", "--out", "run", code=2)  # the unfinished one is of another scenario
    sfl_sim(scenario, "-q", "--set", "train.rounds=200", "--timing-only", "--out", "other")


def test_ctrl_c_or_kill_before_anything_is_trained_is_said_and_leaves_nothing(scenario, tmp_path):
    """Newer versions of typer turn Ctrl-C into an exit code of their own; a shell's background job ignores it."""
    code = """\
import os, signal, sys, sfl_sim.studies.train as study
from sfl_sim.__main__ import main

sys.argv = ["sfl-sim", "tiny.yaml", "--out", "run"]
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    study.check = lambda *_, **__: os.kill(os.getpid(), number)
    try:
        main()
    except SystemExit as stop:
        assert stop.code == 130
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == "sfl-sim: interrupted\n" * 2
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.pages
def test_divergence_is_said(scenario, tmp_path, capsys):
    diverging = ["--set", "train.lr=1e30", "--set", "grid=[]"]
    sfl_sim(scenario, *diverging, "--out", "stopped", code=1)
    assert re.search(r"mini-batch \d+ of client \d+, .*nan", capsys.readouterr().err)
    sfl_sim(scenario, *diverging, "--set", "train.on_nan=skip", "--out", "run")
    assert "diverged, loss nan" in capsys.readouterr().err
    assert "diverged in round 1" in (tmp_path / "run" / "report.html").read_text()


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


@pytest.mark.parametrize("thing", ["make", "ready"])
def test_a_network_of_one_s_own_takes_the_name_s_place(thing, my_nets, scenario, tmp_path):
    sets = ["--set", f"model.factory=my_nets:{thing}", "--set", "model.cut=2"]
    sfl_sim(scenario, "-q", "--allow-code", *sets, "--out", "mine")
    layers = pd.read_parquet(tmp_path / "mine" / "layers.parquet")
    assert layers.groupby("variant")["name"].apply(list).tolist() == [["0", "1", "2"]] * 3
    assert layers["model"].unique().tolist() == [f"my_nets:{thing}"]


def test_a_network_of_one_s_own_from_python(my_nets, scenario, tmp_path):
    settings = yaml.safe_load(TINY) | {"model": {"factory": my_nets.make, "cut": 0.5}}
    results = run(settings, out=tmp_path / "mine")
    assert results.layers["model"].unique().tolist() == ["my_nets:make"]
    assert results.clients["cut"].unique().tolist() == [2]


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
