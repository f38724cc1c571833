"""Errors in a scenario, said for a person."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sfl_sim.scenario.problems import problems
from sfl_sim.scenario.sections import Scenario, TrainSection

TRAIN = ", ".join(TrainSection.model_fields)


def said(values):
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(values)
    return [str(problem) for problem in problems(caught.value, values)]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"train": {"roundz": 3}},
            f"train.roundz: unknown key (found 'roundz'; allowed: {TRAIN}; did you mean 'rounds'?)",
        ),
        (
            {"data": {"partition": {"kind": "dirichlet", "alpa": 1}}},
            "data.partition.alpa: unknown key (found 'alpa'; allowed: kind, alpha, by, min_size; "
            "did you mean 'alpha'?)",
        ),
        (
            {"data": {"partition": {"kind": "iid", "alpha": 1}}},
            "data.partition.alpha: is a key of another kind (found 'alpha'; allowed: kind)",
        ),
        (
            {"model": {3: 1}},
            "model.3: unknown key (found '3'; allowed: name, factory, path, init, cut)",
        ),
        ({"grid": {3: [1]}}, "grid.3: unknown key (found '3')"),
        (
            {"servers": {"edge2": {"count": 2}}},
            "servers.edge2: unknown key (found 'edge2'; allowed: up to six small letters)",
        ),
        ({"train": {"rounds": "2.5"}}, "train.rounds: must be a whole number of at least 1 (found '2.5')"),
        (
            {"train": {"lr": "0.1-0.3"}},
            "train.lr: must be a number above 0 or a list with one or more items, each a number above 0 or a CSV file "
            "or a mapping (found '0.1-0.3')",
        ),
        (
            {"clients": {"compute": {"sample_s": "3 days"}}},
            "clients.compute.sample_s: must be a number of at least 0 "
            "(found '3 days'; allowed: a number, in s, or with its unit: s, ms, us, µs)",
        ),
        ({"train": {"rounds": None}}, "train.rounds: must be a whole number of at least 1, but is empty"),
        (
            {"model": {"cut": 2.0}},
            "model.cut: must be a whole number of at least 1 or text or a number above 0 and below 1 or a mapping "
            "(found 2.0; allowed: the keys by, values)",
        ),
        (
            {"model": {"cut": {"by": "speed", "values": [1]}}},
            "model.cut.by: unknown choice (found 'speed'; allowed: client, device_speed, random, round, greedy, "
            "makespan, median, bandit, package.module:name; did you mean 'device_speed'?)",
        ),
        (
            {"model": {"cut": {"by": "client", "values": [1, 1.5]}}},
            "model.cut.values.1: must be a whole number of at least 1 or text or a number above 0 and below 1 "
            "(found 1.5)",
        ),
        (
            {"server": {"workers": len}},
            "server.workers: must be a whole number of at least 1 or 'unlimited' (found <built-in function len>)",
        ),
        ({"model": {"name": 7}}, "model.name: must be text or null (found 7)"),
        (
            {"method": {"name": ["splitfed_v2", "hydra"]}},
            "method.name: must be text (found ['splitfed_v2', 'hydra']; "
            "allowed: one value here; `grid: {KEY: [...]}` runs several)",
        ),
        ({"data": {"download": 1}}, "data.download: must be true or false (found 1)"),
        (
            {"clients": {"participation": 1.5}},
            "clients.participation: must be a number above 0 and at most 1 (found 1.5)",
        ),
        (
            {"data": {"test": {"kind": "rho_ood", "rho": 1e30}}},
            "data.test.rho: must be a number of at least 0 and at most 1,000,000 (found 1e+30)",
        ),
        (
            {"train": {"rounds": 10**9}},
            "train.rounds: must be a whole number of at least 1 and at most 10,000,000 (found 1000000000)",
        ),
        ({"train": {"lr": 5e-324}}, "train.lr: must be a number above 0 and of at least 1e-30 (found 5e-324)"),
        ({"train": {"lr": -1}}, "train.lr: must be a number above 0 (found -1)"),
        (
            {"method": {"buffer": 10**8}},
            "method.buffer: must be a number within bounds (found 100000000; allowed: -10,000,000 to 10,000,000)",
        ),
        ({"train": {"lr": float("inf")}}, "train.lr: must be a finite number above 0 and at most 1e+30 (found inf)"),
        (
            {"server": {"workers": "unlimitd"}},
            "server.workers: unknown choice (found 'unlimitd'; allowed: unlimited, "
            "a whole number of at least 1; did you mean 'unlimited'?)",
        ),
        (
            {"data": {"partition": {"kind": "dirichlett"}}},
            "data.partition.kind: unknown kind (found 'dirichlett'; allowed: iid, dominant_label, sharding, "
            "label_shards, dirichlet, quantity_skew, natural, indices; "
            "did you mean 'dirichlet'?)",
        ),
        (
            {"data": {"test": {"kind": "rho_ood"}}},
            "data.test.rho: is missing",
        ),
        (
            {"data": {"partition": "iid"}},
            "data.partition: must be a mapping (found 'iid'; allowed: the keys kind, p, phi, "
            "dominants, shards, n_shards, alpha, by, min_size, beta, file)",
        ),
        ({"model": None}, "model: must be a mapping, but is empty (allowed: the keys name, factory, path, init, cut)"),
        (
            {"clients": {"compute": True}},
            "clients.compute: must be text or a number above 0 or a mapping "
            "(found True; allowed: the keys profile, macs_per_s, scale, cost, training_factor, sample_s, jitter, "
            "throttling)",
        ),
        (
            {"clients": {"compute": {"macs_per_s": [1, -1]}}},
            "clients.compute.macs_per_s.1: must be a number above 0 (found -1)",
        ),
        (
            {"clients": {"compute": {"macs_per_s": []}}},
            "clients.compute.macs_per_s: must be a number above 0 or a list with one or more items, "
            "each a number above 0 or a CSV file or null (found [])",
        ),
        (
            {"method": {"plan": [1, {2}]}},
            "method.plan.1: must be text, a number, true or false, null, a list or a mapping (found {2})",
        ),
        ({"grid": 3}, "grid: must be a mapping or a list (found 3)"),
        ({"grid": [{}, 3]}, "grid.1: must be a mapping (found 3)"),
    ],
)
def test_one_line_says_what_is_wrong_and_what_would_be_right(values, line):
    assert set(said(values)) == {line}


def test_a_scenario_is_a_mapping():
    keys = ", ".join(Scenario.model_fields)

    assert said("hello") == [f"must be a mapping (found 'hello'; allowed: the keys {keys})"]
    assert said(None) == [f"must be a mapping, but is empty (allowed: the keys {keys})"]


def test_every_slip_is_told():
    keys = [line.partition(":")[0] for line in said({"seed": -1, "train": {"lr": 0, "roundz": 3}})]

    assert sorted(keys) == ["seed", "train.lr", "train.roundz"]


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"train": {"learning_rate": 0.1}}, "lr"),
        ({"method": "fedavg", "learning_rate": 0.1}, "train.lr"),
        ({"train": {"epochs": 3}}, "local_epochs"),
        ({"clients": {"num_clients": 3}}, "count"),
        ({"clients": {"fraction_fit": 0.5}}, "participation"),
        ({"clients": {"network": {"delay": 0.1}}}, "latency_s"),
        ({"dataset": "digits"}, "data"),
        ({"algorithm": "fedavg"}, "method"),
    ],
)
def test_what_others_call_a_key_is_found_by_its_usual_names(values, meant):
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(values)
    assert [problem.nearest for problem in problems(caught.value, values)] == [meant]


def keys_of(values, prefix=""):
    """The dotted keys of a nested mapping, those of mappings included."""
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}.")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text() | st.integers(), inner, max_size=2),
    max_leaves=4,
)


@example(key="train.lr_min", junk=1)
@given(key=st.sampled_from(sorted(keys_of(Scenario().model_dump()))), junk=JUNK)
@settings(max_examples=200)
def test_junk_anywhere_is_told_at_its_key_without_jargon(key, junk):
    values = junk
    for step in reversed(key.split(".")):
        values = {step: values}
    try:
        Scenario.model_validate(values)
    except ValidationError as error:
        told = problems(error, values)
        assert told
        for problem in told:
            assert problem.key.startswith(key)
            assert problem.problem.startswith(("must", "unknown", "is missing", "needs", "cannot"))
