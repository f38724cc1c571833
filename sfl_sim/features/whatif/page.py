"""The page on a what-if: its sections, the best cut in sentences and in a table, which the terminal shows as well."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from rich.console import Group

from sfl_sim.features.whatif import figures as draw
from sfl_sim.features.whatif.figures import parts_shown
from sfl_sim.features.whatif.headline import headline, in_draws
from sfl_sim.features.whatif.load import WhatIfFolder, load_whatif, where_drawn
from sfl_sim.metrics.choices import ALIKE
from sfl_sim.report import display, style
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import NBSP, capitalised, duration, percent, plural, tenths
from sfl_sim.report.html_page import write_page
from sfl_sim.report.panel import Cell, Declared, Drawing, Panel, Table, at_most, columns_of, panels_of
from sfl_sim.report.results import accuracy
from sfl_sim.report.terminal import in_terminal

MAX_MULTIPLES = 6
"""Largest number of other systems for which the parts of a round are drawn."""
MAX_OPEN_ROWS = 12
"""Largest number of rows of the table of draws that need not be opened."""
MAX_ROWS = 5
"""Largest number of points of each system that the table of draws shows."""
SHORT = {"queue": "queue", "assistants": "assistants", "barrier": "waiting", "aggregate": "aggregation"}
"""Names of resources as they head a column."""
NEEDS = columns_of("points", "client_memory_bytes", "client_joule", kind="whatif")
EXPLORED = [*columns_of("points", "bytes_up", "bytes_down", kind="whatif"), *NEEDS]
SURVIVAL = "Does it survive what is not known?"
FIRST = f" First is the fastest of a system, and who is within {percent(ALIKE, 0)} of it."
TRAINED = ["A round", "Accuracy reached", f"Rounds to{NBSP}target", f"Time to{NBSP}target", "Valid"]


def write_whatif(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim whatif` left in `folder` to the file `out` and return its path.

    Raises ScenarioError if the folder holds no what-if, or the page cannot be written.
    """
    whatif = load_whatif(folder)
    # What was varied, and how it was evaluated.
    varied = [
        plural(len(axis.values), "cut" if axis.is_cut else "value") + ("" if axis.is_cut else " of " + axis.noun)
        for axis in whatif.axes
    ]
    how = ", ".join(f"{number:,} by {name}" for name, number in whatif.about["evaluated"].items() if number)
    about = Markup(" × ").join(varied) + (
        f", {plural(len(whatif.series), 'variant')}, {plural(whatif.n_seeds, 'seed')}: "
        f"{plural(len(whatif.points), 'configuration')} in {duration(whatif.about['wall_s'])} ({how}). Timing-only: "
        "nothing was trained"
    )
    settings = list(whatif.settings.values())
    several = any(axis.key == "clients.count" for axis in whatif.axes)
    n_clients = [] if several or whatif.clients.empty else [whatif.clients["client"].nunique()]
    return write_page(
        out, "whatif", title=whatif.name, kind="what-if", about=about,
        setup=setup_in_words(settings, n_clients), headlines=headline(whatif), warnings=warnings(whatif),
        panels=panels(whatif), runs=[whatif],
        tried=tried(whatif), over_seeds=whatif.over_seeds,
        rounds=plural(whatif.about["rounds"], "round") if whatif.about["rounds"] else "all rounds",
    )  # fmt: skip


def panels(whatif: WhatIfFolder) -> list[Panel]:
    """List all sections that there are data for."""
    sections: list[Callable[[WhatIfFolder], list[Panel]]] = [
        all_variants_panels, round_panels, draw_panels, elsewhere_panels, map_panels, class_panels, cost_panels,
        trained_panels,
    ]  # fmt: skip
    return panels_of(sections, whatif)


def warnings(whatif: WhatIfFolder) -> list[str]:
    """Give the sentences that a reader must know before believing the rest."""
    status = whatif.manifest.get("status")
    told = f"{whatif.name}: {status}. What follows is what was evaluated until then."
    notes: list[str] = whatif.manifest.get("notes") or []
    return notes if status == "complete" else [told, *notes]


def whatif_in_terminal(folder: Path) -> Group:
    """Say what the page says, and tabulate a round at every cut in the scenario's own system."""
    whatif = load_whatif(folder)
    return in_terminal(headline(whatif), rounds_in_terminal(whatif))


def rounds_in_terminal(whatif: WhatIfFolder) -> Table:
    """Tabulate the time of a round at each value, in the scenario's own system; a column for each series."""
    axis, times_s = whatif.along, {series.label: whatif.times(series) for series in whatif.series}

    def told(index: int, own_s: pd.Series) -> str:
        if index not in own_s or not axis.is_chosen:
            return duration(own_s[index]) if index in own_s else "–"
        slower = own_s[index] / own_s.min()
        return f"{duration(own_s[index])} ({f'{slower:.2f}×' if slower > 1 else 'best'})"

    rows = [
        [Cell(name + (" (own)" if index == axis.base else "")), *(Cell(told(index, own)) for own in times_s.values())]
        for index, name in enumerate(axis.names)
    ]
    several = list(map(Markup, times_s)) if len(times_s) > 1 else []
    about = f"Medians over {plural(whatif.n_seeds, 'seed')}." if whatif.n_seeds > 1 else "One seed."
    titles = several or [Markup("Round")]
    return Table([capitalised(axis.noun), *titles], rows, note=about + where_drawn(whatif.others), words=several)


def best_points(whatif: WhatIfFolder) -> Table:
    """Tabulate for each series and system the best value, what a round takes there, and what it takes of a client.

    Where the world decides the axis, all its values.
    """
    middle, axis = whatif.middle, whatif.along
    others = whatif.others if axis.is_chosen else [axis, *whatif.others]
    parts = parts_shown(middle)
    needs = [column for column in NEEDS if middle[column.key].notna().any()]
    names, dot = {str(series.label): series.html for series in whatif.series}, Markup(" · ")
    known = middle.dropna(subset="round_s").sort_values(axis.key)
    known = known.assign(series=pd.Categorical(known["series"], list(names)))
    rows = []
    for _, own in known.groupby(["series", *(other.key for other in others)], observed=True):
        point = own.nsmallest(1, "round_s").to_dict("records")[0]
        factor = own.set_index(axis.key)["round_s"].get(axis.base, math.nan) / point["round_s"]
        slower = f"+{percent(factor - 1, 0)}" if factor < 2 else "–" if math.isnan(factor) else f"{factor:.3g}×"
        best = [Cell(axis.names[point[axis.key]])] if axis.is_chosen else []
        instead = [Cell(slower)] if best and axis.base is not None else []
        where = [other.said(point[other.key]) for other in others]
        is_own = where and all(other.base == point[other.key] for other in others)
        below = ["the scenario’s own"] if is_own else []
        heading = Cell(dot.join(where), dot.join(below))
        if len(whatif.series) > 1 or not where:
            heading = Cell(names[point["series"]], dot.join([*where, *below]))
        round_s, spread_s = point["round_s"], point["spread_s"]
        spent = [(duration(point[f"{part}_s"]), percent(point[f"{part}_s"] / round_s, 0)) for part in parts]
        time = Cell(duration(round_s), f"± {duration(spread_s)}" if spread_s > 0 else "")
        cells = [heading, *best, time, *instead, *(Cell(*texts) for texts in spent)]
        rows.append([*cells, *(Cell(column.read(point[column.key])) for column in needs)])
    first = "Variant" if len(whatif.series) > 1 or not others else capitalised(others[0].noun)
    titles = [SHORT.get(part, style.RESOURCE_NAMES[part]).capitalize() for part in parts]
    own_value = [axis.names[axis.base] + " instead"] if axis.is_chosen and axis.base is not None else []
    best_value = ["Best " + axis.noun] if axis.is_chosen else []
    titles = [first, *best_value, "A round", *own_value, *titles, *(column.title for column in needs)]
    return Table(titles, rows)


def tried(whatif: WhatIfFolder) -> dict[str, object]:
    """Give all points with their numbers as they read, among which the page's reader looks; the series are an axis."""
    known, parts = whatif.middle.dropna(subset="round_s"), parts_shown(whatif.middle)
    needs = [column for column in EXPLORED if known[column.key].notna().any()]
    labels = [str(one.label) for one in whatif.series]
    axes = [
        {"title": capitalised(axis.title), "names": [name.striptags() for name in axis.names], "shown": axis.shown,
         "chosen": axis.is_chosen}
        for axis in whatif.axes
    ]  # fmt: skip
    variants = {"title": "Variant", "names": [one.label.unescape() for one in whatif.series], "shown": 0}
    rows = [
        {
            "at": [labels.index(point["series"]), *(point[axis.key] for axis in whatif.axes)],
            "round_s": point["round_s"],
            "parts": [{"s": point[f"{part}_s"], "text": duration(point[f"{part}_s"])} for part in parts],
            "texts": [duration(point["round_s"]), *(column.read(point[column.key]) for column in needs)],
        }
        for point in known.to_dict("records")
    ]
    return {
        "axes": [variants | {"chosen": True}, *axes],
        "along": 1 + whatif.axes.index(whatif.along),
        "parts": [{"name": style.RESOURCE_NAMES[part], "colour": style.RESOURCE_COLOURS[part]} for part in parts],
        "titles": ["A round", *(column.title for column in needs)],
        "rows": rows,
    }


def words(whatif: WhatIfFolder) -> dict[str, str | Markup]:
    """Give what captions say of the axis, of seeds, and of the values of other axes at which figures are drawn."""
    noun, is_chosen = whatif.along.noun, whatif.along.is_chosen
    return {
        "noun": noun, "seeds": whatif.over_seeds, "where": where_drawn(whatif.others),
        "of_each": "The best choice for" if is_chosen else "The own time of",
        "stars": " Stars mark the best of each." if is_chosen else "",
    }  # fmt: skip


all_variants_panels: Declared[WhatIfFolder] = Declared(
    "All variants",
    "A line for each variant{seeds}.{stars}{where}",
    lambda whatif: [("Time of a round by " + whatif.along.noun, partial(draw.by_series, whatif))],
    when=lambda whatif: len(whatif.drawn) > 1,
    words=words,
)


def round_panels(whatif: WhatIfFolder) -> list[Panel]:
    """List the panel on a round by resource. The table of best points is below it, or below maps if there are any."""
    axis, shown = whatif.along, whatif.drawn
    own = Markup("")
    if axis.base is not None and not axis.is_numeric:
        own = Markup(" Bold is the scenario’s own {}.").format(axis.noun)
    if axis.is_cut and whatif.layers["pareto"].eq(False).any():
        own += " Pale names are cuts that are not Pareto-optimal."
    deep = "from the shallowest cut to the deepest" if axis.is_cut else "for each " + axis.noun
    caption = Markup("Where the time of the average client's round goes, {}. Warm colours are waiting{}. {}{}{}{}")
    more = f" The first {len(shown)} of {len(whatif.series)} variants are drawn." * (len(shown) < len(whatif.series))
    star = " The star marks the shortest round." if axis.is_chosen else ""
    caption = caption.format(deep, whatif.over_seeds, star, own, where_drawn(whatif.others), more)
    drawings = [stacked(whatif, one) for one in shown]
    tables = [] if map_panels(whatif) else [best_points(whatif)]
    return [Panel("Time of a round by " + axis.noun, caption, drawings, min(len(drawings), 2), tables)]


def drawn_figures(whatif: WhatIfFolder) -> list[Drawing]:
    """The intervals of the draws, and, where points compete, how often each is the first."""
    made = {"Time of a round": draw.intervals, "How often first": draw.firsts}
    shown = list(made.items())[: 1 + whatif.compares] if len(whatif.draws) else []
    return [(heading, partial(figure, whatif)) for heading, figure in shown]


draw_panels: Declared[WhatIfFolder] = Declared(
    SURVIVAL,
    "All configurations in the same {draws}. Rates of devices and links, the training factor, the times of this "
    "network on devices and server, and how links vary come from their stated errors. Marks are medians, lines hold "
    "80 % of the draws.{first}{where}",
    drawn_figures,
    when=lambda whatif: len(whatif.draws),
    words=lambda whatif: words(whatif) | {"draws": in_draws(whatif), "first": FIRST if whatif.compares else ""},
    tables=lambda whatif: [survivors(whatif)],
    columns=at_most(2),
)


def stacked(whatif: WhatIfFolder, series: style.Named, across: int | None = None) -> Drawing:
    """The figure of a round by resource, headed by which value is the best at a value of the second axis."""
    axis, other = whatif.along, whatif.across
    heading = axis.said(whatif.best(series, across)) + " is the best" if axis.is_chosen else escape("by " + axis.noun)
    if other is not None:
        heading = other.said(other.shown if across is None else across) + ": " + heading
    return whatif.heading(series, heading), partial(draw.stacked, whatif, series, across)


def elsewhere_panels(whatif: WhatIfFolder) -> list[Panel]:
    """List the panel with the figure of the first series at other values of the second axis: all if they are few."""
    across, shown = whatif.across, whatif.drawn
    if across is None or not shown:
        return []
    rest = [i for i in range(len(across.values)) if i != across.shown and len(whatif.times(shown[0], i))]
    chosen = [int(i) for i in display.thin(pd.DataFrame(index=rest), MAX_MULTIPLES).index]
    some = f" {len(chosen)} of {plural(len(rest), 'other value')}." if len(chosen) < len(rest) else ""
    whose = " " + shown[0].html + " alone." if len(whatif.series) > 1 else ""
    caption = escape(f"Each figure has a scale of its own.{some}") + whose + where_drawn(whatif.others[1:])
    columns = {1: 1, 2: 2, 4: 2}.get(len(chosen), 3)
    drawings = [stacked(whatif, shown[0], i) for i in chosen]
    return [Panel("At other values of " + across.noun, caption, drawings, columns)] if chosen else []


def map_panels(whatif: WhatIfFolder) -> list[Panel]:
    """List the panel with two maps for each variant, if a second axis was varied."""
    across, noun = whatif.across, whatif.along.noun
    drawings: list[Drawing] = []
    if across is None or len(across.values) < 2 or not whatif.drawn:
        return []
    for one in whatif.drawn:
        maps = [("time of a round", False), ("against the best of the same " + across.noun, True)]
        for text, over_best in maps if whatif.along.is_chosen else maps[:1]:
            figure = partial(draw.time_map, whatif, one, across, over_best=over_best)
            drawings.append((whatif.heading(one, Markup(text)), figure))
    if not whatif.along.is_chosen:
        caption = escape(f"Dark is quick{whatif.over_seeds}.") + where_drawn(whatif.others[1:])
        return [Panel(f"A round by {noun} and {across.noun}", caption, drawings, 2, [best_points(whatif)])]
    every = "every combination of the other settings" if len(whatif.others) > 1 else "every " + across.noun
    caption = Markup(
        "Dark is quick. A star marks the best {noun} of its column, and the line shows where the best one changes"
        "{seeds}.{where} The table has the best {noun} for {every}."
    ).format(noun=noun, seeds=whatif.over_seeds, where=where_drawn(whatif.others[1:]), every=every)
    return [Panel("Where the best " + noun + " changes", caption, drawings, 2, [best_points(whatif)])]


def of_classes(whatif: WhatIfFolder) -> list[Drawing]:
    """Two figures for each variant, if there are several classes."""
    drawings: list[Drawing] = []
    for one in whatif.drawn if whatif.clients["group"].nunique() > 1 else []:
        axis, own = whatif.along, "own time by " + whatif.along.noun
        best = whatif.best(one) if axis.is_chosen else axis.shown
        round_there = "the round at " + axis.said(best) + (", the best for all" if axis.is_chosen else "")
        drawings.append((whatif.heading(one, own), partial(draw.preferences, whatif, one)))
        drawings.append((whatif.heading(one, round_there), partial(draw.spent, whatif, one, best)))
    return drawings


class_panels: Declared[WhatIfFolder] = Declared(
    "{of_each} each class of devices",
    "For each class of devices, the time that a client of the class spends on computing, sending, queueing, being "
    "served and receiving, without the straggler wait, by {noun} (means over clients and "
    "seeds).{stars}{where}",
    of_classes,
    words=words,
    columns=2,
)


def cost_panels(whatif: WhatIfFolder) -> list[Panel]:
    """List the panel on memory and energy of a client, for the first series: methods differ little in them."""
    if not whatif.drawn:
        return []
    first, noun = whatif.drawn[0], whatif.along.noun
    drawings: list[Drawing] = []
    caption = Markup("What a client needs in addition to time.")
    for column, (name, _, _, unknown) in draw.COSTS.items():
        numbers = whatif.here(whatif.middle, first)[column].dropna()
        if numbers.empty:
            caption += unknown
        elif numbers.max() > (1 + ALIKE) * numbers.min():  # else there is nothing to see
            drawings.append((f"{name} by " + noun, partial(draw.client_cost, whatif, first, column)))
        else:
            caption += f" {name} does not depend on " + noun + "."
    caption += where_drawn(whatif.others) + (" Of " + first.html + "." if len(whatif.series) > 1 else "")
    return [Panel("What it costs a client", caption, drawings, columns=2)]


def trained_panels(whatif: WhatIfFolder) -> list[Panel]:
    """List the panel on points that were trained, if a run was asked for them."""
    if whatif.overlay.empty:
        return []
    targets = whatif.overlay["target_accuracy"].dropna().unique()
    goal = f"{accuracy(targets[0])} accuracy" if len(targets) == 1 else "the target"
    points = trained(whatif).sort_values([axis.key for axis in whatif.others], kind="stable")
    own = whatif.here(points)
    drawings = [
        (f"Time to {goal}", partial(draw.time_to_target, whatif, own)),
        ("Accuracy against the time of a round", partial(draw.accuracy_by_round, whatif, own)),
    ]
    tables = [trained_table(whatif, own)]
    if len(own) < len(points):
        tables.append(trained_table(whatif, points.drop(own.index), "At other values"))
    caption = Markup(
        "Accuracies of stored runs, with the times of this what-if. The left figure has the simulated time to {}, with "
        "the accuracy reached at the end; the right one has that accuracy against the time of a round (medians over "
        "seeds). A configuration where clients would be served in another order, or training would go on for more "
        "rounds, must be trained: its accuracy is not known.{}"
    ).format(goal, where_drawn(whatif.others))
    return [Panel("Configurations that were trained", caption, drawings if len(own) else [], 2, tables)]


# What survives uncertainty


def survivors(whatif: WhatIfFolder) -> Table:
    """Tabulate for each system the points that come first most often, and its first without any draw."""
    rows, left_out = [], 0
    for _, own in whatif.survival.groupby("contest", sort=False):
        ranked = own.sort_values(["first", "median_s"], ascending=[False, True], kind="stable")
        often = (ranked["first"] > 0) & (np.arange(len(ranked)) < MAX_ROWS)
        is_shown = often | (ranked["round_s"] == ranked["round_s"].min())
        for point in ranked[is_shown].to_dict("records"):
            between = f"{duration(point['low_s'])} to {duration(point['high_s'])}"
            texts = [duration(point["round_s"]), duration(point["median_s"]), between, percent(point["first"], 0)]
            rows.append([_heading(whatif, point), *map(Cell, texts)])
        left_out += int((~is_shown).sum())
    titles = [capitalised(whatif.along.noun), "As priced", "Median", "80 % of draws", "First in"]
    if not whatif.compares:
        titles, rows = titles[:-1], [row[:-1] for row in rows]
    more = f", without {plural(left_out, 'configuration')} that come first less often or never" if left_out else ""
    note, many = f"{capitalised(Markup(in_draws(whatif)))}{more}.", len(rows) > MAX_OPEN_ROWS
    return Table(titles, rows, "All systems" * many, note=note, words=titles[:1], folded=many)


def _heading(whatif: WhatIfFolder, point: Mapping[Any, Any]) -> Cell:
    """A value of the axis, and below it those of the others, and the series if there are several."""
    below = [axis.said(point[axis.key]) for axis in whatif.others]
    below += [Markup(point["series"])] if len(whatif.series) > 1 else []
    return Cell(whatif.along.said(point[whatif.along.key]), Markup(" · ").join(below))


# Points that were trained


def trained(whatif: WhatIfFolder) -> pd.DataFrame:
    """One row per trained point: medians over seeds, infinite where the target is not reached, and `round_s`.

    `valid` is whether all seeds are, and `reason` one of those given.
    """
    at = ["series", *(axis.key for axis in whatif.axes)]
    to_target = ["rounds_to_accuracy", "time_to_accuracy_s"]
    numbers = ["accuracy", "target_accuracy", *to_target]
    known = whatif.overlay.astype(dict.fromkeys(numbers, float)).fillna(dict.fromkeys(to_target, math.inf))
    reasons = known["reason"].fillna("").astype(str).where(~known["valid"].astype(bool), "")
    found = known.assign(reason=reasons).groupby(at, as_index=False)
    points = found.agg({**dict.fromkeys(numbers, "median"), "valid": "all", "reason": "max"})
    return points.merge(whatif.middle[[*at, "round_s"]], on=at)


def trained_table(whatif: WhatIfFolder, points: pd.DataFrame, folded: str = "") -> Table:
    """One row per trained point, folded under a title if one is given; a reason instead of times if no longer valid."""
    rows = []
    for point in points.to_dict("records"):
        texts = [percent(point["accuracy"]), tenths(point["rounds_to_accuracy"]), "", "yes"]
        if not point["valid"]:
            texts = ["–", "–", "–", "must be trained"]
        elif math.isfinite(point["time_to_accuracy_s"]):
            texts[2] = duration(point["time_to_accuracy_s"])
        else:
            texts[1:3] = ["not reached" if point["target_accuracy"] > 0 else "–"] * 2
        *cells, last = map(Cell, texts)
        cells.append(last._replace(below=point["reason"]))
        rows.append([_heading(whatif, point), Cell(duration(point["round_s"])), *cells])
    return Table([capitalised(whatif.along.noun), *TRAINED], rows, folded, folded=bool(folded))
