"""The rule for keys without effect: no variant may be the only one to name them.

A value other than its key's default, which has no effect in any variant that has it, is refused. So a grid may carry a
key to variants in which it has no effect, if it has one in others. Which key needs which value of another one is said
at its field (`OnlyWith`, `Unless`), and what a key needs of the method, in `NEEDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel

from sfl_sim.build.registry import find_method, method_options
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method, MethodOptions
from sfl_sim.scenario.fields import conditional
from sfl_sim.scenario.load import Variant
from sfl_sim.scenario.sections import Scenario, StationSection
from sfl_sim.sim.orders import OF_RUNS, ORDERS

NeedCheck = Callable[[type[Method], MethodOptions], bool]


def _splits(kind: type[Method], options: MethodOptions) -> bool:
    return kind.has("is_split", options)


def _gets_gradients(kind: type[Method], options: MethodOptions) -> bool:
    return kind.has("is_split", options) and kind.sends_gradients


NEEDS: dict[str, tuple[NeedCheck, str]] = {
    **dict.fromkeys(("wire.up", "privacy.noise"), (_splits, "nothing crosses a cut")),
    **dict.fromkeys(
        ("wire.down", "privacy.gradient_noise", "privacy.nopeek"), (_gets_gradients, "no gradient comes down")
    ),
    "wire.update": (lambda kind, options: kind.uploads_model, "clients upload no model"),
    "report.exits_every": (lambda kind, options: kind.has_exits, "clients have no exits"),
}
"""What keys need of the method, and how it is said that it has not got it."""
DEFAULTS = Scenario()


def check_effects(variants: Sequence[Variant]) -> None:
    """Check that every value of a key that is not its default has an effect in a variant. Raises ScenarioError."""
    used: set[tuple[str, str]] = set()
    idle: dict[tuple[str, str], tuple[Variant, ScenarioError]] = {}
    for variant in variants:
        for key, value, why in _keys(variant.scenario):
            if why:
                found = value.model_dump() if isinstance(value, BaseModel) else value
                error = ScenarioError(f"has no effect {why}", key=key, found=found)
                idle.setdefault((key, repr(value)), (variant, error))
            else:
                used.add((key, repr(value)))
    for named, (variant, error) in idle.items():
        if named not in used:
            raise variant.places.located(error)


def _keys(scenario: Scenario) -> Iterator[tuple[str, Any, str]]:
    """Generate the keys that need something and are not at their default, with their values, and why they are idle."""
    name, kind = scenario.method.name, find_method(scenario.method.name)
    options = method_options(kind, scenario)
    yield from conditional(scenario)
    yield from conditional(options, "method.")
    for key, (has_it, missing) in NEEDS.items():
        value = attrgetter(key)(scenario)
        if value != attrgetter(key)(DEFAULTS):
            yield key, value, "" if has_it(kind, options) else f"with {name}: {missing}"
    for section, station, in_turn in _queues(scenario):
        if station.order not in ORDERS | OF_RUNS and ":" not in station.order:
            continue  # a preset, or misspelled
        why = f"with {name}: the server serves no jobs in an order"
        for key in ("order", "burst"):
            if (value := getattr(station, key)) != getattr(DEFAULTS.server, key):
                yield f"{section}.{key}", value, "" if in_turn and kind.has("follows_order", options) else why


def _queues(scenario: Scenario) -> Iterator[tuple[str, StationSection, bool]]:
    """Generate the servers' sections with their keys, and whether clients may take turns at one part there.

    That is where the part lies that clients may share: at the main server, or at the first tier if that has no cut.
    """
    tiers = list(scenario.servers.items())
    at_first = bool(tiers) and tiers[0][1].cut is None
    yield "server", scenario.server, not at_first
    yield from ((f"servers.{name}", tier, at_first and n == 0) for n, (name, tier) in enumerate(tiers))
