"""Problems of a scenario, in words for users.

Pydantic says where a value fails; the allowed values are read from the JSON Schema, so that errors and editors say the
same.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sfl_sim.errors import USUAL_NAMES, ScenarioError
from sfl_sim.scenario.fields import FAR, PATH, TIER, in_units
from sfl_sim.scenario.schema import Schema, json_schema, members

_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "a mapping",
}
_PATTERNS = {PATH: "a CSV file", ":": "package.module:name", TIER: "up to six small letters"}
"""Nouns of texts by their patterns."""
_BOUNDS = {
    "exclusiveMinimum": "above {:,}",
    "minimum": "of at least {:,}",
    "maximum": "at most {:,}",
    "exclusiveMaximum": "below {:,}",
}


MAX_ELSEWHERE = 3
"""Maximum of keys in other sections that an unknown key may have been."""
_MAX_EXPLAINED = 100
"""Maximum of errors of a scenario that are explained: in a long list, every value may be wrong."""


class _Spot(NamedTuple):
    """A value in a scenario, its dotted path, the schemas of which it should fit one, and the keys beside it."""

    path: list[str]
    value: Any
    schemas: list[Schema]
    siblings: list[str]


def problems(error: ValidationError, given: object, schema: Schema | None = None) -> list[ScenarioError]:
    """Give the first errors of `given`, each with its key; if a key and one below it fail, only the latter.

    Args:
        schema: JSON Schema of what `given` should be; None: of a scenario.
    """
    details = error.errors(include_url=False, include_input=False)[:_MAX_EXPLAINED]
    every = [_problem(detail, given, schema or _scenario_schema()) for detail in details]
    distinct = list({str(problem): problem for problem in every}.values())  # a union fails once for each member
    keys = {problem.key for problem in distinct if problem.key}
    return [problem for problem in distinct if not any(key.startswith(f"{problem.key}.") for key in keys)]


def _problem(detail: ErrorDetails, given: object, root: Schema) -> ScenarioError:
    spot = _find(detail["loc"], given, root)
    key = ".".join(spot.path)
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ScenarioError):
        key = f"{key}.{cause.key}" if cause.key else key
        return ScenarioError(cause.problem, key=key, found=cause.found, allowed=cause.allowed)
    if isinstance(cause, Exception):  # of a user's own method or codec
        return ScenarioError(str(cause) or "cannot be used", key=key, found=spot.value)
    if detail["type"] in ("extra_forbidden", "invalid_key") or detail["loc"][-1:] == ("[key]",):
        elsewhere = keys_named(spot.path[-1]) if root is _scenario_schema() else []
        if key in elsewhere:
            return ScenarioError("is a key of another kind", key=key, found=spot.path[-1], allowed=spot.siblings)
        beside = {".".join([*spot.path[:-1], name]) for name in spot.siblings}
        nested = [other for other in elsewhere if "." in other and other not in beside]
        pattern = detail.get("ctx", {}).get("pattern", "")
        allowed = [*spot.siblings, *nested] if spot.siblings else _PATTERNS.get(pattern)
        return ScenarioError("unknown key", key=key, found=spot.path[-1], allowed=allowed)
    if detail["type"] == "missing":
        return ScenarioError("is missing", key=".".join([*spot.path, str(detail["loc"][-1])]))
    if detail["type"].startswith("union_tag"):
        kinds = [schema["properties"]["kind"]["const"] for schema in spot.schemas if "properties" in schema]
        kind = spot.value.get("kind")
        return ScenarioError("unknown kind" if kind else "is missing", key=f"{key}.kind", found=kind, allowed=kinds)
    return mismatch(key or None, spot.value, spot.schemas)


def mismatch(key: str | None, found: object, schemas: list[Schema]) -> ScenarioError:
    """Describe a value that fits none of `schemas`; of one for all clients, without the ways to name each."""
    if found is None or type(found) in (int, float):
        is_of_each = any("items" in schema for schema in schemas)
        numeric = [schema for schema in schemas if schema.get("type") in ("number", "integer", "null")]
        schemas = numeric if is_of_each and numeric else schemas
    is_numeric = any(schema.get("type") in ("number", "integer") for schema in schemas)
    words = [choice for schema in schemas for choice in _choices(schema)]
    wanted = list(dict.fromkeys(_in_words(schema, found) for schema in schemas if not _choices(schema)))
    if isinstance(found, str) and words:
        return ScenarioError("unknown choice", key=key, found=found, allowed=[*words, *wanted])
    problem = "must be " + " or ".join([*wanted, *map(repr, words)])
    if found is None:
        problem += ", but is empty"
    if isinstance(found, float) and not math.isfinite(found):
        problem = problem.replace("a number", "a finite number")
    keys = dict.fromkeys(name for schema in schemas for name in schema.get("properties", ()))
    allowed = f"the keys {', '.join(keys)}" if keys and not (is_numeric and isinstance(found, str)) else None
    if isinstance(found, str) and is_numeric:
        allowed = in_units(key or "") or allowed
    if key and isinstance(found, list) and not any("items" in schema for schema in schemas):
        allowed = "one value here; `grid: {KEY: [...]}` runs several"
    return ScenarioError(problem, key=key, found=found, allowed=allowed)


def _in_words(schema: Schema, found: object = None) -> str:
    noun = _PATTERNS.get(schema.get("pattern", "")) or _NOUNS.get(
        schema.get("type", ""), "text, a number, true or false, null, a list or a mapping"
    )
    bounds = " and ".join(
        text.format(_plain(schema[kind]))
        for kind, text in _BOUNDS.items()
        if kind in schema and _is_told(kind, schema, found)
    )
    items = f"with one or more items, each {_in_words(schema['items'])}" if "minItems" in schema else ""
    return " ".join(part for part in (noun, bounds, items) if part)


def _plain(limit: float) -> float:
    """Return a limit as people write it: pydantic 2.8 gives whole ones as 0.0."""
    return int(limit) if float(limit).is_integer() and abs(limit) < 1e15 else limit


def _is_told(kind: str, schema: Schema, found: object) -> bool:
    """Return True for a bound that somebody may meet; a far one only if `found` is beyond it."""
    bound = schema[kind]
    if bound not in FAR:
        return True
    return isinstance(found, int | float) and (0 < found < bound if kind == "minimum" else found > bound)


def _choices(schema: Schema) -> list[str]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", []))


def _find(loc: tuple[int | str, ...], given: object, root: Schema) -> _Spot:
    """Find the spot that pydantic calls `loc`; names of union members in it are skipped."""
    spot = _Spot([], given, members(root, root), [])
    for part in loc:
        value: Any = spot.value
        if isinstance(value, Mapping) and (keys := [key for key in value if part in (key, str(key))]):
            section = _section(spot.schemas, value.get("kind"))
            siblings = list(section.get("properties", {}))
            others = section.get("additionalProperties") or next(
                iter(section.get("patternProperties", {}).values()), None
            )
            below = section["properties"][part] if part in siblings else others
            inner = value[keys[0]]
        elif isinstance(value, list) and isinstance(part, int):
            siblings = []
            below = next((schema["items"] for schema in spot.schemas if "items" in schema), None)
            inner = value[part]
        else:
            continue
        spot = _Spot([*spot.path, str(part)], inner, members(below or {}, root), siblings)
    return spot


def _section(schemas: list[Schema], kind: object) -> Schema:
    """Choose the schema of a mapping: that of its `kind`, or the first."""

    def fits(schema: Schema) -> bool:
        return kind is None or bool(schema.get("properties", {}).get("kind", {}).get("const", kind) == kind)

    return next((schema for schema in schemas if schema.get("type") == "object" and fits(schema)), {})


def keys_named(name: str) -> list[str]:
    """List the dotted keys of a scenario that end in `name`, or in what it means here, if they are few."""
    for meant in (name, *USUAL_NAMES.get(name.casefold(), ())):
        if found := [key for key in _keys(_scenario_schema(), "") if f".{key}".endswith(f".{meant}")]:
            return found if len(found) <= MAX_ELSEWHERE else []
    return []


def _keys(node: Schema, prefix: str) -> Iterator[str]:
    for member in members(node, _scenario_schema()):
        for name, inner in member.get("properties", {}).items():
            yield f"{prefix}{name}"
            yield from _keys(inner, f"{prefix}{name}.")


@functools.cache
def _scenario_schema() -> Schema:
    return json_schema()
