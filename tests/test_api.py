"""What a user gets from Python: own data and code in, results out."""

import json
import sys
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
from torch import nn

import sfl_sim
from sfl_sim.console.live_table import notebook_line
from sfl_sim.data.loading import load
from sfl_sim.models.small import cnn_small
from sfl_sim.runs.news import Began, Planned

pytestmark = pytest.mark.usefixtures("without_pages")

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (RNG.standard_normal((60, 5)) + 3 * np.eye(3, 5)[Y]).astype("float32")
DATA = X[:48], Y[:48], X[48:], Y[48:]
TABULAR = {
    "name": "tabular",
    "model": {"factory": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)), "cut": 1},
    "clients": {"count": 2, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 3, "batch_size": 8, "lr": 0.1},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run of two variants with two seeds, of which one keeps a part-1 for each client."""
    grid = {"method.name": ["splitfed_v2", "splitfed_v3"]}
    scenario = TABULAR | {"model": {"name": "cnn_small"}, "grid": grid, "repeats": 2}
    digits = {"train_samples": 40, "test_samples": 20}
    return sfl_sim.run(scenario | {"data": digits}, out=tmp_path_factory.mktemp("stored") / "run")


def test_a_table_of_one_s_own_is_learned_by_a_model_of_one_s_own():
    results = sfl_sim.run(TABULAR, data=DATA, overrides={"train.rounds": 15})
    assert results.rounds["accuracy"].iloc[-1] > 0.8
    assert results.layers["model"].str.startswith("python:lambda-").all()
    torch_sets = [torch.utils.data.TensorDataset(*map(torch.from_numpy, part)) for part in (DATA[:2], DATA[2:])]
    again = sfl_sim.run(TABULAR, data=lambda: torch_sets, overrides=["train.rounds=15"], out="again")
    assert again.summary["weights_digest"].equals(results.summary["weights_digest"])


class Growing(nn.Linear):
    """A layer that counts its steps where clients would count together."""

    steps = 0

    def forward(self, x):
        self.steps += 1
        return super().forward(x) * self.steps


def test_a_model_that_cannot_train_is_refused_before_anything_is_written_but_can_be_timed(place):
    scenario = TABULAR | {"model": {"factory": lambda: nn.Sequential(Growing(5, 8), nn.Linear(8, 3)), "cut": 1}}
    with pytest.raises(sfl_sim.ScenarioError, match=r"^model\.factory: .*'steps'"):
        sfl_sim.run(scenario, data=DATA)
    assert not list(place.iterdir())
    assert len(sfl_sim.run(scenario, data=DATA, timing_only=True).rounds) == 3


def test_what_was_learned_from_one_s_own_data_is_reused_as_long_as_they_are_the_same(capsys):
    scenario = TABULAR | {"model": {"name": "cnn_small"}}
    images, places = RNG.integers(0, 256, (60, 1, 8, 8)).astype("uint8"), iter("abc")
    for change, reused in ((0, False), (0, True), (1, False)):
        images[0, 0, 0, 0] += change
        sfl_sim.run(scenario, data=(images[:48], Y[:48], images[48:], Y[48:]), progress=True, out=next(places))
        assert ("reused from" in capsys.readouterr().err) == reused


def test_one_s_own_phones_and_links_come_as_arrays_frames_and_csv(place):
    links = pd.DataFrame({"uplink_bps": [1e6, 2e6], "downlink_bps": [4e6, 8e6], "latency_s": [0.0, 0.1]})
    links.to_csv("links.csv", index=False)
    told = []
    for network in (links, dict.fromkeys(links, "links.csv"), links.to_dict("list")):
        clients = {"count": 2, "compute": {"macs_per_s": np.array([1e8, 2e8])}, "network": network}
        told.append(sfl_sim.run(TABULAR | {"clients": clients}, data=DATA, timing_only=True))
    assert told[0].clients["latency_s"].to_list() == [0.0, 0.1]
    assert told[0].clients["macs_per_s"].to_list() == [1e8, 2e8]
    assert len({run.summary["timeline_digest"].item() for run in told}) == 1


def test_a_file_of_links_that_does_not_fit_is_one_line():
    pd.DataFrame({"uplink_bps": [1e6, -2.0]}).to_csv("links.csv", index=False)
    network = {"uplink_bps": "links.csv", "downlink_bps": 1e6}
    with pytest.raises(sfl_sim.ScenarioError, match=r"links\.csv:3: clients\.network\.uplink_bps: .*found '-2\.0'"):
        sfl_sim.run(TABULAR | {"clients": {"count": 2, "network": network}}, data=DATA, timing_only=True)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (lambda: sfl_sim.run(TABULAR, data=DATA, jobs=True), "jobs: must be a whole number above 0 (found True)"),
        (lambda: sfl_sim.run(TABULAR, data=DATA, jobs=0), "jobs: must be a whole number above 0 (found 0)"),
        (lambda: sfl_sim.run(TABULAR, data=DATA, threads=0), "threads: must be a whole number above 0 (found 0)"),
        (lambda: sfl_sim.whatif(TABULAR, {}, jobs=0), "jobs: must be a whole number above 0 (found 0)"),
        (lambda: sfl_sim.whatif(TABULAR, {}, draws=-1), "draws: must be 0, or 2 and more (found -1)"),
    ],
)
def test_a_number_that_the_command_line_refuses_is_one_line_too(asked, line, place):
    with pytest.raises(sfl_sim.ScenarioError) as refused:
        asked()
    assert str(refused.value) == line
    assert not list(place.iterdir())


def test_a_folder_may_lie_below_the_home_directory(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    run = sfl_sim.run(TABULAR, data=DATA, timing_only=True, out="~/run")
    assert run.folder == place / "home" / "run"
    assert sfl_sim.load("~/run") == run == sfl_sim.Results("~/run")
    assert [path.name for path in place.iterdir()] == ["home"]


def test_indices_of_one_s_own_decide_who_holds_what():
    holdings = [np.flatnonzero(DATA[1] == label) for label in range(3)]
    scenario = TABULAR | {"clients": {}}
    results = sfl_sim.run(scenario, data=DATA, overrides={"data.partition": holdings}, timing_only=True)
    assert np.stack(results.clients["label_samples"]).tolist() == np.diag([16, 16, 16]).tolist()


def test_a_column_of_users_decides_who_holds_what():
    users = np.array(["ann", "bob", "cem"])[DATA[1]]
    holders = sfl_sim.run(TABULAR | {"clients": {}, "data": {"partition": users}}, data=DATA, timing_only=True)
    assert np.stack(holders.clients["label_samples"]).tolist() == np.diag([16, 16, 16]).tolist()
    with pytest.raises(sfl_sim.ScenarioError, match="indices") as unknown:
        sfl_sim.run(TABULAR | {"data": {"partition": {"kind": "natural"}}}, data=DATA, timing_only=True)
    assert (unknown.value.key, unknown.value.found) == ("data.partition.kind", "natural")


def test_a_function_of_the_labels_decides_who_holds_what(place, monkeypatch):
    """From Python as it is, and from YAML by its name; if it fails, the key and its line are named."""
    place.joinpath("dealing.py").write_text(
        "def by_label(labels):\n    return labels\n\n\nbroken = lambda labels: 1 / 0\n"
    )
    monkeypatch.syspath_prepend(place)
    for partition in (lambda labels: labels, {"kind": "indices", "file": "dealing:by_label"}):
        scenario = TABULAR | {"clients": {}, "data": {"partition": partition}}
        holders = sfl_sim.run(scenario, data=DATA, timing_only=True, allow_code=True)
        assert np.stack(holders.clients["label_samples"]).tolist() == np.diag([16, 16, 16]).tolist()
    scenario = TABULAR | {"data": {"partition": {"kind": "indices", "file": "dealing:broken"}}}
    with pytest.raises(sfl_sim.ScenarioError, match=r"fails with ZeroDivisionError: .*dealing\.py:5") as failed:
        sfl_sim.run(scenario, data=DATA, timing_only=True, allow_code=True)
    assert failed.value.key == "data.partition.file"
    with pytest.raises(sfl_sim.ScenarioError, match="--allow-code"):
        sfl_sim.run(scenario, data=DATA, timing_only=True)


def test_a_scheduling_policy_of_one_s_own_is_a_function():
    def last_come(roster):
        return lambda waiting, now_s: list(waiting.values())[-1]

    slow = {"clients": TABULAR["clients"] | {"count": 4}, "server": {"speedup": 1e-6}}
    slow["grid"] = {"server.order": ["fcfs", last_come]}
    results = sfl_sim.run(TABULAR | slow, data=DATA, timing_only=True)
    assert results.summary["timeline_digest"].nunique() == 2


def test_data_that_have_changed_since_the_last_run_are_read_again(place):
    def read():
        x, y, x_test, y_test = DATA
        n = int((place / "n.txt").read_text())
        return x[:n], y[:n], x_test, y_test

    sizes = []
    for n in (24, 48):
        (place / "n.txt").write_text(str(n))
        sizes.append(sfl_sim.run(TABULAR | {"data": {"factory": read}}, timing_only=True).clients["samples"].sum())
    assert sizes == [24, 48]


def test_ctrl_c_ends_what_called_and_the_rounds_by_then_are_kept(place):
    def ctrl_c(round, _):
        if round.row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sfl_sim.run(TABULAR, data=DATA, on_round_end=ctrl_c, out="part")
    assert len(sfl_sim.Results(place / "part").rounds) == 1


def test_a_stored_run_is_opened_by_its_folder(stored, place):
    assert sfl_sim.load(str(stored.folder)).summary.equals(stored.summary)
    assert sfl_sim.Results(str(stored.folder)).rounds.equals(stored.rounds)
    asked = sfl_sim.whatif(TABULAR | {"model": {}}, {"server.workers": [1, 2]}, out="asked")
    assert sfl_sim.load("asked").points.equals(asked.points)
    asked = sfl_sim.whatif(TABULAR | {"model": {}}, {"method": ["splitfed_v1", "splitfed_v2"]}, out="by method")
    assert sorted(asked.points["method"]) == ["splitfed_v1", "splitfed_v2"]
    with pytest.raises(sfl_sim.ScenarioError, match=r"^folder: "):
        sfl_sim.load(place)


def test_its_accuracy_is_drawn_and_of_a_run_that_times_only_where_time_goes(stored, place):
    for against, title in (("time", "simulated time"), ("rounds", "round"), ("bytes", "bytes")):
        figure = stored.plot(against)
        assert isinstance(figure, go.Figure)
        assert title in figure.layout.xaxis.title.text
    with pytest.raises(sfl_sim.ScenarioError, match=r"against: .*allowed: time, rounds, bytes"):
        stored.plot("energy")
    timed = sfl_sim.run(TABULAR, data=DATA, timing_only=True)
    assert timed.plot().data


class Skipping(nn.Module):
    """A plain module with a skip connection, and a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.norm, self.last = (
            nn.Linear(64, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
        )  # fmt: skip

    def forward(self, x):
        x = self.first(x.flatten(1))
        return self.last(x + self.norm(self.inner(x)).relu())


def test_weights_have_the_names_of_ones_own_module_and_begin_another_run(place):
    words = {"model": {"factory": Skipping, "cut": "first"}, "data": {"train_samples": 64}, "train": {"rounds": 1}}
    first = sfl_sim.run(words, out="first")
    module = Skipping()
    module.load_state_dict(first.state_dict())
    assert torch.equal(module.inner.weight, first.state_dict()["inner.weight"])
    model = words["model"] | {"init": {"run": str(first.folder)}}
    second = sfl_sim.run(words | {"model": model, "train": {"rounds": 1, "lr": 1e-30}}, out="second")
    for name, tensor in second.state_dict().items():
        assert "running" in name or torch.allclose(tensor, first.state_dict()[name])


def test_its_weights_go_into_pytorch(stored):
    net = cnn_small((1, 8, 8), 10)
    net.load_state_dict(stored.state_dict("splitfed_v2", seed=1))
    net.load_state_dict(stored.state_dict("splitfed_v3", client=1))
    other = stored.state_dict("splitfed_v3", client=0)
    assert not torch.equal(net.state_dict()["conv1.0.weight"], other["conv1.0.weight"])


@pytest.mark.parametrize("method", ["splitfed_v2", "splitfed_v3"])
def test_a_module_may_be_called_like_a_client(method):
    def doors():
        named = {"client_side": nn.Linear(5, 8), "initially": nn.ReLU(), "server": nn.Linear(8, 3)}
        return nn.Sequential(OrderedDict(named))

    stored = sfl_sim.run(TABULAR | {"model": {"factory": doors, "cut": 1}, "method": method}, data=DATA)
    client = 0 if method == "splitfed_v3" else None
    doors().load_state_dict(stored.state_dict(client=client))


def test_a_stored_model_says_how_images_go_into_it(stored):
    about = json.loads((stored.folder / "checkpoints" / "0000.json").read_text())
    net, data = cnn_small((1, 8, 8), 10), load("digits", train_samples=40, test_samples=20)
    net.load_state_dict(stored.state_dict("splitfed_v2", seed=0))
    mean, std = (torch.tensor(about[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        right = net.eval()((data.x_test / 255 - mean) / std).argmax(1) == data.y_test
    rounds = stored.rounds.query("variant == 'splitfed_v2' and seed == 0")
    assert right.float().mean().item() == pytest.approx(rounds["accuracy"].iloc[-1])
    assert about["labels"] == list(data.label_names)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "variant: .*allowed: splitfed_v2, splitfed_v3"),
        ({"variant": "splitfed_v2", "seed": 7}, "seed: .*found 7; allowed: 0, 1"),
        ({"variant": "splitfed_v3"}, "client: must say whose .*allowed: 0, 1"),
    ],
)
def test_of_several_models_one_is_named(stored, asked, problem):
    with pytest.raises(sfl_sim.ScenarioError, match=problem):
        stored.state_dict(**asked)


def test_progress_is_shown_if_asked_for_and_what_is_complete_is_not_run_again(capsys):
    sfl_sim.run(TABULAR, data=DATA, out="run", progress=True)
    assert "splitfed_v2  round 3/3" in capsys.readouterr().err
    sfl_sim.run(TABULAR, data=DATA, out="run", resume=True)
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_a_line_that_is_kept_up_to_date(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda picture, raw: shown.append(picture["text/plain"]))

    def display(picture, raw, display_id):
        shown.append(picture["text/plain"])
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with notebook_line(Planned([("mine", 3)]), None) as notify:
        notify(Began(0))
    assert shown[0] == "1 waiting  mine: round 0/3"
    assert shown[-1] == "1 running  mine: round 0/3"
