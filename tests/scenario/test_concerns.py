"""One answer to which key matters to what: it stands at the field, and all questions are asked of it."""

import json

import pytest

from sfl_sim.scenario.concerns import NOT_LEARNED, concern_of, decided, differences, values_except
from sfl_sim.scenario.fields import Concern, Decided
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import json_schema
from sfl_sim.scenario.vary import axis


def scenario(**sections):
    return parse(sections).base


@pytest.mark.parametrize(
    ("key", "concern"),
    [
        ("name", Concern.SHOWING),
        ("report.target_accuracy", Concern.SHOWING),
        ("report.snapshots.rounds", Concern.RECORDING),  # as all of its section
        ("data.root", Concern.RECORDING),
        ("data.partition.alpha", Concern.DEALING),  # of one of several kinds of partitions
        ("data.test.rho", Concern.LEARNING),
        ("clients.network.uplink_bps", Concern.SYSTEM),
        ("clients.availability.lost", Concern.LEARNING),  # who takes part decides what is learned
        ("server.burst", Concern.ORDER),
        ("train.max_graphs", Concern.COMPUTING),
        ("train.precision", Concern.LEARNING),
        ("method.an_option", Concern.LEARNING),
        ("a key that nobody knows", Concern.LEARNING),
    ],
)
def test_a_key_concerns_what_its_field_or_else_its_section_says(key, concern):
    assert concern_of(key) is concern


def test_scenarios_differ_where_what_counts_does():
    one = scenario(name="one", method={"name": "splitfed_v1"}, server={"workers": 2})
    other = scenario(name="other", method={"name": "splitfed_v1", "server_agg_every": "step"}, train={"lr": 0.1})
    found = differences(one, other, NOT_LEARNED | {Concern.SYSTEM})
    assert found == {"method.server_agg_every": (None, "step"), "train.lr": (0.05, 0.1)}
    assert differences(one, other, set(Concern)) == {}


def test_single_keys_and_sections_may_be_left_out_too():
    left = values_except(scenario(), {"train", "model.cut"})
    assert "train.lr" not in left
    assert "model.cut" not in left
    assert left["model.name"] == "cnn_small"


def test_where_cuts_follow_the_devices_their_speed_is_no_matter_of_the_world_alone():
    by_speed = {"cut": {"by": "device_speed", "values": [1, 2]}}
    assert not any(key.startswith("clients.compute") for key in values_except(scenario(), {Concern.SYSTEM}))
    assert "clients.compute.profile" in values_except(scenario(model=by_speed), {Concern.SYSTEM})


def test_editors_are_told_nothing_of_it():
    assert "Concern" not in json.dumps(json_schema())


@pytest.mark.parametrize(
    ("key", "who"),
    [
        *(
            (key, Decided.BY_THE_USER)
            for key in ("model.cut", "server.workers", "server.speedup", "servers.edge.count", "server.order")
        ),
        *((key, Decided.BY_THE_USER) for key in ("train.batch_size", "method", "method.an_option", "wire.up.kind")),
        *(
            (key, Decided.BY_THE_WORLD)
            for key in ("clients.network.scale", "clients.network", "clients.compute.jitter")
        ),
        *((key, Decided.BY_THE_WORLD) for key in ("clients.count", "data.partition.alpha", "seed", "server.call_s")),
        ("servers.edge.backbone.latency_s", Decided.BY_THE_WORLD),
        ("clients.availability.profile", Decided.BY_THE_WORLD),
        ("clients.availability.lost", Decided.BY_THE_USER),  # what to do about it is a choice
    ],
)
def test_who_decides_a_key_stands_at_its_field_too(key, who):
    assert decided(key) is who


def test_every_key_that_can_vary_is_decided_by_somebody():
    aside = {"name", "grid", "repeats", "seed", "serving", "benchmark"}
    found = {axis(key, [1]).key: decided(key) for key in values_except(scenario(), aside)}
    sections = {who: {key.partition(".")[0] for key, one in found.items() if one is who} for who in Decided}
    assert sections[Decided.BY_THE_WORLD] == {"clients", "data", "server"}
    assert sections[Decided.BY_THE_USER] >= {"clients", "method", "model", "server", "train", "wire"}
    assert found["clients.participation"] is Decided.BY_THE_USER
