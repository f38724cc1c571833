"""The page on a what-if: its sections, the best cut in sentences and in a table, which the terminal shows as well."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.features.whatif import figures as draw
from sfl_sim.features.whatif.figures import best_by_column, field, parts_shown, reigns
from sfl_sim.features.whatif.load import PARTS_S, load_whatif, where_drawn
from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, style
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import NBSP, capitalised, duration, listed, percent, plural, tenths
from sfl_sim.report.html_page import write_page
from sfl_sim.report.panel import Cell, Declared, Drawing, Panel, Table, columns_of, panels_of
from sfl_sim.report.results import accuracy
from sfl_sim.store.columns import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping
    from pathlib import Path

    from rich.console import Group
    from rich.table import Table as TerminalTable

    from sfl_sim.features.whatif.load import ShownAxis, WhatIfFolder

MAX_TOLD = 3
"""Largest number of series that the headlines tell of."""
MAX_REIGNS = 4
MAX_MULTIPLES = 6
"""Largest number of other systems for which the parts of a round are drawn."""
MAX_ROWS = 5
"""Largest number of points of each system that the table of draws shows."""
SHORT = {"queue": "queue", "assistants": "assistants", "barrier": "waiting", "aggregate": "aggregation"}
"""Names of resources as they head a column."""
NEEDS = columns_of("points", "client_memory_bytes", "client_joule", kind="whatif")
SURVIVAL = "Does it survive what is not known?"
TRAINED = ["A round", "Accuracy reached", f"Rounds to{NBSP}target", f"Time to{NBSP}target", "Valid"]


def write_whatif(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim whatif` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no what-if, or the page cannot be written.
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
    return [] if status == "complete" else [told]


def whatif_in_terminal(folder: Path) -> Group:
    """Tabulate a round at every cut in the scenario's own system, and the best cut in each of the other systems.

    Below them what survives the draws, if there are any.
    """
    from rich.console import Group

    whatif = load_whatif(folder)
    shown: list[TerminalTable | str] = [rounds_in_terminal(whatif).in_terminal()]
    if whatif.others:
        shown += ["", best_in_terminal(whatif).in_terminal()]
    if len(whatif.draws):
        shown += [f"\n{SURVIVAL}", survivors(whatif).in_terminal()]
    return Group(*shown)


def rounds_in_terminal(whatif: WhatIfFolder) -> Table:
    """Tabulate the time of a round at each value, in the scenario's own system; a column for each series."""
    axis, times_s = whatif.along, {series.label: whatif.times(series) for series in whatif.series}

    def told(index: int, own_s: pd.Series) -> str:
        if index not in own_s:
            return "–"
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


def headline(whatif: WhatIfFolder) -> list[Markup]:
    """Give the headlines, the most important first, each of at most three sentences."""
    found = []
    for series in whatif.series[:MAX_TOLD]:
        told = [sentences for sentences in (_best(whatif, series), _changes(whatif, series)) if sentences]
        found += told if len(whatif.series) == 1 else [series.html + ": " + sentences for sentences in told]
    if len(whatif.series) > MAX_TOLD:
        found.append(escape(f"{plural(len(whatif.series) - MAX_TOLD, 'more variant')} below."))
    return found + verdict(whatif) + first_to_target(whatif)


def _best(whatif: WhatIfFolder, series: style.Named) -> Markup:
    """The best value in the scenario's own system, how far behind it the others are, and what takes most of a round."""
    axis, times_s = whatif.along, whatif.times(series)
    if times_s.empty:
        return Markup("")
    best = whatif.best(series)
    least_s, rest = times_s[best], times_s.drop(best)
    tried = f" of the {plural(len(times_s), 'cut' if axis.is_cut else 'value')} tried" if len(rest) else ""
    sentence = "Cutting after " + axis.said(best) if axis.is_cut else capitalised(axis.said(best))
    sentence += (
        f"{', the scenario’s own,' if best == axis.base else ''} takes the least time{tried}, "
        f"{duration(least_s)} a round{_seeds(whatif, series, best)}"
    )
    parts_s = whatif.here(whatif.middle, series).set_index(axis.key).loc[[best], PARTS_S].iloc[0]
    largest, share = style.RESOURCE_NAMES[PARTS[int(parts_s.argmax())]], percent(parts_s.max() / parts_s.sum(), 0)
    most = f"The largest part of the average client’s round there is {largest}, {share}."
    if rest.empty:
        return sentence + f". {most}"
    # What it is compared with, and what is said of that.
    last = len(axis.values) - 1
    ends = {0: ["the shallowest"], last: ["the deepest"]} if axis.is_cut else {}
    if axis.base is not None:
        ends.setdefault(axis.base, []).append("the scenario’s own")
    less = [
        escape(f"{percent(1 - least_s / rest[index], 0)} less than ") + axis.said(index) + words
        for index, words in ({i: f" ({', '.join(w)})" for i, w in ends.items()} or {0: "", last: ""}).items()
        if index in rest
    ]
    return sentence + (": " + listed(less) if less else "") + ". " + _runner_up(axis, rest, least_s) + f" {most}"


def _runner_up(axis: ShownAxis, rest: pd.Series, least_s: float) -> Markup:
    close = rest[rest <= least_s * (1 + ALIKE)].sort_values()
    if len(close):
        as_good = listed([axis.said(i) for i in close.index[:MAX_REIGNS]])
        more = f" and {len(close) - MAX_REIGNS} more" if len(close) > MAX_REIGNS else ""
        are = "is" if len(close) == 1 else "are"
        return escape(f"Within {percent(ALIKE, 0)}, ") + as_good + f"{more} {are} as good."
    second = int(rest.index[int(rest.argmin())])
    return "The second best, " + axis.said(second) + f", takes {percent(rest[second] / least_s - 1, 0)} more."


def _seeds(whatif: WhatIfFolder, series: style.Named, best: int) -> str:
    """The spread over seeds, and how many of them agree."""
    own = whatif.here(whatif.points, series).dropna(subset="round_s")
    rounds_s = own.loc[own[whatif.along.key] == best, "round_s"]
    if len(rounds_s) == 1:  # an interrupted study may have more seeds elsewhere
        return " (one seed)"
    winners = own.loc[own.groupby("seed")["round_s"].idxmin(), whatif.along.key]
    agreeing = int((winners == best).sum())
    return (
        f" (median of {plural(len(rounds_s), 'seed')}, ± {duration(rounds_s.std())}; "
        f"the best with {'all' if agreeing == len(winners) else f'{agreeing}'} of them)"
    )


def _changes(whatif: WhatIfFolder, series: style.Named) -> Markup:
    """Say where along the second axis the best changes."""
    across = whatif.across
    if across is None:
        return Markup("")
    axis, times_s = whatif.along, field(whatif, series, across)
    if len(best_by_column(times_s)) < 2:
        return Markup("")
    found = reigns(times_s)
    if len(found) == 1:
        always = len(set(best_by_column(times_s).values())) == 1
        close = "" if always else f", or within {percent(ALIKE, 0)} of it,"
        return capitalised(axis.said(found[0].best)) + f" is the best{close} at every " + across.noun + "."
    if across.is_numeric and len(found) <= MAX_REIGNS:
        told = [axis.said(reign.best) + _span(across, reign) for reign in found]
    elif across.is_numeric:
        pair = ((found[0].best, found[0].first), (found[-1].best, found[-1].last))
        told = [axis.said(best) + " at " + across.said(at) for best, at in pair]
        told.insert(1, escape(f"{plural(len(found) - 2, 'other')} between"))
    else:
        by_best: dict[int, list[Markup]] = {}
        for reign in found:
            by_best.setdefault(reign.best, []).extend(across.names[reign.first : reign.last + 1])
        told = [axis.said(best) + " with " + listed(names) for best, names in by_best.items()]
    tried = ", of the values tried" if across.is_numeric else ""
    return Markup("The best {} changes with {}: {}{}.").format(axis.noun, across.noun, listed(told), tried)


def _span(across: ShownAxis, reign: draw.Reign) -> Markup:
    """Say at which values of the second axis a best one is the best."""
    times = "×" if across.title.endswith("×") else ""
    first, last = (escape(times) + across.names[i] for i in (reign.first, reign.last))
    return Markup(" at {}").format(first) if first == last else Markup(" from {} to {}").format(first, last)


def best_in_each_system(whatif: WhatIfFolder) -> Iterator[tuple[dict[Hashable, Any], list[Cell]]]:
    """Generate the best point of each series for each combination of values of the other axes, a row of `middle`.

    With it what the scenario's own value costs instead, if there is one.
    """
    axis, order = whatif.along, [series.label for series in whatif.series]
    points = whatif.middle.dropna(subset="round_s").sort_values(axis.key)
    points = points.assign(series=pd.Categorical(points["series"], order))
    for _, own in points.groupby(["series", *(other.key for other in whatif.others)], observed=True):
        factor = own.set_index(axis.key)["round_s"].get(axis.base, math.nan) / own["round_s"].min()
        slower = f"+{percent(factor - 1, 0)}" if factor < 2 else "–" if math.isnan(factor) else f"{factor:.3g}×"
        yield own.nsmallest(1, "round_s").to_dict("records")[0], [] if axis.base is None else [Cell(slower)]


def best_points(whatif: WhatIfFolder) -> Table:
    """Tabulate for each series and system the best value, what a round takes there, and what it takes of a client."""
    middle, axis, others = whatif.middle, whatif.along, whatif.others
    parts = parts_shown(middle)
    needs = [column for column in NEEDS if middle[column.key].notna().any()]
    names, dot = {str(series.label): series.html for series in whatif.series}, Markup(" · ")
    rows = []
    for point, instead in best_in_each_system(whatif):
        where = [other.said(point[other.key]) for other in others]
        is_own = where and all(other.base == point[other.key] for other in others)
        below = ["the scenario’s own"] if is_own else []
        heading = Cell(dot.join(where), dot.join(below))
        if len(whatif.series) > 1 or not where:
            heading = Cell(names[point["series"]], dot.join([*where, *below]))
        round_s, spread_s = point["round_s"], point["spread_s"]
        spent = [(duration(point[f"{part}_s"]), percent(point[f"{part}_s"] / round_s, 0)) for part in parts]
        time = Cell(duration(round_s), f"± {duration(spread_s)}" if spread_s > 0 else "")
        cells = [heading, Cell(axis.names[point[axis.key]]), time, *instead, *(Cell(*texts) for texts in spent)]
        rows.append([*cells, *(Cell(column.read(point[column.key])) for column in needs)])
    first = "Variant" if len(whatif.series) > 1 or not others else capitalised(others[0].noun)
    titles = [SHORT.get(part, style.RESOURCE_NAMES[part]).capitalize() for part in parts]
    titles = [first, "Best " + axis.noun, "A round", *_instead(axis), *titles, *(column.title for column in needs)]
    return Table(titles, rows)


def _instead(axis: ShownAxis) -> list[Markup]:
    return [] if axis.base is None else [axis.names[axis.base] + " instead"]


def best_in_terminal(whatif: WhatIfFolder) -> Table:
    """Tabulate the same in a few columns: the best value, its round, and what the scenario's own costs."""
    axis, variant = whatif.along, ["Variant"] if len(whatif.series) > 1 else []
    words = [*variant, *(capitalised(other.noun) for other in whatif.others)]
    rows = []
    for point, instead in best_in_each_system(whatif):
        where = [other.names[point[other.key]] for other in whatif.others]
        name = [Markup(point["series"])] if variant else []
        texts = [*name, *where, axis.names[point[axis.key]], duration(point["round_s"])]
        rows.append([*map(Cell, texts), *instead])
    about = f"Medians over {plural(whatif.n_seeds, 'seed')}." if whatif.n_seeds > 1 else ""
    return Table([*words, "Best " + axis.noun, "Round", *_instead(axis)], rows, note=about, words=words)


# Panels


def words(whatif: WhatIfFolder) -> dict[str, str | Markup]:
    """Give what captions say of the axis, of seeds, and of the values of other axes at which figures are drawn."""
    return {"noun": whatif.along.noun, "seeds": whatif.over_seeds, "where": where_drawn(whatif.others)}


all_variants_panels: Declared[WhatIfFolder] = Declared(
    "All variants",
    "Stars mark the best of each{seeds}.{where}",
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
    caption = Markup(
        "Where the time of the average client's round goes, {}. Warm colours are waiting{}. The star marks the "
        "shortest round.{}{}{}"
    )
    more = f" The first {len(shown)} of {len(whatif.series)} variants are drawn." * (len(shown) < len(whatif.series))
    caption = caption.format(deep, whatif.over_seeds, own, where_drawn(whatif.others), more)
    drawings = [stacked(whatif, one) for one in shown]
    tables = [] if map_panels(whatif) else [best_points(whatif)]
    return [Panel("Time of a round by " + axis.noun, caption, drawings, min(len(drawings), 2), tables)]


draw_panels: Declared[WhatIfFolder] = Declared(
    SURVIVAL,
    "All configurations in the same {draws}. Rates of devices and links, the training factor, the times of this "
    "network on devices and server, and how links vary come from their stated errors. Marks are medians, lines hold "
    "80 % of the draws. First is the fastest of a system, and who is within {alike} of it.{where}",
    {"Time of a round": draw.intervals, "How often first": draw.firsts},
    when=lambda whatif: len(whatif.draws),
    words=lambda whatif: words(whatif) | {"draws": _draws(whatif), "alike": percent(ALIKE, 0)},
    tables=lambda whatif: [survivors(whatif)],
    columns=2,
)


def stacked(whatif: WhatIfFolder, series: style.Named, across: int | None = None) -> Drawing:
    """The figure of a round by resource, headed by which value is the best at a value of the second axis."""
    heading, other = whatif.along.said(whatif.best(series, across)) + " is the best", whatif.across
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
        for text, over_best in (("time of a round", False), ("against the best of the same " + across.noun, True)):
            figure = partial(draw.time_map, whatif, one, across, over_best=over_best)
            drawings.append((whatif.heading(one, Markup(text)), figure))
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
        best, own = whatif.best(one), "own time by " + whatif.along.noun
        round_there = "the round at " + whatif.along.said(best) + ", the best for all"
        drawings.append((whatif.heading(one, own), partial(draw.preferences, whatif, one)))
        drawings.append((whatif.heading(one, round_there), partial(draw.spent, whatif, one, best)))
    return drawings


class_panels: Declared[WhatIfFolder] = Declared(
    "The best choice for each class of devices",
    "For each class of devices, the time that a client of the class spends on computing, sending, queueing, being "
    "served and receiving, without the straggler wait, by {noun}. Stars mark the best {noun} of each class (means over "
    "clients and seeds).{where}",
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


def verdict(whatif: WhatIfFolder) -> list[Markup]:
    """A sentence on how often the first of the scenario's own system comes first in the draws, and who else does."""
    here = whatif.here(whatif.survival) if len(whatif.draws) else whatif.draws
    if len(here) < 2:
        return []
    ours = here.nsmallest(1, "round_s")
    (first,), (other,) = ours.to_dict("records"), here.drop(ours.index).nlargest(1, "first").to_dict("records")
    told = Markup("In {} of {} from the errors of prices and profiles, {} is the first or as good; {} is in {}.")
    share, next_share = percent(first["first"], 0), percent(other["first"], 0)
    return [told.format(share, _draws(whatif), _said(whatif, first), _said(whatif, other), next_share)]


def _draws(whatif: WhatIfFolder) -> str:
    return plural(whatif.draws["draw"].nunique(), "drawn system")


def _said(whatif: WhatIfFolder, point: Mapping[Any, Any]) -> Markup:
    said = whatif.along.said(point[whatif.along.key])
    return said if len(whatif.series) == 1 else Markup(point["series"]) + " with " + said


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
    more = f", without {plural(left_out, 'configuration')} that come first less often or never" if left_out else ""
    return Table(titles, rows, note=f"{capitalised(Markup(_draws(whatif)))}{more}.", words=titles[:1])


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


def first_to_target(whatif: WhatIfFolder) -> list[Markup]:
    """A sentence on which of the trained points of the scenario's own system reaches the target first."""
    if whatif.overlay.empty:
        return []
    here = whatif.here(trained(whatif))
    reached = here[here["valid"] & np.isfinite(here["time_to_accuracy_s"])]
    sentences = []
    for point in reached.nsmallest(1, "time_to_accuracy_s").to_dict("records"):
        whose = " of " + Markup(point["series"]) if len(whatif.series) > 1 else ""
        target, after = accuracy(point["target_accuracy"]), duration(point["time_to_accuracy_s"])
        sentence = Markup("Of what was trained, {}{} is the first to reach {} accuracy, after {}.")
        sentences.append(sentence.format(whatif.along.said(point[whatif.along.key]), whose, target, after))
    return sentences


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
    return Table([whatif.along.noun.capitalize(), *TRAINED], rows, folded, folded=bool(folded))
