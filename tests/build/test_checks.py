"""Keys without effect: refused, unless other variants of the study use them."""

import re

import pytest

from sfl_sim.build.checks import check_effects
from sfl_sim.build.registry import find_method
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.scenario.fields import OnlyWith, conditional
from sfl_sim.scenario.load import load, parse


def refusal(values, overrides=()):
    """The line with which a scenario is refused; empty if it is not."""
    try:
        check_effects(parse(values, overrides=overrides).variants)
    except ScenarioError as error:
        return str(error)
    return ""


LINKS = {"uplink_bps": 1e6, "downlink_bps": 1e6}
IDLE = [
    ({"name": "fedbuff", "staleness": "constant", "a": 2.0}, "a: has no effect where method.staleness is constant"),
    ({"name": "fedasync", "b": 2.0}, "b: has no effect where method.staleness is polynomial (found 2.0)"),
    ({"name": "korea", "proportion": "off", "p0": 0.2}, "p0: has no effect where method.proportion is off (found 0.2)"),
    ({"name": "korea", "proportion": "fixed", "p_min": 0.2}, "p_min: has no effect where method.proportion is fixed"),
    ({"name": "harmony", "csa_weight": 0.0, "csa_margin": 2.0}, "csa_margin: has no effect where method.csa_weight is"),
    ({"name": "harmony", "inner_steps": 0, "inner_lr": 0.1}, "inner_lr: has no effect where method.inner_steps is 0"),
    ({"name": "splitgp", "ft_lr": 0.1}, "ft_lr: has no effect where method.ft_steps is 0 (found 0.1)"),
    ({"name": "splitfed_v2", "l2_on": "model"}, "l2_on: has no effect where method.l2 is 0.0 (found 'model')"),
    ({"name": "smofi", "fusion": False, "barrier": "strict"}, "barrier: has no effect where method.fusion is false"),
    ({"name": "fedavgm", "mu": 0.1}, "mu: has no effect where method.host is fedavg (found 0.1)"),
    ({"name": "smofi", "host": "fedprox", "max_norm": 1.0}, "max_norm: has no effect where method.host is fedprox"),
]
"""Sections `method`, and lines without the name of the section."""


@pytest.mark.parametrize(
    ("method", "line"), IDLE, ids=lambda value: value.get("name") if isinstance(value, dict) else ""
)
def test_an_option_that_another_switches_off_is_refused(method, line):
    assert refusal({"method": method}).startswith(f"method.{line}")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"train": {"batches": "full", "drop_last": True}},
            "train.drop_last: has no effect where train.batches is full",
        ),
        (
            {"train": {"optimizer": "adam", "momentum": 0.5}},
            "train.momentum: has no effect where train.optimizer is ad",
        ),
        ({"train": {"lr_min": 0.01}}, "train.lr_min: has no effect where train.lr_decay is 1.0 (found 0.01)"),
        ({"wire": {"error_feedback": True}}, "wire.error_feedback: has no effect where wire.update is null"),
        (
            {"clients": {"availability": {"profile": "flash", "deadline_s": 9}}},
            "clients.availability.deadline_s: has no effect where clients.availability.lost is drop (found 9.0)",
        ),
        (
            {"clients": {"availability": {"lost": "deadline", "deadline_s": 9, "begins_at_h": 5}}},
            "clients.availability.begins_at_h: has no effect where clients.availability.profile is null (found 5.0)",
        ),
        *(
            (
                {"clients": {"network": {**LINKS, key: 0.5}}},
                f"clients.network.{key}: has no effect where clients.network.profile is null (found 0.5)",
            )
            for key in ("up_down_correlation", "compute_correlation")
        ),
        (
            {"serving": {"batch": {"max_wait_s": 0.1}}},
            "serving.batch.max_wait_s: has no effect where serving.batch.max_size is 1 (found 0.1)",
        ),
        (
            {"serving": {"threshold": {"kind": "offload_rate", "target": 0.4}, "exit_probability": 0.5}},
            "serving.exit_probability: has no effect where serving.threshold.kind is offload_rate (found 0.5)",
        ),
    ],
)
def test_a_key_that_another_switches_off_is_refused(values, line):
    assert refusal(values).startswith(line)


@pytest.mark.parametrize(
    ("method", "key", "value", "why"),
    [
        ("fedavg", "wire.up", "int8", "nothing crosses a cut"),
        ("fedbuff", "privacy.noise", {"sigma": 1.0}, "nothing crosses a cut"),
        ("fedavg", "privacy.nopeek", 1.0, "no gradient comes down"),
        ("splitfrozen", "wire.down", "int8", "no gradient comes down"),
        ("splitfrozen", "privacy.gradient_noise", {"sigma": 1.0}, "no gradient comes down"),
        ("splitfrozen", "privacy.nopeek", 1.0, "no gradient comes down"),
        ("splitfrozen", "wire.update", {"kind": "topk", "keep": 0.1}, "clients upload no model"),
        ("splitnn", "wire.update", "int8", "clients upload no model"),
        ("splitfed_v3", "wire.update", "int8", "clients upload no model"),
        ("splitfed_v1", "report.exits_every", 2, "clients have no exits"),
        ("splitfed_v1", "server.order", "cyclic", "the server serves no jobs in an order"),
        ("korea", "server.burst", 1, "the server serves no jobs in an order"),
        ("mergesfl", "server.order", "cyclic", "the server serves no jobs in an order"),
        ("splitnn", "server.order", "cyclic", "the server serves no jobs in an order"),
    ],
)
def test_a_key_of_what_the_method_has_not_is_refused(method, key, value, why):
    line = refusal({"method": method}, {key: value})
    assert line.startswith(f"overrides: {key}: has no effect with {method}: {why} (found ")
    assert not refusal({"method": {"name": "fedbuff", "host": "splitfed_v1"}}, {"wire.up": "int8"})


def test_a_grid_carries_a_key_to_variants_in_which_it_has_no_effect():
    carried = {"method": {"name": "korea", "p0": 0.2}, "grid": {"method.proportion": ["off", "fixed"]}}
    assert not refusal(carried)
    assert not refusal({"wire": {"up": "int8"}, "grid": {"method.name": ["fedavg", "splitfed_v1"]}})
    assert refusal({**carried, "grid": {"method.proportion": ["off"]}}).startswith("method.p0: has no effect")


def test_but_not_a_value_that_has_an_effect_nowhere():
    grid = [{"method.proportion": "fixed", "method.p0": 0.2}, {"method.proportion": "off", "method.p0": 0.3}]
    assert refusal({"method": "korea", "grid": grid}).startswith("method.p0: has no effect where method.proportion is")


def test_the_line_of_the_file_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method:\n  name: fedasync\n  b: 2.0\n")
    with pytest.raises(ScenarioError, match=r"mine\.yaml:3: method\.b: has no effect"):
        check_effects(load(path).variants)


def test_a_default_that_is_written_out_is_no_mistake():
    assert not refusal({"method": {"name": "smofi", "fusion": False, "barrier": "paper"}})
    assert not refusal({"method": "splitfed_v1", "server": {"order": "fcfs"}})


def test_a_preset_of_orders_has_effects_besides_the_order():
    values = {"method": "splitfed_v1", "data": {"partition": {"kind": "dominant_label"}}}
    assert not refusal(values, {"server.order": "hydra_code"})


def test_every_condition_names_a_key_beside_it():
    """Asked for its reason, each finds the other key."""
    for name in METHODS:
        options = find_method(name).Options
        for key, field in options.model_fields.items():
            for condition in (note for note in field.metadata if isinstance(note, OnlyWith)):
                assert re.fullmatch(
                    rf"|where method\.{condition.key} is .*", condition.why_idle(options(), "method.")
                ), key


def test_keys_at_their_default_are_not_looked_at():
    assert not list(conditional(parse({}).base))


EDGE = {"servers": {"edge": {"count": 2}}}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (EDGE | {"server": {"order": "cyclic"}}, r"server\.order: has no effect with splitfed_v2"),
        ({"servers": {"edge": {"count": 2, "cut": 2, "order": "cyclic"}}}, r"servers\.edge\.order: has no effect"),
        ({"servers": {"edge": {"count": 2}, "fog": {"count": 1, "burst": 2}}}, r"servers\.fog\.burst: has no effect"),
        ({"method": "splitfed_v1", "servers": {"edge": {"count": 2, "order": "cyclic"}}}, "with splitfed_v1"),
        ({"method": "u_shaped", "server": {"order": "cyclic"}}, "with u_shaped"),
    ],
)
def test_an_order_has_an_effect_where_clients_take_turns_at_one_part(values, line):
    with pytest.raises(ScenarioError, match=line):
        check_effects(parse({"method": "splitfed_v2", "model": {"cut": 1}} | values).variants)


@pytest.mark.parametrize(
    "values",
    [
        {"servers": {"edge": {"count": 2, "order": "cyclic"}}},
        {"servers": {"edge": {"count": 2, "cut": 2}}, "server": {"order": "cyclic"}},
        {"method": {"name": "u_shaped", "server": "shared"}, "server": {"order": "cyclic"}},
    ],
)
def test_and_there_it_is_accepted(values):
    check_effects(parse({"method": "splitfed_v2", "model": {"cut": 1}} | values).variants)
