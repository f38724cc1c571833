"""Target accuracies of variants: a number, or a share of the accuracy of a reference in the same setting."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import pandas as pd

from sfl_sim.build.registry import find_method, method_options
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import way_to
from sfl_sim.scenario.concerns import Aside, concern_of, values_except
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import Study, Variant
from sfl_sim.scenario.sections import MethodSection, RelativeTarget, Scenario

COMPARED: Aside = {Concern.ORDER, "method", "seed"}
"""Keys in which the variants of one setting may differ."""
KEY = "report.target_accuracy.of"


def references(study: Study) -> dict[str, str]:
    """Return the variants with a relative target, each with its reference variant.

    Raises ScenarioError unless there is exactly one.
    """
    variants: dict[str, Variant] = {}
    for variant in study.variants:
        variants.setdefault(variant.name, variant)  # seeds do not matter
    settings = {name: values_except(variant.scenario, COMPARED) for name, variant in variants.items()}
    chosen = {}
    for name, variant in variants.items():
        target = variant.scenario.report.target_accuracy
        if isinstance(target, RelativeTarget):
            alike = [other for key, other in variants.items() if settings[key] == settings[name]]
            with variant.places.locating():
                chosen[name] = _reference(target.of, variant, alike).name
    return chosen


def target_figures(
    study: Study, closed: Mapping[int, tuple[Mapping[str, Any], pd.DataFrame]]
) -> dict[int, dict[str, Any]]:
    """Return for each trial its target accuracy, which may depend on other trials, and when it was reached.

    Args:
        closed: by number, the summary and the rounds of the trials that have run.

    Returns:
        `reference` (the name of a variant), `target_accuracy` and the `*_to_accuracy` figures, by number. A share is
        that of the mean over those seeds of the reference that have run: null without any.
    """
    named = references(study)
    figures = {}
    for number, (_, rounds) in closed.items():
        variant = study.variants[number]
        target, reference = variant.scenario.report.target_accuracy, named.get(variant.name)
        if isinstance(target, RelativeTarget):
            best = [summary["best_accuracy"] for summary, _ in closed.values() if summary["name"] == reference]
            trained = [accuracy for accuracy in best if accuracy is not None]
            target = target.share * fmean(trained) if trained else None
        figures[number] = {"reference": reference, **way_to(target, rounds)}
    return figures


def _reference(of: str | MethodSection, variant: Variant, alike: list[Variant]) -> Variant:
    """Find the variant with the method `of` among those `alike` in setting; of several, that with default options."""
    wanted = MethodSection(name=of) if isinstance(of, str) else of
    said = of if isinstance(of, str) else of.model_dump()
    matches = [other for other in alike if _has(other.scenario, wanted)]
    if not matches:
        methods = dict.fromkeys(other.scenario.method.name for other in alike)
        problem = f"no variant in the same setting as {variant.name!r} has this method"
        problem += " with these options" if wanted.options else ""
        raise ScenarioError(problem, key=KEY, found=said, allowed=methods)
    for unusual in (_unusual_options, _unusual_order):
        if len(matches) > 1:
            matches = [match for match in matches if unusual(match.scenario) <= wanted.options.keys()] or matches
    if len(matches) > 1:
        names = "; ".join(match.name for match in matches)
        raise ScenarioError(f"means several variants, {names}; say which by options", key=KEY, found=said)
    return matches[0]


def _has(scenario: Scenario, wanted: MethodSection) -> bool:
    """Return True if the method is the wanted one, with at least the options that are given."""
    return scenario.method.name == wanted.name and wanted.options.items() <= _options(scenario).items()


def _unusual_options(scenario: Scenario) -> set[str]:
    """Return the method's options that are not at their defaults."""
    return set(_options(scenario, exclude_defaults=True))


def _options(scenario: Scenario, **which: bool) -> dict[str, Any]:
    options = method_options(find_method(scenario.method.name), scenario)
    return dict(options.model_dump(mode="json", **which))


def _unusual_order(scenario: Scenario) -> set[str]:
    """Return the keys of an order that are not at their defaults."""
    changed = scenario.server.model_dump(exclude_defaults=True)
    return {key for key in changed if concern_of(f"server.{key}") is Concern.ORDER}
