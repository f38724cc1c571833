"""Overlay of training runs on a what-if's points: in the points' own world, or not at all."""

import json

import pandas as pd
import pytest

import sfl_sim
from sfl_sim.errors import ScenarioError

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 120, "test_samples": 60},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 3, "network": {"latency_s": 0.02}},
    "method": {"name": "splitfed_v1"},
    "train": {"rounds": 3, "batch_size": 8, "lr": 0.1},
    "report": {"target_accuracy": 0.15},
}
WORLD = {"clients.network.scale": [0.25, 1, 4]}


def trained(folder, **changes):
    return sfl_sim.run({**SCENARIO, **changes}, out=folder)


def test_the_time_to_an_accuracy_is_that_of_a_run_in_the_points_own_world(tmp_path):
    run = trained(tmp_path / "run", grid={"model.cut": ["conv1", 2]})  # a name means the layer's index
    asked = sfl_sim.whatif(SCENARIO, {"model.cut": "all", **WORLD}, runs=[run.folder], out=tmp_path / "asked")
    told = asked.overlay.set_index(["model.cut", "clients.network.scale"])
    assert set(told.index) == {(cut, scale) for cut in (1, 2) for scale in WORLD["clients.network.scale"]}
    assert told["valid"].all()
    network = {"latency_s": 0.02, "scale": 4}
    there = trained(tmp_path / "there", clients={"count": 3, "network": network}, grid={"model.cut": [1, 2]})
    for cut, row in zip((1, 2), there.summary.to_dict("records"), strict=True):
        point = told.loc[(cut, 4)]
        assert point["time_to_accuracy_s"] == pytest.approx(row["time_to_accuracy_s"], rel=1e-12)
        assert point["rounds_to_accuracy"] == row["rounds_to_accuracy"]
        assert point["accuracy"] == row["accuracy"]


def test_of_orders_that_were_all_trained_each_has_its_own_run(tmp_path):
    """What one order trained is no answer for another one, whose jobs come otherwise: its own run is."""
    orders = {"method": {"name": "splitfed_v2"}, "grid": {"server.order": ["fcfs", "cyclic"]}}
    run = trained(tmp_path / "run", **orders)
    asked = sfl_sim.whatif(SCENARIO | orders, {"model.cut": [1]}, runs=[run.folder], out=tmp_path / "asked")
    assert asked.overlay["trained"].tolist() == asked.overlay["series"].tolist() == list(run.summary["variant"])
    assert asked.overlay["valid"].all()


def test_what_an_unfinished_run_has_trained_is_told(tmp_path):
    run = trained(tmp_path / "run", grid={"model.cut": [1, 2]})
    summary = json.loads((run.folder / "summary.json").read_text())
    summary["variants"] = [each for each in summary["variants"] if each["name"] == "cut=1"]
    (run.folder / "summary.json").write_text(json.dumps(summary))
    (run.folder / "SHA256SUMS").unlink()

    asked = sfl_sim.whatif(SCENARIO, {"model.cut": [1, 2], **WORLD}, runs=[run.folder], out=tmp_path / "asked")

    assert asked.overlay["model.cut"].tolist() == [1, 1, 1]


def test_of_a_training_that_stopped_early_the_accuracy_is_that_of_its_last_round(tmp_path):
    best = trained(tmp_path / "whole").rounds["accuracy"].max()
    stopping = {"train": SCENARIO["train"] | {"rounds": 4, "stop": {"accuracy": float(best)}}}
    run = trained(tmp_path / "run", **stopping)
    assert 1 < len(run.rounds) < 4
    asked = sfl_sim.whatif({**SCENARIO, **stopping}, WORLD, runs=[run.folder], out=tmp_path / "asked")
    assert asked.overlay["accuracy"].tolist() == [best] * len(asked.overlay)


def test_where_another_order_would_have_taught_something_else_nothing_is_told(tmp_path):
    changes = {
        "method": {"name": "splitfed_v2"},
        "clients": {"count": 3, "compute": 1e7, "network": {"latency_s": 0.02}},
    }
    run = trained(tmp_path / "run", **changes)
    speeds = [1e6, 1e7, 1e8]
    asked = sfl_sim.whatif(
        {**SCENARIO, **changes},
        {"clients.compute": [1e7, {"macs_per_s": speeds}, {"macs_per_s": speeds[::-1]}]},
        runs=[run.folder],
        out=tmp_path / "asked",
    )
    told = asked.overlay
    assert told["valid"].tolist()[0]
    assert not told["valid"].all()
    lost = told[~told["valid"]]
    assert lost["accuracy"].isna().all()
    assert lost["time_to_accuracy_s"].isna().all()
    assert lost["reason"].str.contains("round 1").all()


def test_a_run_of_something_else_is_refused(tmp_path):
    run = trained(tmp_path / "run", train={"rounds": 1, "batch_size": 8, "lr": 0.2})
    with pytest.raises(ScenarioError, match="has trained no configuration of this what-if"):
        sfl_sim.whatif(SCENARIO, WORLD, runs=[run.folder], out=tmp_path / "asked")
    with pytest.raises(ScenarioError, match="is not the folder of a run"):
        sfl_sim.whatif(SCENARIO, WORLD, runs=[tmp_path], out=tmp_path / "asked")
    assert not (tmp_path / "asked").exists()


def test_frames_have_the_values_that_vary(tmp_path):
    asked = sfl_sim.whatif(
        SCENARIO | {"method": "splitfed_v2"}, {"server.order": ["fcfs", "cyclic"], **WORLD}, out=tmp_path / "asked"
    )
    assert set(asked.points["server.order"]) == {"fcfs", "cyclic"}
    assert isinstance(asked.points.pivot_table("round_s", "server.order", "clients.network.scale"), pd.DataFrame)
    assert len(asked.clients) == 3 * len(asked.points)
    assert asked.layers["layer"].tolist() == [1, 2, 3, 4]
