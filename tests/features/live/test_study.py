"""A scenario on real processes of this machine, and what is made of the run."""

import json
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
import yaml
from command import sfl_sim

from sfl_sim.cli import main
from sfl_sim.engine.evaluation import Evaluator
from sfl_sim.errors import ScenarioError
from sfl_sim.features.live.calibration import calibrate_live
from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.page import write_live
from sfl_sim.features.live.study import LiveNodes, live, simulate
from sfl_sim.runs.news import silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse
from sfl_sim.studies.launch import Outcome
from sfl_sim.studies.laws import Breach, Untold, held_against, trials_of
from sfl_sim.studies.train import run_study

pytestmark = pytest.mark.xdist_group("live")  # whose fixtures begin processes, and listen at one port

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96, "test_samples": 50},
    "model": {"name": "cnn_small", "cut": 2},
    "method": {"name": "splitfed_v2"},
    "clients": {
        "count": 2,
        "compute": {"macs_per_s": [1.0e9, 2.0e9]},
        "network": {"uplink_bps": 50e6, "downlink_bps": 80e6, "latency_s": 0.002},
    },
    "server": {"macs_per_s": 4.0e9},
    "train": {"rounds": 2, "batch_size": 16},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A live run of the scenario, whose evaluations take long."""
    evaluate = Evaluator.of_round

    def slowly(*round):
        time.sleep(0.3)
        return evaluate(*round)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "of_round", slowly)
        return live(parse(SCENARIO), tmp_path_factory.mktemp("live") / "small", notify=silent).folder


def test_a_live_run_is_a_run_like_any_other_whose_time_is_measured(run):
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["backend"] == "live"
    assert manifest["status"] == "complete"
    rounds, steps = (pd.read_parquet(run / f"{name}.parquet") for name in ("rounds", "steps"))
    assert (rounds["ended_s"] > rounds["started_s"]).all()
    assert rounds["accuracy"].notna().all()
    assert set(steps["node"]) == {"client", "server", "aggregator", "uplink", "downlink"}
    nodes = pd.read_parquet(run / "nodes.parquet")
    assert nodes["node"].tolist() == ["server", "0", "1"]
    assert nodes["is_same_code"].all()
    stretched = nodes.set_index("node")["stretched"]
    assert stretched["0"] == pytest.approx(2 * stretched["1"])


def test_an_evaluation_between_rounds_takes_no_time(run):
    first, second = pd.read_parquet(run / "rounds.parquet").to_dict("records")
    slowdown = pd.read_parquet(run / "nodes.parquet")["slowdown"].iloc[0]
    assert (second["started_s"] - first["ended_s"]) * slowdown < 0.1


def test_simulated_with_its_rates_and_in_its_sequence_the_weights_are_equal(run, tmp_path):
    simulated, recorded = simulate(run, silent)
    digests = [
        json.loads((folder / "summary.json").read_text())["variants"][0]["weights_digest"] for folder in (run, recorded)
    ]
    assert digests[0] == digests[1]
    page = write_live(simulated, run, tmp_path / "page.html", recorded).read_text()
    assert "equal to the bit" in page


def test_a_calibrated_scenario_takes_what_was_measured(run, tmp_path):
    found = calibrate_live(run)
    assert found.study.base.clients.compute.macs_per_s[1] == pytest.approx(
        2 * found.study.base.clients.compute.macs_per_s[0], rel=0.5
    )
    again = run_study(found.study, tmp_path / "again", Settings(timing_only=True, jobs=1), silent).folder
    measured, simulated = (pd.read_parquet(folder / "rounds.parquet").iloc[-1] for folder in (run, again))
    ratio = (measured["ended_s"] - measured["started_s"]) / (simulated["ended_s"] - simulated["started_s"])
    assert 0.5 < ratio < 3  # how near, on an idle machine, a benchmark tells
    trains = found.errors[found.errors["kind"] == "train"]
    assert trains["ratio"].between(0.8, 1.25).all()


def test_calibrate_devices_writes_the_scenario_of_a_live_run(run, tmp_path, capsys):
    main(["devices", "fit", str(run), "--out", str(tmp_path / "calibrated.yaml")])
    assert "server train" in capsys.readouterr().out
    again = load(tmp_path / "calibrated.yaml").base
    assert again.train.rounds == 2
    assert len(again.clients.network.uplink_bps) == 2


def test_what_cannot_be_live_is_said_before_anything_begins(tmp_path):
    with pytest.raises(ScenarioError) as raised:
        live(parse(SCENARIO, overrides={"clients.compute.jitter": 0.1}), tmp_path / "out", notify=silent)
    assert raised.value.key == "clients.compute.jitter"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("nodes", "more", "key"),
    [
        ({"listen": "127.0.0.1:1"}, {}, "--listen, --key"),
        ({"listen": "127.0.0.1", "key": "key"}, {}, "--listen"),
        ({"listen": "203.0.113.1:5", "key": "key"}, {}, "--listen"),
        ({"address": "auto"}, {"emulate": "netns"}, "--emulate"),
        ({"listen": "127.0.0.1:1", "key": "key", "address": "auto"}, {}, "--listen"),
        ({"listen": "127.0.0.1:1", "key": "key"}, {"repeats": 2}, "--listen"),
    ],
)
def test_nodes_that_cannot_be_there_are_refused(nodes, more, key, tmp_path):
    study = parse(SCENARIO, overrides={"repeats": more.pop("repeats", 1)})
    if "key" in nodes:
        nodes = nodes | {"key": tmp_path / "key"}
    with pytest.raises(ScenarioError) as raised:
        live(study, tmp_path / "out", nodes=LiveNodes(**nodes), notify=silent, **more)
    assert raised.value.key == key


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A driver that waits for agents: its address, its key, and its process."""
    place = tmp_path_factory.mktemp("waiting")
    (place / "small.yaml").write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    address = "127.0.0.1:47191"
    command = [
        sys.executable,
        "-m",
        "sfl_sim",
        "live",
        "small.yaml",
        "--listen",
        address,
        "--key",
        "key",
        "--out",
        "out",
    ]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "waiting for 2 agents" in line:
            break
    yield address, place / "key", process
    process.kill()
    process.communicate()


def test_an_agent_from_the_command_line_is_refused_in_one_line(waiting, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sfl_sim.features.live.agent.ANSWERS_S", 0.2)
    address, _, _ = waiting
    RunKey.new().write(tmp_path / "other")
    sfl_sim("live", "agent", "--server", address, "--client", "0", "--key", tmp_path / "other", code=2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert address in error


def test_no_law_is_broken_by_a_live_run_and_those_of_a_simulated_clock_are_not_told(run):
    found = {law.number: finding for law, findings in held_against(trials_of(run)) for _, finding in findings}
    assert not [breach for breach in found.values() if isinstance(breach, Breach)]
    assert {2, 5, 8, 10} <= {number for number, finding in found.items() if isinstance(finding, Untold)}


def test_a_live_run_is_not_compared_with_a_simulation_that_was_interrupted(run, monkeypatch):
    monkeypatch.setattr("sfl_sim.features.live.study.run_study", lambda *_: Outcome(run, "interrupted"))
    with pytest.raises(KeyboardInterrupt):
        simulate(run, silent)


def test_an_interrupted_live_run_ends_all_its_processes(waiting):
    *_, process = waiting
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM)  # which goes the way of Ctrl-C, and which no shell lets children ignore
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("sfl-sim: interrupted\n")
    until_s = time.monotonic() + 10
    while any(child.is_running() for child in children) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not any(child.is_running() for child in children)
