"""How slow nodes have to seem for a machine to be a scenario's devices and links, and what cannot be live."""

import pandas as pd
import pytest
from live_nodes import thread_nodes

from sfl_sim.build.setup import setup_of
from sfl_sim.errors import ScenarioError
from sfl_sim.features.live import run
from sfl_sim.features.live.run import BUSY, DRIVER_S, SHARE, Live, OfScenario, check_live, slowdown
from sfl_sim.ops import SERVER, priced
from sfl_sim.scenario.load import parse

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 48, "test_samples": 20},
    "model": {"name": "cnn_small", "cut": 2},
    "method": {"name": "splitfed_v2"},
    "clients": {
        "count": 2,
        "compute": {"macs_per_s": [1.0e9, 2.0e9]},
        "network": {"uplink_bps": [50e6, 20e6], "downlink_bps": 80e6, "latency_s": 0.002},
    },
    "server": {"macs_per_s": 4.0e9},
    "train": {"rounds": 1, "batch_size": 16},
}


@pytest.fixture(scope="module")
def scenario():
    return parse(SCENARIO).base


@pytest.fixture(scope="module")
def round_s(scenario):
    """Seconds of a simulated round of the scenario."""
    from sfl_sim.engine.experiment import Experiment

    walk = Experiment(scenario, None).walk
    walk.set_up()
    walked = walk.round(1, walk.setup.cyclic)
    return walked.ended_s - walked.started_s


def measured(n, cpu_s=0.0):
    """What nodes report of so many operations."""
    return pd.DataFrame({"cpu_s": [cpu_s] * n})


def test_a_machine_that_is_fast_enough_needs_no_slowdown(scenario):
    assert slowdown(scenario, measured(0), factor=3.0) == 1.0


def test_no_node_is_faster_than_the_machine(scenario):
    assert slowdown(scenario, measured(0), factor=0.25) == 4.0


def test_what_all_nodes_compute_fits_into_a_part_of_the_machine(scenario, round_s, monkeypatch):
    monkeypatch.setattr(run.os, "cpu_count", lambda: 2)
    busy_s = 10 * round_s
    found = slowdown(scenario, measured(1, busy_s), factor=3.0)
    assert found == pytest.approx(10 / (2 * BUSY))
    assert slowdown(scenario, measured(1, 2 * busy_s), factor=3.0) == pytest.approx(2 * found)


def test_the_driver_s_own_work_is_a_small_part_of_a_round(scenario, round_s):
    n = round(10 * round_s / DRIVER_S)
    assert slowdown(scenario, measured(n), factor=3.0) == pytest.approx(SHARE * n * DRIVER_S / round_s)


def test_links_have_the_scenario_s_rates_in_slowed_seconds(scenario):
    fleet = setup_of(scenario, pixels=True).fleet
    server, first = run._links(fleet, SERVER, 2.0), run._links(fleet, 0, 2.0)
    assert server == dict.fromkeys([b"0", b"1"], (pytest.approx(40e6), pytest.approx(0.004)))
    assert first[b"server"] == (pytest.approx(25e6), pytest.approx(0.004))
    assert first[b"1"] == (pytest.approx(25e6), pytest.approx(0.008))  # the slower of both links, and both latencies
    assert run._links(fleet, 1, 1.0)[b"0"] == (pytest.approx(20e6), pytest.approx(0.004))
    assert b"0" not in first


@pytest.fixture(scope="module")
def emulated(scenario):
    """A trial on nodes in threads, after its rehearsal: the trial, what it has measured, and the agents."""
    with pytest.MonkeyPatch.context() as patch, thread_nodes(2, samples=0) as (machines, agents):
        machines.begin(OfScenario(scenario))
        patch.setattr(run, "STEPS", 4)
        patch.setattr(run, "RESTS_S", 0.0)
        trial = Live(machines)
        rehearsed = trial.rehearse(scenario)
        with patch.context() as known:  # other tests of this module measure it
            known.setattr(Live, "_whole_step", lambda *about: (whole_work(scenario), 1e-3))
            trial.emulate(scenario, rehearsed)
        machines.compare_clocks()  # so that nodes have taken the orders before
        yield trial, rehearsed, agents


def whole_work(scenario):
    """The work of a step of the whole network, and seconds for it on this machine."""
    from sfl_sim.training.steps import TrainAlone

    task = setup_of(scenario, pixels=True).method(run.CPU).task
    (whole,), batch = task.split(), next(task.data.batches(0, 1))
    return priced(TrainAlone(task.optimiser(1, 0)), whole, batch)


def test_a_rehearsal_measures_every_operation_and_leaves_nothing(emulated):
    trial, rehearsed, _ = emulated
    assert not trial.steps
    assert {"client", "server", "aggregator", "uplink", "downlink"} == set(rehearsed["node"])
    assert set(rehearsed["client"]) >= {0, 1}
    moved = rehearsed[rehearsed["size_bytes"] > 0]
    assert (moved["moved_bytes"] > moved["size_bytes"]).all()
    assert (rehearsed.loc[rehearsed["macs"] > 0, "cpu_s"] > 0).all()


def test_devices_seem_as_slow_as_the_scenario_says(emulated, scenario):
    trial, _, agents = emulated
    paces = trial.paces
    assert paces[0].factor == pytest.approx(2 * paces[1].factor)  # of half its rate
    assert paces[1].factor == pytest.approx(2 * paces[SERVER].factor)
    assert min(pace.factor for pace in paces.values()) >= 1
    assert paces[0].factor == pytest.approx(trial.slowdown * whole_work(scenario).macs / 1e9 / 1e-3)
    assert {node: agent._pace for node, agent in agents.items()} == paces


def test_the_tables_say_how_the_nodes_were(emulated):
    trial, _, _ = emulated
    nodes = trial.tables()["nodes"].set_index("node")
    assert nodes.index.tolist() == ["server", "0", "1"]
    assert nodes["stretched"].tolist() == [trial.paces[node].factor for node in (SERVER, 0, 1)]
    assert nodes["is_same_code"].all()
    assert not nodes["is_lost"].any()
    assert (nodes["slowdown"] == trial.slowdown).all()


def test_a_step_of_the_whole_network_is_measured_on_a_node(scenario, monkeypatch):
    monkeypatch.setattr(run, "STEPS", 4)
    monkeypatch.setattr(run, "RESTS_S", 0.0)
    with thread_nodes(2, samples=0) as (machines, _):
        machines.begin(OfScenario(scenario))
        work, cpu_s = Live(machines)._whole_step(setup_of(scenario, pixels=True))
    assert work == whole_work(scenario)
    assert cpu_s > 0


def test_links_that_vary_are_not_emulated(scenario):
    varying = parse(SCENARIO | {"clients": {"count": 2, "network": {"trace": "wifi_lte"}}}).base
    with pytest.raises(ScenarioError) as raised:
        Live(None).emulate(varying, pd.DataFrame())
    assert raised.value.key == "clients.network.trace"


def test_what_was_not_emulated_has_no_factor():
    with thread_nodes(1) as (machines, _):
        nodes = Live(machines).tables()["nodes"]
    assert nodes["stretched"].isna().all()
    assert (nodes["slowdown"] == 1).all()


def test_every_node_makes_the_same_samples(scenario):
    first, second = OfScenario(scenario)(), OfScenario(scenario)()
    assert len(first.x) == 48
    assert bool((first.x == second.x).all())


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("train.on_nan", {"train.on_nan": "skip"}),
        ("train.precision", {"train.precision": "bf16"}),
        ("clients.compute.jitter", {"clients.compute.jitter": 0.1}),
        ("clients.availability", {"clients.availability.profile": "flash"}),
        ("clients.overcommit", {"clients.overcommit": 0.5, "clients.per_round": 1}),
        ("wire.up", {"wire.up.kind": "delta"}),
        ("report.snapshots", {"report.snapshots.rounds": [1]}),
        ("serving", {"serving": {}}),
    ],
)
def test_what_cannot_be_live_is_named_by_its_key(key, change):
    with pytest.raises(ScenarioError) as raised:
        check_live(parse(SCENARIO, overrides=change).base)
    assert raised.value.key == key


def test_the_scenario_itself_can_be_live(scenario):
    check_live(scenario)


def test_shared_links_are_for_namespaces_and_from_a_file_for_nobody():
    shared = parse(SCENARIO, overrides={"clients.network.shared": {"access_points": 1, "capacity_bps": 1e6}}).base
    check_live(shared, in_namespaces=True)
    with pytest.raises(ScenarioError, match="netns") as raised:
        check_live(shared)
    assert raised.value.key == "clients.network.shared"
    of_file = parse(SCENARIO, overrides={"clients.network.shared": {"file": "links.csv"}}).base
    with pytest.raises(ScenarioError) as raised:
        check_live(of_file, in_namespaces=True)
    assert raised.value.key == "clients.network.shared.file"
