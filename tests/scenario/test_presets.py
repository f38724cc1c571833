"""Presets: a name for several settings, which is expanded where a scenario is put to use."""

import numpy as np
import pytest

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import dump_study, parse
from sfl_sim.scenario.yaml_text import read_value
from sfl_sim.studies.partition_preview import preview

BALANCED = {"name": "synthetic", "shape": [1, 8, 8], "n_labels": 3, "samples": 48}


def scenario(order, phi=2, data=None, clients=None, **server):
    return {
        "data": {**BALANCED, "partition": {"kind": "dominant_label", "p": 0.5, "phi": phi}, **(data or {})},
        "clients": clients or {},
        "server": {"order": order, **server},
        "train": {"rounds": 2, "batch_size": 4},
    }


def timed(values):
    """A timing-only experiment, and its operations."""
    experiment = Experiment(parse(values).variants[0].scenario, None)
    return experiment, np.concatenate([round.ops for round in experiment.rounds()])


def labels_served(values):
    """The dominant label of the client of every job at the server, in order of service."""
    experiment, ops = timed(values)
    jobs = np.sort(ops[ops["kind"] == b"train"], order="started_s")
    return experiment.counts.argmax(axis=1)[jobs["client"]].tolist()


def test_i8_hydra_s_code_serves_the_labels_as_phi_clients_a_label_in_turn():
    """Identity I8: burst 1 with phi clients a label, and burst phi with one client a label, give the same labels."""
    labels = labels_served(scenario("hydra_code"))
    assert labels == labels_served(scenario("cyclic"))
    sweep = labels[::2][:3]
    assert sorted(sweep) == [0, 1, 2]
    assert labels == [label for label in sweep for _ in range(2)] * 4


def test_hydra_s_code_has_one_client_a_label_and_phi_as_its_burst():
    preset, ops = timed(scenario("hydra_code", phi=4))
    _, same = timed(scenario("cyclic", phi=1, burst=4))
    assert len(preset.shares) == 3
    assert ops.tobytes() == same.tobytes()


@pytest.mark.parametrize(
    ("method", "head_weights"),
    [
        ({"name": "hydra", "cut2": 2}, "uniform"),
        ({"name": "hydra", "cut2": 2, "head_weights": "uniform"}, "uniform"),
        ({"name": "splitfed_v2"}, None),
    ],
)
def test_hydra_s_code_averages_uniformly(method, head_weights):
    """Unequal clients weigh the same in it, and so do heads."""
    uneven = {**BALANCED, "samples": 50, "partition": {"kind": "dominant_label", "p": 0.5, "phi": 2}}
    given = {**scenario("hydra_code", data=uneven), "method": method}
    run = Experiment(parse(read_value(dump_study(parse(given)))).variants[0].scenario, None)
    assert len({len(share) for share in run.shares}) > 1
    assert run.method.task.shares(range(3)) == [1 / 3] * 3
    assert getattr(run.method.options, "head_weights", None) == head_weights


def test_client_level_is_the_cyclic_order_with_whole_rounds_as_bursts():
    assert labels_served(scenario("client_level", phi=1))[:4] == [labels_served(scenario("cyclic", phi=1))[0]] * 4
    assert timed(scenario("client_level"))[1].tobytes() == timed(scenario("cyclic", burst="all"))[1].tobytes()


def test_a_stored_scenario_keeps_the_preset_and_runs_again_as_it_is():
    study = parse(scenario("hydra_code"))
    stored = read_value(dump_study(study))
    assert stored["server"]["order"] == "hydra_code"
    assert timed(stored)[0].timeline_digest == timed(scenario("hydra_code"))[0].timeline_digest


def test_the_partition_that_is_shown_is_the_one_that_the_preset_runs():
    (shown,) = preview(parse(scenario("hydra_code"))).partitions
    assert np.array_equal(shown.counts, timed(scenario("hydra_code"))[0].counts)
    with pytest.raises(ScenarioError, match=r"server\.burst"):
        preview(parse(scenario("client_level", burst=2)))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (scenario("hydra_code", data={"partition": {"kind": "iid"}}), r"data\.partition\.kind: has no phi, .*'iid'"),
        (
            {**scenario("hydra_code"), "method": {"name": "hydra", "head_weights": "samples"}},
            r"method\.head_weights: cannot be given together with server\.order hydra_code, .*\(found 'samples'\)",
        ),
        (scenario("hydra_code", burst=2), r"server\.burst: cannot be given together with server\.order hydra_code"),
        (scenario("client_level", burst=2), r"server\.burst: cannot be given together with server\.order client_level"),
        (scenario("hydra_code", clients={"count": 3}), r"clients\.count: cannot be given together .*\(found 3\)"),
        (scenario("hydra_cod"), "did you mean 'hydra_code'"),
        (scenario("bounded_wait"), r"server\.max_wait_s: bounded_wait needs it"),
        (scenario("client_level", max_wait_s=1), r"server\.max_wait_s: cannot be given together"),
    ],
)
def test_what_does_not_go_together_is_one_line(values, line):
    with pytest.raises(ScenarioError, match=line):
        Experiment(parse(values).variants[0].scenario, None)
