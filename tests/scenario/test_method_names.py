"""Names that stand for a method with settings: what is given wins, and the resolved scenario says what is meant."""

import pytest
import torch

from sfl_sim.build.catalogue import check_names
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import dump, parse
from sfl_sim.scenario.yaml_text import read_value

TEXT = {
    "data": {"name": "tokens"},
    "model": {"name": "gpt_small", "cut": 2}, "clients": {"count": 2}, "train": {"rounds": 1, "batch_size": 6},
}  # fmt: skip


def scenario(**changes):
    (variant,) = parse(TEXT | changes).variants
    return variant.scenario


def test_splitlora_is_splitfed_v2_with_its_settings():
    found = scenario(method="splitlora")
    assert (found.method.name, found.train.optimizer, found.train.agg_weights) == ("splitfed_v2", "adamw", "uniform")
    assert (found.lora.rank, found.lora.alpha, found.lora.targets) == (8, 128.0, ["q", "v"])


def test_keys_that_are_given_win():
    found = scenario(
        method={"name": "splitlora", "l2": 0.5}, lora={"rank": 2}, train=TEXT["train"] | {"optimizer": "adam"}
    )
    assert (found.lora.rank, found.lora.alpha) == (2, 128.0)
    assert (found.train.optimizer, found.train.agg_weights) == ("adam", "uniform")
    assert found.method.options == {"l2": 0.5}


def test_local_loss_is_cse_fsl_with_copies():
    assert scenario(method="local_loss").method.options == {"server": "copies"}
    assert scenario(method={"name": "local_loss", "server": "shared"}).method.options == {"server": "shared"}


def test_a_grid_may_name_them_and_variants_are_called_so():
    variants = parse(TEXT | {"grid": {"method.name": ["splitfed_v2", "splitlora", "local_loss"]}}).variants
    assert [variant.name for variant in variants] == ["splitfed_v2", "splitlora", "local_loss"]
    assert [variant.scenario.method.name for variant in variants] == ["splitfed_v2", "splitfed_v2", "cse_fsl"]
    assert [variant.scenario.lora is None for variant in variants] == [True, False, True]
    assert [variant.scenario.train.agg_weights for variant in variants] == ["samples", "uniform", "samples"]


def test_the_resolved_scenario_loads_back_equal():
    found = scenario(method="splitlora")
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
    with pytest.raises(ScenarioError, match="unknown key of cse_fsl"):
        check_names(parse(TEXT | {"method": {"name": "local_loss", "tau": 3}}))
