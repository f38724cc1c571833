"""Reads a YAML file or a mapping into the variants to run, and writes them back to text."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.concerns import lies_in
from sfl_sim.scenario.fields import SEEDS
from sfl_sim.scenario.given import as_yaml
from sfl_sim.scenario.grid import Grid, Setting, names, names_without, points, set_keys
from sfl_sim.scenario.presets import with_method_preset
from sfl_sim.scenario.problems import problems
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.serving import Serving
from sfl_sim.scenario.source_locations import SourceLine, SourceLocations

MAX_NAME = 100
MAX_RUNS = 10_000
"""Maximum of variants of a study, each seed counted."""
_COMMAND_LINE = SourceLine("--set")
_WRITTEN = (str, int, float, list, tuple, dict, type(None))
"""Types of values that can be written; others, such as `data` of `sfl_sim.run`, come from no text."""
Overrides = Sequence[str] | Mapping[str, Any]
"""Texts KEY=VALUE, or values by dotted key, which may be Python objects."""


@dataclass(frozen=True)
class Variant:
    """A point of the grid with one seed, which one trial runs. The variants of a point share its name."""

    name: str
    scenario: Scenario
    places: SourceLocations = field(repr=False, compare=False)


@dataclass(frozen=True)
class Study:
    """A scenario and its variants: every point of its grid, each with all seeds; and where its own keys were given."""

    name: str
    base: Scenario
    variants: tuple[Variant, ...]
    places: SourceLocations = field(default=SourceLocations(), repr=False, compare=False)

    @property
    def points(self) -> Sequence[Variant]:
        """The first variant of each point of the grid."""
        return self.variants[:: self.base.repeats]

    def title(self, variant: Variant) -> str:
        """Return the name of one of the variants, with its seed where there are several."""
        return f"{variant.name} (seed {variant.scenario.seed})" if self.base.repeats > 1 else variant.name

    def located(self, error: ScenarioError) -> ScenarioError:
        """Add file and line of its key to an error; of several variants, those that gave the value found."""
        culprits = (v for v in self.variants if value_of(v.scenario, error.key) == error.found)
        return next(culprits, self.variants[0]).places.located(error)


def load(path: str | Path, overrides: Overrides = ()) -> Study:
    """Return the study that a YAML file describes, after overrides such as `train.lr=0.1`.

    Raises ScenarioError if the file cannot be read or used, or an override has no effect; names the file, the line and
    the dotted key.
    """
    path = Path(path)
    values, places = yaml_text.read(path)
    return _overridden(_validated(values, places), places, path.stem, overrides)


def parse(values: Mapping[str, Any] | Scenario, name: str = "scenario", overrides: Overrides = ()) -> Study:
    """Return the study that a mapping, perhaps with Python objects, or a scenario describes, after overrides.

    Args:
        values: the mapping or the scenario.
        name: its name if it has none.
        overrides: as for `load`.

    Raises ScenarioError if the mapping or an override cannot be used; names the dotted key.
    """
    places = SourceLocations()
    return _overridden(_validated(as_yaml(values), places), places, name, overrides)


def _overridden(base: Scenario, places: SourceLocations, name: str, overrides: Overrides) -> Study:
    """Return the study of a scenario after overrides, each of which must have an effect."""
    layer = read_overrides(overrides)
    source = SourceLine("overrides") if isinstance(overrides, Mapping) else _COMMAND_LINE
    given = {key: replace(source if isinstance(value, _WRITTEN) else SourceLine()) for key, value in layer.items()}
    places = places.over(given)
    study = _study(changed(base, layer, places) if layer else base, places, name)
    for key, place in given.items():
        if not lies_in(key, "grid") and not any(variant.places.of(key) is place for variant in study.variants):
            raise ScenarioError(
                "has no effect, since the grid sets it in every variant; override the grid",
                key=key,
                file=source.file,
            )
    return study


def read_overrides(overrides: Overrides) -> dict[str, Any]:
    """Return the values of overrides by dotted key. Raises ScenarioError for a text that is no KEY=VALUE."""
    return dict(overrides if isinstance(overrides, Mapping) else map(_override, overrides))


def dump(scenario: Scenario) -> str:
    """Write a scenario as YAML text with all defaults, which loads back equal."""
    return yaml_text.write(scenario.model_dump())


def dump_study(study: Study) -> str:
    """Write a study as YAML text with all defaults, which loads back equal, grid and repeats included."""
    return dump(study.base)


def digest(study: Study) -> str:
    """Return 32 hex digits, equal for two studies if their scenarios are, in any order of keys."""
    canonical = json.dumps(study.base.model_dump(), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def extended(study: Study, layer: Mapping[str, Any]) -> Study:
    """Return the study of the scenario with dotted keys set anew. Raises ScenarioError if one cannot be used."""
    return _study(changed(study.base, layer, study.places), study.places, study.name)


def served(study: Study) -> Study:
    """Return the study with default serving where the scenario has no section `serving`."""

    def with_serving(scenario: Scenario) -> Scenario:
        return scenario.model_copy(update={"serving": scenario.serving or Serving()})

    variants = (Variant(v.name, with_serving(v.scenario), v.places) for v in study.variants)
    return replace(study, base=with_serving(study.base), variants=tuple(variants))


def training(study: Study) -> Study:
    """Return the trained part of `study`: variants that differ only in serving become one.

    A section `serving` is replaced by defaults, which still ask training to store the answers.
    """
    grid = list(points(study.base.grid))
    if study.base.serving is None and not _names_serving(grid):
        return study
    first: dict[str, int] = {}
    for number, name in enumerate(names_without(grid, study.base.method.name, _is_of_serving)):
        first.setdefault(name, number)
    usual = {"serving": Serving()}
    return replace(
        study,
        base=study.base.model_copy(update=usual | {"grid": _grid_of_training(study.base.grid, first.values())}),
        variants=tuple(
            Variant(name, variant.scenario.model_copy(update=usual), variant.places)
            for name, number in first.items()
            for variant in study.variants[number * study.base.repeats :][: study.base.repeats]
        ),
    )


def _is_of_serving(key: str) -> bool:
    return key.partition(".")[0] == "serving"


def _names_serving(grid: Iterable[Setting]) -> bool:
    return any(_is_of_serving(key) for point in grid for key in point)


def _grid_of_training(grid: Grid, numbers: Iterable[int]) -> Grid:
    """Remove keys of serving from a grid; a list of grids with such keys becomes the points with these `numbers`."""
    if isinstance(grid, Mapping):
        return {key: values for key, values in grid.items() if not _is_of_serving(key)}
    every = list(points(grid))
    if not _names_serving(every):
        return grid
    return [{key: [choice.value] for key, choice in every[n].items() if not _is_of_serving(key)} for n in numbers]


def _study(base: Scenario, places: SourceLocations, name: str) -> Study:
    name = name if base.name is None else base.name
    base = base.model_copy(update={"name": name})
    with places.locating():
        _check_name(name)
        grid = list(islice(points(base.grid), MAX_RUNS + 1))
        if len(grid) * base.repeats > MAX_RUNS:
            raise ScenarioError(
                "too many runs: configurations of the grid times repeats",
                key="grid" if len(grid) > 1 else "repeats",
                allowed=f"at most {MAX_RUNS}",
            )
        if base.seed + base.repeats > SEEDS:
            allowed = f"at most {SEEDS - base.repeats:,} with so many repeats"
            raise ScenarioError("is too large", key="seed", found=base.seed, allowed=allowed)
        variant_names = names(grid, base.method.name)
    single = base.model_copy(update={"grid": {}, "repeats": 1})
    own = replace(places, keys={key: place for key, place in places.keys.items() if not lies_in(key, "grid")})
    variants: list[Variant] = []
    for variant_name, point in zip(variant_names, grid, strict=True):
        layer = {key: choice.value for key, choice in point.items()}
        above = own.over({key: places.of(choice.path) for key, choice in point.items()})
        scenario = changed(single, layer, above)
        variants += [
            Variant(variant_name, scenario.model_copy(update={"seed": seed}), above)
            for seed in range(base.seed, base.seed + base.repeats)
        ]
    return Study(name, base, tuple(variants), places)


def _check_name(name: str) -> None:
    """Check that a name can be that of a folder and does not lead out of reports/; otherwise raises ScenarioError."""
    if Path(name).name != name or name.startswith(".") or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        allowed = f"1 to {MAX_NAME} characters without a slash, not starting with a dot"
        raise ScenarioError("cannot name a folder", key="name", found=name, allowed=allowed)


def changed(base: Scenario, layer: Mapping[str, Any], places: SourceLocations) -> Scenario:
    """Return the scenario with dotted keys set anew; `places` say where each key of the result was given.

    Raises ScenarioError if a key or a value cannot be used.
    """
    with places.locating():
        values = set_keys(base.model_dump(), {key: as_yaml(value, key) for key, value in layer.items()})
    return _validated(values, places)


def _validated(values: object, places: SourceLocations) -> Scenario:
    """Return the scenario that values describe, with a preset of its method replaced by what it stands for."""
    values = with_method_preset(values.model_dump() if isinstance(values, Scenario) else values)
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        first = min(problems(error, values), key=lambda problem: places.rank(problem.key))
        raise places.located(first) from None


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not (key and equals):
        raise ScenarioError("must be KEY=VALUE", found=text, file=_COMMAND_LINE.file)
    try:
        return key, yaml_text.read_value(value)
    except ScenarioError as error:
        raise ScenarioError(error.problem, key=key, found=value, file=_COMMAND_LINE.file) from None


def value_of(scenario: Scenario, key: str | None) -> Any:
    """Return the value of a dotted key; None if there is no such key."""
    steps = (key or "").split(".")
    value: Any = scenario.model_dump(include={steps[0]})
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value
