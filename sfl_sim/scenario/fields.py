"""Building blocks of a scenario's sections: numbers with bounds, known keys, rates or a profile of them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, JsonValue, model_validator
from pydantic_core import CoreSchema

from sfl_sim.errors import ScenarioError

MOST = 10_000_000
"""Largest number of clients, rounds, samples, requests, ...: more than any study has, and arrays of so many fit in
memory, times and 32-bit columns."""
SEEDS = 2**31
"""Number of the seeds."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Range of the size of numbers other than 0, in which times and rates computed from them are finite."""
FAR = (MOST, SMALLEST, LARGEST)
"""Bounds that errors tell only to those who overstep them."""

Natural = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Positive = Annotated[float, Field(gt=0, ge=SMALLEST, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Probability = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Correlation = Annotated[float, Field(ge=-1, le=1)]
TIER = "^[a-z]{1,6}$"
"""Name of a tier of servers, as records name them with their numbers."""
PATH = r"^(~|\.{0,2}[/\\]|[^\W\d].*[/\\])|\.[A-Za-z]\w*$"
"""Pattern of what looks like a path, which neither a number nor one with a unit does: ./rates, rates.csv."""
ClientCsv = Annotated[str, Field(pattern=PATH)]
"""CSV file with a row for each client, and a column of the key's name; a column `client` says whose row it is."""
PerClient = Annotated[list[Positive], Field(min_length=1)] | ClientCsv


UNITS: Mapping[str, Mapping[str, int]] = {
    "_bps": {"bit/s": 0, "kbit/s": 3, "Mbit/s": 6, "Gbit/s": 9, "bps": 0, "kbps": 3, "Mbps": 6, "Gbps": 9},
    "macs_per_s": {"MAC/s": 0, "GMAC/s": 9},
    "_per_s": {},
    "_s": {"s": 0, "ms": -3, "us": -6, "µs": -6},
    "_w": {"W": 0, "mW": -3},
    "_bytes": {"B": 0, "kB": 3, "MB": 6},
    "_h": {"h": 0},
}
"""Units that a number may have as text, by the end of its key; each with its power of ten, the key's own first."""
_NO_UNIT = re.compile(r"\b(up|down)$|\.\d+$")
"""Ends of keys that do not name the unit: of rates by direction, and the place in a list."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*([^\W\d]*(?:/[a-z]+)?)\s*", re.ASCII)


def _ascii(text: str) -> str:
    """Return the text with a u in the place of the micro sign, and of the Greek letter that looks the same."""
    return text.replace("\u00b5", "u").replace("\u03bc", "u")


def units_of(key: str) -> Mapping[str, int]:
    """Return the units of numbers at a key, `up` and `down` of rates included; none if it ends in none of `UNITS`."""
    key = _NO_UNIT.sub(lambda end: "_bps" if end[1] else "", key)
    return next((units for ending, units in UNITS.items() if key.endswith(ending)), {})


def in_units(key: str) -> str | None:
    """Return what numbers at a key may be, in words; None if they have no unit."""
    units = list(units_of(key))
    return f"a number, in {units[0]}, or with its unit: {', '.join(units)}" if units else None


def quantity(value: object, key: str) -> object:
    """Return the number that a text means, in the unit of its key: 1e7 for "10 Mbit/s"; anything else as it is."""
    if isinstance(value, list):
        return [quantity(one, key) for one in value]
    found = _QUANTITY.fullmatch(_ascii(value)) if isinstance(value, str) else None
    power = None if found is None else {**units_of(key), "": 0}.get(found[2])
    if found is None or power is None:
        return value
    if found[1].lstrip("+-").isdecimal() and not found[2]:
        return int(found[1])
    return float(Decimal(found[1]).scaleb(power))  # as near as can be: 9 * 1e-3 is not 9 / 1000


def with_numbers(section: type[BaseModel], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values of a section with numbers in the place of texts that mean them, at keys of numbers."""
    numeric = _numeric(section)
    return {key: quantity(value, key) if key in numeric else value for key, value in values.items()}


@cache
def _numeric(section: type[BaseModel]) -> frozenset[str]:
    """Return the keys of a section whose values are numbers, and no texts but files."""
    return frozenset(name for name, field in section.model_fields.items() if _kinds(field.annotation) == {"number"})


def _kinds(annotation: Any, notes: tuple[Any, ...] = ()) -> set[str]:
    """Return what an annotation allows besides sections, files, and words that are choices: numbers, texts, others."""
    if get_origin(annotation) is Annotated:
        inner, *notes_within = get_args(annotation)
        return _kinds(inner, tuple(notes_within))
    if annotation in (int, float):
        return {"number"}
    if annotation is str:
        return set() if any(getattr(note, "pattern", None) == PATH for note in _facts(notes)) else {"text"}
    if annotation is bool or get_origin(annotation) is dict:
        return {"other"}
    if get_origin(annotation) is Literal:
        return {"number"} if all(type(choice) is int for choice in get_args(annotation)) else set()
    return {kind for part in get_args(annotation) for kind in _kinds(part)}


def _facts(notes: Iterable[Any]) -> Iterator[Any]:
    for note in notes:
        yield from (note, *getattr(note, "metadata", ()))


def _is_in_bounds(option: JsonValue) -> JsonValue:
    for value in option if isinstance(option, list) else [option]:
        most = MOST if isinstance(value, int) else LARGEST
        if isinstance(value, int | float) and not abs(value) <= most:
            raise ScenarioError("must be a number within bounds", found=value, allowed=f"{-most:,} to {most:,}")
    return option


Option = Annotated[JsonValue, AfterValidator(_is_in_bounds)]
"""An option of a method, which knows its type; its numbers, also in a list, are bounded as all others are."""


class Concern(Enum):
    """Concern of a scenario's key: what it decides, as in `Annotated[int, Concern.SYSTEM]`.

    A field without one shares that of its section. `sfl_sim.scenario.concerns` compares scenarios by them.
    """

    SHOWING = "names, the grid, and what pages show: no result of a trial depends on it"
    RECORDING = "what is recorded besides training, and where data sets lie: nothing learned depends on it"
    COMPUTING = "how this machine computes: results may differ in their last bits, simulated time does not"
    SYSTEM = "how fast devices, links and the server are: simulated time depends on it, methods do not see it"
    ORDER = "which client the server serves next"
    DEALING = "which client holds which training samples"
    LEARNING = "everything else that decides what is learned"


class Decided(Enum):
    """Who decides a scenario's key, as in `Annotated[int, Decided.BY_THE_WORLD]`: only a user's keys have a best value.

    A field without one shares that of its section.
    """

    BY_THE_USER = "the user: cut, servers, workers, order, batch, method"
    BY_THE_WORLD = "nobody who trains: how many clients there are, what they hold, devices, links, prices, chance"


def of_any_tier(key: str) -> str:
    """Give a dotted key with `*` in the place of the name of a tier of servers: `servers.*.workers`."""
    return re.sub(r"^servers\.[^.]+", "servers.*", key)


class OnlyWith:
    """Condition of a key: it has an effect only where another key beside it has one of these values.

    Written as `Annotated[float, OnlyWith("staleness", "hinge")]`. Keys without effect are refused by
    `sfl_sim.build.checks`.

    Args:
        key: the other key, or a dotted one below it.
        values: its values.
    """

    def __init__(self, key: str, *values: Any) -> None:
        self.key = key
        self.values = values

    def why_idle(self, section: BaseModel, prefix: str) -> str:
        """Say why the key has no effect in a section; an empty text if it has one."""
        value = attrgetter(self.key)(section)
        if self.allows(value):
            return ""
        return f"where {prefix}{self.key} is {json.dumps(value).strip(chr(34))}"

    def allows(self, value: Any) -> bool:
        """Return True if the key has an effect where the other key has this value; of a list, one is enough."""
        return any(each in self.values for each in (value if isinstance(value, list) else [value]))


class Unless(OnlyWith):
    """Condition of a key: it has an effect except where another key beside it has one of these values."""

    def allows(self, value: Any) -> bool:
        """Return True if the key has an effect where the other key has this value."""
        return value not in self.values


def conditional(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Generate the keys with a condition and a value other than their default, in a section and those within it.

    Each with its value, and why it has no effect; an empty text if it has one.
    """
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from conditional(value, f"{prefix}{name}.")
        elif isinstance(value, dict) and all(isinstance(one, BaseModel) for one in value.values()):
            for key, one in value.items():
                yield from conditional(one, f"{prefix}{name}.{key}.")
        elif value != field.default:
            reasons = [note.why_idle(section, prefix) for note in field.metadata if isinstance(note, OnlyWith)]
            if reasons:
                yield f"{prefix}{name}", value, next(filter(None, reasons), "")


class Section(BaseModel):
    """A mapping with known keys. Values are never converted, so that a wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of keys of which exactly one is given, as a whole; a group with a default yields to one that is given."""

    or_else: ClassVar[tuple[str, ...]] = ()
    """Keys that suffice without any of these groups."""

    @model_validator(mode="before")
    @classmethod
    def _yield_defaults(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        value = with_numbers(cls, value)
        given = [group for group in cls.one_of if any(value.get(key) is not None for key in group)]
        others = {key for group in cls.one_of if group not in given for key in group}
        return {**dict.fromkeys(others), **value} if given else value

    @model_validator(mode="after")
    def _has_one_of_them(self) -> Self:
        known = {group: [key for key in group if getattr(self, key) is not None] for group in self.one_of}
        given = [group for group, keys in known.items() if keys]
        for group in given:
            if missing := [key for key in group if key not in known[group]]:
                raise ScenarioError(f"needs {_all_of(missing)} too", key=known[group][0])
        if len(given) > 1:
            raise ScenarioError(
                f"cannot be given together with {_all_of(given[0])}",
                key=given[1][0],
                found=getattr(self, given[1][0]),
            )
        if known and not given and all(getattr(self, key) is None for key in self.or_else):
            (first, *_), *others = self.one_of
            raise ScenarioError(f"must not be empty without {_all_of(itertools.chain(*others))}", key=first)
        return self

    @classmethod
    def excluded_by(cls, key: str) -> set[str]:
        """Return the keys that are removed when a grid or the command line sets `key`: those of the other groups."""
        own = next((group for group in cls.one_of if key in group), ())
        return {other for group in cls.one_of if own and group != own for other in group}

    @classmethod
    def of_key(cls, key: str) -> type[Section]:
        """Return the class of the section that holds the dotted `key`, this one where it is unknown."""
        step, _, rest = key.partition(".")
        field = cls.model_fields.get(step)
        sections = [*sections_in(field.annotation)] if field and rest else []
        rest = rest if not field or get_origin(field.annotation) is not dict else rest.partition(".")[2]
        return next((section.of_key(rest) for section in sections), cls)


def _all_of(keys: Iterable[str]) -> str:
    """Return the keys as the end of a sentence: `a profile`, `uplink_bps and downlink_bps`."""
    return " and ".join(key if "_" in key else f"a {key}" for key in keys)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    """Generate the classes of sections that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


class Bare(Section):
    """A section in whose place a bare value may stand."""

    bare: ClassVar[Mapping[str, str]]
    """The field that a bare value stands for, by the value's JSON type."""

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: object) -> object:
        if "number" in cls.bare:
            value = quantity(value, cls.bare["number"])
        if isinstance(value, str):
            if "number" in cls.bare and value.lstrip(" +-.")[:1].isdecimal() and not re.search(PATH, value):
                problem = f"is neither a number nor a {cls.bare['string']}"
                raise ScenarioError(problem, found=value, allowed=in_units(cls.bare["number"]))
            return {cls.bare["string"]: value}
        if "number" in cls.bare and isinstance(value, int | float) and not isinstance(value, bool):
            return {cls.bare["number"]: value}
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        section = handler.resolve_ref_schema(handler(schema))
        bare = [
            next(kind for kind in section["properties"][field]["anyOf"] if kind["type"] == json_type)
            for json_type, field in cls.bare.items()
        ]
        return {"anyOf": [*bare, section]}
