"""The sentences at the top of the page on a what-if: what is best, what survives, how the world changes it."""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.features.whatif.figures import field
from sfl_sim.features.whatif.load import ShownAxis, WhatIfFolder, bold
from sfl_sim.metrics.choices import ALIKE
from sfl_sim.report.display import duration, listed, percent, plural
from sfl_sim.report.lead import MAX_SENTENCES, Compared, Sentence, best_along, lead
from sfl_sim.report.results import accuracy

PointKey = tuple[Hashable, ...]
"""A series, and an index on each axis that a user decides."""


def headline(whatif: WhatIfFolder) -> list[Sentence]:
    """Say which choice is the best in the scenario's own world, whether it survives, and where it changes.

    A choice is a value of every key that a user decides; of several series, each at its best, which of them is. Where
    nothing is chosen, how the world changes a round. What was asked beside the axes comes before the others of them.
    """
    chosen, several, asked = whatif.chosen, len(whatif.series) > 1, [*verdict(whatif), *first_to_target(whatif)]
    if not whatif.compares:
        said = responses(whatif)
        return [*said[:1], *asked, *said[1:]][:MAX_SENTENCES]
    seconds = _by_point(whatif, whatif.points.dropna(subset="round_s"), "round_s")
    if several:  # each at its best, and where it reads the same
        medians = pd.Series({point: of_seeds.median() for point, of_seeds in seconds.items()}, dtype=float)
        best = medians.groupby([point[0] for point in seconds], sort=False).transform("min")
        is_best = medians.map(duration) == best.map(duration)
        seconds = {point: seconds[point] for point, is_it in zip(seconds, is_best, strict=True) if is_it}
    noun = "variant" if several else chosen[0].noun if len(chosen) == 1 else "combination"
    compared = Compared("time of a round", "shortest", duration, noun=noun, learned=False)
    own: tuple[PointKey, str] | None = None
    bases = [axis.base for axis in chosen]
    if not several and None not in bases:
        own = (whatif.series[0].label, *bases), "the scenario’s own"
    first = lead(compared, seconds, _names(whatif, seconds), own)
    return [*first, *asked, *changes(whatif)][:MAX_SENTENCES]


def _by_point(whatif: WhatIfFolder, rows: pd.DataFrame, column: str) -> dict[PointKey, pd.Series]:
    """By series and index on each axis that a user decides, a number for each seed, in the scenario's own world."""
    points = whatif.in_own_world(rows).groupby(["series", *(axis.key for axis in whatif.chosen)], sort=False)
    return {point: of_seeds.set_index("seed")[column] for point, of_seeds in points}


def _names(whatif: WhatIfFolder, points: Iterable[PointKey]) -> dict[PointKey, Markup]:
    keys = ["series", *(axis.key for axis in whatif.chosen)]
    return {point: _said(whatif, dict(zip(keys, point, strict=True))) for point in points}


def changes(whatif: WhatIfFolder) -> list[Sentence]:
    """Say where along the first axis of the world the best changes, of the first series that is drawn.

    Where nothing is chosen, which of the series is the best.
    """
    across = whatif.across if whatif.chosen else whatif.along
    if across is None or across.is_chosen or not whatif.drawn:
        return []
    if not whatif.chosen:
        times_s = np.stack([whatif.times(one).reindex(range(len(across.values))) for one in whatif.series])
        whose = [bold(one.label) for one in whatif.series]
        return best_along("variant", across.noun, whose, _columns(across), times_s, ALIKE, across.is_numeric)
    rows, times_s = (
        [whatif.along.said(i) for i in range(len(whatif.along.values))],
        field(whatif, whatif.drawn[0], across),
    )
    noun = whatif.along.noun + (f" of {whatif.drawn[0].label.unescape()}" if len(whatif.series) > 1 else "")
    pinned = [axis.said(axis.shown).striptags() for axis in whatif.others[1:]]
    noun += f" at {', '.join(pinned)}" if pinned else ""
    return best_along(noun, across.noun, rows, _columns(across), times_s, ALIKE, across.is_numeric)


def _columns(axis: ShownAxis) -> list[Markup]:
    """The values of an axis in a sentence that has named it."""
    return [escape("×" if axis.title.endswith("×") else "") + name for name in axis.names]


def responses(whatif: WhatIfFolder) -> list[Sentence]:
    """Say for each axis how a round changes with it, all others at the scenario's own: its shortest and its longest.

    Facts: the key (`axis`), the indices of `shortest` and `longest`, their medians (`seconds`), and `times`.
    """
    said = []
    for axis in whatif.axes:
        rows = whatif.middle.dropna(subset="round_s")
        for other in whatif.axes:
            rows = rows if other is axis else rows[rows[other.key] == other.shown]
        seconds = rows.set_index(axis.key)["round_s"].sort_values(kind="stable")
        if len(seconds) < 2:
            continue
        (shortest, longest), (least_s, most_s) = seconds.index[[0, -1]], seconds.iloc[[0, -1]]
        facts = {"axis": axis.key, "shortest": int(shortest), "longest": int(longest), "seconds": (least_s, most_s)}
        text = Markup("A round takes {} at {} and {} at {}, {:.2f} times as much, of the values tried.")
        text = text.format(
            duration(least_s), axis.said(shortest), duration(most_s), axis.said(longest), most_s / least_s
        )
        if duration(least_s) == duration(most_s):
            text = Markup("A round takes {} at every {} tried.").format(duration(least_s), axis.noun)
        said.append(Sentence(text, facts | {"times": most_s / least_s}))
    return said


def verdict(whatif: WhatIfFolder) -> list[Sentence]:
    """A sentence on how often the first of the scenario's own world comes first in the draws, and who else does.

    Where nothing competes with it, how long its round takes in them.
    """
    here = whatif.in_own_world(whatif.survival) if len(whatif.draws) else whatif.draws
    if here.empty:
        return []
    ours = here.nsmallest(1, "round_s")
    (first,) = ours.to_dict("records")
    rivals = here[here["contest"] == first["contest"]].drop(ours.index).nlargest(1, "first")
    if rivals.empty:
        told = Markup("In 80 % of {} from the errors of prices and profiles, a round at {} takes {} to {}.")
        where = listed([axis.said(first[axis.key]) for axis in whatif.axes])
        ends = first["low_s"], first["high_s"]
        return [Sentence(told.format(in_draws(whatif), where, *map(duration, ends)), {"80 % of draws": ends})]
    (other,) = rivals.to_dict("records")
    share, next_share = percent(first["first"], 0), percent(other["first"], 0)
    of_all = here[here["contest"] == first["contest"]]["first"]
    alike = int(sum(percent(one, 0) == share for one in of_all)) - 1
    ending = Markup("{} is in {}").format(_said(whatif, other), next_share)
    ending = escape(f"so are {plural(alike, 'other')}") if alike > 1 and next_share == share else ending
    told = Markup("In {} of {} from the errors of prices and profiles, {} is the first or as good; {}.")
    text = told.format(share, in_draws(whatif), _said(whatif, first), ending)
    at = ["series", *(axis.key for axis in whatif.chosen)]
    who, whose = (tuple(point[key] for key in at) for point in (first, other))
    return [Sentence(text, {"first": who, "share": first["first"], "next": whose, "its share": other["first"]})]


def in_draws(whatif: WhatIfFolder) -> str:
    """Count the drawn systems."""
    return plural(whatif.draws["draw"].nunique(), "drawn system")


def _said(whatif: WhatIfFolder, point: Mapping[Any, Any]) -> Markup:
    said = Markup(", ").join(axis.said(point[axis.key]) for axis in whatif.chosen)
    if said and len(whatif.series) == 1:
        return said
    return Markup(" with ").join([bold(Markup(point["series"])), *([said] if said else [])])


def first_to_target(whatif: WhatIfFolder) -> list[Sentence]:
    """A sentence on which of the trained points of the scenario's own system reaches the target first."""
    if whatif.overlay.empty:
        return []
    here = whatif.overlay.astype({"target_accuracy": float, "time_to_accuracy_s": float})
    valid = here.groupby(["series", *(axis.key for axis in whatif.axes)])["valid"].transform("all").astype(bool)
    here = here[valid & (here["target_accuracy"] > 0)]
    if here.empty:
        return []
    seconds = _by_point(whatif, here.fillna({"time_to_accuracy_s": math.inf}), "time_to_accuracy_s")
    target = f"{accuracy(here['target_accuracy'].median())} accuracy"
    compared = Compared(f"time to {target}", "shortest", duration, target=target, noun="trained configuration")
    return lead(compared, seconds, _names(whatif, seconds))
