"""Every key of a scenario: as the JSON Schema by which editors check and errors say what is allowed, and as a file."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.sections import MethodSection, Scenario
from sfl_sim.scenario.serving import Poisson

Schema = dict[str, Any]
WIDTH = 118
HEAD = """\
# Every key of a scenario, with its default. Leave out what you do not change; keys that are commented out are empty.
# Run it: sfl-sim FILE    Compare variants: give several values to keys in the grid below.
# grid: {method.name: [splitfed_v1, splitfed_v2], train.lr: [0.05, 0.1]}
"""


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


def template() -> str:
    """Return the text of a scenario file, which loads as the default scenario."""
    return HEAD + "\n".join(_lines(Scenario(), "")) + "\n"


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
    names = {"enum": list(known)}
    node["anyOf"] = [names, *(other for other in paths if other != names)]  # sections alike share their nodes


def _add_options(schema: Schema, method: str, options: Schema) -> None:
    """Add the options of `method` as keys of the section; an option of several methods may fit any of them."""
    own = json.loads(json.dumps(options).replace("#/$defs/", f"#/$defs/{method}."))
    schema["$defs"] |= {f"{method}.{name}": definition for name, definition in own.get("$defs", {}).items()}
    properties = schema["$defs"][MethodSection.__name__]["properties"]
    for key, option in own.get("properties", {}).items():
        option["description"] = f"{method}: {option.get('description', key)}"
        others = properties.get(key)
        properties[key] = {"anyOf": [*others.get("anyOf", [others]), option]} if others else option


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    """Generate the lines of a section's keys, each after its description."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if not indent:
            yield ""
        about = " ".join((field.description or "").split())
        yield from textwrap.wrap(about, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        elif value is None:
            yield f"{indent}# {key}:"
        else:
            yield f"{indent}{yaml_text.write({key: value}).rstrip()}"
