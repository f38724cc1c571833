"""Presets: names that stand for several settings, of a method or of an order."""

import numpy as np
import pytest
import torch
from refusals import refused

from sfl_sim.build.catalogue import check_names
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import dump, dump_study, parse
from sfl_sim.scenario.sections import Scenario
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
    ("values", "key", "found"),
    [
        (scenario("hydra_code", data={"partition": {"kind": "iid"}}), "data.partition.kind", "iid"),
        (
            {**scenario("hydra_code"), "method": {"name": "hydra", "head_weights": "samples"}},
            "method.head_weights",
            "samples",
        ),
        (scenario("hydra_code", burst=2), "server.burst", 2),
        (scenario("client_level", burst=2), "server.burst", 2),
        (scenario("hydra_code", clients={"count": 3}), "clients.count", 3),
        (scenario("client_level", max_wait_s=1), "server.max_wait_s", 1),
    ],
)
def test_a_preset_needs_its_keys_free_and_hydra_s_code_a_phi(values, key, found):
    with refused(key, found=found):
        Experiment(parse(values).variants[0].scenario, None)


def test_a_misspelled_preset_is_told_with_the_nearest_one():
    with refused("server.order", found="hydra_cod", says="'hydra_code'"):
        Experiment(parse(scenario("hydra_cod")).variants[0].scenario, None)


# Of methods


TEXT = {
    "data": {"name": "tokens"},
    "model": {"name": "gpt_small", "cut": 2}, "clients": {"count": 2}, "train": {"rounds": 1, "batch_size": 6},
}  # fmt: skip


def with_method(**changes):
    (variant,) = parse(TEXT | changes).variants
    return variant.scenario


def test_splitlora_is_splitfed_v2_with_its_settings():
    found = with_method(method="splitlora")
    assert (found.method.name, found.train.optimizer, found.train.agg_weights) == ("splitfed_v2", "adamw", "uniform")
    assert (found.lora.rank, found.lora.alpha, found.lora.targets) == (8, 128.0, ["q", "v"])


def test_keys_that_are_given_win():
    found = with_method(
        method={"name": "splitlora", "l2": 0.5}, lora={"rank": 2}, train=TEXT["train"] | {"optimizer": "adam"}
    )
    assert (found.lora.rank, found.lora.alpha) == (2, 128.0)
    assert (found.train.optimizer, found.train.agg_weights) == ("adam", "uniform")
    assert found.method.options == {"l2": 0.5}


def test_local_loss_is_cse_fsl_with_copies():
    assert with_method(method="local_loss").method.options == {"server": "copies"}
    assert with_method(method={"name": "local_loss", "server": "shared"}).method.options == {"server": "shared"}


def test_a_grid_may_name_them_and_variants_are_called_so():
    variants = parse(TEXT | {"grid": {"method.name": ["splitfed_v2", "splitlora", "local_loss"]}}).variants
    assert [variant.name for variant in variants] == ["splitfed_v2", "splitlora", "local_loss"]
    assert [variant.scenario.method.name for variant in variants] == ["splitfed_v2", "splitfed_v2", "cse_fsl"]
    assert [variant.scenario.lora is None for variant in variants] == [True, False, True]
    assert [variant.scenario.train.agg_weights for variant in variants] == ["samples", "uniform", "samples"]


def test_a_scenario_from_python_may_name_one():
    (variant,) = parse(Scenario(method="local_loss")).variants
    assert variant.scenario.method.model_dump() == {"name": "cse_fsl", "server": "copies"}


def test_the_resolved_scenario_loads_back_equal():
    found = with_method(method="splitlora")
    assert parse(read_value(dump(found))).variants[0].scenario.lora == found.lora


def test_the_name_and_the_keys_written_out_are_one_training():
    digits = {"data": {"name": "digits", "train_samples": 60, "test_samples": 20}, "model": {"name": "mlp", "cut": 1},
              "clients": {"count": 2}, "train": {"rounds": 1, "batch_size": 10}}  # fmt: skip
    digests = []
    for method in ("local_loss", {"name": "cse_fsl", "server": "copies"}):
        (variant,) = parse(digits | {"method": method}).variants
        experiment = Experiment(variant.scenario, torch.device("cpu"))
        list(experiment.rounds())
        digests.append((experiment.timeline_digest, experiment.weights_digest()))
    assert digests[0] == digests[1]


def test_an_option_that_the_host_has_not_got_is_refused():
    with refused("method.tau", found="tau", says="cse_fsl"):
        check_names(parse(TEXT | {"method": {"name": "local_loss", "tau": 3}}))
