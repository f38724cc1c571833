"""What was found, in plain sentences: who reaches the target first, and what a fixed order costs."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from sfl_sim.report.display import duration, percent, plural, points
from sfl_sim.report.results import medians, target

if TYPE_CHECKING:
    import pandas as pd

    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.load import Run

ARRIVAL_ORDER = "fcfs"
MAX_COMPARISONS = 3


def headline(frames: Frames) -> list[str]:
    """HTML sentences, the most important first."""
    middle = medians(frames)
    if frames.timing_only:
        lead = [_fastest(frames, middle)]
    elif (aim := target(frames)) is None:
        lead = [_most_accurate(frames, middle)]
    elif middle["time_to_accuracy_s"].min() < math.inf:
        lead = [_first_to_target(frames, middle, aim)]
    else:
        lead = [f"The target of {percent(aim, 0)} accuracy is not reached.", _most_accurate(frames, middle)]
    return lead + _order_costs(frames, middle)


def warnings(frames: Frames) -> list[str]:
    """What a reader must know before believing the rest, as HTML sentences."""
    return [text for run in frames.runs for text in _warnings(run)]


def _warnings(run: Run) -> list[str]:
    texts = []
    if (status := run.manifest.get("status")) != "complete":
        planned = (run.scenario.get("train") or {}).get("rounds", "?")
        texts.append(
            html.escape(f"{run.name}: {status} after round {run.rounds['round'].max()} of {planned}. ")
            + "What follows is what was stored until then; variants and seeds may have come to different rounds."
        )
    if run.rounds["accuracy"].isna().all():
        texts.append(
            html.escape(f"{run.name}: timing-only. ")
            + "Nothing was trained, so there is no accuracy; times and bytes are those of a training run."
        )
    return texts


def _fastest(frames: Frames, middle: pd.DataFrame) -> str:
    per_round_s = middle["simulated_s"] / middle["rounds"]
    first, *others = _ranked(frames, per_round_s)
    sentence = f"{first.html} takes {duration(per_round_s[first.label])} of simulated time per round"
    if others:
        last = others[-1]
        return f"{sentence}, the least of all; {last.html} takes the most, {duration(per_round_s[last.label])}."
    return sentence + "."


def _first_to_target(frames: Frames, middle: pd.DataFrame, aim: float) -> str:
    time_s = middle["time_to_accuracy_s"]
    first, *others = _ranked(frames, time_s)
    sentence = (
        f"{first.html} reaches {percent(aim, 0)} accuracy {'first, ' if others else ''}after "
        f"{duration(time_s[first.label])} of simulated time and "
        f"{plural(middle.at[first.label, 'rounds_to_accuracy'], 'round')}"
    )
    if not others:
        return sentence + "."
    second = others[0]
    if math.isinf(time_s[second.label]):
        return f"{sentence}; no other variant reaches it."
    return f"{sentence}; the next is {second.html} after {duration(time_s[second.label])}."


def _most_accurate(frames: Frames, middle: pd.DataFrame) -> str:
    accuracy = middle["accuracy"]
    first, *others = _ranked(frames, -accuracy)
    best = middle.loc[first.label]
    sentence = (
        f"{first.html} ends with {'the best accuracy, ' if others else 'an accuracy of '}"
        f"{percent(best['accuracy'])}, after {plural(best['rounds'], 'round')} and {duration(best['simulated_s'])} of simulated time"
    )
    if others and accuracy[others[0].label] > 0:
        return f"{sentence}; the next is {others[0].html} with {percent(accuracy[others[0].label])}."
    return sentence + "."


def _ranked(frames: Frames, cost: pd.Series) -> list[Variant]:
    """The variants by rising cost, those without one last."""
    return sorted(frames.variants, key=lambda variant: cost.fillna(math.inf)[variant.label])


def _order_costs(frames: Frames, middle: pd.DataFrame) -> list[str]:
    """One sentence for each pair of variants that differ in their order alone, one of them in arrival order."""
    arrival = {_without_order(v): v for v in frames.variants if v.order == ARRIVAL_ORDER}
    pairs = [
        (variant, arrival[_without_order(variant)])
        for variant in frames.variants
        if variant.order not in (None, ARRIVAL_ORDER) and _without_order(variant) in arrival
    ]
    return [_order_cost(fixed, free, middle) for fixed, free in pairs[:MAX_COMPARISONS]]


def _without_order(variant: Variant) -> tuple[str, ...]:
    return variant.method, *(word for word in variant.name.split(", ") if word != variant.order)


def _order_cost(fixed: Variant, free: Variant, middle: pd.DataFrame) -> str:
    """What the order of `fixed` costs and gains over arrival order."""
    ours, theirs = middle.loc[fixed.label], middle.loc[free.label]
    round_s, free_round_s = (row["simulated_s"] / row["rounds"] for row in (ours, theirs))
    change = round_s / free_round_s - 1
    share = percent(abs(change), 0 if abs(change) >= 0.1 else 1)
    sentence = (
        f"With {html.escape(fixed.method)}, serving in {html.escape(str(fixed.order))} order takes "
        f"{share} {'more' if change >= 0 else 'less'} simulated time than arrival order "
        f"({duration(round_s)} against {duration(free_round_s)} a round)"
    )
    if math.isnan(ours["accuracy"]) or math.isnan(theirs["accuracy"]):
        return sentence + "."
    return (
        f"{sentence}; it ends with {percent(ours['accuracy'])} accuracy "
        f"against {percent(theirs['accuracy'])}, and a performance gap of {points(ours['performance_gap'])} against "
        f"{points(theirs['performance_gap'])} points."
    )
