"""What a scenario may name: for `sfl-sim list` and `sfl-sim list schema`, and for errors in a scenario.

Methods, models, data sets, ... are described where they are written. That code imports torch, which takes seconds:
where nothing else needs torch, the description of an earlier command is read (`code_version.described`).
"""

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from sfl_sim.build.code_version import described
from sfl_sim.errors import ScenarioError
from sfl_sim.installed import KINDS, installed, is_of_library
from sfl_sim.scenario.files import scenario_names
from sfl_sim.scenario.load import Study, value_of
from sfl_sim.scenario.optional_sections import SHORT
from sfl_sim.scenario.schema import Schema
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.cost import MACS
from sfl_sim.system.network import trace_names
from sfl_sim.system.profiles import available, find

NAMED = {
    "method": "methods",
    "method.name": "methods",
    "report.target_accuracy.of": "methods",
    "model.name": "models",
    "data.name": "datasets",
    "data.partition.kind": "partitions",
    "server.order": "orders",
    "servers.*.order": "orders",
    "wire.up.kind": "codecs",
    "wire.down.kind": "codecs",
    "wire.update.kind": "codecs",
}
"""Scenario keys that take a name, and the kind of what they name."""
PROFILES = {
    "clients.compute.profile": "devices",
    "clients.compute.cost": "costs",
    "server.cost": "costs",
    "clients.network.profile": "network",
    "servers.*.cost": "costs",
    "servers.*.backbone.profile": "network",
    "servers.*.outages.profile": "availability",
    "clients.network.trace": "network/traces",
    "clients.power.radio": "power",
    "clients.availability.profile": "availability",
}
"""Scenario keys that take a profile, and its kind."""
ABOUT_PROFILES = {
    "devices": "rates of the client devices",
    "costs": "what kinds of layers cost on a device",
    "network": "mean rates of the client links",
    "network/traces": "how link rates vary over time",
    "power": "power that a radio draws",
    "availability": "when clients are available",
}
NO_NAME = "no such name, which `sfl-sim list` shows, nor a package.module:name of your own"
PROBLEMS = {"model.name": "no such model", "data.name": "unknown data set"}
"""Problems of unknown names, by key, where they cannot be code of a user's own."""

T = TypeVar("T")
Entries = dict[str, dict[str, dict[str, Any]]]


@cache
def shipped() -> Entries:
    """Return what comes with sfl-sim, by kind and name: about it, and the JSON Schema of its options if it has any."""
    entries: Entries = _entries() if "torch" in sys.modules else described("catalogue", _entries)
    return entries


def catalogue() -> dict[str, dict[str, str]]:
    """Return the names by kind, each with what it is, and a line for each of its options."""
    names = {
        kind: {name: "\n".join([entry["about"], *_option_lines(entry)]) for name, entry in table.items()}
        for kind, table in shipped().items()
    }
    for kind in KINDS:
        names[kind] = {name: f"from {point.value}" for name, point in installed(kind).items()} | names[kind]
    names["profiles"] = {}
    for kind, about in ABOUT_PROFILES.items():
        for name in available(kind):  # two kinds may have a name in common
            names["profiles"][name] = "; ".join(filter(None, [names["profiles"].get(name), about]))
    names["scenarios"] = scenario_names()
    return names


def _option_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """Generate a line for each option of a method or codec, with its default."""
    for key, option in entry.get("options", {}).get("properties", {}).items():
        yield f"{key} ({json.dumps(option.get('default')).strip(chr(34))}): {' '.join(option['description'].split())}"


def choices() -> dict[str, list[str]]:
    """Return the names, of sfl-sim and of installed packages, by the scenario key that takes them."""
    named = {
        key: [*dict.fromkeys([*shipped()[kind], *(installed(kind) if kind in KINDS else ())])]
        for key, kind in NAMED.items()
    }
    profiles = {key: available(kind) for key, kind in PROFILES.items()}
    return named | {key: [MACS, *names] if PROFILES[key] == "costs" else names for key, names in profiles.items()}


def of_tiers(table: Mapping[str, T], scenario: Scenario) -> dict[str, T]:
    """Return a table by dotted key with the scenario's tiers of servers, each by its name, in the place of `*`."""
    return {
        key.replace("*", tier): value
        for key, value in table.items()
        for tier in (scenario.servers if "*" in key else [""])
    }


def method_options() -> dict[str, Schema]:
    """Return the JSON Schema of each method's options."""
    return {name: entry["options"] for name, entry in shipped()["methods"].items()}


def check_names(study: Study) -> None:
    """Check the names that the variants of a study use, and the options beside them, without importing what is named.

    Values of options, and code of a user's own, are checked where the variant is built. Raises ScenarioError.
    """
    for variant in study.points:
        scenario = variant.scenario
        with variant.places.locating():
            for key, kind in of_tiers(PROFILES, scenario).items():
                if (profile := value_of(scenario, key)) is not None and (kind, profile) != ("costs", MACS):
                    for name in trace_names(profile) if kind == "network/traces" else [profile]:
                        find(kind, name, key)
            _check("methods", "method.name", scenario.method.name, scenario.method.options)
            if not is_of_library(scenario.model.name):
                _check("models", "model.name", scenario.model.name)
            _check("datasets", "data.name", scenario.data.name)
            _check("orders", "server.order", scenario.server.order)
            for tier, section in scenario.servers.items():
                _check("orders", f"servers.{tier}.order", section.order)
            for way in ("up", "down", "update"):
                if (coding := getattr(scenario.wire, way)) is not None:
                    _check("codecs", f"wire.{way}.kind", coding.kind, coding.options)


def _check(kind: str, key: str, name: str | None, options: Mapping[str, Any] | None = None) -> None:
    """Raise ScenarioError if `name` is neither known nor perhaps code of a user's own, or has no such options."""
    if name is None or (key not in PROBLEMS and ":" in name):
        return
    entries = {"none": {}, **shipped()[kind], **SHORT} if kind == "codecs" else shipped()[kind]
    if name not in entries:
        if name in installed(kind):
            return
        raise ScenarioError(PROBLEMS.get(key, NO_NAME), key=key, found=name, allowed=[*entries, *installed(kind)])
    section, _, head = key.rpartition(".")
    allowed = [head, *entries[name].get("options", {}).get("properties", {})]
    for option in options or {}:
        if option not in allowed:
            raise unknown_option(name, f"{section}.{option}", allowed)


def unknown_option(name: str, key: str, allowed: list[str]) -> ScenarioError:
    """Return the error for a key that what is called `name` does not have."""
    return ScenarioError(f"unknown key of {name}", key=key, found=key.rpartition(".")[2], allowed=allowed)


def _entries() -> Entries:
    """Describe what ships from the code itself, which imports torch."""
    from sfl_sim.data.loading import DATASETS
    from sfl_sim.data.partition import PARTITIONS
    from sfl_sim.methods import METHODS
    from sfl_sim.models.hugging_face import HuggingFace
    from sfl_sim.models.zoo import MODELS
    from sfl_sim.scenario.presets import METHOD_PRESETS, ORDER_PRESETS
    from sfl_sim.sim.orders import OF_RUNS, ORDERS
    from sfl_sim.training.codecs import CODECS

    plain: dict[str, Mapping[str, object]] = {
        "models": {**MODELS, "hf": HuggingFace},
        "datasets": DATASETS,
        "partitions": PARTITIONS,
        "orders": {**ORDERS, **OF_RUNS, **ORDER_PRESETS},
    }
    return {
        "methods": {
            name: {"about": _method_lines(kind), "options": _options_schema(kind.Options)}
            for name, kind in METHODS.items()
        }
        | {
            name: {"about": f"{named.about}\n{named.paper}", "options": _options_schema(METHODS[named.host].Options)}
            for name, named in METHOD_PRESETS.items()
        },
        **{kind: {name: {"about": _first_line(thing)} for name, thing in of.items()} for kind, of in plain.items()},
        "codecs": {
            name: {"about": _first_line(kind), "options": _options_schema(kind)} for name, kind in CODECS.items()
        },
    }


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n", 1)[0]


def _method_lines(kind: Any) -> str:
    """Return lines about a method: its docstring's first line, and the paper in its module's docstring."""
    lines = [_first_line(kind)]
    if paper := re.search(r"\n\n(.*?\b\d{4})\b", inspect.getdoc(inspect.getmodule(kind)) or "", re.DOTALL):
        lines.append(" ".join(paper[1].split()))
    return "\n".join(lines)


def _options_schema(kind: Any) -> Schema:
    """Return the JSON Schema of options, in which fields are described and their classes are not."""
    schema: Schema = kind.model_json_schema()
    for section in (schema, *schema.get("$defs", {}).values()):
        section.pop("description", None)
    return schema
