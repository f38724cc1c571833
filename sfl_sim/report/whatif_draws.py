"""Panel on what survives uncertainty: the times of all points over the draws, and how often each comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures
from sfl_sim.report.display import capitalised, duration, percent, plural
from sfl_sim.report.pages.whatif_figures import canvas, dressed, placed, wide
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.whatif_load import where_drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report import style
    from sfl_sim.report.whatif_load import WhatIf

TITLE = "Does it survive what is not known?"
ROW = 0.7
"""Part of a row that marks of several series take."""
MAX_ROWS = 5
"""Largest number of points of each system that the table shows."""
CAPTION = Markup(
    "All configurations in the same {draws}. Rates of devices and links, the training factor, the times of this "
    "network on devices and server, and how links vary come from their stated errors. Marks are medians, "
    "lines hold 80 % of the draws. First is the fastest of a system, and who is within {alike} of it."
)


def draw_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on the draws, if there are any."""
    if whatif.draws.empty:
        return []
    caption = CAPTION.format(draws=_draws(whatif), alike=percent(ALIKE, 0)) + where_drawn(whatif.others)
    drawn = [("Time of a round", intervals(whatif)), ("How often first", firsts(whatif))]
    return [Panel(TITLE, caption, drawn, 2, [survivors(whatif)])]


def verdict(whatif: WhatIf) -> list[Markup]:
    """A sentence on how often the first of the scenario's own system comes first in the draws, and who else does."""
    here = whatif.here(whatif.survival) if len(whatif.draws) else whatif.draws
    if len(here) < 2:
        return []
    ours = here.nsmallest(1, "round_s")
    (first,), (other,) = ours.to_dict("records"), here.drop(ours.index).nlargest(1, "first").to_dict("records")
    told = Markup("In {} of {} from the errors of prices and profiles, {} is the first or as good; {} is in {}.")
    share, next_share = percent(first["first"], 0), percent(other["first"], 0)
    return [told.format(share, _draws(whatif), _said(whatif, first), _said(whatif, other), next_share)]


def _draws(whatif: WhatIf) -> str:
    return plural(whatif.draws["draw"].nunique(), "drawn system")


def _said(whatif: WhatIf, point: Mapping[Any, Any]) -> Markup:
    said = whatif.along.said(point[whatif.along.column])
    return said if len(whatif.series) == 1 else Markup(point["series"]) + " with " + said


def intervals(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round over the draws in the scenario's own system, with lines that hold 80 % of them."""
    here = whatif.here(whatif.survival)
    unit, unit_s = display.time_unit(here["median_s"].median())
    figure, error = canvas(whatif.along), "error_y" if whatif.along.is_numeric else "error_x"
    for series in whatif.drawn:
        own = here[here["series"] == series.label]
        above, below = (own["high_s"] - own["median_s"]) / unit_s, (own["median_s"] - own["low_s"]) / unit_s
        spread = {error: {"array": above, "arrayminus": below, "color": series.colour, "thickness": 1.5, "width": 0}}
        at = _beside(whatif, series, own, own["median_s"] / unit_s)
        hover = f"%{{{error[-1]}:.3~g}} {unit}<extra></extra>"
        figures.marks(figure, series, **at, hover=hover, showlegend=len(whatif.drawn) > 1, **spread)
    return wide(whatif, figure, f"time of a round ({unit})", [here["low_s"] / unit_s, here["high_s"] / unit_s])


def firsts(whatif: WhatIf) -> go.Figure:
    """Share of the draws in which each point of the scenario's own system comes first."""
    here = whatif.here(whatif.survival)
    figure, axis = canvas(whatif.along), "y" if whatif.along.is_numeric else "x"
    for series in whatif.drawn:
        own = here[here["series"] == series.label]
        at = _beside(whatif, series, own, 100 * own["first"])
        figures.marks(figure, series, **at, hover=f"%{{{axis}:.0f}} %<extra></extra>", showlegend=False)
    return dressed(whatif, figure, "share of the draws (%)", most=104)


def _beside(whatif: WhatIf, series: style.Named, own: pd.DataFrame, numbers: pd.Series) -> dict[str, np.ndarray]:
    """Place numbers as `placed`, those of several series in the row of a named value beside each other."""
    at = placed(whatif.along, own[whatif.along.column], numbers)
    if not whatif.along.is_numeric:
        at["y"] = at["y"] + ROW * ((whatif.drawn.index(series) + 0.5) / len(whatif.drawn) - 0.5)
    return at


def survivors(whatif: WhatIf) -> Table:
    """Tabulate for each system the points that come first most often, and its first without any draw."""
    rows, left_out = [], 0
    for _, own in whatif.survival.groupby("contest", sort=False):
        ranked = own.sort_values(["first", "median_s"], ascending=[False, True], kind="stable")
        often = (ranked["first"] > 0) & (np.arange(len(ranked)) < MAX_ROWS)
        is_shown = often | (ranked["round_s"] == ranked["round_s"].min())
        rows += [_row(whatif, point) for point in ranked[is_shown].to_dict("records")]
        left_out += int((~is_shown).sum())
    titles = [capitalised(whatif.along.noun), "As priced", "Median", "80 % of draws", "First in"]
    more = f", without {plural(left_out, 'configuration')} that come first less often or never" if left_out else ""
    return Table(titles, rows, note=f"{capitalised(Markup(_draws(whatif)))}{more}.", words=titles[:1])


def _row(whatif: WhatIf, point: Mapping[Any, Any]) -> list[Cell]:
    below = [axis.said(point[axis.column]) for axis in whatif.others]
    below += [Markup(point["series"])] if len(whatif.series) > 1 else []
    between = f"{duration(point['low_s'])} to {duration(point['high_s'])}"
    told = [duration(point["round_s"]), duration(point["median_s"]), between, percent(point["first"], 0)]
    return [Cell(whatif.along.said(point[whatif.along.column]), Markup(" · ").join(below)), *map(Cell, told)]
