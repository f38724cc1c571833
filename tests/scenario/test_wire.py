"""The section `wire`: codecs by name or with options."""

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import changed, parse
from sfl_sim.scenario.schema import json_schema, members
from sfl_sim.scenario.source_locations import SourceLocations


def wire(**keys):
    return parse({"wire": keys}).base.wire


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("none", None),
        (None, None),
        ("fp16", {"kind": "fp16"}),
        ("int4", {"kind": "int", "bits": 4}),
        ({"kind": "int8", "per": "channel"}, {"kind": "int", "bits": 8, "per": "channel"}),
        ({"kind": "topk", "keep": 0.1}, {"kind": "topk", "keep": 0.1}),
    ],
)
def test_a_codec_is_a_name_or_a_section(written, read):
    section = wire(up=written)
    assert section.model_dump()["up"] == read


def test_a_name_that_says_how_many_bits_takes_no_others():
    with pytest.raises(ScenarioError, match=r"wire\.up\.bits: is 8 in int8 \(found 4; allowed: 8\)"):
        wire(up={"kind": "int8", "bits": 4})


def test_a_section_says_which_kind_it_is():
    with pytest.raises(ScenarioError, match=r"wire\.up\.kind: is missing"):
        wire(up={"bits": 4})


def test_another_kind_forgets_the_options_of_the_first():
    base = parse({"wire": {"up": {"kind": "topk", "keep": 0.1}}}).base
    other = changed(base, {"wire.up.kind": "fp16"}, SourceLocations())
    assert other.wire.up.options == {}
    assert changed(base, {"wire.up.keep": 0.2}, SourceLocations()).wire.up.options == {"keep": 0.2}


def test_a_grid_names_its_codecs():
    study = parse({"grid": {"wire.up": ["none", "int8", {"kind": "topk", "keep": 0.1}]}})
    assert [variant.name for variant in study.variants] == ["none", "int8", "topk, keep=0.1"]


def test_editors_offer_names_and_sections():
    schema = json_schema(names={"wire.up.kind": ["fp16", "topk"]})
    (section,) = members(schema["properties"]["wire"], schema)
    kinds = members(section["properties"]["up"], schema)
    assert [kind["type"] for kind in kinds] == ["string", "object", "null"]
    assert {"enum": ["fp16", "topk"]} in kinds[1]["properties"]["kind"]["anyOf"]
