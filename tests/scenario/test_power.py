"""The section on power: a radio or its watts, never both, and nothing by default."""

import pytest

from sfl_sim.build.catalogue import choices
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import json_schema, members

WATTS = {"uplink_w": 1.2, "downlink_w": 0.8}


def power(section, grid=None):
    """The section of every variant."""
    study = parse({"clients": {"power": section}, "grid": grid or {}})
    return [variant.scenario.clients.power for variant in study.variants]


def test_by_default_nothing_is_known():
    assert parse({}).variants[0].scenario.clients.power is None


def test_a_radio_or_its_watts():
    (lte,), (own,) = power({"compute_w": 3.0, "radio": "lte"}), power({"compute_w": [3.0, 2.0], **WATTS})
    assert (lte.radio, lte.uplink_w, lte.idle_w) == ("lte", None, 0.0)
    assert (own.radio, own.uplink_w, own.compute_w) == (None, 1.2, [3.0, 2.0])


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"compute_w": 3.0}, "clients.power.radio"),
        ({"compute_w": 3.0, "uplink_w": 1.0}, "clients.power.uplink_w"),
        ({"compute_w": 3.0, "radio": "lte", **WATTS}, "clients.power.uplink_w"),
        ({"radio": "lte"}, "clients.power.compute_w"),
        ({"compute_w": 0, "radio": "lte"}, "clients.power.compute_w"),
    ],
)
def test_anything_else_is_refused(section, key):
    with pytest.raises(ScenarioError) as caught:
        power(section)
    assert caught.value.key == key


def test_a_grid_may_change_the_radio_to_watts_and_back():
    radios = power({"compute_w": 3.0, **WATTS}, {"clients.power.radio": ["lte", "wifi"]})
    assert [(one.radio, one.uplink_w) for one in radios] == [("lte", None), ("wifi", None)]


def test_editors_offer_the_radios():
    schema = json_schema(names=choices())
    (clients,) = members(schema["properties"]["clients"], schema)
    section, nothing = members(clients["properties"]["power"], schema)
    assert section["properties"]["radio"]["anyOf"][0] == {"enum": ["lte", "wifi"]}
    assert section["required"] == ["compute_w"]
    assert nothing == {"type": "null"}
