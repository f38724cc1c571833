"""The page on a what-if: its sections, the best cut in sentences and in a table, which the terminal shows as well."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup, escape

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import style
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import capitalised, duration, listed, percent, plural
from sfl_sim.report.html_page import write_page
from sfl_sim.report.load import settings_by_variant
from sfl_sim.report.pages import whatif_clients, whatif_figures
from sfl_sim.report.pages.costs import NOTHING
from sfl_sim.report.pages.whatif_figures import best_by_column, field, reigns
from sfl_sim.report.table import Cell, Table, columns_of
from sfl_sim.report.whatif_load import PARTS, load_whatif
from sfl_sim.scenario.yaml_text import read_value
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator
    from pathlib import Path

    import pandas as pd
    from rich.console import Group

    from sfl_sim.report.panel import Panel
    from sfl_sim.report.whatif_load import Axis, WhatIf

MAX_TOLD = 3
"""Largest number of series that the headlines tell of."""
MAX_REIGNS = 4
SHORT = {"queue": "queue", "assistants": "assistants", "barrier": "waiting", "aggregate": "aggregation"}
"""Names of resources as they head a column."""
NEEDS = columns_of("points", "client_memory_bytes", "client_joule", kind="whatif")


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
    settings = settings_by_variant(read_value(whatif.scenario_text))
    several = any(axis.key == "clients.count" for axis in whatif.axes)
    n_clients = [] if several or whatif.clients.empty else [whatif.clients["client"].nunique()]
    return write_page(
        out, "whatif", title=whatif.name, kind="what-if", about=about,
        setup=setup_in_words(list(settings.values()), n_clients), headlines=headline(whatif), warnings=warnings(whatif),
        panels=panels(whatif), runs=[whatif],
        rounds=plural(whatif.about["rounds"], "round") if whatif.about["rounds"] else "all rounds",
    )  # fmt: skip


def panels(whatif: WhatIf) -> list[Panel]:
    """List all sections that there are data for. The table of best points stands below the map, if there is one."""
    best = [best_points(whatif)]
    maps = whatif_figures.map_panels(whatif, best)
    return [
        *whatif_figures.round_panels(whatif, [] if maps else best),
        *whatif_clients.draw_panels(whatif),
        *whatif_figures.elsewhere_panels(whatif),
        *maps,
        *whatif_clients.class_panels(whatif),
        *whatif_clients.cost_panels(whatif),
        *whatif_clients.overlay_panels(whatif),
        *whatif_figures.server_panels(whatif),
    ]


def warnings(whatif: WhatIf) -> list[str]:
    """Give the sentences that a reader must know before believing the rest."""
    status = whatif.manifest.get("status")
    told = f"{whatif.name}: {status}. What follows is what was evaluated until then."
    return [] if status == "complete" else [told]


def whatif_in_terminal(folder: Path) -> Group:
    """Tabulate the best cut, its round and the cost of the scenario's own, by series and values of the other axes.

    Below it what survives the draws, if there are any.
    """
    from rich.console import Group

    whatif = load_whatif(folder)
    best = best_in_terminal(whatif).in_terminal()
    if whatif.draws.empty:
        return Group(best)
    return Group(best, f"\n{whatif_clients.TITLE}", whatif_clients.survivors(whatif).in_terminal())


def headline(whatif: WhatIf) -> list[Markup]:
    """Give the headlines, the most important first, each of at most three sentences."""
    found = []
    for series in whatif.series[:MAX_TOLD]:
        told = [sentences for sentences in (_best(whatif, series), _changes(whatif, series)) if sentences]
        found += told if len(whatif.series) == 1 else [series.html + ": " + sentences for sentences in told]
    if len(whatif.series) > MAX_TOLD:
        found.append(escape(f"{plural(len(whatif.series) - MAX_TOLD, 'more variant')} below."))
    return found + whatif_clients.verdict(whatif) + whatif_clients.first_to_target(whatif)


def _best(whatif: WhatIf, series: style.Named) -> Markup:
    """The best value in the scenario's own system, how far behind it the others are, and what takes most of a round."""
    axis, times_s = whatif.along, whatif.times(series)
    if times_s.empty:
        return Markup("")
    best = whatif.best(series)
    least_s, rest = times_s[best], times_s.drop(best)
    sentence = "Cutting after " + axis.said(best) if axis.is_cut else capitalised(axis.said(best))
    sentence += (
        f"{', the scenario’s own,' if best == axis.base else ''} takes the least time, "
        f"{duration(least_s)} a round{_seeds(whatif, series, best)}"
    )
    parts_s = whatif.here(whatif.middle, series).set_index(axis.column).loc[[best], PARTS].iloc[0]
    largest, share = style.RESOURCE_NAMES[BREAKDOWN[int(parts_s.argmax())]], percent(parts_s.max() / parts_s.sum(), 0)
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


def _runner_up(axis: Axis, rest: pd.Series, least_s: float) -> Markup:
    close = rest[rest <= least_s * (1 + ALIKE)].sort_values()
    if len(close):
        as_good = listed([axis.said(i) for i in close.index[:MAX_REIGNS]])
        more = f" and {len(close) - MAX_REIGNS} more" if len(close) > MAX_REIGNS else ""
        are = "is" if len(close) == 1 else "are"
        return escape(f"Within {percent(ALIKE, 0)}, ") + as_good + f"{more} {are} as good."
    second = int(rest.index[int(rest.argmin())])
    return "The second best, " + axis.said(second) + f", takes {percent(rest[second] / least_s - 1, 0)} more."


def _seeds(whatif: WhatIf, series: style.Named, best: int) -> str:
    """The spread over seeds, and how many of them agree."""
    own = whatif.here(whatif.points, series).dropna(subset="round_s")
    rounds_s = own.loc[own[whatif.along.column] == best, "round_s"]
    if len(rounds_s) == 1:  # an interrupted study may have more seeds elsewhere
        return ""
    winners = own.loc[own.groupby("seed")["round_s"].idxmin(), whatif.along.column]
    agreeing = int((winners == best).sum())
    return (
        f" (median of {plural(len(rounds_s), 'seed')}, ± {duration(rounds_s.std())}; "
        f"the best with {'all' if agreeing == len(winners) else f'{agreeing}'} of them)"
    )


def _changes(whatif: WhatIf, series: style.Named) -> Markup:
    """Say where along the second axis the best changes."""
    across = whatif.across
    if across is None:
        return Markup("")
    axis, times_s = whatif.along, field(whatif, series, across)
    if len(best_by_column(times_s)) < 2:
        return Markup("")
    found = reigns(times_s, across)
    if len(found) == 1:
        always = len(set(best_by_column(times_s).values())) == 1
        close = "" if always else f", or within {percent(ALIKE, 0)} of it,"
        return capitalised(axis.said(found[0].best)) + f" is the best{close} at every " + across.noun + "."
    if across.is_numeric and len(found) <= MAX_REIGNS:
        times = "×" if across.title.endswith("×") else ""
        ends = [f"about {times}{reign.until:,.2g}" for reign in found[:-1]]
        told = [axis.said(found[0].best) + f" below {ends[0]}"]
        told += [
            axis.said(reign.best) + f" from there to {end}" for reign, end in zip(found[1:-1], ends[1:], strict=True)
        ]
        told += [axis.said(found[-1].best) + " above"]
    elif across.is_numeric:
        pair = ((found[0].best, found[0].first), (found[-1].best, found[-1].last))
        told = [axis.said(best) + " at " + across.said(at) for best, at in pair]
        told.insert(1, escape(f"{plural(len(found) - 2, 'other')} between"))
    else:
        by_best: dict[int, list[Markup]] = {}
        for reign in found:
            by_best.setdefault(reign.best, []).extend(across.names[reign.first : reign.last + 1])
        told = [axis.said(best) + " with " + listed(names) for best, names in by_best.items()]
    return Markup("The best {} changes with {}: {}.").format(axis.noun, across.noun, listed(told))


class Best(NamedTuple):
    """The best point of a series in a system: indices on the other axes. `instead` is what the scenario's own costs."""

    series: style.Named
    system: tuple[int, ...]
    point: dict[Hashable, Any]
    instead: list[Cell]


def best_in_each_system(whatif: WhatIf) -> Iterator[Best]:
    """Generate the best point of each series for each combination of values of the other axes."""
    axis = whatif.along
    for series, system in product(whatif.series, product(*(range(len(other.values)) for other in whatif.others))):
        points = whatif.middle[whatif.middle["series"] == series.label].dropna(subset="round_s")
        for other, index in zip(whatif.others, system, strict=True):
            points = points[points[other.column] == index]
        if points.empty:
            continue
        points = points.sort_values(axis.column)
        factor = points.set_index(axis.column)["round_s"].get(axis.base, math.nan) / points["round_s"].min()
        slower = f"+{percent(factor - 1, 0)}" if factor < 2 else "–" if math.isnan(factor) else f"{factor:.3g}×"
        point = points.nsmallest(1, "round_s").to_dict("records")[0]
        yield Best(series, system, point, [] if axis.base is None else [Cell(slower)])


def best_points(whatif: WhatIf) -> Table:
    """Tabulate for each series and system the best value, what a round takes there, and what it takes of a client."""
    middle, axis, others = whatif.middle, whatif.along, whatif.others
    parts = [part for part in BREAKDOWN if (middle[f"{part}_s"] > NOTHING * middle["round_s"]).any()]
    needs = [column for column in NEEDS if middle[column.key].notna().any()]
    rows = []
    for series, system, point, instead in best_in_each_system(whatif):
        where = [other.said(index) for other, index in zip(others, system, strict=True)]
        is_own = where and all(other.base == index for other, index in zip(others, system, strict=True))
        below = ["the scenario’s own"] if is_own else []
        dot = Markup(" · ")
        if len(whatif.series) > 1 or not where:
            heading = Cell(series.html, dot.join([*where, *below]))
        else:
            heading = Cell(dot.join(where), dot.join(below))
        round_s, spread_s = point["round_s"], point["spread_s"]
        spent = [(duration(point[f"{part}_s"]), percent(point[f"{part}_s"] / round_s, 0)) for part in parts]
        time = Cell(duration(round_s), f"± {duration(spread_s)}" if spread_s > 0 else "")
        cells = [heading, Cell(axis.names[point[axis.column]]), time, *instead, *(Cell(*texts) for texts in spent)]
        rows.append([*cells, *(Cell(column.read(point[column.key])) for column in needs)])
    first = "Variant" if len(whatif.series) > 1 or not others else capitalised(others[0].noun)
    titles = [SHORT.get(part, style.RESOURCE_NAMES[part]).capitalize() for part in parts]
    titles = [first, "Best " + axis.noun, "A round", *_instead(axis), *titles, *(column.title for column in needs)]
    return Table(titles, rows)


def _instead(axis: Axis) -> list[Markup]:
    return [] if axis.base is None else [axis.names[axis.base] + " instead"]


def best_in_terminal(whatif: WhatIf) -> Table:
    """Tabulate the same in a few columns: the best value, its round, and what the scenario's own costs."""
    axis, variant = whatif.along, ["Variant"] if len(whatif.series) > 1 else []
    words = [*variant, *(capitalised(other.noun) for other in whatif.others)]
    rows = []
    for series, system, point, instead in best_in_each_system(whatif):
        where = [other.names[index] for other, index in zip(whatif.others, system, strict=True)]
        texts = [
            *([series.label] if variant else []),
            *where,
            axis.names[point[axis.column]],
            duration(point["round_s"]),
        ]
        rows.append([*map(Cell, texts), *instead])
    about = f"Medians over {plural(whatif.n_seeds, 'seed')}." if whatif.n_seeds > 1 else ""
    return Table([*words, "Best " + axis.noun, "Round", *_instead(axis)], rows, note=about, words=words)
