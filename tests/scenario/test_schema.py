"""The JSON Schema that editors complete and check by."""

import json

from sfl_sim.scenario.schema import json_schema, members
from sfl_sim.scenario.sections import Scenario


def section(schema, name):
    return next(node["properties"] for node in members(schema["properties"][name], schema) if "properties" in node)


def test_it_knows_every_section_and_allows_no_other():
    schema = json_schema()

    assert schema["$schema"].startswith("https://json-schema.org/")
    assert list(schema["properties"]) == list(Scenario.model_fields)
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema


def test_it_carries_bounds_and_descriptions():
    participation = section(json_schema(), "clients")["participation"]

    assert (participation["exclusiveMinimum"], participation["maximum"]) == (0, 1)
    assert participation["description"] == "Share of the clients that take part in a round."


def test_it_allows_the_shorthands():
    schema = json_schema()
    compute, network = (section(schema, "clients")[name] for name in ("compute", "network"))

    assert [kind["type"] for kind in members(compute, schema)] == ["string", "number", "object"]
    assert [kind["type"] for kind in members(network, schema)] == ["string", "object"]
    assert next(k for k in members(compute, schema) if k["type"] == "number")["exclusiveMinimum"] == 0


def test_only_poisson_arrivals_need_no_kind():
    schema = json_schema()
    told = {name for name, each in schema["$defs"].items() if "const" in each.get("properties", {}).get("kind", {})}
    needed = {name for name in told if "kind" in schema["$defs"][name].get("required", [])}

    assert {"Iid", "RhoOod", "OffloadRate", "Lognormal", "TraceArrivals"} <= needed
    assert told - needed == {"Poisson"}


def test_known_names_are_offered_and_paths_stay_allowed():
    schema = json_schema(
        names={"method.name": ["hydra"], "clients.compute.profile": ["phones"], "clients.network": ["4g"]}
    )
    path = {"type": "string", "pattern": "[.:/]"}
    clients = section(schema, "clients")
    compute = members(clients["compute"], schema)[-1]["properties"]

    assert section(schema, "method")["name"]["anyOf"] == [{"enum": ["hydra"]}, path]
    assert compute["profile"]["anyOf"] == [{"enum": ["phones"]}, path, {"type": "null"}]
    assert members(clients["network"], schema)[0] == {"enum": ["4g"]}
    assert "anyOf" not in section(json_schema(), "method")["name"]


def test_names_that_sections_alike_share_are_offered_once():
    schema = json_schema(names={f"wire.{way}.kind": ["fp16"] for way in ("up", "down", "update")})
    codec = members(section(schema, "wire")["down"], schema)[1]["properties"]

    assert codec["kind"]["anyOf"] == [{"enum": ["fp16"]}, {"type": "string", "pattern": "[.:/]"}]


def test_options_of_the_methods_become_keys_of_the_method():
    groups = {"type": "integer", "description": "Heads."}
    schema = json_schema({"hydra": {"properties": {"groups": groups}}, "smofi": {"properties": {"beta": {}}}})
    method = section(schema, "method")

    assert list(method) == ["name", "groups", "beta"]
    assert method["groups"] == {"type": "integer", "description": "hydra: Heads."}
    assert groups["description"] == "Heads."


def test_a_reference_is_completed_like_a_method():
    options = {"smofi": {"properties": {"beta": {"type": "number"}}}}
    schema = json_schema(options, {"method.name": ["smofi"], "report.target_accuracy.of": ["smofi"]})
    relative = members(section(schema, "report")["target_accuracy"], schema)[1]
    name, path, method = members(relative["properties"]["of"], schema)

    assert name == {"enum": ["smofi"]}
    assert path["pattern"] == "[.:/]"
    assert method["properties"] == section(schema, "method")


def test_an_option_of_several_methods_may_fit_any_of_them():
    one, two, three = ({"properties": {"p": {"type": kind}}} for kind in ("integer", "string", "boolean"))
    method = section(json_schema({"a": one, "b": two, "c": three}), "method")

    assert [option["type"] for option in method["p"]["anyOf"]] == ["integer", "string", "boolean"]


def test_definitions_of_options_do_not_meet_those_of_the_scenario():
    options = {"properties": {"plan": {"$ref": "#/$defs/Train"}}, "$defs": {"Train": {"type": "integer"}}}
    schema = json_schema({"hydra": options})

    assert members(section(schema, "method")["plan"], schema) == [{"type": "integer"}]
    assert "rounds" in section(schema, "train")
