"""The grid: its points, their names, and keys set over a scenario."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from sfl_sim.scenario.grid import names, names_without, points, set_keys


def values(grid):
    return [{key: choice.value for key, choice in point.items()} for point in points(grid)]


def named(grid):
    return names(list(points(grid)), "splitfed_v2")


def test_a_grid_is_every_combination_of_its_values_the_last_key_fastest():
    assert values({"method.name": ["a", "b"], "model.cut": [1, 2], "train.lr": 0.1}) == [
        {"method.name": "a", "model.cut": 1, "train.lr": 0.1},
        {"method.name": "a", "model.cut": 2, "train.lr": 0.1},
        {"method.name": "b", "model.cut": 1, "train.lr": 0.1},
        {"method.name": "b", "model.cut": 2, "train.lr": 0.1},
    ]


def test_a_list_of_grids_is_one_after_the_other():
    assert values([{"model.cut": [1, 2]}, {"server.order": "cyclic"}]) == [
        {"model.cut": 1},
        {"model.cut": 2},
        {"server.order": "cyclic"},
    ]


@pytest.mark.parametrize("grid", [{}, [], [{}]])
def test_an_empty_grid_is_one_point_that_sets_nothing(grid):
    assert values(grid) == [{}]


@given(st.dictionaries(st.text(min_size=1), st.lists(st.integers(), min_size=1, max_size=3), max_size=3))
@settings(max_examples=40)
def test_a_grid_has_as_many_points_as_the_product_of_its_lists(grid):
    forbidden = {"seed", "name", "repeats", "grid"}
    grid = {key: choices for key, choices in grid.items() if key.partition(".")[0] not in forbidden}

    assert len(values(grid)) == math.prod(len(choices) for choices in grid.values())


def test_every_value_knows_where_the_grid_gives_it():
    (point,) = points([{"model.cut": 3, "train.lr": [0.1]}])

    assert {choice.path for choice in point.values()} == {"grid.0.model.cut", "grid.0.train.lr.0"}


@pytest.mark.parametrize(
    ("grid", "key"),
    [
        ({"seed": [1, 2]}, "grid.seed"),
        ([{"model.cut": 1}, {"repeats": [1, 2]}], "grid.1.repeats"),
        ({"name": ["a"]}, "grid.name"),
        ({"grid.model.cut": [1]}, "grid.grid.model.cut"),
        ({"model.cut": []}, "grid.model.cut"),
    ],
)
def test_some_keys_cannot_vary(grid, key):
    with refused(key):
        list(points(grid))


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ({}, ["splitfed_v2"]),
        ({"method.name": ["hydra", "smofi"], "server.order": "cyclic"}, ["hydra, cyclic", "smofi, cyclic"]),
        ({"model.cut": [1, 2]}, ["cut=1", "cut=2"]),
        ({"data.augment": [True, False]}, ["augment=true", "augment=false"]),
        ({"train.lr": [1e-3], "server.burst": [None]}, ["lr=0.001, burst=null"]),
        ([{}, {"method": {"name": "hydra", "groups": 4}}], ["splitfed_v2", "hydra, groups=4"]),
        ({"privacy": {"noise": {"sigma": 1.0}, "nopeek": 0.1}}, ["noise sigma=1.0, nopeek=0.1"]),
        ({"wire": {"up": {"kind": "topk", "keep": 0.1}, "down": "int8"}}, ["topk, keep=0.1, int8"]),
        (
            {"clients.compute": ["phones", 2.5], "method.plan": [{}]},
            ["phones, plan={}", "compute=2.5, plan={}"],
        ),
        (
            [{"clients.compute.scale": 2}, {"clients.network.scale": 2, "model.cut": 1}],
            ["clients.compute.scale=2", "clients.network.scale=2, cut=1"],
        ),
        ({"train.loss": ["python:mild-0123456789ab", "l1"]}, ["mild", "l1"]),
        (
            {"model.factory": ["python:Net-0123456789ab", "python:Net-ba9876543210"]},
            ["factory=python:Net-0123456789ab", "factory=python:Net-ba9876543210"],
        ),
        ([{"wire.up": ["int8", "int4"]}, {"wire.down": "int8"}], ["up=int8", "int4", "down=int8"]),
    ],
)
def test_points_are_named_by_their_values(grid, expected):
    assert named(grid) == expected


@pytest.mark.parametrize(
    "grid",
    [
        {"model.cut": [1, 2, 1]},
        [{"model.cut": 1}, {"model.cut": [1]}],
        [{"wire": {"up": "int8"}}, {"wire.up": "int8"}],
        [{}, {}],
    ],
)
def test_two_points_alike_are_an_error(grid):
    with refused("grid"):
        named(grid)


def test_without_a_key_points_that_differ_in_it_alone_share_a_name():
    grid = [{"wire.up": "int8", "model.cut": [1, 2]}, {"wire.down": "int8", "model.cut": 2}]
    found = names_without(list(points(grid)), "splitfed_v2", lambda key: key == "model.cut")
    assert found == ["up=int8", "up=int8", "down=int8"]
    grid = [{"wire": {"up": "int8"}, "model.cut": 1}, {"wire.up": "int8", "model.cut": 2}]
    assert len(set(names_without(list(points(grid)), "splitfed_v2", lambda key: key == "model.cut"))) == 1


def test_setting_a_key_leaves_the_others_and_the_original_alone():
    base = {"train": {"lr": 0.1, "rounds": 3}}

    assert set_keys(base, {"train.lr": 0.2, "method.plan.steps": 4}) == {
        "train": {"lr": 0.2, "rounds": 3},
        "method": {"plan": {"steps": 4}},
    }
    assert base == {"train": {"lr": 0.1, "rounds": 3}}


def test_keys_within_the_grid_are_dotted_themselves():
    assert set_keys({"grid": {}}, {"grid.model.cut": [1, 2]}) == {"grid": {"model.cut": [1, 2]}}


def test_rates_displace_a_profile_and_a_profile_the_rates():
    profile = {"clients": {"compute": {"profile": "phones", "macs_per_s": None, "scale": 2.0}}}
    rates = {"clients": {"network": {"profile": None, "uplink_bps": 1.0, "downlink_bps": 2.0}}}

    assert set_keys(profile, {"clients.compute.macs_per_s": 5.0}) == {
        "clients": {"compute": {"macs_per_s": 5.0, "scale": 2.0}}
    }
    assert set_keys(rates, {"clients.network.profile": "4g"}) == {"clients": {"network": {"profile": "4g"}}}
    assert set_keys(rates, {"clients.network.profile": None}) == rates


def test_another_kind_of_test_set_starts_afresh():
    base = {"data": {"test": {"kind": "rho_ood", "rho": 0.4}}}
    assert set_keys(base, {"data.test.kind": "global"}) == {"data": {"test": {"kind": "global"}}}


def test_another_kind_of_partition_starts_afresh_and_the_same_kind_does_not():
    base = {"data": {"partition": {"kind": "dominant_label", "p": 0.9, "phi": 2}}}

    assert set_keys(base, {"data.partition.alpha": 1.0, "data.partition.kind": "dirichlet"}) == {
        "data": {"partition": {"kind": "dirichlet", "alpha": 1.0}}
    }
    assert set_keys(base, {"data.partition.kind": "dominant_label"}) == base


@pytest.mark.parametrize(
    ("section", "options", "kind"),
    [
        ("clients.choice", {"kind": "oort", "penalty": 2.0}, "tiers"),
        ("train.schedule", {"kind": "cosine", "T_max": 7}, "exponential"),
        ("wire.down", {"kind": "topk", "keep": 0.1}, "fp16"),
        ("wire.up.inner", {"kind": "topk", "keep": 0.1}, "fp16"),
        ("serving.threshold", {"kind": "fixed", "value": 0.5}, "oracle"),
    ],
)
def test_another_kind_of_any_section_starts_afresh(section, options, kind):
    base = set_keys({}, {section: options})
    assert set_keys(base, {f"{section}.kind": kind}) == set_keys({}, {section: {"kind": kind}})
    assert set_keys(base, {f"{section}.kind": options["kind"]}) == base


def test_another_kind_of_schedule_keeps_the_warm_up_which_all_kinds_have():
    base = {"train": {"schedule": {"kind": "cosine", "T_max": 7, "warmup_rounds": 2}}}
    changed = set_keys(base, {"train.schedule.kind": "exponential"})
    assert changed == {"train": {"schedule": {"kind": "exponential", "warmup_rounds": 2}}}


def test_a_kind_among_a_methods_options_is_one_of_them():
    base = {"method": {"plan": {"kind": "a", "steps": 4}}}
    assert set_keys(base, {"method.plan.kind": "b"}) == {"method": {"plan": {"kind": "b", "steps": 4}}}


@pytest.mark.parametrize(
    ("base", "layer", "key"),
    [
        ({"a": {"b": 3}}, {"a": 1, "a.b": 2}, "a"),
        ({"a": {"b": 3}}, {"a.b": 2, "a": 1}, "a"),
        ({"train": {"lr": 0.1}}, {"train.lr.decay": 1}, "train.lr.decay"),
    ],
)
def test_a_key_and_one_below_it_cannot_both_be_set_nor_one_below_a_value(base, layer, key):
    with refused(key):
        set_keys(base, layer)
