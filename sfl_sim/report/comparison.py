"""Differences between runs side by side, and between before and after of a repriced run."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf, isfinite
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.scores import SCORES
from sfl_sim.report.display import duration, listed, plural, points
from sfl_sim.report.frames import Frames, ShownVariant, titles
from sfl_sim.report.lead import Sentence
from sfl_sim.report.load import TABLES, Run, flat
from sfl_sim.report.panel import Cell, Column, Table
from sfl_sim.report.results import TIME, aims, columns_for, factor, is_share, of_each
from sfl_sim.scenario.concerns import NOT_LEARNED, concern_of
from sfl_sim.scenario.fields import Concern

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
CLIENTS = "client_accuracy", "hybrid_accuracy"
POINTS = {name: f"{TABLES['summary'].columns[name].title} (points)" for name in (*SCORES, *CLIENTS) if is_share(name)}
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

    @property
    def in_words(self) -> Markup:
        """Say which setting is compared, or warn that it is not the only one that differs."""
        apart = Markup(", apart from what their grids vary ({})").format(_listed_keys(self.grids)) if self.grids else ""
        if not self.settings:
            return Markup("The runs have the same settings{}.").format(apart)
        if not self.others:
            return Markup("The runs differ in {} alone{}.").format(_listed_keys([*self.settings]), apart)
        others = _listed_keys(self.others)
        if self.compared:
            return Markup(
                "{} is different in every run. These runs also differ in {}. Their results may differ because of that."
            ).format(_listed_keys([self.compared]), others)
        return Markup("These runs differ in {}. Their results may differ because of any of these.").format(others)

    @property
    def machine_in_words(self) -> Markup:
        """Say what other ways of computing mean for the comparison."""
        return Markup(
            "They were also computed differently: {}. Simulated time does not depend on that; weights may differ "
            "in their last bits, and wall times are not comparable."
        ).format(_listed_keys([*self.machine]))

    def table(self, values: Values) -> Table:
        """A row for each key, a column for each run."""
        rows = [[Cell(_as_code(key)), *(Cell(short_text(text)) for text in texts)] for key, texts in values.items()]
        return Table(["", *self.titles], rows, words=self.titles)

    @property
    def settings_table(self) -> Table:
        """The settings that differ, with all keys that belong to them."""
        return self.table({key: texts for part in self.settings.values() for key, texts in part.items()})


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
    for key, digests in differing(own_code, manifests).items():
        settings[key.removeprefix("own_code.")] = {key: [digest[:8] for digest in digests]}
    return Comparison(titles(runs), settings, differing(MACHINE, manifests) | machine, grids)


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


def differing(keys: Iterable[str], told: Sequence[Mapping[str, Any]]) -> Values:
    """Return the values of those keys that are not the same in all that is `told`, as text."""
    by_key = {key: [_text(one, key) for one in told] for key in keys}
    return {key: values for key, values in by_key.items() if len(set(values)) > 1}


def _listed_keys(keys: Sequence[str]) -> Markup:
    """Keys in a sentence, the first few by name."""
    named = [_as_code(key) for key in keys[:MAX_NAMED]]
    if len(keys) > MAX_NAMED:
        named.append(Markup(plural(len(keys) - MAX_NAMED, "more setting")))
    return listed(named)


def _as_code(key: str) -> Markup:
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
                *(_median_change(frames, each, ours, theirs) for each in columns),
            ]
            for ours, theirs in _matching_variants(frames, first[0], run)
        ]
        if rows:
            names = [POINTS.get(column.key, column.title) for column in columns]
            tables.append(Table(["Variant", *names], rows, f"Differences: {title} − {first[1]}", DIFFERENCES))
    return tables


def _matching_variants(frames: Frames, one: Run, other: Run) -> list[tuple[ShownVariant, ShownVariant]]:
    """The variants of two runs that have the same name, or the only ones of both."""
    ours, theirs = ([each for each in frames.variants if each.run is run] for run in (one, other))
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    by_name = {variant.name: variant for variant in ours}
    return [(by_name[each.name], each) for each in theirs if each.name in by_name]


def _median_change(frames: Frames, column: Column, ours: ShownVariant, theirs: ShownVariant) -> Cell:
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


def short_text(text: str, most: int = 60) -> str:
    """Return the text, or its beginning with an ellipsis if it has more than `most` letters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


# Before and after repricing

ARROW = "\u00a0→ "
MAX_TOLD = 4
TIMES = ["before_s", "after_s", "to_accuracy_before_s"]
NOTE = (
    "Medians over seeds; one that does not reach the target counts as infinitely late. Before: the system "
    "configuration in which the run was trained. After: the changed one. Where clients would be served in another "
    "order, or training would go on for more rounds, what is learned is not known without training."
)


def changes(run: Run) -> str:
    """The settings that were changed: clients.network.scale 1 → 4; empty of runs that were not repriced."""
    source = run.manifest.get("repriced_from") or {}
    told = [[key, *(text.removesuffix(".0") for text in texts)] for key, texts in source.get("changes", {}).items()]
    return ", ".join(f"{key} {was}{ARROW}{now}" for key, was, now in told)


def verdicts(frames: Frames) -> pd.DataFrame:
    """One row per variant and seed of a repriced run: `reason` (null if what it learned holds), times before and after.

    `to_accuracy_before_s` and `time_to_accuracy_s` are those to the target.
    """
    labels = {(variant.run.folder, variant.name): variant.label for variant in frames.variants}
    found = [
        verdict | {"variant": labels[run.folder, verdict["variant"]]}
        for run in frames.runs
        for verdict in run.verdicts
        if (run.folder, verdict["variant"]) in labels
    ]
    summary = frames.summary[["variant", "seed", "time_to_accuracy_s"]]
    table = pd.DataFrame(found, columns=["variant", "seed", "reason", *TIMES]).merge(summary, how="left")
    return table.astype(dict.fromkeys([*TIMES, "time_to_accuracy_s"], float))


def before_and_after(frames: Frames) -> list[Sentence]:
    """Say in a sentence how the simulated time of each variant changes; nothing of runs that were not repriced."""
    if not any(run.verdicts for run in frames.runs):
        return []
    middle = verdicts(frames).groupby("variant")[["before_s", "after_s"]].median().dropna()
    told = [
        variant.html + " from {} to {}".format(*map(duration, middle.loc[variant.label]))
        for variant in frames.variants
        if variant.label in middle.index
    ]
    if len(told) > MAX_TOLD:
        told[MAX_TOLD - 1 :] = [Markup("{} more below").format(len(told) - MAX_TOLD + 1)]
    said = "; ".join(filter(None, map(changes, frames.runs)))
    text = escape(f"With {said or 'the changed system configuration'}, simulated time changes: ") + listed(told) + "."
    return [Sentence(text, {"changes": said, "medians": middle.to_dict("index")})]


def repriced_table(frames: Frames) -> Table | None:
    """Tabulate times before and after, and what is known of learning; None for runs that were not repriced."""
    if not any(run.verdicts for run in frames.runs):
        return None
    rows = []
    for variant, seeds in of_each(verdicts(frames), frames.variants):
        if seeds.empty:
            continue
        before_s, after_s = seeds[["before_s", "after_s"]].median()
        holds = seeds["reason"].isna()
        after_target_s = seeds["time_to_accuracy_s"]
        after_target_s = after_target_s.mask(after_target_s.isna() & holds, inf)
        to_target = [seeds["to_accuracy_before_s"].fillna(inf).median(), after_target_s.median(skipna=False)]
        rows.append(
            [
                Cell(variant.html, plural(len(seeds), "seed")),
                Cell(TIME.read(before_s) + ARROW + TIME.read(after_s)),
                Cell(factor(before_s / after_s) if before_s > 0 and after_s > 0 else "–"),
                Cell(ARROW.join(map(TIME.read, to_target)) if any(map(isfinite, to_target)) else "–"),
                Cell("holds" if holds.all() else "must be trained", f"holds with {holds.sum()} of {len(seeds)}"),
            ]
        )
    titles = ["Variant", "Simulated time", "Times as fast", "Time to target", "What it learned"]
    return Table(titles, rows, title="Before and after", note=NOTE, words=titles[-1:])
