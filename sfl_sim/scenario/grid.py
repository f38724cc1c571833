"""Dotted keys of a scenario: the points of its grid, their names, and setting of keys."""

import copy
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.own_code import object_name
from sfl_sim.scenario.sections import Scenario

Grid = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class GridValue:
    """A value that a grid gives to a key, and its dotted path in the grid."""

    value: Any
    path: str


Setting = Mapping[str, GridValue]


def points(grid: Grid) -> Iterator[Setting]:
    """Generate every combination of the values in a grid, or in each of a list of grids.

    An empty grid has one point, which sets nothing. A value that is no list counts as a list of one.

    Raises ScenarioError if a key has no values, or cannot vary.
    """
    grids = {"grid": grid} if isinstance(grid, Mapping) else {f"grid.{i}": part for i, part in enumerate(grid)}
    for path, part in (grids or {"grid": {}}).items():
        choices = [_choices(key, values, f"{path}.{key}") for key, values in part.items()]
        for combination in itertools.product(*choices):
            yield dict(zip(part, combination, strict=True))


def _choices(key: str, values: Any, path: str) -> list[GridValue]:
    if key == "seed":
        raise ScenarioError("cannot vary in a grid, use repeats for several seeds", key=path)
    if key in ("name", "repeats") or key.partition(".")[0] == "grid":
        raise ScenarioError("cannot vary in a grid", key=path)
    if not isinstance(values, list):
        return [GridValue(values, path)]
    if not values:
        raise ScenarioError("has no values", key=path)
    return [GridValue(value, f"{path}.{i}") for i, value in enumerate(values)]


def names(points: Sequence[Setting], unvaried: str) -> list[str]:
    """Give the names of grid points, made of their values ("hydra, cut=2"); `unvaried` names a point without any.

    Points with equal values of different keys are told apart by these ("up=int8", "down=int8"), and objects of one name
    by their digests.

    Raises ScenarioError if two points set the same.
    """
    endings = Counter(_ending(key) for key in {key for point in points for key in point})

    def name(point: Setting, label: Callable[[str, Any], str]) -> str:
        short = {key: key if endings[_ending(key)] > 1 else _ending(key) for key in point}
        return ", ".join(label(short[key], choice.value) for key, choice in point.items()) or unvaried

    labels = [name(point, _label) for point in points]
    often = Counter(labels)
    result = [
        name(point, _full_label) if often[label] > 1 else label for point, label in zip(points, labels, strict=True)
    ]
    settled = [*map(_settled, points)]
    numbers = Counter(settled)
    for setting, label in zip(settled, result, strict=True):
        if numbers[setting] > 1:
            raise ScenarioError("two configurations of the grid are equal", key="grid", found=label)
    return result


def names_without(points: Sequence[Setting], unvaried: str, dropped: Callable[[str], bool]) -> list[str]:
    """Give the names of points without the keys that are `dropped`; points that differ in them alone share a name."""
    kept = [{key: choice for key, choice in point.items() if not dropped(key)} for point in points]
    values = [*map(_settled, kept)]
    distinct = dict(zip(values, kept, strict=True))
    named = dict(zip(distinct, names(list(distinct.values()), unvaried), strict=True))
    return [named[value] for value in values]


def _settled(point: Setting) -> str:
    """Give what a point sets as text, equal for `{wire: {up: int8}}` and `{wire.up: int8}`."""
    return json.dumps(set_keys({}, {key: choice.value for key, choice in point.items()}), sort_keys=True)


def _ending(key: str) -> str:
    return key.rpartition(".")[2]


def _label(key: str, value: Any) -> str:
    if isinstance(value, str):
        return object_name(value)
    if isinstance(value, dict) and value:
        return ", ".join(_part_label(inner, part) for inner, part in value.items())
    return _full_label(key, value)


def _full_label(key: str, value: Any) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def _part_label(key: str, value: Any) -> str:
    """Label a part of a value; a section without a kind of its own is called by its key ("noise sigma=1.0")."""
    unnamed = isinstance(value, dict) and "kind" not in value
    return f"{key} {_label(key, value)}" if unnamed and value else _label(key, value)


def set_keys(values: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the nested `values`, and set the dotted keys of `layer`; a section as a value replaces the whole section.

    Keys that they exclude are removed: a profile if rates are set, the options of another kind of section.

    Raises ScenarioError if a key lies below a value, or below another key of the layer.
    """
    result = copy.deepcopy(dict(values))
    for key, value in layer.items():
        clash = next((other for other in layer if other.startswith(f"{key}.")), None)
        if clash:
            raise ScenarioError(f"cannot be set together with {clash}", key=key)
        home = _home(result, key)
        section, last = Scenario.of_key(key), _steps(key)[-1]
        excluded = section.excluded_by(last) if value is not None else set()
        if last == "kind" in section.model_fields and home.get("kind", value) != value:
            takes_options = section.model_config["extra"] == "allow"  # its fields are those that all kinds have
            excluded = set(home).difference(section.model_fields if takes_options else ())
        for other in excluded:
            home.pop(other, None)
    for key, value in layer.items():
        _home(result, key)[_steps(key)[-1]] = value
    return result


def _home(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Find the mapping within `values` that contains the last step of `key`."""
    home: Any = values
    for step in _steps(key)[:-1]:
        if home.get(step) is None:  # not there, or a section that is null
            home[step] = {}
        home = home[step]
        if not isinstance(home, dict):
            raise ScenarioError(f"unknown key, {step} holds a value", key=key)
    return home  # type: ignore[no-any-return]


def _steps(key: str) -> list[str]:
    """Split a dotted key into steps; a key within the grid, or of a benchmark's links, is one step, with dots."""
    above = {"grid": 1, "benchmark.links": 3}
    return key.split(".", next((steps for section, steps in above.items() if key.startswith(f"{section}.")), -1))
