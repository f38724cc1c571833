"""The rule for keys without effect: no variant may be the only one to name them.

A value other than its key's default, which has no effect in any variant that has it, is refused. So a grid may carry a
key to variants in which it has no effect, if it has one in others. Which key needs which value of another one is said
at its field (`OnlyWith`, `Unless`), and what a key needs of the method, in `NEEDS`
or, for a single method, in its `ignores`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from sfl_sim.build.catalogue import choices, of_tiers
from sfl_sim.build.registry import find_method, method_options
from sfl_sim.data.loading import Dataset
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import Goal
from sfl_sim.methods import Method, MethodOptions
from sfl_sim.models.zoo import is_weightless
from sfl_sim.scenario.fields import conditional
from sfl_sim.scenario.load import Study, Variant, value_of
from sfl_sim.scenario.presets import client_level
from sfl_sim.scenario.sections import HAS_MOMENTUM, MethodSection, Scenario, StationSection
from sfl_sim.scenario.serving import Serving
from sfl_sim.sim.orders import OF_RUNS, ORDERS
from sfl_sim.training.schedules import SCHEDULES

NeedCheck = Callable[[type[Method], MethodOptions], bool]


def _splits(kind: type[Method], options: MethodOptions) -> bool:
    return kind.has("is_split", options)


def _gets_gradients(kind: type[Method], options: MethodOptions) -> bool:
    return kind.has("is_split", options) and kind.sends_gradients


NEEDS: dict[str, tuple[NeedCheck, str]] = {
    **dict.fromkeys(("wire.up", "privacy.noise", "report.leakage"), (_splits, "nothing crosses a cut")),
    **dict.fromkeys(
        ("wire.down", "privacy.gradient_noise", "privacy.nopeek"), (_gets_gradients, "no gradient comes down")
    ),
    "model.cut": (_splits, "nothing is cut"),
    "wire.update": (lambda kind, options: kind.uploads_model, "clients upload no model"),
    "report.exits_every": (lambda kind, options: kind.has_exits, "clients have no exits"),
}
"""What keys need of the method, and how it is said that it has not got it."""
DEFAULTS = Scenario()


def check_effects(variants: Sequence[Variant]) -> None:
    """Check that every value of a key that is not its default has an effect in a variant. Raises ScenarioError."""
    used: set[tuple[str, str]] = set()
    ignorable = {key for variant in variants for key in _ignored(variant.scenario)}
    idle: dict[tuple[str, str], tuple[Variant, ScenarioError]] = {}
    for variant in variants:
        found_here = list(_keys(variant.scenario, ignorable))
        idle_here = {key for key, _, why in found_here if why}  # one reason suffices
        for key, value, why in found_here:
            if why:
                found = value.model_dump() if isinstance(value, BaseModel) else value
                error = ScenarioError(f"has no effect {why}", key=key, found=found)
                idle.setdefault((key, repr(value)), (variant, error))
            elif key not in idle_here:
                used.add((key, repr(value)))
    for named, (variant, error) in idle.items():
        if named not in used:
            raise variant.places.located(error)


def _keys(scenario: Scenario, ignorable: Collection[str]) -> Iterator[tuple[str, Any, str]]:
    """Generate the keys that need something and are not at their default, with their values, and why they are idle."""
    name, kind = scenario.method.name, find_method(scenario.method.name)
    options = method_options(kind, scenario)
    yield from conditional(scenario)
    yield from conditional(options, "method.")
    for key, (has_it, missing) in NEEDS.items():
        value = attrgetter(key)(scenario)
        if value != attrgetter(key)(DEFAULTS):
            yield key, value, "" if has_it(kind, options) else f"with {name}: {missing}"
    if scenario.serving is not None:
        for key in ("threshold", "exit_probability"):
            if (value := getattr(scenario.serving, key)) != getattr(Serving(), key):
                yield f"serving.{key}", value, "" if kind.has_exits else f"with {name}: clients have no exits"
    if not scenario.wire.at_inference:
        is_coded = scenario.wire.up or scenario.privacy.noise or kind.has("has_codec", options)
        yield "wire.at_inference", False, "" if is_coded else "without wire.up and privacy.noise"
    train = scenario.train
    if train.server is not None and train.server.momentum is not None:
        at_server = train.server.optimizer or train.optimizer
        why = "" if HAS_MOMENTUM.allows(at_server) else f"where its optimizer is {at_server}"
        yield "train.server.momentum", train.server.momentum, why
    ignored = _ignored(scenario)
    for key in ignorable:
        if (value := value_of(scenario, key)) != value_of(DEFAULTS, key):
            yield key, value, f"with {name}: {ignored[key]}" if key in ignored else ""
    for section, station, trains, in_turn in stations(scenario):
        if station.call_s:
            is_called = scenario.serving is not None or (trains and _splits(kind, options))
            yield f"{section}.call_s", station.call_s, "" if is_called else f"with {name}: the server trains nothing"
        if station.order not in {*ORDERS, *OF_RUNS, client_level.__name__} and ":" not in station.order:
            continue  # a preset with other effects, or misspelled
        why = f"with {name}: the server serves no jobs in an order"
        for key in ("order", "burst"):
            if (value := getattr(station, key)) != getattr(DEFAULTS.server, key):
                yield f"{section}.{key}", value, "" if in_turn and kind.has("follows_order", options) else why


def _ignored(scenario: Scenario) -> Mapping[str, str]:
    """Return the keys that the scenario's method ignores, and why."""
    kind = find_method(scenario.method.name)
    ignored: Mapping[str, str] = kind.trait("ignores", method_options(kind, scenario))
    return ignored


def stations(scenario: Scenario) -> Iterator[tuple[str, StationSection, bool, bool]]:
    """Generate the keys of the servers' sections, the sections, whether a split method trains there, and in turn.

    Clients may take turns where the part lies that they may share: at the main server, or at the first tier if that has
    no cut. The others then train nothing.
    """
    tiers = list(scenario.servers.items())
    at_first = bool(tiers) and tiers[0][1].cut is None
    yield "server", scenario.server, not at_first, not at_first
    for n, (name, tier) in enumerate(tiers):
        yield f"servers.{name}", tier, tier.cut is not None or n == 0, at_first and n == 0


def check_unused(study: Study) -> None:
    """Check names and options of the method that the grid of a study replaces in every variant: nothing else does.

    Raises ScenarioError if there is no such name, nor can it be that of a file or of code, or no such option.
    """
    base, variants = study.base, [variant.scenario for variant in study.variants]
    with study.places.locating():
        for key, names in of_tiers(choices() | {"train.schedule.kind": [*SCHEDULES]}, base).items():
            name = value_of(base, key)
            if not isinstance(name, str) or name in names or re.search("[./:]", name):
                continue
            if all(value_of(variant, key) != name for variant in variants):
                raise ScenarioError("unknown name, which no variant uses", key=key, found=name, allowed=names)
        options = base.method.options.items()
        idle = {key: value for key, value in options if all(v.method.options.get(key) != value for v in variants)}
        if idle:
            method = MethodSection(name=base.method.name, **idle)
            method_options(find_method(method.name), base.model_copy(update={"method": method}))


def check_rounds(scenario: Scenario, key: str, rounds: Sequence[int]) -> None:
    """Raise ScenarioError if `key` names a round after the last one."""
    last = scenario.train.rounds
    if max(rounds, default=0) > last:
        raise ScenarioError("no such round", key=key, found=max(rounds), allowed=f"1 to {last}")


def check_targets(scenario: Scenario, dataset: Dataset) -> None:
    """Check that samples have one label each where that is needed, and that the model knows their tokens.

    Raises ScenarioError if not.
    """
    model, n_answers = scenario.model, len(dataset.answers)
    are_tokens = dataset.mean is None and not dataset.x_train.is_floating_point()
    is_named = model.factory is model.path is None and not is_weightless(model.name)
    if are_tokens and is_named and dataset.largest_token >= n_answers:
        problem = f"knows {n_answers} tokens, one for each label; the largest in the samples is {dataset.largest_token}"
        raise ScenarioError(problem, key="model.name", found=model.name)
    if dataset.goal is Goal.TOKENS and scenario.data.targets == "last":
        raise ScenarioError("predicts every next token", key="data.targets", found="last", allowed="all")
    for key in ("report.snapshots", "report.leakage", "serving"):
        if attrgetter(key)(scenario) is not None and dataset.goal is not Goal.LABEL:
            if dataset.goal is Goal.TOKENS:
                raise ScenarioError("needs one label for each sample (data.targets: last)", key=key)
            raise ScenarioError("needs one label for each sample", key=key, found=dataset.goal.value)
    if dataset.goal is Goal.NUMBERS and len(dataset.x_test) < 2:
        raise ScenarioError("needs two test samples, whose variance is explained", key="data.test_samples", found=1)
    if not dataset.goal.scores_labels:
        if scenario.data.test.kind != "global":
            raise ScenarioError("needs one label for each sample", key="data.test", found=dataset.goal.value)
        if why := find_method(scenario.method.name).needs_labels:
            problem = f"cannot predict {dataset.goal}: {why}"
            raise ScenarioError(problem, key="method.name", found=scenario.method.name)
