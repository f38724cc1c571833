"""The sentences that open a page, at most three: who is first, what is best where, what to choose.

One rule for all. Compared are medians over seeds, written as tables write them: what reads alike is equal. A seed that
never gets to a target is infinitely late; who gets there with fewer than half of the seeds has no number. Nobody is
first where the 95 % intervals of mean ranks overlap, or what was learned is known with one seed: these are not told
apart. Else how many seeds agree is said, of those that both have. A ratio is that of the two medians beside it
(`times`), and there is none where a seed of either misses the target: how many reach it is said instead. Tables have
the same rule.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from numpy.typing import NDArray

from sfl_sim.metrics.choices import ranks
from sfl_sim.report.display import capitalised, few_of, listed, percent, plural

L = TypeVar("L", bound="Hashable")

MAX_SENTENCES = 3
MAX_SPANS = 4
"""Largest number of stretches of an axis that a sentence names."""


@dataclass(frozen=True)
class Sentence:
    """A sentence at the top of a page; `facts` are the names and numbers in it."""

    text: Markup
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """What is compared.

    Attributes:
        name: time to 70 % accuracy.
        best: how the best one is called: shortest.
        text: writes a number.
        target: what is to be reached: 70 % accuracy; empty if nothing is.
        noun: what has the number.
        learned: whether it depends on what was learned, so that with one seed it says little.
        amount: whether it can be so many times as much: a time or bytes, and no similarity or decibels.
    """

    name: str
    best: str
    text: Callable[[float], str]
    _: KW_ONLY
    more_is_better: bool = False
    target: str = ""
    noun: str = "variant"
    learned: bool = True
    amount: bool = True


def lead(
    compared: Compared,
    numbers: Mapping[L, pd.Series],
    names: Mapping[L, Markup] | None = None,
    reference: tuple[L, str] | None = None,
) -> list[Sentence]:
    """The sentence on who is first and who is next, and with how many seeds that is so; none without numbers.

    Its facts are `compared`, `medians` by label, the labels `first` and `next`, and by label how many seeds reach the
    target, and of how many, if not all do (`late`); how many times as much the next has (`times`), where it is said;
    of the seeds that the first and the next have in common, their number, and with how many the first is ahead, or as
    good (`seeds`, `ahead`, `level`); or who is `not told apart`, the best median first, and then nobody is `first`.

    Args:
        compared: what the numbers are.
        numbers: by label, a number for each seed (its index): infinite if it never gets there, NaN if unknown.
        names: the labels as they read, by default bold.
        reference: a label that is named in any case, and what it is.
    """
    known = {label: own.dropna() for label, own in numbers.items() if own.notna().any()}
    if not known:
        return []
    medians = {label: float(own.median()) for label, own in known.items()}
    ranked = sorted(medians, key=lambda label: -medians[label] if compared.more_is_better else medians[label])
    seeds = {label: (int(np.isfinite(own).sum()), len(own)) for label, own in known.items()}
    late = {label: of for label, of in seeds.items() if of[0] < of[1]}
    facts: dict[str, Any] = {"compared": compared.name, "medians": medians, "first": [], "late": late}

    def name(label: L) -> Markup:
        return names[label] if names else Markup("<b>{}</b>").format(label)

    def number(label: L, some: str = " ({})") -> Markup:
        with_some = f"with {late[label][0]} of {plural(late[label][1], 'seed')}" if label in late else ""
        return escape(compared.text(medians[label]) + (with_some and some.format(with_some)))

    on_time = [label for label in ranked if math.isfinite(medians[label])]
    if not on_time:
        half = " with more than half of its seeds" if any(n for n, _ in late.values()) else ""
        return [Sentence(escape(f"No {compared.noun} reaches {compared.target}{half}."), facts)]
    first = [label for label in on_time if compared.text(medians[label]) == compared.text(medians[on_time[0]])]
    facts["first"], rest = first, on_time[len(first) :]
    if len(known) == 1:
        return [Sentence(escape(f"The {compared.name} of ") + name(first[0]) + " is " + number(first[0]) + ".", facts)]
    if len(first) == len(known):
        few = few_of([name(label) for label in first])
        who = escape(f"All {len(known)} {compared.noun}s") if len(known) > MAX_SPANS else few
        return [
            Sentence(capitalised(who + escape(f" have the same {compared.name}, ") + number(first[0])) + ".", facts)
        ]
    alike, why = _not_told_apart(compared, {label: numbers[label] for label in known}, on_time, first)
    if alike:
        facts |= {"first": [], "not told apart": alike}
        each = [name(label) + " (" + number(label, " {}") + ")" for label in alike]
        clauses = [few_of(each) + escape(f" are not told apart in {compared.name}: {why}")]
    else:
        has = "has" if len(first) == 1 else "have"
        best = escape(f" {has} the {compared.best} {compared.name}, ")
        clauses = [few_of([name(label) for label in first]) + best + number(first[0])]
    if rest and not alike:
        ratio = times(known[rest[0]], known[first[0]])
        as_much = (
            f", {ratio:.2f} times as much" if ratio > 1 and compared.amount and not compared.more_is_better else ""
        )
        clauses.append("the next is " + name(rest[0]) + " with " + number(rest[0]) + as_much)
        facts |= {"next": rest[0]} | ({"times": ratio} if as_much else {})
    if rest and len(first) == 1 and not alike:
        facts |= (agreement := _agreement(compared, known[first[0]], known[rest[0]]))
        clauses.append(Markup(_agreeing(**agreement)))
    if reference and reference[0] in {*on_time} - {*alike, *first, *rest[:1]}:
        clauses.append(name(reference[0]) + escape(f", {reference[1]}, has ") + number(reference[0]))
    if never := ranked[len(on_time) :]:
        does, some = ("does", "its") if len(never) == 1 else ("do", "their")
        half = f" with more than half of {some} seeds" if any(late[label][0] for label in never) else ""
        clauses.append(few_of([name(label) for label in never]) + escape(f" {does} not reach {compared.target}{half}"))
    return [Sentence(capitalised(Markup("; ").join(clauses)) + ".", facts)]


def times(ours: pd.Series, theirs: pd.Series) -> float:
    """How many times as much we have as they, by medians over seeds; NaN if a seed of either never gets there."""
    both = [numbers.dropna() for numbers in (ours, theirs)]
    on_time = all(len(numbers) and np.isfinite(numbers).all() for numbers in both)
    (above, below) = (float(numbers.median()) for numbers in both)
    return above / below if on_time and below > 0 else math.nan


def _not_told_apart(
    compared: Compared, numbers: Mapping[L, pd.Series], on_time: Sequence[L], first: Sequence[L]
) -> tuple[list[L], str]:
    """Those who get there that are not told apart from the best one, and why; none if all are."""
    of_seeds = pd.concat(list(numbers.values()), axis="columns", join="inner", keys=range(len(numbers)))
    if len(of_seeds) < 2:
        why = "one seed" if len(of_seeds) else "their seeds are not the same"
        return (list(on_time), why) if compared.learned and len(on_time) > 1 else ([], "")
    ranked = dict(zip(numbers, ranks(of_seeds, compared.more_is_better).to_dict("records"), strict=True))
    best = min((ranked[label] for label in first), key=lambda row: row["rank"])
    alike = [label for label in on_time if ranked[label] is best or ranked[label]["low"] <= best["high"]]
    why = f"the 95 % intervals of their mean ranks over {plural(len(of_seeds), 'seed')} overlap"
    return (alike, why) if len(alike) > 1 else ([], "")


def _agreement(compared: Compared, ours: pd.Series, theirs: pd.Series) -> dict[str, int]:
    """Over the seeds that both have: with how many the first is ahead, and with how many both read alike."""
    pairs = pd.concat({"ours": ours, "theirs": theirs}, axis="columns", join="inner")
    read = pairs.map(lambda number: compared.text(number) if math.isfinite(number) else str(number))
    level = read["ours"] == read["theirs"]
    is_ahead = (
        pairs["ours"] > pairs["theirs"] if compared.more_is_better else pairs["ours"] < pairs["theirs"]
    ) & ~level
    return {"seeds": len(pairs), "ahead": int(is_ahead.sum()), "level": int(level.sum())}


def _agreeing(seeds: int, ahead: int, level: int) -> str:
    if seeds < 2:
        return "one seed" if seeds else "their seeds are not the same"
    alike = f", and both are as good with {level}" if level else ""
    return f"{ahead} of {seeds} seeds agree{alike}"


@dataclass(frozen=True)
class BestSpan:
    """Stretch of an axis on which one row is the best of those tried, by the indices of its ends."""

    row: int
    first: int
    last: int


def best_by_column(numbers: NDArray[np.float64]) -> dict[int, int]:
    """The row of the least number of each column that has one."""
    known = np.flatnonzero(~np.isnan(numbers).all(axis=0))
    return {int(column): int(np.nanargmin(numbers[:, column])) for column in known}


def best_spans(numbers: NDArray[np.float64], alike: float) -> list[BestSpan]:
    """Which row is the best in which columns. A new one takes over when it is less by more than a share of `alike`."""
    spans: list[BestSpan] = []
    for column, row in best_by_column(numbers).items():
        if spans and numbers[row, column] >= numbers[spans[-1].row, column] * (1 - alike):
            spans[-1] = BestSpan(spans[-1].row, spans[-1].first, column)
        else:
            spans.append(BestSpan(row, column, column))
    return spans


def best_along(
    best: str,
    axis: str,
    rows: Sequence[Markup],
    columns: Sequence[Markup],
    numbers: NDArray[np.float64],
    alike: float,
    is_numeric: bool = True,
) -> list[Sentence]:
    """The sentence on which row is the best at which values of an axis; none if fewer than two values are known.

    Args:
        best: what is best: cut.
        axis: what is varied: bandwidth.
        rows, columns: names of the rows of `numbers` and of its columns, which are the values of the axis.
        alike: share by which numbers may differ that count as equal.
        is_numeric: whether the values lie on an axis of numbers.
    """
    by_column = best_by_column(numbers)
    if len(by_column) < 2:
        return []
    spans = best_spans(numbers, alike)
    facts = {"spans": spans}
    within = numbers <= (1 + alike) * np.fmin.reduce(numbers, axis=0)
    ties = [name for name, is_tie in zip(rows, within[:, [*by_column]].all(axis=1), strict=True) if is_tie]
    if len(ties) > 1:
        return [Sentence(few_of(ties) + escape(f" are as good at every {axis}."), facts | {"alike": len(ties)})]
    if len(spans) == 1:
        close = f", or within {percent(alike, 0)} of it," if len({*by_column.values()}) > 1 else ""
        text = capitalised(rows[spans[0].row]) + escape(f" is the best {best}{close} at every {axis}.")
        return [Sentence(text, facts)]
    where: dict[int, list[Markup]] = {}
    for span in spans:
        first, last = columns[span.first], columns[span.last]
        alone = [first] if span.first == span.last else [Markup("{} to {}").format(first, last)]
        where.setdefault(span.row, []).extend(alone if is_numeric else columns[span.first : span.last + 1])
    told = [rows[row] + " at " + listed(values) for row, values in where.items()]
    if len(told) > MAX_SPANS:
        told[MAX_SPANS - 1 :] = [Markup("{} others").format(len(told) - MAX_SPANS + 1)]
    text = escape(f"The best {best} changes with {axis}, of the values tried: ") + Markup("; ").join(told) + "."
    return [Sentence(text, facts)]


def choice(figures: Sequence[str], chosen: Mapping[L, Markup], others: str = "", more: str = "") -> Sentence:
    """The sentence on who is on the Pareto front of some figures; its facts are their labels (`chosen`).

    Args:
        figures: what is traded: time, accuracy.
        chosen: the names of those on the front, by label.
        others: which of the others are worse, if not all are.
        more: the end of the sentence.
    """
    traded, either = (listed(list(map(escape, figures)), word) for word in ("and", "or"))
    facts = {"figures": list(figures), "chosen": list(chosen)}
    if len(chosen) == 1:
        (best,) = chosen.values()
        return Sentence(
            escape(f"No other variant{others} is better than ") + best + " in " + either + f"{more}.", facts
        )
    names = few_of(list(chosen.values()), "or")
    text = "To trade " + traded + " against each other, choose " + names
    worse = f": every other variant{others} is at best as good as one of these in all of them{more}."
    return Sentence(text + escape(worse), facts)
