"""Questions to a scenario with several servers: what-ifs, advice, what would help, repricing."""

import pandas as pd
import pytest

import sfl_sim
from sfl_sim.errors import ScenarioError

SCENARIO = {
    "data": {"name": "synthetic", "samples": 240, "shape": [1, 8, 8], "n_labels": 4},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 8, "network": {"uplink_bps": 1e9, "downlink_bps": 1e9}},
    "server": {"speedup": 1.0},
    "servers": {"edge": {"count": 2, "speedup": 0.5, "backbone": {"uplink_bps": 1e5, "downlink_bps": 1e5}}},
    "train": {"rounds": 2, "batch_size": 8},
    "method": "splitfed_v1",
}


def test_a_what_if_varies_the_number_of_servers_and_their_workers(tmp_path):
    asked = sfl_sim.whatif(
        SCENARIO, {"servers.edge.count": [1, 2, 4], "servers.edge.workers": [1, 8]}, out=tmp_path / "whatif"
    )
    rounds_s = asked.points.pivot_table("round_s", "servers.edge.count", "servers.edge.workers")
    assert (rounds_s[1] > rounds_s[8]).all(), "jobs wait where each server has one worker"
    models = asked.points.groupby("servers.edge.count")["bytes_backbone"].first()
    assert models[4] == 4 * models[1]
    queue_s = asked.points[asked.points["servers.edge.workers"] == 1].set_index("servers.edge.count")["queue_s"]
    assert queue_s.is_monotonic_decreasing


def test_advice_says_how_many_servers_are_worth_it():
    advice = sfl_sim.advise(SCENARIO)
    (notes,) = advice.choices["notes"]
    (told,) = [note for note in notes if note.startswith("Rounds by number of servers in tier edge")]
    assert "1: " in told
    assert "8: " in told
    assert "gain less than 5%" in told


def test_what_would_help_knows_the_links_between_servers(tmp_path):
    folder = sfl_sim.run(SCENARIO, out=tmp_path / "run", timing_only=True).folder
    speedups = pd.read_parquet(folder / "speedups.parquet").set_index("change")
    assert speedups.loc["backbone x2", "after_s"] < 0.9 * speedups.loc["backbone x2", "before_s"]
    one = SCENARIO | {"servers": {}}
    folder = sfl_sim.run(one, out=tmp_path / "one", timing_only=True).folder
    assert "backbone x2" not in set(pd.read_parquet(folder / "speedups.parquet")["change"])


def test_what_has_one_server_refuses_several_in_a_line(tmp_path):
    trained = {"name": "digits", "train_samples": 80, "test_samples": 20}
    with pytest.raises(ScenarioError, match=r"^servers: "):
        sfl_sim.serve(SCENARIO | {"data": trained}, out=tmp_path / "served")
    snapshots = SCENARIO | {"data": trained, "report": {"snapshots": {"rounds": [1]}}, "method": "splitfed_v2"}
    with pytest.raises(ScenarioError, match=r"^report.snapshots"):
        sfl_sim.run(snapshots, out=tmp_path / "snapshots")


def test_the_time_to_an_accuracy_is_that_with_a_points_own_servers(tmp_path):
    one = {**SCENARIO, "report": {"target_accuracy": 0.2}}
    run = sfl_sim.run(one, out=tmp_path / "run")
    backbone = "servers.edge.backbone.uplink_bps"
    asked = sfl_sim.whatif(one, {backbone: [1e5, 1e6]}, runs=[run.folder], out=tmp_path / "asked")
    there = sfl_sim.run(one, overrides={backbone: 1e6}, out=tmp_path / "there")
    told = asked.overlay.set_index(backbone)["time_to_accuracy_s"]
    assert told[1e6] == pytest.approx(there.summary["time_to_accuracy_s"][0], rel=1e-12)
    assert told[1e6] < told[1e5]
