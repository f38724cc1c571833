"""What-if: a question's tables equal those of runs, and careless questions give a one-line error."""

import json

import pandas as pd
import pytest

from sfl_sim.cli import main
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.features.whatif import study as whatif_study
from sfl_sim.features.whatif.load import load_whatif
from sfl_sim.features.whatif.page import warnings
from sfl_sim.features.whatif.study import run_whatif
from sfl_sim.runs.news import Warned, silent
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.vary import read_axes
from sfl_sim.studies.points import Question
from sfl_sim.training.memory import client_memory_bytes

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 4, "network": {"latency_s": 0.02}},
    "method": {"name": "splitfed_v1"},
    "train": {"rounds": 3, "batch_size": 4},
}


def ask(tmp_path, *vary, jobs=1, notify=silent, **changes):
    study = parse({**SCENARIO, **changes})
    outcome = run_whatif(study, read_axes(vary), tmp_path / "out", jobs, notify)
    tables = {path.stem: pd.read_parquet(path) for path in outcome.folder.glob("*.parquet")}
    return outcome, tables, json.loads((outcome.folder / "whatif.json").read_text())


def round_s(**changes):
    """Mean round time of a timing-only run."""
    (variant,) = parse({**SCENARIO, **changes}).variants
    *_, last = Experiment(variant.scenario, device=None).rounds()
    return last.row["ended_s"] / last.row["round"]


def test_every_point_takes_what_its_run_takes(tmp_path):
    _, tables, about = ask(tmp_path, "model.cut=all", "clients.network.scale=0.25,1")
    points = tables["points"].set_index(["model.cut", "clients.network.scale"])
    cuts, scales = (axis["values"] for axis in about["axes"])
    assert len(points) == len(cuts) * len(scales)
    for (cut, scale), point in points.iterrows():
        expected_s = round_s(
            model={"name": "cnn_small", "cut": cut},
            clients={"count": 4, "network": {"latency_s": 0.02, "scale": scale}},
        )
        assert point["round_s"] == pytest.approx(expected_s, rel=1e-9)
        assert point["cut"] == cut


def test_codecs_are_priced_without_training(tmp_path):
    _, tables, about = ask(tmp_path, "wire.up=none,int8,topk")
    (axis,) = about["axes"]
    assert axis["values"] == ["none", "int8", "topk"]
    assert tables["points"]["wire.up"].tolist() == axis["values"]
    for point in tables["points"].to_dict("records"):
        assert point["round_s"] == pytest.approx(round_s(wire={"up": point["wire.up"]}), rel=1e-9)
    none, int8, topk = tables["points"]["round_s"]
    assert none > int8 > topk


def test_axes_say_what_the_scenario_has_itself(tmp_path):
    _, _, about = ask(tmp_path, "model.cut=all", "clients.network.scale=0.25,1", "server.workers=2,unlimited")
    cut, scale, workers = about["axes"]
    assert [cut["base"], scale["base"], workers["base"]] == [0, 1, None]
    assert len(cut["names"]) == len(cut["values"]) == len(set(cut["names"]))
    assert workers["names"] == ["2", "unlimited"]


def test_a_grid_of_rounds_has_no_one_number_of_them(tmp_path):
    _, _, about = ask(tmp_path, "server.workers=1,2", grid={"train.rounds": [2, 3]})
    assert about["rounds"] is None


def test_folders_of_models_are_different_models():
    study = parse({**SCENARIO, "model": {"name": "hf", "cut": 1}, "grid": {"model.path": ["one", "other"]}})
    assert not Question(study, read_axes(["server.workers=1,2"])).has_one_model


def test_the_scenarios_own_cut_is_known_by_whatever_name(tmp_path):
    _, _, about = ask(tmp_path, "model.cut=all", model={"name": "cnn_small", "cut": 0.5})
    (variant,) = parse({**SCENARIO, "model": {"name": "cnn_small", "cut": 0.5}}).variants
    net = Experiment(variant.scenario, device=None).method.task.network
    assert about["axes"][0]["values"][about["axes"][0]["base"]] == net.cut_at(0.5)


def test_processes_find_the_same(tmp_path):
    vary = "model.cut=1,2", "clients.network.scale=0.5,1"
    _, one, _ = ask(tmp_path / "one", *vary, repeats=2)
    _, two, _ = ask(tmp_path / "two", *vary, repeats=2, jobs=2)
    for name in one:
        pd.testing.assert_frame_equal(one[name], two[name])


def test_clients_have_the_memory_of_their_part(tmp_path):
    _, tables, _ = ask(tmp_path, "model.cut=1,2", method={"name": "splitfed_v1"})
    (variant,) = parse(SCENARIO).variants
    net = Experiment(variant.scenario, device=None).method.task.network
    for cut, rows in tables["clients"].groupby("cut"):
        assert set(rows["memory_bytes"]) == {client_memory_bytes(net, cut, 4, 0)}
    assert list(tables["points"]["client_memory_bytes"]) == [client_memory_bytes(net, cut, 4, 0) for cut in (1, 2)]


def test_what_clients_hold_that_never_train_does_not_depend_on_the_points_beside(tmp_path):
    data = {"name": "synthetic", "shape": [6], "n_labels": 9, "samples": 96, "test_samples": 9}
    tuned = {"data": data, "model": {"name": "char_transformer", "cut": "block1"}, "lora": {}}
    alone = [
        ask(tmp_path / f"{cut} {method}", f"model.cut={cut}", **tuned, method={"name": method})[1]["points"]
        for cut in (2, 4)
        for method in ("splitfrozen", "splitfed_v2")
    ]
    _, tables, _ = ask(tmp_path, "model.cut=2,4", "method.name=splitfrozen,splitfed_v2", **tuned)
    together = tables["points"].sort_values("cut", kind="stable")["client_memory_bytes"].tolist()
    assert together == [each["client_memory_bytes"].item() for each in alone]
    assert together[2] < together[3], "a client that trains keeps activations"


def test_energy_is_told_where_power_is_known(tmp_path):
    power = {"compute_w": 2.0, "uplink_w": 1.0, "downlink_w": 0.5}
    clients = {"count": 4, "network": {"latency_s": 0.02}, "power": power}
    _, tables, _ = ask(tmp_path, "model.cut=1,2", clients=clients)
    found = tables["clients"]
    expected = 2.0 * found["device_s"] + 1.0 * found["uplink_s"] + 0.5 * found["downlink_s"]
    assert list(found["joule"]) == pytest.approx(list(expected), rel=1e-6)
    assert tables["points"]["client_joule"].notna().all()


def test_cuts_that_a_method_cannot_use_are_left_out(tmp_path):
    method = {"name": "hydra", "cut2": 2, "num_heads": 2}
    outcome, tables, about = ask(tmp_path, "model.cut=all", method=method)
    assert outcome.status == "complete"
    assert 0 < len(tables["points"]) < len(about["axes"][0]["values"])
    with pytest.raises(ScenarioError, match="a cut of cnn_small comes after"):
        ask(tmp_path / "named", "model.cut=1,3", method=method)


def test_what_was_done_before_ctrl_c_is_kept(tmp_path):
    def interrupt(news):
        if news.done == 2:
            raise KeyboardInterrupt

    outcome, tables, _ = ask(tmp_path, "model.cut=all", notify=interrupt)
    assert outcome.status == "interrupted"
    assert len(tables["points"]) == 2
    assert (outcome.folder / "whatif.html").exists()


def test_ctrl_c_before_the_first_point_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(points, jobs):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(whatif_study, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, "model.cut=all")
    assert not list(tmp_path.iterdir())


def test_what_is_noted_on_the_terminal_stands_on_the_page(tmp_path, monkeypatch):
    noted = ScenarioError("calls take longer than what MACs price", key="clients.compute.cost")
    monkeypatch.setattr(whatif_study, "of_calls", lambda _: [noted])
    told = []
    outcome, *_ = ask(tmp_path, "model.cut=1,2", notify=told.append)
    assert [news.problem for news in told if isinstance(news, Warned)] == [str(noted)]
    assert warnings(load_whatif(outcome.folder)) == [str(noted)]


def test_a_page_that_cannot_be_written_leaves_nothing_in_the_way_of_other_questions(tmp_path, monkeypatch):
    def broken(folder, page):
        raise ScenarioError("no room for a page")

    with monkeypatch.context() as patched:
        patched.setattr(whatif_study, "write_whatif", broken)
        with pytest.raises(ScenarioError, match="no room"):
            ask(tmp_path, "model.cut=1,2")
    assert not list(tmp_path.iterdir())
    assert ask(tmp_path, "model.cut=1,3")[0].status == "complete"


@pytest.mark.leaves_out
def test_a_page_that_cannot_be_drawn_costs_no_tables(tmp_path, monkeypatch):
    def broken(folder, page):
        raise MemoryError("too large")

    monkeypatch.setattr(whatif_study, "write_whatif", broken)
    folder = ask(tmp_path, "model.cut=1,2")[0].folder
    assert (folder / "points.parquet").exists()
    assert not (folder / "whatif.html").exists()


@pytest.mark.parametrize(
    ("vary", "changes", "problem"),
    [
        ([], {}, "nothing varies"),
        (["model.cut=all"], {"method": {"name": "fedavg"}}, "fedavg is not split"),
        (["model.cut=all", "model.name=lenet5,cnn_small"], {}, "has other cuts in other models"),
        (["model.cut=all"], {"grid": {"model.name": ["cnn_small", "cnn8"]}}, "has other cuts in other models"),
        (["model.cut=99"], {}, "comes after one of its layers"),
        (["server.order=fcsf"], {}, "fcfs"),
    ],
)
def test_careless_questions_are_one_line_and_leave_nothing(tmp_path, vary, changes, problem):
    with pytest.raises(ScenarioError, match=problem) as caught:
        ask(tmp_path, *vary, **changes)
    assert "\n" not in str(caught.value)
    assert caught.value.file == "--vary"
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_best_and_the_pages_place(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(json.dumps(SCENARIO))
    main(["whatif", "mine.yaml", "--vary", "model.cut=all", "--vary", "clients.network.scale=1,4"])
    told = capsys.readouterr().out
    assert told.strip().endswith("reports/small-whatif/whatif.html")
    assert "conv" in told
    assert (tmp_path / "reports/small-whatif/whatif.html").exists()


def test_orders_that_stand_for_other_data_take_what_their_runs_take(tmp_path):
    """hydra_code deals the samples to one client per label, whatever phi says."""
    data = {"name": "digits", "train_samples": 200, "partition": {"kind": "dominant_label", "phi": 2}}
    own = {"data": data, "clients": {"network": {"latency_s": 0.02}}, "method": {"name": "splitfed_v2"}}
    _, tables, about = ask(tmp_path, "server.order=cyclic,hydra_code", **own)
    for order, found_s in zip(about["axes"][0]["values"], tables["points"]["round_s"], strict=True):
        assert found_s == pytest.approx(round_s(**own, server={"order": order}), rel=1e-9)
