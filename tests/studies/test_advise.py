"""Advice on cuts: nothing better is overlooked where all is tried, and what is pasted gives what was promised."""

import itertools
import json
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from command import sfl_sim
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.errors import ScenarioError
from sfl_sim.runs.news import silent
from sfl_sim.scenario.load import load, parse
from sfl_sim.studies import advise as adviser
from sfl_sim.studies.advise import Criteria, find_advice, read_bytes
from sfl_sim.studies.cut_assignment import Heuristic, Tried, exhaustive
from sfl_sim.studies.cut_trials import CutTrial
from sfl_sim.training.memory import client_memory_bytes

WORLD = {
    "name": "tiny",
    "data": {"name": "digits", "train_samples": 60, "test_samples": 20, "partition": {"kind": "iid"}},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {
        "count": 3,
        "compute": {"macs_per_s": [1e6, 4e6, 16e6]},
        "network": {"uplink_bps": [4e5, 2e5, 1e5], "downlink_bps": 1e6},
    },
    "server": {"speedup": 2},
    "method": {"name": "splitfed_v1"},
    "train": {"rounds": 2, "batch_size": 10},
}


def study(**changes):
    return parse({**WORLD, **changes})


def advice(asked, **criteria):
    return find_advice(asked, Criteria(**criteria), silent)


def cuts_of(trial):
    return range(1, len(trial.network))


def trial_of(asked):
    return CutTrial([variant.scenario for variant in asked.variants], lambda: None)


def test_seeds_that_draw_other_links_are_other_fleets():
    drawn = study(clients={"count": 3, "compute": 1e6, "network": "mobiperf"}, repeats=2)
    assert not trial_of(drawn).is_one_fleet
    assert trial_of(study(repeats=2)).is_one_fleet


rates = st.lists(st.floats(5, 8).map(lambda power: 10**power), min_size=3, max_size=3)


@settings(max_examples=6)
@given(
    macs_per_s=rates, uplink_bps=rates, speedup=st.floats(0.2, 20), workers=st.sampled_from([1, 2, "unlimited"]),
    participation=st.sampled_from([1.0, 0.67]), method=st.sampled_from(["splitfed_v1", "splitfed_v1", "multiexit"]),
    trace=st.sampled_from([None, None, "hsdpa_bus"]),
)  # fmt: skip
def test_no_assignment_undercuts_the_bound_and_no_search_is_worse_than_one_cut_for_all(
    macs_per_s, uplink_bps, speedup, workers, participation, method, trace
):
    network = {"uplink_bps": uplink_bps, "downlink_bps": 1e6, "latency_s": 0.01, "trace": trace}
    clients = {"count": 3, "participation": participation, "compute": {"macs_per_s": macs_per_s}, "network": network}
    asked = study(clients=clients, server={"speedup": speedup, "workers": workers}, method={"name": method})
    trial = trial_of(asked)
    walked = {cuts: trial.walk(cuts).round_s for cuts in itertools.product(cuts_of(trial), repeat=3)}
    alike = min(round_s for cuts, round_s in walked.items() if len(set(cuts)) == 1)
    with patch.object(adviser, "MAX_EXHAUSTIVE", 0):
        found = advice(asked, per_client=True).choices.iloc[0]
    assert found["bound_s"] <= min(walked.values()) * (1 + 1e-9)
    assert min(walked.values()) <= found["round_s"] <= alike
    assert found["how"].startswith("heuristic")


@pytest.mark.parametrize("per_client", [False, True])
@pytest.mark.parametrize("network", [WORLD["clients"]["network"], {"profile": "mobiperf", "trace": "hsdpa_bus"}])
def test_the_setting_gives_the_round_that_was_promised(tmp_path, per_client, network):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**WORLD, "clients": {**WORLD["clients"], "network": network}}))
    found = advice(load(path), per_client=per_client).choices.iloc[0]
    again = trial_of(load(path, [found["setting"]]))
    assert again.own_round_s == pytest.approx(found["round_s"], rel=1e-12)
    assert trial_of(load(path)).own_round_s == found["own_round_s"] >= found["round_s"]


def test_a_server_that_is_the_bottleneck_gives_the_fastest_phones_more_to_do():
    compute = {"macs_per_s": [1e6, 1e9, 1e9]}
    clients = {"count": 3, "compute": compute, "network": {"uplink_bps": 1e8, "downlink_bps": 1e8}}
    found = advice(study(clients=clients, server={"speedup": 1}), per_client=True)
    slow, fast, other = found.clients["cut"]
    assert slow < fast == other
    choice = found.choices.iloc[0]
    assert choice["round_s"] < choice["next_round_s"]
    trial = trial_of(study(clients=clients, server={"speedup": 1}))
    every = itertools.product(cuts_of(trial), repeat=3)
    assert choice["round_s"] == min(trial.walk(cuts).round_s for cuts in every)
    assert choice["how"] == "all 27 assignments of 3 cuts to 3 clients"


def test_the_heuristic_finds_what_all_assignments_show_where_rounds_follow_from_what_clients_need():
    own_s = np.array([[9.0, 4.0, 2.0], [8.0, 5.0, 1.0], [3.0, 2.0, 1.0], [7.0, 6.0, 5.0]])
    server_s = np.array([[0.5, 1.5, 3.0], [0.2, 1.0, 2.0], [0.5, 1.0, 2.0], [1.0, 2.0, 2.5]])

    def walk(columns):
        at = np.arange(4), np.array(columns)
        return Tried(columns, max(own_s[at].max(), server_s[at].sum()), own_s[at])

    heuristic = Heuristic(own_s, server_s, walk, budget=30)
    assert heuristic.improve(walk((2, 2, 2, 2))).round_s == exhaustive(walk((2, 2, 2, 2)), 3, walk).round_s
    assert heuristic.n_tried <= 31


def test_memory_leaves_cuts_out_and_says_what_is_needed_if_none_is_left():
    trial = trial_of(study())
    needed = {cut: client_memory_bytes(trial.network, cut, 10, 0) for cut in cuts_of(trial)}
    least, *_, most = sorted(needed.values())
    table = advice(study(), memory_bytes=most - 1).cuts.set_index("cut")
    assert table["memory_bytes"].to_dict() == needed
    assert [cut for cut in needed if needed[cut] == most] == list(table.index[table["left_out"].notna()])
    with pytest.raises(ScenarioError, match=f"at least {least:,} bytes"):
        advice(study(), memory_bytes=least - 1)


@pytest.fixture
def run(tmp_path):
    """A run that tells of two cuts, in another world and with three seeds."""
    trained = {**WORLD, "repeats": 3, "server": {"speedup": 500}, "grid": {"model.cut": [1, 2]}}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(trained))
    accuracies = {1: [0.3, 0.7, 0.6], 2: [0.9, 0.2, 0.4]}
    told = [
        {"name": v.name, "seed": v.scenario.seed, "rounds": 2, "accuracy": accuracies[v.scenario.model.cut].pop(0)}
        for v in parse(trained).variants
    ]
    (tmp_path / "summary.json").write_text(json.dumps({"variants": told}))
    (tmp_path / "manifest.json").write_text(json.dumps({"scenario": "its digest"}))
    return tmp_path


def test_an_accuracy_leaves_out_what_has_not_reached_it_and_what_nobody_trained(run):
    found = advice(study(), accuracy=0.5, runs=[run], per_client=True)
    table = found.cuts.set_index("cut")
    assert table["accuracy"].dropna().to_dict() == {1: 0.6, 2: 0.4}
    assert set(found.clients["cut"]) == {1}
    assert table["left_out"].to_list() == [
        None,
        "not accurate enough",
        *["no run tells its accuracy"] * (len(table) - 2),
    ]
    with pytest.raises(ScenarioError, match=r"the best is 0\.600, at cut 1"):
        advice(study(), accuracy=0.95, runs=[run])
    with pytest.raises(ScenarioError, match="nothing was trained") as caught:
        advice(study(train={**WORLD["train"], "lr": 0.5}), accuracy=0.5, runs=[run])
    assert caught.value.key == "train.lr"


def test_no_bound_is_claimed_where_what_a_client_needs_depends_on_the_cuts_of_others():
    clients = {"count": 2, "compute": {"macs_per_s": [1e6, 16e6]}}
    asked = study(method={"name": "harmony"}, clients=clients, train={"rounds": 1, "batch_size": 10})
    choice = advice(asked, per_client=True).choices
    assert choice["bound_s"].isna().all()
    assert adviser.NO_BOUND in choice["notes"][0]


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("availability", {"profile": "fedscale", "lost": "wait"}),
        ("compute", {"throttling": {"floor": 0.5, "warm_up_s": 1, "cool_down_s": 1}}),
    ],
)
def test_no_bound_is_claimed_where_what_a_device_needs_depends_on_when_it_begins(section, settings):
    usual = WORLD["clients"]
    choice = advice(study(clients={**usual, section: usual.get(section, {}) | settings})).choices
    assert choice["bound_s"].isna().all()
    assert adviser.NO_BOUND_AT_ALL in choice["notes"][0]


@pytest.mark.parametrize("lost", [{"lost": "drop", "profile": "fedscale"}, {"lost": "deadline", "deadline_s": 0.1}])
def test_nobody_is_advised_to_lose_the_clients_that_take_long(lost):
    with pytest.raises(ScenarioError) as caught:
        advice(study(clients={**WORLD["clients"], "availability": lost}))
    assert caught.value.key == "clients.availability.lost"


def test_every_variant_of_the_grid_gets_its_advice():
    found = advice(study(grid={"method.name": ["splitfed_v1", "splitfed_v2"]}))
    assert found.choices["series"].to_list() == ["splitfed_v1", "splitfed_v2"]
    assert found.choices["bound_s"].isna().to_list() == [False, True]  # SplitFedV2 has one cut for all
    assert set(found.clients["series"]) == set(found.cuts["series"]) == {"splitfed_v1", "splitfed_v2"}


@pytest.mark.parametrize(("text", "size"), [("256MB", 256_000_000), ("1.5 gb", 1_500_000_000), ("64000", 64_000)])
def test_sizes_have_decimal_units(text, size):
    assert read_bytes(text) == size


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory", "256MiB"], "--memory: is no size"),
        (["--memory", "٣MB"], "--memory: is no size"),
        (["--memory", "9" * 400], "--memory: is no size"),
        (["--accuracy", "0.6"], "--accuracy: needs runs"),
        (["--accuracy", "60", "--run", "."], "--accuracy: is a share"),
        (["--run", "."], "--run: says nothing without"),
        (["--accuracy", "0.6", "--run", "."], "sfl-sim: --run: is not the folder of a run"),
        (["--set", "method.name=fedavg"], "method.name: is not split"),
        (["--set", "grid={model.cut: [1, 2]}"], "model.cut: the scenario's grid sets it"),
        (["--set", "method.name=splitfed_v2", "--per-client"], "--per-client: splitfed_v2 has one cut for all"),
    ],
)
def test_careless_questions_are_answered_in_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(WORLD))
    sfl_sim("advise", "tiny.yaml", "-q", *arguments, code=2)
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_the_command_prints_a_table_and_what_to_paste(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(
        yaml.safe_dump({**WORLD, "model": {"cut": {"by": "device_speed", "values": [1, 2]}}})
    )
    found = advice(load("tiny.yaml"), per_client=True)
    sfl_sim("advise", "tiny.yaml", "--per-client")
    shown = capsys.readouterr().out.splitlines()
    assert "Lower bound" in shown[0]
    assert shown[-1] == f"--set '{found.choices['setting'][0]}'"
    sfl_sim("advise", "tiny.yaml", "-q")
    assert capsys.readouterr().out.startswith("--set model.cut=")
