"""Differences between runs that stand side by side: the one setting that is compared, or more than that."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sfl_sim.report.display import listed, plural, points
from sfl_sim.report.frames import titles
from sfl_sim.report.load import flat
from sfl_sim.report.results import columns_for
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.targets import TIME, aims
from sfl_sim.scenario.concerns import NOT_LEARNED, concern_of
from sfl_sim.scenario.fields import Concern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.load import Run
    from sfl_sim.report.table import Column

Values = dict[str, list[str]]
"""Settings as text: for each dotted key the values of all runs."""

MACHINE = (
    "timing_only", "device", "threads", "jobs", "versions.sfl-sim", "versions.torch", "versions.numpy",
    "machine.processor", "machine.cores", "machine.gpu",
)  # fmt: skip
"""Keys of the manifest that say how a run was computed."""
CHOICES = ("name", "kind", "profile", "order")
"""Keys whose choice decides which of their neighbours matter, or have any value at all."""
NONE = ("–", "null")
MAX_NAMED = 4
POINTS = {
    "accuracy": "Accuracy (points)",
    "client_accuracy": "Client accuracy (points)",
    "hybrid_accuracy": "Hybrid accuracy (points)",
}
"""Columns of shares, whose differences are points."""
DIFFERENCES = "Seed by seed, then the median ± standard deviation over the seeds that both runs have."


@dataclass(frozen=True)
class Comparison:
    """Differences between runs, not counting what the grid of one of them varies.

    Attributes:
        titles: of the runs.
        settings: by the key that is counted, all keys that belong to it: a method's name, and its options.
        machine: how the runs were computed, what differs.
        grids: the keys that grids vary, unless all runs have the same combinations of their values.
    """

    titles: list[str]
    settings: dict[str, Values]
    machine: Values
    grids: Sequence[str] = ()

    @property
    def compared(self) -> str | None:
        """The key that is compared: the only one that differs, or the only one that differs in every run."""
        if len(self.settings) == 1:
            return next(iter(self.settings))
        everywhere = [
            key
            for key, values in self.settings.items()
            if len(set(zip(*values.values(), strict=True))) == len(self.titles)
        ]
        return everywhere[0] if len(everywhere) == 1 else None

    @property
    def others(self) -> list[str]:
        """The keys that differ besides."""
        return [key for key in self.settings if key != self.compared]


def compare(runs: Sequence[Run]) -> Comparison:
    """Look for settings, and for ways of computing, in which `runs` differ."""
    variants = [[settings_texts(settings) for settings in run.settings.values()] for run in runs]
    told = [_values(each) for each in variants]
    keys = list(dict.fromkeys(chain(*told)))
    by_key = {key: [one.get(key, {NONE[0]}) for one in told] for key in keys}
    uneven = {key for key, values in by_key.items() if len(set().union(*values)) > 1}
    varied = {key for key in uneven if any(len(value) > 1 for value in by_key[key])}
    settings: dict[str, Values] = {}
    machine: Values = {}
    for key in keys:
        if key not in uneven - varied:
            continue
        values = [value for (value,) in by_key[key]]
        topic = _topic(key, values, uneven)
        if concern_of(key) is Concern.COMPUTING:
            machine[key] = values
        elif topic not in varied:
            settings.setdefault(topic, {})[key] = values
    combinations = {frozenset(tuple(map(texts.get, sorted(varied))) for texts in each) for each in variants}
    topics = dict.fromkeys(_topic(key, [*chain(*by_key[key])], uneven) for key in keys if key in varied)
    grids = [topic for topic in topics if topic not in settings] if len(combinations) > 1 else []
    manifests = [flat(run.manifest) for run in runs]
    own_code = dict.fromkeys(key for one in manifests for key in one if key.startswith("own_code."))
    for key, digests in _differing(own_code, manifests).items():
        settings[key.removeprefix("own_code.")] = {key: [digest[:8] for digest in digests]}
    return Comparison(titles(runs), settings, _differing(MACHINE, manifests) | machine, grids)


def settings_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Give the settings of a variant that decide what comes out, as text."""
    return {key: _text(settings, key) for key in settings if concern_of(key) not in NOT_LEARNED}


def _values(variants: Sequence[Mapping[str, str]]) -> dict[str, set[str]]:
    """The values that each setting has in the variants of a run."""
    return {key: {texts.get(key, NONE[0]) for texts in variants} for key in dict.fromkeys(chain(*variants))}


def _text(settings: Mapping[str, Any], key: str) -> str:
    if key not in settings:
        return NONE[0]
    value = settings[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _topic(key: str, values: Sequence[str], uneven: Iterable[str]) -> str:
    """Give the key that `key` is counted under: its section where that differs, or the choice it is part of."""
    sections = list(_sections(key))
    instead = next((section for section in sections if section in uneven), None)
    if instead or any(other.startswith(f"{key}.") for other in uneven):
        return instead or key
    if any(value in NONE for value in values):
        choices = (f"{section}.{choice}" for section in reversed(sections) for choice in CHOICES)
        return next((choice for choice in choices if choice in uneven), key)
    return key


def _sections(key: str) -> Iterator[str]:
    """The sections that a dotted key lies in, the outermost first."""
    steps = key.split(".")
    return (".".join(steps[:depth]) for depth in range(1, len(steps)))


def _differing(keys: Iterable[str], told: Sequence[Mapping[str, Any]]) -> Values:
    by_key = {key: [_text(one, key) for one in told] for key in keys}
    return {key: values for key, values in by_key.items() if len(set(values)) > 1}


def settings_in_words(found: Comparison) -> Markup:
    """Say which setting is compared, or warn that it is not the only one that differs."""
    apart = Markup(", apart from what their grids vary ({})").format(_named(found.grids)) if found.grids else ""
    if not found.settings:
        return Markup("The runs have the same settings{}.").format(apart)
    if not found.others:
        return Markup("The runs differ in {} alone{}.").format(_named([*found.settings]), apart)
    others = _named(found.others)
    if found.compared:
        return Markup(
            "{} is different in every run. These runs also differ in {}. Their results may differ because of that."
        ).format(_named([found.compared]), others)
    return Markup("These runs differ in {}. Their results may differ because of any of these.").format(others)


def machine_in_words(found: Comparison) -> Markup:
    """Say what other ways of computing mean for the comparison."""
    return Markup(
        "They were also computed differently: {}. Simulated time does not depend on that; weights may differ "
        "in their last bits, and wall times are not comparable."
    ).format(_named([*found.machine]))


def _named(keys: Sequence[str]) -> Markup:
    """Keys in a sentence, the first few by name."""
    named = [_code(key) for key in keys[:MAX_NAMED]]
    if len(keys) > MAX_NAMED:
        named.append(Markup(plural(len(keys) - MAX_NAMED, "more setting")))
    return listed(named)


def _code(key: str) -> Markup:
    return Markup("<code>{}</code>").format(key)


def difference_tables(frames: Frames) -> list[Table]:
    """Tabulate what each run has more than the first one, by variant: medians over the seeds that both have."""
    first, *others = zip(frames.runs, titles(frames.runs), strict=True)
    columns = [*columns_for(frames), *([TIME] if any(aim.target for aim in aims(frames)) else [])]
    tables = []
    for run, title in others:
        rows = [
            [
                Cell(theirs.name if theirs.name == ours.name else theirs.html),
                *(_more(frames, each, ours, theirs) for each in columns),
            ]
            for ours, theirs in _pairs(frames, first[0], run)
        ]
        if rows:
            names = [POINTS.get(column.key, column.title) for column in columns]
            tables.append(Table(["Variant", *names], rows, f"Differences: {title} − {first[1]}", DIFFERENCES))
    return tables


def _pairs(frames: Frames, one: Run, other: Run) -> list[tuple[Variant, Variant]]:
    """The variants of two runs that have the same name, or the only ones of both."""
    ours, theirs = ([each for each in frames.variants if each.run is run] for run in (one, other))
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    by_name = {variant.name: variant for variant in ours}
    return [(by_name[each.name], each) for each in theirs if each.name in by_name]


def _more(frames: Frames, column: Column, ours: Variant, theirs: Variant) -> Cell:
    """How much more the second has than the first, seed by seed: the median, and how far it spreads."""
    numbers = frames.summary.pivot_table(index="seed", columns="variant", values=column.key)
    if not {ours.label, theirs.label} <= set(numbers):
        return Cell("–")
    more = (numbers[theirs.label] - numbers[ours.label]).dropna()
    if more.empty:
        return Cell("–")
    text = points if column.key in POINTS else column.text
    n_seeds = len(frames.summary[frames.summary["variant"] == theirs.label])
    told = [
        replace(column, text=text).spread(more),
        f"{len(more)} of {plural(n_seeds, 'seed')}" * (len(more) < n_seeds),
    ]
    middle = float(more.median())
    sign = "+" if middle > 0 else "−" if middle < 0 else ""
    return Cell(sign + text(abs(middle)), ", ".join(filter(None, told)))


def values_table(found: Comparison, values: Values) -> Table:
    """A row for each key, a column for each run."""
    rows = [[Cell(_code(key)), *(Cell(_short(text)) for text in texts)] for key, texts in values.items()]
    return Table(["", *found.titles], rows, words=found.titles)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
