"""The section `serving`: what is refused in one line, and what its kinds take with them when they change."""

import pytest
from pydantic import BaseModel
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import serving
from sfl_sim.scenario.load import digest, dump, load, parse, served, training
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.serving import FixedThreshold, Oracle, Poisson, Serving, TraceArrivals


def sections(values, **others):
    return [variant.scenario.serving for variant in parse({"serving": values, **others}).variants]


def test_nobody_asks_unless_the_scenario_says_so_and_then_there_is_a_default_for_everything():
    assert Scenario().serving is None
    assert sections({}) == [Serving()]


def test_every_key_is_described():
    kinds = [thing for thing in vars(serving).values() if isinstance(thing, type) and issubclass(thing, BaseModel)]
    undescribed = [key for s in kinds for key, field in s.model_fields.items() if not field.description]
    assert len(kinds) >= 9
    assert undescribed == []
    assert all(section.__doc__ for section in kinds)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"arivals": {}}, "arivals"),
        ({"arrivals": {"kind": "poison"}}, "arrivals.kind"),
        ({"arrivals": {"rate_per_s": -3}}, "arrivals.rate_per_s"),
        ({"threshold": {"target": 0.3}}, "threshold.kind"),
        ({"arrivals": {"kind": "poisson"}}, "arrivals.rate_per_s"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": [1, -1]}}, "arrivals.rate_per_s.1"),
        ({"arrivals": {"kind": "trace"}}, "arrivals.file"),
        ({"requests": 0}, "requests"),
        ({"warm_up": 1}, "warm_up"),
        ({"threshold": {"kind": "fixed"}}, "threshold.entropy"),
        ({"threshold": {"kind": "fixed", "entropy": -0.1}}, "threshold.entropy"),
        ({"threshold": {"kind": "offload_rate", "target": 1}}, "threshold.target"),
        ({"exit_probability": [0.5, 1.5]}, "exit_probability.1"),
        ({"batch": {"max_size": 0}}, "batch.max_size"),
        ({"service": {"kind": "gamma"}}, "service.kind"),
        ({"service": {"cv": 1}}, "service.kind"),
        ({"service": {"kind": "lognormal"}}, "service.cv"),
        ({"service": {"kind": "measured"}}, "service.file"),
        ({"service": {"kind": "measured", "file": "s.csv"}, "batch": {"max_size": 2}}, "service"),
        ({"queue": "priority"}, "queue"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_key(values, key):
    with refused(f"serving.{key}"):
        sections(values)


def test_a_kind_that_is_missing_comes_with_an_example_of_the_whole():
    with pytest.raises(ScenarioError, match=r"\{kind: lognormal, cv: 0\.5\}"):
        sections({"service": {"cv": 1}})


def test_another_kind_in_the_grid_does_not_keep_the_options_of_the_first():
    base = {"threshold": {"kind": "fixed", "entropy": 0.4}, "arrivals": {"kind": "trace", "file": "mine.csv"}}
    grid = [
        {"serving.threshold.kind": ["fixed", "oracle"]},
        {"serving.arrivals.kind": "poisson", "serving.arrivals.rate_per_s": 5},
    ]
    same, oracle, poisson = sections(base, grid=grid)
    assert (same.threshold, oracle.threshold) == (FixedThreshold(entropy=0.4), Oracle())
    assert oracle.arrivals == TraceArrivals(file="mine.csv")
    assert poisson.arrivals == Poisson(rate_per_s=5)


def test_a_scenario_with_a_serving_section_reads_back_equal_and_the_command_line_can_begin_one(tmp_path):
    scenario = Scenario(serving=Serving(threshold=FixedThreshold(entropy=[0.1, 0.2]), exit_probability=0.7))
    path = tmp_path / "served.yaml"
    path.write_text(dump(scenario))
    assert load(path).base.serving == scenario.serving
    path.write_text("seed: 1")
    assert load(path, ["serving.requests=7"]).base.serving == Serving(requests=7)


# What is trained


def test_what_differs_in_serving_alone_is_trained_once():
    grid = {"method.name": ["splitfed_v1", "splitfed_v2"], "serving.arrivals.rate_per_s": [1, 2], "train.lr": [0.1]}
    arrivals = {"kind": "poisson", "rate_per_s": 1}
    study = parse({"repeats": 2, "serving": {"arrivals": arrivals}, "grid": grid})
    once = parse({"repeats": 2, "serving": {}, "grid": {key: grid[key] for key in ("method.name", "train.lr")}})
    assert len(study.variants) == 8
    assert training(study) == once
    assert digest(training(study)) == digest(once)
    assert training(once) == once


def test_what_is_not_to_be_served_is_trained_as_it_stands_unless_somebody_serves_it():
    plain = parse({"grid": [{"method.name": ["splitfed_v1", "splitfed_v2"]}]})
    assert training(plain) is plain
    assert training(served(plain)) == served(plain) == parse(served(plain).base)
    assert [variant.scenario.serving for variant in served(plain).variants] == [Serving(), Serving()]


def test_a_list_of_grids_that_overlap_without_serving_is_trained_once_too():
    grid = [
        {"method.name": ["splitfed_v1", "splitfed_v2"], "serving.requests": [10, 20]},
        {"method.name": "splitfed_v1", "serving.threshold.kind": "oracle"},
        {"model.cut": [2, 3], "serving.requests": 10},
    ]
    found = training(parse({"grid": grid}))
    assert [variant.name for variant in found.variants] == ["splitfed_v1", "splitfed_v2", "cut=2", "cut=3"]
    assert parse(found.base) == found


def test_a_mistake_in_what_is_trained_is_still_found_in_its_line(tmp_path):
    path = tmp_path / "served.yaml"
    path.write_text("grid:\n  - {serving.requests: [1, 2]}\n  - serving.requests: 3\n    model.cut: [9]\n")
    last = training(load(path)).variants[-1]
    assert last.places.located(ScenarioError("no such layer", key="model.cut")).line == 4
