"""The sections of the page of a what-if: what each is called, and what to see in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.report import display, whatif_clients, whatif_map, whatif_overlay, whatif_rounds
from sfl_sim.report.display import percent, plural
from sfl_sim.report.html_page import Panel
from sfl_sim.report.round_view import MAX_VARIANTS
from sfl_sim.report.whatif_load import ALIKE
from sfl_sim.report.whatif_words import best_points, capitalised

if TYPE_CHECKING:
    from sfl_sim.report.style import Named
    from sfl_sim.report.whatif_load import Axis, WhatIf

MAX_MULTIPLES = 6
"""Of so many other worlds at most, the parts of a round are drawn."""
UNKNOWN_POWER = Markup(" No power of the devices is known (<code>clients.power</code>), so there is no energy.")
ROUNDS = Markup(
    "Where the time of the average client's round goes, {deep}; warm colours are waiting{seeds}. The star is the "
    "least.{own}"
)
MAP = Markup(
    "Dark is quick. A star is the best {noun} of its column, and the line steps where that changes{seeds}.{at} The "
    "table has the best {noun} for {every}."
)
CLASSES = Markup(
    "Which class of devices would rather have which {noun}: the time in which a client of the class computes, sends, "
    "queues, is served and receives, without its waiting for others. Stars mark the best of each class (means over "
    "clients and seeds)."
)
OVERLAY = Markup(
    "Of stored runs: what they learned, at the times of this what-if. Left, the simulated time to {goal}, with the "
    "accuracy reached at the end; right, that accuracy against the time of a round. Hollow marks are no longer valid, "
    "since clients would be served in another order: these must be trained again (medians over seeds)."
)
SERVER = (
    "The best point of the scenario’s own world, timed with other servers{seeds}. The ring is the scenario’s own "
    "server. {faster}"
)


def whatif_panels(whatif: WhatIf) -> list[Panel]:
    """All sections that there are data for."""
    sections = (_rounds, _elsewhere, _map, _classes, _costs, _overlay, _server)
    return [panel for section in sections for panel in section(whatif)]


def _drawn(whatif: WhatIf) -> list[Named]:
    """The series that have figures of their own: the first ones that have points in the scenario’s own world."""
    return [one for one in whatif.series if len(whatif.times(one))][:MAX_VARIANTS]


def _at(axes: list[Axis]) -> Markup:
    """A sentence on the values of other axes at which a figure is drawn; empty if there are none."""
    if not axes:
        return Markup("")
    where = Markup(", ").join(axis.said(axis.shown) for axis in axes)
    return " All of it at " + where + ("." if any(axis.base is None for axis in axes) else ", the scenario’s own.")


def _seeds(whatif: WhatIf) -> str:
    return " (medians over seeds)" if whatif.n_seeds > 1 else ""


def _heading(whatif: WhatIf, series: Named, text: Markup) -> Markup:
    """The heading of a figure, which with several series says whose it is."""
    return series.html + ": " + text if len(whatif.series) > 1 else capitalised(text)


def _found(whatif: WhatIf, series: Named, across: int | None = None) -> Markup:
    """What is the best at a value of the second axis."""
    best = whatif.along.said(whatif.best(series, across)) + " is the best"
    other = whatif.across
    return best if other is None else other.said(other.shown if across is None else across) + ": " + best


def _more(whatif: WhatIf) -> str:
    shown = len(_drawn(whatif))
    return f" The first {shown} of {len(whatif.series)} variants are drawn." if shown < len(whatif.series) else ""


def _rounds(whatif: WhatIf) -> list[Panel]:
    axis, shown = whatif.along, _drawn(whatif)
    title = "Time of a round by " + axis.noun
    own = Markup("")
    if axis.base is not None and not axis.is_numeric:
        own = Markup(" Bold is the scenario’s own {}.").format(axis.noun)
    if axis.is_cut and whatif.layers["pareto"].eq(False).any():
        own += " Pale names are cuts that are not Pareto."
    deep = "from the shallowest cut to the deepest" if axis.is_cut else "for each " + axis.noun
    caption = ROUNDS.format(deep=deep, seeds=_seeds(whatif), own=own) + _at(whatif.others) + _more(whatif)
    figures = [(_heading(whatif, one, _found(whatif, one)), whatif_rounds.stacked(whatif, one)) for one in shown]
    tables = [] if _is_map(whatif) else [best_points(whatif)]
    panels = [Panel(title, caption, figures, min(len(figures), 2), tables)]
    if len(shown) > 1:
        caption = escape(f"Stars mark the best of each{_seeds(whatif)}.") + _at(whatif.others)
        panels.insert(0, Panel("All variants", caption, [(title, whatif_rounds.by_series(whatif))]))
    return panels


def _elsewhere(whatif: WhatIf) -> list[Panel]:
    """The same figure of the first series for other values of the second axis: all if they are few."""
    across, shown = whatif.across, _drawn(whatif)
    if across is None or not shown:
        return []
    rest = [i for i in range(len(across.values)) if i != across.shown and len(whatif.times(shown[0], i))]
    chosen = [int(i) for i in display.thin(pd.DataFrame(index=rest), MAX_MULTIPLES).index]
    figures = []
    for i in chosen:
        heading = _heading(whatif, shown[0], _found(whatif, shown[0], i))
        figures.append((heading, whatif_rounds.stacked(whatif, shown[0], i, compact=True)))
    some = f" {len(chosen)} of {plural(len(rest), 'other value')}." if len(chosen) < len(rest) else ""
    whose = " " + shown[0].html + " alone." if len(whatif.series) > 1 else ""
    caption = escape(f"Each figure has a scale of its own.{some}") + whose + _at(whatif.others[1:])
    columns = {1: 1, 2: 2, 4: 2}.get(len(figures), 3)
    return [Panel("At other values of " + across.noun, caption, figures, columns)] if figures else []


def _is_map(whatif: WhatIf) -> bool:
    return whatif.across is not None and len(whatif.across.values) > 1 and bool(_drawn(whatif))


def _map(whatif: WhatIf) -> list[Panel]:
    across, axis = whatif.across, whatif.along
    if across is None or not _is_map(whatif):
        return []
    figures = []
    for one in _drawn(whatif):
        against = "against the best of the same " + across.noun
        figures.append((_heading(whatif, one, Markup("time of a round")), whatif_map.time_map(whatif, one, across)))
        figures.append((_heading(whatif, one, against), whatif_map.slower_map(whatif, one, across)))
    every = "every combination of the other settings" if len(whatif.others) > 1 else "every " + across.noun
    caption = MAP.format(noun=axis.noun, seeds=_seeds(whatif), at=_at(whatif.others[1:]), every=every)
    return [Panel("Where the best " + axis.noun + " changes", caption, figures, 2, [best_points(whatif)])]


def _classes(whatif: WhatIf) -> list[Panel]:
    shown, axis = _drawn(whatif), whatif.along
    if whatif.clients["group"].nunique() < 2 or not shown:
        return []
    figures = []
    for one in shown:
        best = whatif.best(one)
        own, there = "own time by " + axis.noun, "the round at " + axis.said(best) + ", the best for all"
        figures.append((_heading(whatif, one, own), whatif_clients.preferences(whatif, one)))
        figures.append((_heading(whatif, one, there), whatif_clients.spent(whatif, one, best)))
    caption = CLASSES.format(noun=axis.noun) + _at(whatif.others)
    return [Panel("What classes of devices prefer", caption, figures, columns=2)]


def _costs(whatif: WhatIf) -> list[Panel]:
    """Memory and energy of the clients, of the first series: methods differ in them little."""
    shown, axis = _drawn(whatif), whatif.along
    if not shown:
        return []
    here = whatif.here(whatif.middle, shown[0])
    drawn = {
        "client_memory_bytes": ("Memory", whatif_clients.memory, " How much memory training takes is not known."),
        "client_joule": ("Energy", whatif_clients.energy, UNKNOWN_POWER),
    }
    figures, caption = [], Markup("Beside time: what a client needs to take part.")
    for column, (name, draw, unknown) in drawn.items():
        numbers = here[column].dropna()
        if numbers.empty:
            caption += unknown
        elif numbers.max() > (1 + ALIKE) * numbers.min():  # else there is nothing to see
            figures.append((f"{name} by " + axis.noun, draw(whatif, shown[0])))
        else:
            caption += f" {name} does not depend on " + axis.noun + "."
    caption += _at(whatif.others) + (" Of " + shown[0].html + "." if len(whatif.series) > 1 else "")
    return [Panel("What it costs a client", caption, figures, columns=2)]


def _overlay(whatif: WhatIf) -> list[Panel]:
    if whatif.overlay is None:
        return []
    targets = whatif.overlay["target_accuracy"].dropna().unique()
    goal = f"{percent(targets[0], 0)} accuracy" if len(targets) == 1 else "the target"
    points = whatif_overlay.trained(whatif).sort_values([axis.column for axis in whatif.others], kind="stable")
    own = whatif.here(points)
    figures = []
    if len(own):
        figures = [
            (f"Time to {goal}", whatif_overlay.time_to_target(whatif)),
            ("Accuracy against the time of a round", whatif_overlay.accuracy_by_round(whatif)),
        ]
    tables = [whatif_overlay.trained_table(whatif, own)]
    if len(own) < len(points):
        tables.append(whatif_overlay.trained_table(whatif, points.drop(own.index), "At other values"))
    caption = OVERLAY.format(goal=goal) + _at(whatif.others)
    return [Panel("Where runs were trained", caption, figures, 2, tables)]


def _server(whatif: WhatIf) -> list[Panel]:
    if whatif.server.empty:
        return []
    figures = [
        ("Speed of the server", whatif_rounds.by_speedup(whatif)),
        ("Workers of the server", whatif_rounds.by_workers(whatif)),
    ]
    caption = SERVER.format(seeds=_seeds(whatif), faster=whatif_rounds.faster_server(whatif))
    return [Panel("Another server", caption, figures, columns=2)]
