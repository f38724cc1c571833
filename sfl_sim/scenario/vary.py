"""Axes of a what-if study: keys of a scenario and the values to try, in all combinations."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.given import as_yaml
from sfl_sim.scenario.grid import points
from sfl_sim.scenario.load import Study, Variant, changed
from sfl_sim.scenario.source_locations import SourceLine

OPTION = "--vary"
ALL = "all"
_PLACE = SourceLine(OPTION)


@dataclass(frozen=True)
class Axis:
    """A key and the values to try; `ALL` alone stands for all possible values, which are found later."""

    key: str
    values: tuple[Any, ...]

    @property
    def is_open(self) -> bool:
        """True if the values are still `ALL`."""
        return self.values == (ALL,)


@dataclass(frozen=True)
class Point:
    """A variant with a seed, at one combination of the axes' values.

    Attributes:
        series: name of the variant in the scenario's own grid.
        indices: of the values, one for each axis.
    """

    series: str
    indices: tuple[int, ...]
    variant: Variant

    @property
    def key(self) -> tuple[str, int, tuple[int, ...]]:
        """Name, seed and indices of values, unique among the study's points."""
        return self.series, self.variant.scenario.seed, self.indices


def read_axes(texts: Sequence[str]) -> list[Axis]:
    """Return the axes that texts such as `clients.network.scale=0.25,1,4` describe.

    Raises ScenarioError if a text has no key or no values, a key comes twice, or cannot vary.
    """
    axes = [_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice:
        raise ScenarioError("is varied twice", key=twice, file=OPTION)
    return axes


def _axis(text: str) -> Axis:
    key, equals, listed = (part.strip() for part in text.partition("="))
    if not (key and equals and listed):
        raise ScenarioError("must be KEY=VALUE,VALUE,...", found=text, file=OPTION)
    try:
        values = yaml_text.read_value(listed if listed.startswith("[") else f"[{listed}]")
    except ScenarioError as error:
        raise ScenarioError(error.problem, key=key, found=listed, file=OPTION) from None
    return axis(key, values)


def axis(key: str, values: Sequence[Any] | str) -> Axis:
    """Return an axis, checked; `values` may be `ALL`.

    Raises ScenarioError if the values are no list, if the key cannot vary, or if a value comes twice.
    """
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise ScenarioError("must be a list of values", key=key, found=values, file=OPTION)
    listed = [values] if isinstance(values, str) else [as_yaml(value, key) for value in values]
    try:
        list(points({key: listed}))
    except ScenarioError as error:
        raise ScenarioError(error.problem, key=key, file=OPTION) from None
    if key.partition(".")[0] == "serving":
        raise ScenarioError("no round depends on it", key=key, file=OPTION)
    twice = [value for value in listed if listed.count(value) > 1]
    if twice:
        raise ScenarioError("the same value twice", key=key, found=twice[0], file=OPTION)
    if ALL in listed and (len(listed) > 1 or key != "model.cut"):
        raise ScenarioError("stands alone, and for cuts", key=key, found=ALL, allowed="model.cut=all", file=OPTION)
    return Axis(key, tuple(listed))


def spread(study: Study, axes: Sequence[Axis]) -> Iterator[Point]:
    """Generate every variant with every seed, at every combination of values; those of a variant together.

    Raises ScenarioError if a key is one of the scenario's grid, too, or a value cannot be used.
    """
    taken = {key for point in points(study.base.grid) for key in point}
    for varied in axes:
        clash = next(
            (key for key in taken if key == varied.key or _within(key, varied.key) or _within(varied.key, key)), None
        )
        if clash:
            problem = "the scenario's grid sets it; leave it out there, as in --set 'grid={...}'"
            raise ScenarioError(problem, key=varied.key, found=clash, file=OPTION)
    for variant in study.variants:
        for combination in itertools.product(*(enumerate(varied.values) for varied in axes)):
            layer = {varied.key: value for varied, (_, value) in zip(axes, combination, strict=True)}
            places = variant.places.over(dict.fromkeys(layer, _PLACE))
            scenario = changed(variant.scenario, layer, places)
            indices = tuple(index for index, _ in combination)
            yield Point(variant.name, indices, Variant(variant.name, scenario, places))


def _within(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")
