"""Facts of keys, from the annotation of each field: its `Concern`, by which scenarios are compared, and who decides it.

For example, two trainings give the same model if they differ only in keys that training does not depend on; two walks
have the same operations if they differ only in keys of the system. Callers name the concerns that do not count.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, get_origin

from sfl_sim.scenario.fields import Concern, Decided, Section, of_any_tier, sections_in
from sfl_sim.scenario.sections import ClientCuts, Scenario

F = TypeVar("F", bound=Enum)

Aside = Collection[Concern | str]
"""Keys that do not count: all those of a concern, or a single dotted key with those below it."""

NOT_LEARNED = frozenset({Concern.SHOWING, Concern.RECORDING})
"""Concerns that no trained model depends on, on any machine and in any system."""


def values_except(scenario: Scenario, aside: Aside) -> dict[str, Any]:
    """Return the values of a scenario by dotted key, without those set `aside`.

    If the cut, or which server serves a client, follows the speed of the devices, `clients.compute` counts as LEARNING.
    """
    cut = scenario.model.cut
    by_device = isinstance(cut, ClientCuts) and cut.by == "device_speed"
    by_device |= any(tier.clients == "speed" for tier in scenario.servers.values())

    def is_aside(key: str) -> bool:
        concern = Concern.LEARNING if by_device and lies_in(key, "clients.compute") else concern_of(key)
        return concern in aside or any(isinstance(part, str) and lies_in(key, part) for part in aside)

    return {key: value for key, value in leaves(scenario.model_dump()) if not is_aside(key)}


def differences(one: Scenario, other: Scenario, aside: Aside) -> dict[str, tuple[Any, Any]]:
    """Return both values of every dotted key in which two scenarios differ, not counting those set `aside`.

    A key that only one of them has, such as an option of its method, is None in the other.
    """
    ours, theirs = values_except(one, aside), values_except(other, aside)
    return {key: (ours.get(key), theirs.get(key)) for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)}


def concern_of(key: str) -> Concern:
    """Return the concern of a dotted key: its own, or else that of the innermost section around it that has one."""
    return _innermost(CONCERNS, key)


def decided(key: str) -> Decided:
    """Return who decides a dotted key: as its field says, or else the innermost section around it that says it."""
    return _innermost(DECIDED, key)


def _innermost(facts: Mapping[str, F], key: str) -> F:
    key = of_any_tier(key)
    while key not in facts:
        key = key.rpartition(".")[0]
    return facts[key]


def lies_in(key: str, section: str) -> bool:
    """Return True for the dotted key of a section, and of what lies in it."""
    return key == section or key.startswith(f"{section}.")


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value below nested sections with its dotted key; an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _annotated(fact: type[F], section: type[Section], prefix: str = "") -> Iterator[tuple[str, F]]:
    """Yield the dotted key of every field of a section, and of those within it, whose annotation names such a fact."""
    for name, field in section.model_fields.items():
        yield from ((f"{prefix}{name}", note) for note in field.metadata if isinstance(note, fact))
        for inner in sections_in(field.annotation):
            yield from _annotated(
                fact, inner, f"{prefix}{name}.*." if get_origin(field.annotation) is dict else f"{prefix}{name}."
            )


CONCERNS: Mapping[str, Concern] = {"": Concern.LEARNING, **dict(_annotated(Concern, Scenario))}
"""The concern of every dotted key whose field names one; all others share that of the section around them."""
DECIDED: Mapping[str, Decided] = {"": Decided.BY_THE_USER, **dict(_annotated(Decided, Scenario))}
"""Who decides every dotted key whose field says so; all others share that of the section around them."""
