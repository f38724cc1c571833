"""The JSON Schema of a scenario file: editors complete and check by it, and errors say what it allows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sfl_sim.scenario.sections import MethodSection, Scenario
from sfl_sim.scenario.serving import Poisson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Schema = dict[str, Any]


def json_schema(
    method_options: Mapping[str, Schema] | None = None, names: Mapping[str, Sequence[str]] | None = None
) -> Schema:
    """Make the JSON Schema (draft 2020-12) of a scenario file.

    Args:
        method_options: by method, the JSON Schema of its options; their properties become keys of `method`.
        names: by dotted key (`method.name`; `*` for any name), the known names, which editors offer. Text with a dot, a
            colon or a slash stays allowed: a class or a file of the user's.
    """
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Scenario.model_json_schema(),
    }
    for name, section in schema["$defs"].items():
        if name != Poisson.__name__ and "const" in section.get("properties", {}).get("kind", {}):
            section["required"] = ["kind", *section.get("required", [])]  # it tells the members of a union apart
    for key, known in (names or {}).items():
        _offer(_node(schema, key), known)
    for method, options in (method_options or {}).items():
        _add_options(schema, method, options)
    return schema


def members(node: Schema, schema: Schema) -> list[Schema]:
    """List the parts of `schema` of which a value at `node` must fit one, with unions and references resolved."""
    if "$ref" in node:
        return members(schema["$defs"][node["$ref"].rpartition("/")[2]], schema)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in node:
            return [member for part in node[union] for member in members(part, schema)]
    return [node]


def _node(schema: Schema, key: str) -> Schema:
    node = schema
    for step in key.split("."):
        if step == "*":
            node = next(iter(node["patternProperties"].values()))
        else:
            node = next(m["properties"][step] for m in members(node, schema) if step in m.get("properties", {}))
    return node


def _offer(node: Schema, known: Sequence[str]) -> None:
    """Make `node` accept the known names, and other text only if it is a path."""
    others = node.pop("anyOf", None) or [{kind: node.pop(kind) for kind in ("type", "$ref") if kind in node}]
    paths = [{**other, "pattern": "[.:/]"} if other.get("type") == "string" else other for other in others]
    node["anyOf"] = [{"enum": list(known)}, *paths]


def _add_options(schema: Schema, method: str, options: Schema) -> None:
    """Add the options of `method` as keys of the section; an option of several methods may fit any of them."""
    own = json.loads(json.dumps(options).replace("#/$defs/", f"#/$defs/{method}."))
    schema["$defs"] |= {f"{method}.{name}": definition for name, definition in own.get("$defs", {}).items()}
    properties = schema["$defs"][MethodSection.__name__]["properties"]
    for key, option in own.get("properties", {}).items():
        option["description"] = f"{method}: {option.get('description', key)}"
        others = properties.get(key)
        properties[key] = {"anyOf": [*others.get("anyOf", [others]), option]} if others else option
