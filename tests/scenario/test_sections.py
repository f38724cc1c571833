"""The scenario's keys: defaults, shorthands, bounds and combinations."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from refusals import refused

from sfl_sim.scenario.data import Dirichlet, DominantLabel, Iid
from sfl_sim.scenario.grid import set_keys
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.sections import Clients, Compute, MethodSection, NetworkSection, Scenario, Server


def sections(model):
    below = [field.annotation for field in model.model_fields.values()]
    nested = [kind for kind in below if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [model, *(section for kind in nested for section in sections(kind))]


def test_an_empty_scenario_is_a_whole_one():
    scenario = Scenario.model_validate({})

    assert (scenario.seed, scenario.repeats, scenario.grid) == (0, 1, {})
    assert scenario.data.partition == Iid()
    assert scenario.clients.compute.profile == "ai_benchmark"
    assert scenario.clients.network.profile == "mobiperf"
    assert scenario.method == MethodSection(name="splitfed_v2")
    assert scenario.report.target_accuracy is None


def test_every_key_is_described():
    described = {section: section.model_fields for section in [*sections(Scenario), Iid, DominantLabel, Dirichlet]}

    assert len(described) == 15
    for section, fields in described.items():
        assert section.__doc__
        assert [name for name, field in fields.items() if not field.description] == []


def test_a_bare_value_stands_for_its_section():
    assert Compute.model_validate("phones") == Compute(profile="phones")
    assert Compute.model_validate(2e9) == Compute(profile=None, macs_per_s=2e9)
    assert Compute.model_validate(2) == Compute(profile=None, macs_per_s=2.0)
    assert NetworkSection.model_validate("4g") == NetworkSection(profile="4g")


def test_given_rates_need_no_profile():
    assert Compute.model_validate({"macs_per_s": [1.0, 2.0]}).profile is None
    assert NetworkSection.model_validate({"uplink_bps": 1e6, "downlink_bps": [1e6, 2e6]}).profile is None
    assert Compute.model_validate({"macs_per_s": None}).profile == "ai_benchmark"
    assert NetworkSection.model_validate({"profile": None, "trace": "bus.csv"}).trace == "bus.csv"


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("clients.compute", {"profile": "phones", "macs_per_s": 1.0}, "macs_per_s"),
        ("clients.compute", {"profile": None}, "profile"),
        ("clients.network", {"profile": "4g", "uplink_bps": 1.0, "downlink_bps": 1.0}, "uplink_bps"),
        ("clients.network", {"uplink_bps": 1.0}, "uplink_bps"),
        ("clients.network", {"downlink_bps": 1.0}, "downlink_bps"),
        ("clients.network", {"profile": None}, "profile"),
        ("clients.network.shared", {"access_points": 1, "file": "edges.csv"}, "file"),
        ("server", {"speedup": 10, "macs_per_s": 2}, "macs_per_s"),
        ("server", {"speedup": None}, "speedup"),
        ("servers.edge", {"count": 2, "speedup": None}, "speedup"),
        ("model", {"name": "lenet5", "factory": "nets:make"}, "factory"),
        ("model", {"name": None}, "name"),
        ("model.init", {"run": "reports/mine", "seed": 1}, "seed"),
        ("model.init", {}, "run"),
        ("data", {"name": None}, "name"),
    ],
)
def test_of_alternatives_exactly_one_is_given(section, values, key):
    with refused(f"{section}.{key}"):
        parse(set_keys({}, {section: values}))


@pytest.mark.parametrize(
    ("key", "excluded"),
    [
        ("data.factory", {"name"}),
        ("clients.network.profile", {"uplink_bps", "downlink_bps"}),
        ("clients.network.uplink_bps", {"profile"}),
        ("clients.network.scale", set()),
        ("clients.network.shared.file", {"access_points", "capacity_bps", "backhaul_bps"}),
        ("servers.edge.macs_per_s", {"speedup"}),
        ("servers.edge.backbone.downlink_bps", {"profile"}),
        ("no.such.key", set()),
    ],
)
def test_a_key_that_a_grid_sets_excludes_its_alternatives(key, excluded):
    assert Scenario.of_key(key).excluded_by(key.rpartition(".")[2]) == excluded


@pytest.mark.parametrize(
    ("train", "key"),
    [
        ({"optimizer": "nag"}, "momentum"),
        ({"server": {"optimizer": "nag"}}, "server.momentum"),
        ({"optimizer": "adam", "server": {"optimizer": "nag"}}, "server.momentum"),
        ({"optimizer": "nag", "momentum": 0.9, "server": {"momentum": 0.0}}, "server.momentum"),
    ],
)
def test_nesterovs_method_has_momentum_wherever_it_trains(train, key):
    with refused(f"train.{key}"):
        parse({"train": train})


@pytest.mark.parametrize(
    "train",
    [
        {"momentum": 0.9, "server": {"optimizer": "nag"}},
        {"server": {"optimizer": "nag", "momentum": 0.9}},
        {"optimizer": "nag", "momentum": 0.9, "server": {"optimizer": "sgd", "momentum": 0.0}},
    ],
)
def test_the_server_takes_the_momentum_of_clients_unless_it_has_its_own(train):
    assert parse({"train": train}).base.train.server.optimizer == train["server"]["optimizer"]


def test_a_method_takes_options_of_its_own_and_no_other_section_does():
    method = MethodSection.model_validate({"name": "hydra", "groups": 4, "plan": {"warm_up": [1, 2]}})

    assert method.options == {"groups": 4, "plan": {"warm_up": [1, 2]}}
    assert MethodSection().options == {}
    with pytest.raises(ValidationError):
        Server.model_validate({"groups": 4})


def test_a_scenario_cannot_be_changed():
    with pytest.raises(ValidationError):
        Scenario().seed = 1


@pytest.mark.parametrize(
    ("key", "inside", "outside"),
    [
        ("seed", [0, 2**31 - 1], [-1, 1.0, True, "one", None, 2**31]),
        ("repeats", [1], [0]),
        ("data.image_size", [None, 1, 4096], [0, 4097]),
        ("data.download", [True, False], [0, 1, "yes", None]),
        (
            "data.partition",
            [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.1}],
            [{}, {"kind": "iid", "p": 1}],
        ),
        ("model.name", ["lenet5"], [None, 1]),
        ("model.factory", [None, "nets:make", len, lambda: None], [1, {}]),
        (
            "model.cut",
            [1, "block3", "2", 0.15, {"by": "client", "values": [2, "block3", 0.5]}, {"by": "round", "values": [2]}],
            [0, 1.0, 0.0, "", True, None, [1, 2], {"by": "client"}, {"by": "device_speed", "values": []}],
        ),
        ("clients.count", [None, 1, 10**7], [0, True, 10**7 + 1]),
        ("train.local_epochs", [1], [2**63]),
        ("serving.requests", [None, 1], [2**31]),
        ("serving.batch.max_size", [1], [2**63]),
        ("method.buffer", [1, [1, 2], "all", None, True, -3, 0.5], [10**30, [1, 10**30], 1e300, math.inf, math.nan]),
        (
            "clients.network.shared",
            [{"access_points": 1, "backhaul_bps": 1e-30}],
            [
                {"access_points": 1, "backhaul_bps": 5e-324},
                {"access_points": 1, "capacity_bps": {"up": 1e31, "down": 1}},
            ],
        ),
        ("server.max_wait_s", [0, 1e-30, 1e30], [-1.0, 1e31]),
        ("clients.participation", [1, 1e-9], [0, 1.5, True, math.nan]),
        ("clients.network.latency_s", [0], [-1e-9, math.inf]),
        ("server.speedup", [1e-9], [0, math.inf, "fast", None]),
        ("server.macs_per_s", [1e12, None], [0, math.inf, "an accelerator"]),
        ("server.call_s", [0, 1e-3], [-1e-3, None]),
        ("server.workers", [1, "unlimited"], [0, "many", True, None, 1.5]),
        ("server.burst", [None, 1, "all"], [0, "some", True]),
        ("train.lr_decay", [1, 1e-9], [0, 1.01]),
        ("train.momentum", [0, 0.99], [1, -0.1]),
        ("train.precision", ["float32", "float64"], ["float16", 32]),
        ("train.agg_weights", ["samples", "uniform"], ["sizes"]),
        (
            "report.target_accuracy",
            [None, 1, 1e-9, {"share": 0.9, "of": "fedavg"}, {"share": 1, "of": {"name": "smofi", "beta": 0.9}}],
            [0, 70, "fedavg", {"share": 90, "of": "fedavg"}, {"share": 0.9}, {"share": 0.9, "of": ""}],
        ),
    ],
)
def test_values_have_types_and_bounds(key, inside, outside):
    def scenario(value):
        for step in reversed(key.split(".")):
            value = {step: value}
        return Scenario.model_validate(value)

    for value in inside:
        scenario(value)
    for value in outside:
        with pytest.raises(ValidationError):
            scenario(value)


@given(st.floats(allow_nan=True) | st.integers() | st.booleans() | st.text() | st.none())
@settings(max_examples=50)
def test_participation_is_a_number_above_0_up_to_1_and_nothing_else(value):
    allowed = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    try:
        accepted = Clients.model_validate({"participation": value}).participation == value
    except ValidationError:
        accepted = False

    assert accepted == allowed
