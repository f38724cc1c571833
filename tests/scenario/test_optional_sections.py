"""Sections that are switched off unless they are given: what they read, what they refuse, and what editors offer."""

import pytest
from refusals import refused

from sfl_sim.build.catalogue import catalogue, choices
from sfl_sim.scenario.grid import set_keys
from sfl_sim.scenario.load import changed, parse, value_of
from sfl_sim.scenario.schema import json_schema, members
from sfl_sim.scenario.source_locations import SourceLocations

WATTS = {"uplink_w": 1.2, "downlink_w": 0.8}


def variants(key, section, grid=None):
    """The value at a key of every variant of a scenario that has it from the grid, or else this section."""
    study = parse(set_keys({"grid": grid or {}}, {key: section}))
    return [value_of(variant.scenario, key) for variant in study.variants]


@pytest.mark.parametrize(
    "key", ["lora", "clients.power", "clients.availability", "clients.network.shared", "clients.compute.throttling"]
)
def test_by_default_there_is_none(key):
    assert value_of(parse({}).base, key) is None


@pytest.mark.parametrize(
    ("key", "written", "read"),
    [
        ("wire.up", "none", None),
        ("wire.up", {"kind": "none"}, None),
        ("wire.up", "fp16", {"kind": "fp16"}),
        ("wire.up", "int4", {"kind": "int", "bits": 4}),
        ("wire.up", {"kind": "int8", "per": "channel"}, {"kind": "int", "bits": 8, "per": "channel"}),
        ("wire.up", {"kind": "topk", "keep": 0.1}, {"kind": "topk", "keep": 0.1}),
        (
            "clients.power",
            {"compute_w": 3.0, "radio": "lte"},
            {"compute_w": 3.0, "radio": "lte", "uplink_w": None, "downlink_w": None, "idle_w": 0.0},
        ),
        ("clients.power", {"compute_w": [3.0, 2.0], **WATTS}, {"compute_w": [3.0, 2.0], "radio": None, **WATTS}),
        (
            "clients.network.shared",
            {"access_points": 4, "capacity_bps": 1e8, "backhaul_bps": {"up": 1e7, "down": 1e8}},
            {"access_points": 4, "capacity_bps": 1e8, "duplex": None, "backhaul_bps": {"up": 1e7, "down": 1e8}},
        ),
        (
            "clients.availability",
            {"profile": "flash"},
            {"profile": "flash", "lost": "drop", "deadline_s": None, "begins_at_h": 0.0},
        ),
        ("clients.availability", {"lost": "deadline", "deadline_s": 60}, {"profile": None, "deadline_s": 60.0}),
        ("clients.compute.throttling", {"floor": 0.6}, {"floor": 0.6, "warm_up_s": 300.0, "cool_down_s": 300.0}),
    ],
)
def test_what_is_given_comes_with_its_defaults(key, written, read):
    (section,) = variants(key, written)
    assert section == read or section.items() >= read.items()


@pytest.mark.parametrize(
    ("key", "section", "wrong"),
    [
        ("wire.up", {"kind": "int8", "bits": 4}, "bits"),
        ("wire.up", {"bits": 4}, "kind"),
        ("clients.power", {"compute_w": 3.0}, "radio"),
        ("clients.power", {"compute_w": 3.0, "uplink_w": 1.0}, "uplink_w"),
        ("clients.power", {"compute_w": 3.0, "radio": "lte", **WATTS}, "uplink_w"),
        ("clients.power", {"radio": "lte"}, "compute_w"),
        ("clients.power", {"compute_w": 0, "radio": "lte"}, "compute_w"),
        ("clients.network.shared", {}, "access_points"),
        ("clients.network.shared", {"access_points": 2}, "access_points"),
        ("clients.network.shared", {"access_points": 0, "backhaul_bps": 1.0}, "access_points"),
        ("clients.network.shared", {"access_points": 1, "backhaul_bps": -1.0}, "backhaul_bps"),
        ("clients.network.shared", {"access_points": 1, "backhaul_bps": {"up": 1.0}}, "backhaul_bps.down"),
        ("clients.network.shared", {"access_points": 1, "backhaul_bps": {"up": 1.0, "down": 0}}, "backhaul_bps.down"),
        ("clients.network.shared", {"file": "edges.csv", "backhaul_bps": 1.0}, "backhaul_bps"),
        (
            "clients.network.shared",
            {"access_points": 1, "capacity_bps": {"up": 1.0, "down": 1.0}, "duplex": "half"},
            "duplex",
        ),
        ("clients.network.shared", {"wifi": 3}, "wifi"),
        ("clients.network.shared", "edges.csv", ""),
        ("clients.availability", {}, "profile"),
        ("clients.availability", {"lost": "wait"}, "profile"),
        ("clients.availability", {"profile": "flash", "lost": "deadline"}, "deadline_s"),
        ("clients.availability", {"lost": "deadline", "deadline_s": 0}, "deadline_s"),
        ("clients.availability", {"profile": "flash", "lost": "forget"}, "lost"),
        ("clients.availability", {"profile": "flash", "begins_at_h": 24}, "begins_at_h"),
        ("clients.compute", {"jitter": -0.1}, "jitter"),
        ("clients.compute", {"sample_s": -1}, "sample_s"),
        ("clients.compute.throttling", {}, "floor"),
        ("clients.compute.throttling", {"floor": 0}, "floor"),
        ("clients.compute.throttling", {"floor": 0.5, "warm_up_s": 0}, "warm_up_s"),
    ],
)
def test_anything_else_is_refused_at_its_key(key, section, wrong):
    with refused(f"{key}.{wrong}".rstrip(".")):
        variants(key, section)


def test_a_grid_may_change_a_radio_to_watts_capacities_to_a_file_and_what_becomes_of_the_lost():
    radios = variants("clients.power", {"compute_w": 3.0, **WATTS}, {"clients.power.radio": ["lte", "wifi"]})
    assert [(one["radio"], one["uplink_w"]) for one in radios] == [("lte", None), ("wifi", None)]
    key, points = "clients.network.shared", {"access_points": 2, "capacity_bps": 1e8}
    backhauls = variants(key, points, {f"{key}.backhaul_bps": [1e7, 1e8]})
    assert [one["backhaul_bps"] for one in backhauls] == [1e7, 1e8]
    (of_file,) = variants(key, points, {f"{key}.file": ["edges.csv"]})
    assert (of_file["file"], of_file["access_points"], of_file["capacity_bps"]) == ("edges.csv", None, None)
    key = "clients.availability"
    grid = [{f"{key}.lost": ["drop", "wait"]}, {f"{key}.lost": "deadline", f"{key}.deadline_s": [60, 600]}]
    found = [(one["lost"], one["deadline_s"]) for one in variants(key, {"profile": "flash"}, grid)]
    assert found == [("drop", None), ("wait", None), ("deadline", 60.0), ("deadline", 600.0)]


def test_a_grid_names_its_codecs():
    study = parse({"grid": {"wire.up": ["none", "int8", {"kind": "topk", "keep": 0.1}]}})
    assert [variant.name for variant in study.variants] == ["none", "int8", "topk, keep=0.1"]


def test_another_kind_of_codec_forgets_the_options_of_the_first():
    base = parse({"wire": {"up": {"kind": "topk", "keep": 0.1}}}).base
    other = changed(base, {"wire.up.kind": "fp16"}, SourceLocations())
    assert other.wire.up.options == {}
    assert changed(base, {"wire.up.keep": 0.2}, SourceLocations()).wire.up.options == {"keep": 0.2}


def offered(key, names):
    """What editors offer at a key: the members of its union."""
    schema = json_schema(names=names)
    nodes = [schema]
    for step in key.split("."):
        node = next(each["properties"][step] for each in nodes if step in each.get("properties", {}))
        nodes = members(node, schema)
    return nodes


def test_editors_offer_profiles_radios_and_codecs_and_the_list_shows_them():
    assert offered("clients.availability.profile", choices())[0] == {"enum": ["fedscale", "flash"]}
    assert offered("clients.power.radio", choices())[0] == {"enum": ["lte", "wifi"]}
    assert [kind["type"] for kind in offered("wire.up", choices())] == ["string", "object", "null"]
    assert {"enum": ["fp16", "topk"]} in offered("wire.up.kind", {"wire.up.kind": ["fp16", "topk"]})
    section, nothing = offered("clients.network.shared", choices())
    assert list(section["properties"]) == ["access_points", "capacity_bps", "duplex", "backhaul_bps", "file"]
    assert nothing == {"type": "null"}
    assert catalogue()["profiles"]["flash"] == "when clients are available"
    assert catalogue()["profiles"]["fedscale"] == "mean rates of the client links; when clients are available"
