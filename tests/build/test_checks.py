"""Keys without effect: refused, unless other variants of the study use them."""

import pytest
from refusals import refused

from sfl_sim.build.checks import check_effects, check_unused
from sfl_sim.build.registry import find_method
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.scenario.fields import OnlyWith, conditional
from sfl_sim.scenario.grid import set_keys
from sfl_sim.scenario.load import load, parse


def refusal(values, overrides=()):
    """The key that is refused and the error's line; None and an empty text if there is none."""
    try:
        check_effects(parse(values, overrides=overrides).variants)
    except ScenarioError as error:
        return error.key, str(error)
    return None, ""


def method(name, **options):
    return {"method": {"name": name, **options}}


TURNS = {"method": "splitfed_v2", "model": {"cut": 1}}
"""Clients take turns at one part, which lies at the first server that has it."""


@pytest.mark.parametrize(
    ("values", "key", "why"),
    [
        (method("fedbuff", staleness="constant", a=2.0), "method.a", "method.staleness is constant"),
        (method("fedasync", b=2.0), "method.b", "method.staleness is polynomial"),
        (method("korea", proportion="off", p0=0.2), "method.p0", "method.proportion is off"),
        (method("korea", proportion="fixed", p_min=0.2), "method.p_min", "method.proportion is fixed"),
        (method("harmony", csa_weight=0.0, csa_margin=2.0), "method.csa_margin", "method.csa_weight is 0.0"),
        (method("harmony", inner_steps=0, inner_lr=0.1), "method.inner_lr", "method.inner_steps is 0"),
        (method("splitgp", ft_lr=0.1), "method.ft_lr", "method.ft_steps is 0"),
        (method("splitfed_v2", l2_on="model"), "method.l2_on", "method.l2 is 0.0"),
        (method("smofi", fusion=False, barrier="strict"), "method.barrier", "method.fusion is false"),
        (method("cse_fsl", upload="first"), "method.upload", "method.upload_every is 1"),
        (
            method("mergesfl", batch_regulation="time") | {"train": {"agg_weights": "uniform"}},
            "train.agg_weights",
            "mergesfl",
        ),
        (
            TURNS | {"servers": {"edge": {"count": 2}}, "server": {"call_s": 1.0}},
            "server.call_s",
            "the server trains nothing",
        ),
        (method("fedavgm", mu=0.1), "method.mu", "method.host is fedavg"),
        (method("smofi", host="fedprox", max_norm=1.0), "method.max_norm", "method.host is fedprox"),
        ({"train": {"batches": "full", "drop_last": True}}, "train.drop_last", "train.batches is full"),
        ({"train": {"optimizer": "adam", "momentum": 0.5}}, "train.momentum", "train.optimizer is adam"),
        *(
            ({"train": train | {"server": server | {"momentum": 0.9}}}, "train.server.momentum", why)
            for train, server, why in [
                ({}, {"optimizer": "adam"}, "its optimizer is adam"),
                ({"optimizer": "adamw"}, {}, "its optimizer is adamw"),
                ({"optimizer": "adamw"}, {"optimizer": "my:Own"}, "its optimizer is my:Own"),
            ]
        ),
        ({"train": {"lr_min": 0.01}}, "train.lr_min", "train.lr_decay is 1.0"),
        ({"wire": {"error_feedback": True}}, "wire.error_feedback", "wire.update is null"),
        ({"wire": {"at_inference": False, "down": "int8"}}, "wire.at_inference", "wire.up"),
        (method("harmony", quantise=False) | {"wire": {"at_inference": False}}, "wire.at_inference", "privacy.noise"),
        (
            {"clients": {"availability": {"profile": "flash", "deadline_s": 9}}},
            "clients.availability.deadline_s",
            "clients.availability.lost is drop",
        ),
        (
            {"clients": {"availability": {"lost": "deadline", "deadline_s": 9, "begins_at_h": 5}}},
            "clients.availability.begins_at_h",
            "clients.availability.profile is null",
        ),
        *(
            (
                {"clients": {"network": {"uplink_bps": 1e6, "downlink_bps": 1e6, key: 0.5}}},
                f"clients.network.{key}",
                "clients.network.profile is null",
            )
            for key in ("up_down_correlation", "compute_correlation")
        ),
        (
            {"report": {"leakage": {"attacks": ["dependence", "labels"], "epochs": 5}}},
            "report.leakage.epochs",
            "report.leakage.attacks is",
        ),
        ({"serving": {"batch": {"max_wait_s": 0.1}}}, "serving.batch.max_wait_s", "serving.batch.max_size is 1"),
        (
            {"serving": {"threshold": {"kind": "offload_rate", "target": 0.4}, "exit_probability": 0.5}},
            "serving.exit_probability",
            "serving.threshold.kind is offload_rate",
        ),
        (TURNS | {"servers": {"edge": {"count": 2}}, "server": {"order": "cyclic"}}, "server.order", "splitfed_v2"),
        (
            TURNS | {"servers": {"edge": {"count": 2, "cut": 2, "order": "cyclic"}}},
            "servers.edge.order",
            "splitfed_v2",
        ),
        (
            TURNS | {"servers": {"edge": {"count": 2}, "fog": {"count": 1, "burst": 2}}},
            "servers.fog.burst",
            "splitfed_v2",
        ),
        (
            TURNS | {"method": "splitfed_v1", "servers": {"edge": {"count": 2, "order": "cyclic"}}},
            "servers.edge.order",
            "splitfed_v1",
        ),
        (TURNS | {"method": "u_shaped", "server": {"order": "cyclic"}}, "server.order", "u_shaped"),
    ],
)
def test_a_key_that_another_switches_off_is_refused(values, key, why):
    named, line = refusal(values)
    assert named == key
    assert why in line


@pytest.mark.parametrize(
    ("name", "key", "value", "missing"),
    [
        ("fedavg", "wire.up", "int8", "cut"),
        ("fedbuff", "privacy.noise", {"sigma": 1.0}, "cut"),
        ("fedavg", "report.leakage", {"attacks": ["dependence"]}, "cut"),
        ("fedavg", "privacy.nopeek", 1.0, "gradient"),
        ("splitfrozen", "wire.down", "int8", "gradient"),
        ("splitfrozen", "privacy.gradient_noise", {"sigma": 1.0}, "gradient"),
        ("splitfrozen", "privacy.nopeek", 1.0, "gradient"),
        ("splitfrozen", "wire.update", {"kind": "topk", "keep": 0.1}, "model"),
        ("splitnn", "wire.update", "int8", "model"),
        ("splitfed_v3", "wire.update", "int8", "model"),
        ("splitfed_v1", "report.exits_every", 2, "exits"),
        ("splitfed_v1", "serving.exit_probability", 0.5, "exits"),
        ("splitfed_v1", "serving.threshold", {"kind": "fixed", "entropy": 1.0}, "exits"),
        ("splitfed_v1", "server.order", "cyclic", "order"),
        ("korea", "server.burst", 1, "order"),
        ("mergesfl", "server.order", "cyclic", "order"),
        ("splitnn", "server.order", "cyclic", "order"),
        ("splitfed_v1", "server.order", "client_level", "order"),
        ("fedavg", "server.call_s", 1.0, "trains"),
        ("fedavg", "model.cut", 2, "cut"),
        *((name, "clients.choice", "tiers", "drawn") for name in ("fedbuff", "fedasync", "gas")),
        ("ho_sfl", "train.agg_weights", "uniform", "alike"),
        ("ho_sfl", "server.include_model_exchange", False, "numbers"),
        ("s2fl", "train.server.momentum", 0.9, "copies"),
    ],
)
def test_a_key_of_what_the_method_has_not_is_refused(name, key, value, missing):
    named, line = refusal({"method": name}, {key: value})
    assert named == key
    assert {name, missing} <= set(line.replace(":", "").split())


@pytest.mark.parametrize(
    "values",
    [
        method("fedbuff", host="splitfed_v1") | {"wire": {"up": "int8"}},
        method("smofi", fusion=False, barrier="paper"),  # its default
        {"method": "splitfed_v1", "server": {"order": "fcfs"}},
        TURNS | {"servers": {"edge": {"count": 2, "order": "cyclic"}}},
        TURNS | {"servers": {"edge": {"count": 2, "cut": 2}}, "server": {"order": "cyclic"}},
        TURNS | method("u_shaped", server="shared") | {"server": {"order": "cyclic"}},
        {  # a preset of orders has effects besides the order
            "method": "splitfed_v1",
            "data": {"partition": {"kind": "dominant_label"}},
            "server": {"order": "hydra_code"},
        },
        method("korea", p0=0.2) | {"grid": {"method.proportion": ["off", "fixed"]}},
        {"clients": {"choice": "tiers"}, "grid": {"method.name": ["fedbuff", "splitfed_v1"]}},
        {"model": {"cut": 2}, "grid": {"method.name": ["fedavg", "splitfed_v1"]}},
        {"wire": {"at_inference": False}, "privacy": {"noise": {"sigma": 1.0}}},
        {"wire": {"at_inference": False}, "grid": {"wire.up": ["none", "int8"]}},
        method("harmony") | {"wire": {"at_inference": False}},  # which sends float16 by itself
        {"train": {"server": {"momentum": 0.9}}, "grid": {"train.server.optimizer": ["nag", "adam"]}},
        {"method": "fedavg", "server": {"call_s": 1.0}, "serving": {}},
        {"wire": {"up": "int8"}, "grid": {"method.name": ["fedavg", "splitfed_v1"]}},
    ],
)
def test_a_key_with_an_effect_in_some_variant_or_at_its_default_is_accepted(values):
    assert refusal(values) == (None, "")


@pytest.mark.parametrize(
    "grid",
    [
        {"method.proportion": ["off"]},
        [{"method.proportion": "fixed", "method.p0": 0.2}, {"method.proportion": "off", "method.p0": 0.3}],
    ],
)
def test_a_value_that_has_an_effect_nowhere_is_refused(grid):
    assert refusal(method("korea", p0=0.3) | {"grid": grid})[0] == "method.p0"


def test_the_line_of_the_file_is_named(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method:\n  name: fedasync\n  b: 2.0\n")
    with refused("method.b", file=str(path), line=3):
        check_effects(load(path).variants)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("wire.up.kind", "topkk"),
        ("wire.down.kind", "topkk"),
        ("wire.update.kind", "topkk"),
        ("train.schedule.kind", "cosin"),
        ("servers.edge.order", "cyclik"),
        ("servers.edge.cost", "phons"),
    ],
)
def test_a_misspelt_name_that_the_grid_replaces_is_found(key, name):
    others = {"order": ["fcfs", "cyclic"], "cost": ["phones", "torch"], "kind": ["fp16", "bf16"]}
    values = set_keys({"servers": {"edge": {"count": 2}}}, {key: name})
    with refused(key, found=name):
        check_unused(parse(values | {"grid": {key: others[key.rpartition(".")[2]]}}))


@pytest.mark.parametrize("name", METHODS)
def test_every_condition_of_an_option_names_another_option(name):
    options = find_method(name).Options
    for field in options.model_fields.values():
        for condition in (note for note in field.metadata if isinstance(note, OnlyWith)):
            why = condition.why_idle(options(), "method.")
            assert condition.key in options.model_fields
            assert not why or f"method.{condition.key}" in why


def test_keys_at_their_default_are_not_looked_at():
    assert not list(conditional(parse({}).base))
