"""The privacy study: train a scenario at all values of what varies, and attack what crosses the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfl_sim.build.registry import find_method, method_options
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import Study, Variant, extended, training
from sfl_sim.scenario.vary import Axis, spread
from sfl_sim.studies.points import Question


def attacked(study: Study, axes: Sequence[Axis]) -> Study:
    """Return the study with the values of `axes` in its grid, and with attacks, usual ones unless it asks for some.

    Its name says what it is. Raises ScenarioError for axes that do not fit the scenario, and if no method has a cut.
    """
    study = training(study)
    layer: dict[str, object] = {"name": f"{study.name}-privacy"}
    if axes:
        closed = Question.of(study, axes).axes
        list(spread(study, closed))  # which refuses keys that the grid sets
        own = study.base.grid
        parts = [own] if isinstance(own, Mapping) else own or [{}]
        layer["grid"] = [{**part, **{axis.key: list(axis.values) for axis in closed}} for part in parts]
    if all(variant.scenario.report.leakage is None for variant in study.variants):
        layer["report.leakage"] = {}
    found = extended(study, layer)
    if not any(_splits(variant) for variant in found.variants):
        problem = "has no cut between clients and server here, so there is nothing to attack"
        raise study.located(ScenarioError(problem, key="method.name", found=found.variants[0].scenario.method.name))
    return found


def _splits(variant: Variant) -> bool:
    """True if the variant's method has a cut, as its options say."""
    kind = find_method(variant.scenario.method.name)
    with variant.places.locating():
        return kind.has("is_split", method_options(kind, variant.scenario))
