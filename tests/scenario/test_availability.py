"""The sections on clients that come and go, and on devices that take unequally long: none of it by default."""

import pytest

from sfl_sim.build.catalogue import catalogue, choices
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import json_schema, members


def clients(section, grid=None):
    """The section of every variant."""
    return [variant.scenario.clients for variant in parse({"clients": section, "grid": grid or {}}).variants]


def test_by_default_everybody_is_there_and_nothing_disturbs_them():
    (plain,) = clients({})
    assert plain.availability is None
    assert (plain.compute.sample_s, plain.compute.jitter, plain.compute.throttling) == (0.0, 0.0, None)


def test_who_goes_away_is_dropped_unless_the_scenario_says_otherwise():
    (availability,) = (one.availability for one in clients({"availability": {"profile": "flash"}}))
    assert availability.model_dump() == {"profile": "flash", "lost": "drop", "deadline_s": None, "begins_at_h": 0.0}


def test_a_deadline_needs_no_profile():
    (only,) = clients({"availability": {"lost": "deadline", "deadline_s": 60}})
    assert (only.availability.profile, only.availability.deadline_s) == (None, 60.0)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, "profile: must not be empty without a deadline"),
        ({"lost": "wait"}, "profile: must not be empty without a deadline"),
        ({"profile": "flash", "lost": "deadline"}, "deadline_s: must not be empty with lost: deadline"),
        ({"lost": "deadline", "deadline_s": 0}, "deadline_s: must be a number above 0"),
        ({"profile": "flash", "lost": "forget"}, "lost: .*allowed: drop, wait, deadline"),
        ({"profile": "flash", "begins_at_h": 24}, "begins_at_h: must be a number of at least 0 and below 24"),
    ],
)
def test_anything_else_is_refused(section, problem):
    with pytest.raises(ScenarioError, match=f"clients.availability.{problem}"):
        clients({"availability": section})


def test_a_grid_compares_what_becomes_of_the_lost():
    lost = "clients.availability.lost"
    grid = [{lost: ["drop", "wait"]}, {lost: "deadline", "clients.availability.deadline_s": [60, 600]}]
    found = [
        (one.availability.lost, one.availability.deadline_s)
        for one in clients({"availability": {"profile": "flash"}}, grid)
    ]
    assert found == [("drop", None), ("wait", None), ("deadline", 60.0), ("deadline", 600.0)]


def test_devices_that_take_unequally_long():
    (one,) = clients({"compute": {"jitter": 0.2, "sample_s": 0.001, "throttling": {"floor": 0.6}}})
    assert one.compute.profile == "ai_benchmark"
    assert one.compute.throttling.model_dump() == {"floor": 0.6, "warm_up_s": 300.0, "cool_down_s": 300.0}


@pytest.mark.parametrize(
    ("compute", "problem"),
    [
        ({"jitter": -0.1}, "jitter: must be a number of at least 0"),
        ({"sample_s": -1}, "sample_s: must be a number of at least 0"),
        ({"throttling": {}}, "throttling.floor: is missing"),
        ({"throttling": {"floor": 0}}, "throttling.floor: must be a number of at least 0.01"),
        ({"throttling": {"floor": 0.5, "warm_up_s": 0}}, "throttling.warm_up_s: must be a number above 0"),
    ],
)
def test_other_devices_are_refused(compute, problem):
    with pytest.raises(ScenarioError, match=f"clients.compute.{problem}"):
        clients({"compute": compute})


def test_editors_offer_the_profiles_and_the_list_shows_them():
    schema = json_schema(names=choices())
    (section,) = members(schema["properties"]["clients"], schema)
    availability, nothing = members(section["properties"]["availability"], schema)
    assert availability["properties"]["profile"]["anyOf"][0] == {"enum": ["fedscale", "flash"]}
    assert nothing == {"type": "null"}
    assert catalogue()["profiles"]["flash"] == "when clients are available"
    assert catalogue()["profiles"]["fedscale"] == "mean rates of the client links; when clients are available"
