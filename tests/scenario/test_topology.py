"""The section on shared links: access points with a capacity, or a file, never both, and nothing by default."""

import pytest

from sfl_sim.build.catalogue import choices
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import json_schema, members


def shared(section, grid=None):
    """The section of every variant."""
    study = parse({"clients": {"network": {"shared": section}}, "grid": grid or {}})
    return [variant.scenario.clients.network.shared for variant in study.variants]


def test_by_default_nothing_is_shared():
    assert parse({}).variants[0].scenario.clients.network.shared is None


def test_capacities_are_one_number_or_differ_between_the_directions():
    (section,) = shared({"access_points": 4, "capacity_bps": 1e8, "backhaul_bps": {"up": 1e7, "down": 1e8}})
    assert section.model_dump() == {
        "access_points": 4,
        "capacity_bps": 1e8,
        "duplex": None,
        "backhaul_bps": {"up": 1e7, "down": 1e8},
        "file": None,
    }


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, r"clients\.network\.shared\.access_points: must not be empty without a file"),
        ({"access_points": 2}, r"shared\.access_points: share nothing without capacity_bps or backhaul_bps"),
        ({"access_points": 0, "backhaul_bps": 1.0}, r"shared\.access_points: .*at least 1"),
        ({"access_points": 1, "backhaul_bps": -1.0}, r"shared\.backhaul_bps: .*above 0"),
        ({"access_points": 1, "backhaul_bps": {"up": 1.0}}, r"shared\.backhaul_bps\.down: is missing"),
        ({"access_points": 1, "backhaul_bps": {"up": 1.0, "down": 0}}, r"shared\.backhaul_bps\.down: .*above 0"),
        ({"file": "edges.csv", "backhaul_bps": 1.0}, r"shared\.backhaul_bps: cannot be given together with a file"),
        (
            {"access_points": 1, "capacity_bps": {"up": 1.0, "down": 1.0}, "duplex": "half"},
            r"shared\.duplex: needs one capacity, which both directions share \(found 'half'\)",
        ),
        ({"wifi": 3}, r"shared\.wifi: unknown key"),
        ("edges.csv", r"clients\.network\.shared: must be a mapping or null"),
    ],
)
def test_anything_else_is_refused(section, problem):
    with pytest.raises(ScenarioError, match=problem):
        shared(section)


def test_a_grid_may_change_capacities_or_take_a_file_instead():
    section = {"access_points": 2, "capacity_bps": 1e8}
    assert [each.backhaul_bps for each in shared(section, {"clients.network.shared.backhaul_bps": [1e7, 1e8]})] == [
        1e7,
        1e8,
    ]
    (of_file,) = shared(section, {"clients.network.shared.file": ["edges.csv"]})
    assert (of_file.file, of_file.access_points, of_file.capacity_bps) == ("edges.csv", None, None)


def test_editors_know_the_section():
    schema = json_schema(names=choices())
    (clients,) = members(schema["properties"]["clients"], schema)
    network = next(each for each in members(clients["properties"]["network"], schema) if "properties" in each)
    section, nothing = members(network["properties"]["shared"], schema)
    assert list(section["properties"]) == ["access_points", "capacity_bps", "duplex", "backhaul_bps", "file"]
    assert nothing == {"type": "null"}
