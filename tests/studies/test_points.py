"""The privacy study: a scenario at every cut, with attacks on what crosses it."""

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.optional_sections import Leakage
from sfl_sim.scenario.vary import axis
from sfl_sim.studies.points import attacked


def cuts(study):
    return {variant.name: variant.scenario.model.cut for variant in study.variants}


def test_every_cut_is_a_variant_with_the_usual_attacks():
    study = attacked(parse({"name": "mine"}), [axis("model.cut", "all")])
    assert cuts(study) == {"cut=1": 1, "cut=2": 2, "cut=3": 3}
    assert all(variant.scenario.report.leakage == Leakage() for variant in study.variants)
    assert study.name == "mine-privacy"


def test_what_varies_multiplies_each_part_of_the_grid():
    grid = [{}, {"privacy.noise": {"sigma": 0.5}}]
    study = attacked(parse({"grid": grid, "repeats": 2}), [axis("model.cut", [1, 2])])
    assert list(cuts(study)) == ["cut=1", "cut=2", "sigma=0.5, cut=1", "sigma=0.5, cut=2"]
    assert len(study.variants) == 8


def test_attacks_that_the_scenario_names_stay():
    study = attacked(parse({"report": {"leakage": {"samples": 20}}}), [])
    (variant,) = study.variants
    assert variant.scenario.report.leakage == Leakage(samples=20)


def test_what_the_grid_sets_cannot_vary():
    with pytest.raises(ScenarioError, match="the scenario's grid sets it"):
        attacked(parse({"grid": {"model.cut": [1, 2]}}), [axis("model.cut", [1])])


def test_without_a_cut_there_is_nothing_to_attack():
    with pytest.raises(ScenarioError, match=r"method.name: .*found 'fedavg'"):
        attacked(parse({"method": "fedavg"}), [])
    assert len(attacked(parse({"grid": {"method.name": ["fedavg", "splitnn"]}}), []).variants) == 2
    assert len(attacked(parse({"method": "fedavg"}), [axis("method.name", ["fedavg", "splitnn"])]).variants) == 2


def test_asynchronous_clients_of_fedavg_have_no_cut_either():
    with pytest.raises(ScenarioError, match=r"method.name: .*found 'fedbuff'"):
        attacked(parse({"method": "fedbuff"}), [])
    assert attacked(parse({"method": {"name": "fedbuff", "host": "splitfed_v1"}}), []).variants
    with pytest.raises(ScenarioError, match=r"method\.host"):
        attacked(parse({"method": {"name": "fedbuff", "host": "splitnn"}}), [])
