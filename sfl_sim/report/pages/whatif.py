"""The page on a what-if: its sections, the best cut in sentences and in a table, which the terminal shows as well."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import style
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import capitalised, data_size, duration, listed, percent, plural, prefixed
from sfl_sim.report.html_page import write_page
from sfl_sim.report.load import settings_by_variant
from sfl_sim.report.pages.costs import NOTHING
from sfl_sim.report.pages.whatif_figures import elsewhere_panels, round_panels, server_panels
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.whatif_clients import class_panels, cost_panels
from sfl_sim.report.whatif_draws import TITLE, draw_panels, survivors, verdict
from sfl_sim.report.whatif_load import PARTS, load_whatif
from sfl_sim.report.whatif_map import best_by_column, field, map_panels, reigns
from sfl_sim.report.whatif_overlay import first_to_target, overlay_panels
from sfl_sim.scenario.yaml_text import read_value
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path
    from typing import Any

    import pandas as pd
    from rich.console import Group

    from sfl_sim.report.panel import Panel
    from sfl_sim.report.whatif_load import Axis, WhatIf

MAX_TOLD = 3
"""Largest number of series that the headlines tell of."""
MAX_REIGNS = 4
SHORT = {"queue": "queue", "assistants": "assistants", "barrier": "waiting", "aggregate": "aggregation"}
"""Names of resources as they head a column."""


def write_whatif(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim whatif` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no what-if, or the page cannot be written.
    """
    whatif = load_whatif(folder)
    return write_page(
        out,
        "whatif",
        title=whatif.name,
        kind="what-if",
        about=_about(whatif),
        setup=_setup(whatif),
        headlines=headline(whatif),
        warnings=warnings(whatif),
        panels=panels(whatif),
        rounds=plural(whatif.about["rounds"], "round") if whatif.about["rounds"] else "all rounds",
        runs=[whatif],
    )


def panels(whatif: WhatIf) -> list[Panel]:
    """List all sections that there are data for. The table of best points stands below the map, if there is one."""
    best = [best_points(whatif)]
    maps = map_panels(whatif, best)
    return [
        *round_panels(whatif, [] if maps else best),
        *draw_panels(whatif),
        *elsewhere_panels(whatif),
        *maps,
        *class_panels(whatif),
        *cost_panels(whatif),
        *overlay_panels(whatif),
        *server_panels(whatif),
    ]


def _about(whatif: WhatIf) -> Markup:
    grid = [
        escape(plural(len(axis.values), "cut"))
        if axis.is_cut
        else plural(len(axis.values), "value") + " of " + axis.noun
        for axis in whatif.axes
    ]
    evaluated, wall_s = whatif.about["evaluated"], whatif.about["wall_s"]
    how = ", ".join(f"{number:,} by {name}" for name, number in evaluated.items() if number)
    return Markup(" × ").join(grid) + (
        f", {plural(len(whatif.series), 'variant')}, {plural(whatif.n_seeds, 'seed')}: "
        f"{plural(len(whatif.points), 'configuration')} in {duration(wall_s)} ({how}). Timing-only: nothing was trained"
    )


def _setup(whatif: WhatIf) -> str:
    settings = settings_by_variant(read_value(whatif.scenario_text))
    varied = any(axis.key == "clients.count" for axis in whatif.axes)
    n_clients = [] if varied or whatif.clients.empty else [whatif.clients["client"].nunique()]
    return setup_in_words(list(settings.values()), n_clients)


def whatif_in_terminal(folder: Path) -> Group:
    """Tabulate the best cut, its round and the cost of the scenario's own, by series and values of the other axes.

    Below it what survives the draws, if there are any.
    """
    from rich.console import Group

    whatif = load_whatif(folder)
    best = best_in_terminal(whatif).in_terminal()
    return Group(best, f"\n{TITLE}", survivors(whatif).in_terminal()) if len(whatif.draws) else Group(best)


def headline(whatif: WhatIf) -> list[Markup]:
    """Give the headlines, the most important first, each of at most three sentences."""
    found = []
    for series in whatif.series[:MAX_TOLD]:
        told = [sentences for sentences in (_best(whatif, series), _changes(whatif, series)) if sentences]
        found += told if len(whatif.series) == 1 else [series.html + ": " + sentences for sentences in told]
    if len(whatif.series) > MAX_TOLD:
        found.append(escape(f"{plural(len(whatif.series) - MAX_TOLD, 'more variant')} below."))
    return found + verdict(whatif) + first_to_target(whatif)


def _best(whatif: WhatIf, series: style.Named) -> Markup:
    """The best value in the scenario's own system, and how far behind it the others are."""
    axis, times_s = whatif.along, whatif.times(series)
    if times_s.empty:
        return Markup("")
    best = whatif.best(series)
    least_s, rest = times_s[best], times_s.drop(best)
    sentence = _the(axis, best) + (
        f"{', the scenario’s own,' if best == axis.base else ''} takes the least time, "
        f"{duration(least_s)} a round{_seeds(whatif, series, best)}"
    )
    if rest.empty:
        return sentence + f". {_most(whatif, series, best)}"
    less = [
        escape(f"{percent(1 - least_s / rest[index], 0)} less than ") + axis.said(index) + where
        for index, where in _landmarks(axis).items()
        if index in rest
    ]
    compared = sentence + (": " + listed(less) if less else "") + ". "
    return compared + _runner_up(axis, rest, least_s) + f" {_most(whatif, series, best)}"


def _most(whatif: WhatIf, series: style.Named, best: int) -> str:
    """Say what the largest part of a round at the best value is."""
    here = whatif.here(whatif.middle, series).set_index(whatif.along.column)
    parts_s = here.loc[[best], PARTS].iloc[0]
    largest = style.RESOURCE_NAMES[BREAKDOWN[int(parts_s.argmax())]]
    share = percent(parts_s.max() / parts_s.sum(), 0)
    return f"The largest part of the average client’s round there is {largest}, {share}."


def _the(axis: Axis, index: int) -> Markup:
    return "Cutting after " + axis.said(index) if axis.is_cut else capitalised(axis.said(index))


def _landmarks(axis: Axis) -> dict[int, str]:
    """Values that the best is compared with, and what is said of them."""
    last = len(axis.values) - 1
    said = {0: ["the shallowest"], last: ["the deepest"]} if axis.is_cut else {}
    if axis.base is not None:
        said.setdefault(axis.base, []).append("the scenario’s own")
    return {index: f" ({', '.join(words)})" for index, words in said.items()} or dict.fromkeys((0, last), "")


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
        told = [axis.said(found[0].best) + f" below {_about_number(across, found[0].until)}"]
        told += [
            axis.said(reign.best) + f" from there to {_about_number(across, reign.until)}" for reign in found[1:-1]
        ]
        told += [axis.said(found[-1].best) + " above"]
    elif across.is_numeric:
        ends = ((found[0].best, found[0].first), (found[-1].best, found[-1].last))
        told = [axis.said(best) + " at " + across.said(at) for best, at in ends]
        told.insert(1, escape(f"{plural(len(found) - 2, 'other')} between"))
    else:
        where: dict[int, list[Markup]] = {}
        for reign in found:
            where.setdefault(reign.best, []).extend(across.names[reign.first : reign.last + 1])
        told = [axis.said(best) + " with " + listed(names) for best, names in where.items()]
    return Markup("The best {} changes with {}: {}.").format(axis.noun, across.noun, listed(told))


def _about_number(across: Axis, number: float | None) -> str:
    """A number between two values of the axis: about ×2.1."""
    return f"about {'×' if across.title.endswith('×') else ''}{number:,.2g}"


def warnings(whatif: WhatIf) -> list[str]:
    """Give the sentences that a reader must know before believing the rest."""
    status = whatif.manifest.get("status")
    if status == "complete":
        return []
    return [f"{whatif.name}: {status}. What follows is what was evaluated until then."]


def best_points(whatif: WhatIf) -> Table:
    """Tabulate for each series and system the best value, what a round takes there, and what it takes of a client."""
    middle, axis = whatif.middle, whatif.along
    parts = [part for part in BREAKDOWN if (middle[f"{part}_s"] > NOTHING * middle["round_s"]).any()]
    with_joule, with_memory = middle["client_joule"].notna().any(), middle["client_memory_bytes"].notna().any()
    found = []
    for series, system, own, best in best_in_each_system(whatif):
        spread = f"± {duration(best['spread_s'])}" if best["spread_s"] > 0 else ""
        cells = [_heading(whatif, series, system), Cell(axis.names[best[axis.column]])]
        cells.append(Cell(duration(best["round_s"]), spread))
        if axis.base is not None:
            cells.append(Cell(slower(own, axis, axis.base)))
        cells += [Cell(duration(best[f"{part}_s"]), percent(best[f"{part}_s"] / best["round_s"], 0)) for part in parts]
        cells += [Cell(_known(data_size, best["client_memory_bytes"]))] if with_memory else []
        cells += [Cell(_known(lambda joule: prefixed(joule, "J"), best["client_joule"]))] if with_joule else []
        found.append(cells)
    first = "Variant" if len(whatif.series) > 1 or not whatif.others else capitalised(whatif.others[0].noun)
    titles = [first, "Best " + axis.noun, "A round"]
    titles += [axis.names[axis.base] + " instead"] if axis.base is not None else []
    titles += [SHORT.get(part, style.RESOURCE_NAMES[part]).capitalize() for part in parts]
    titles += ["Client memory"] * bool(with_memory) + ["Client energy"] * bool(with_joule)
    return Table(titles, found)


def best_in_terminal(whatif: WhatIf) -> Table:
    """Tabulate the same in a few columns: the best value, its round, and what the scenario's own costs."""
    axis, several = whatif.along, len(whatif.series) > 1
    titles = [*(["Variant"] if several else []), *(capitalised(other.noun) for other in whatif.others)]
    words = list(titles)
    titles += ["Best " + axis.noun, "Round", *([axis.names[axis.base] + " instead"] if axis.base is not None else [])]
    rows = []
    for series, system, own, best in best_in_each_system(whatif):
        where = [other.names[index] for other, index in zip(whatif.others, system, strict=True)]
        cells = [*([series.label] if several else []), *where, axis.names[best[axis.column]], duration(best["round_s"])]
        rows.append(
            [Cell(text) for text in [*cells, *([slower(own, axis, axis.base)] if axis.base is not None else [])]]
        )
    about = f"Medians over {plural(whatif.n_seeds, 'seed')}." if whatif.n_seeds > 1 else ""
    return Table(titles, rows, note=about, words=words)


def best_in_each_system(
    whatif: WhatIf,
) -> Iterator[tuple[style.Named, tuple[int, ...], pd.DataFrame, dict[Hashable, Any]]]:
    """Generate, for each series and combination of indices on the other axes, all points and the best of them."""
    systems = list(product(*(range(len(axis.values)) for axis in whatif.others)))
    for series, system in product(whatif.series, systems):
        own = whatif.middle[whatif.middle["series"] == series.label].dropna(subset="round_s")
        own = own.sort_values(whatif.along.column)
        for axis, index in zip(whatif.others, system, strict=True):
            own = own[own[axis.column] == index]
        if len(own):
            yield series, system, own, own.nsmallest(1, "round_s").to_dict("records")[0]


def slower(own: pd.DataFrame, axis: Axis, index: int) -> str:
    """Say how much longer a round takes at one value than at the best; a dash if unknown."""
    times_s = own.set_index(axis.column)["round_s"]
    if index not in times_s:
        return "–"
    factor = times_s[index] / times_s.min()
    return f"+{percent(factor - 1, 0)}" if factor < 2 else f"{factor:.3g}×"


def _heading(whatif: WhatIf, series: style.Named, system: tuple[int, ...]) -> Cell:
    where = [axis.said(index) for axis, index in zip(whatif.others, system, strict=True)]
    is_own = bool(where) and all(axis.base == index for axis, index in zip(whatif.others, system, strict=True))
    below = ["the scenario’s own"] if is_own else []
    dot = Markup(" · ")
    if len(whatif.series) > 1 or not where:
        return Cell(series.html, dot.join([*where, *below]))
    return Cell(dot.join(where), dot.join(below))


def _known(text: Callable[[float], str], number: float) -> str:
    return text(number) if math.isfinite(number) else "–"
