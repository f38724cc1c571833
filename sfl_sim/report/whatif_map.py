"""Panel on the time of a round over cuts and one more axis, and where along that axis the best cut changes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures, style
from sfl_sim.report.figures import WIDE, wide_axis
from sfl_sim.report.pages.whatif_figures import ROW_PX, names
from sfl_sim.report.panel import Panel
from sfl_sim.report.whatif_load import where_drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    from numpy.typing import NDArray

    from sfl_sim.report.table import Table
    from sfl_sim.report.whatif_load import Axis, WhatIf

DAY_S = 86400
TICKS_S = (1e-3, 1e-2, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000,
           DAY_S, 3 * DAY_S, 10 * DAY_S, 30 * DAY_S, 100 * DAY_S, 365 * DAY_S)  # fmt: skip
MAX_SLOWER = 10.0
"""Factor over the best of a column from which on everything is equally pale."""
SLOWER_TICKS = (1, 1.2, 1.5, 2, 3, 5, MAX_SLOWER)
MAP = Markup(
    "Dark is quick. A star marks the best {noun} of its column, and the line shows where the best one "
    "changes{seeds}.{at} The table has the best {noun} for {every}."
)


def map_panels(whatif: WhatIf, tables: Sequence[Table]) -> list[Panel]:
    """List the panel with two maps for each variant and `tables` below, if a second axis was varied."""
    across, axis = whatif.across, whatif.along
    if across is None or len(across.values) < 2 or not whatif.drawn:
        return []
    drawn = []
    for one in whatif.drawn:
        against = "against the best of the same " + across.noun
        drawn.append((whatif.heading(one, Markup("time of a round")), time_map(whatif, one, across)))
        drawn.append((whatif.heading(one, against), slower_map(whatif, one, across)))
    every = "every combination of the other settings" if len(whatif.others) > 1 else "every " + across.noun
    caption = MAP.format(noun=axis.noun, seeds=whatif.over_seeds, at=where_drawn(whatif.others[1:]), every=every)
    return [Panel("Where the best " + axis.noun + " changes", caption, drawn, 2, tables)]


def field(whatif: WhatIf, series: style.Named, across: Axis) -> NDArray[np.float64]:
    """Median seconds of a round: rows are values of the first axis, columns those of `across`; NaN if unknown."""
    times_s = np.full((len(whatif.along.values), len(across.values)), np.nan)
    for column in range(len(across.values)):
        own = whatif.times(series, column)
        times_s[own.index, column] = own
    return times_s


def best_by_column(times_s: NDArray[np.float64]) -> dict[int, int]:
    """The row of the least time of each column that has one."""
    known = np.flatnonzero(~np.isnan(times_s).all(axis=0))
    return {int(column): int(np.nanargmin(times_s[:, column])) for column in known}


def time_map(whatif: WhatIf, series: style.Named, across: Axis) -> go.Figure:
    """The time of a round, dark where it is short, and the best of each column."""
    times_s = field(whatif, series, across)
    least_s, most_s = np.nanmin(times_s), np.nanmax(times_s)
    if most_s > WIDE * least_s:
        ticks = [tick for tick in TICKS_S if least_s <= tick <= most_s]
        bar = {"tickvals": np.log10(ticks), "ticktext": list(map(display.duration, ticks))}
        return _map(whatif, across, times_s, np.log10(times_s), bar)
    unit, unit_s = display.time_unit(least_s)
    return _map(whatif, across, times_s, times_s / unit_s, {"title": {"text": unit}})


def slower_map(whatif: WhatIf, series: style.Named, across: Axis) -> go.Figure:
    """Draw how many times longer a round takes than at the best of the same column."""
    times_s = field(whatif, series, across)
    slower = np.fmin(_over_best(times_s), MAX_SLOWER)
    ticks = [tick for tick in SLOWER_TICKS if tick <= np.nanmax(slower)]
    texts = [f"{'≥ ' if tick == MAX_SLOWER else ''}{tick:g}×" for tick in ticks]
    return _map(whatif, across, times_s, np.log10(slower), {"tickvals": np.log10(ticks), "ticktext": texts})


def _over_best(times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(times_s, np.fmin.reduce(times_s, axis=0))


def _map(
    whatif: WhatIf,
    across: Axis,
    times_s: NDArray[np.float64],
    colours: NDArray[np.float64],
    bar: dict[str, object],
) -> go.Figure:
    axis, best = whatif.along, best_by_column(times_s)
    figure = figures.canvas(100 + ROW_PX * max(len(axis.values), 8))
    over_best = _over_best(times_s)
    told = [
        [
            f"{axis.said(row)}, {across.said(column)}: {display.duration(seconds)}, {ratio:.3g} times the best"
            if seconds > 0
            else ""
            for column, (seconds, ratio) in enumerate(zip(*own, strict=True))
        ]
        for row, own in enumerate(zip(times_s, over_best, strict=True))
    ]
    figure.add_heatmap(
        z=colours, colorscale=style.LOSS_SCALE, customdata=told, hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False, xgap=1, ygap=0.5,
        colorbar=figures.colour_bar() | bar,
    )  # fmt: skip
    x, y = step_line(times_s, across)
    figure.add_scatter(
        x=x, y=y, mode="lines", name="where the best changes", hoverinfo="skip",
        line={"color": style.DOT, "width": 2.5, "dash": "solid"},
    )  # fmt: skip
    figure.add_scatter(
        x=list(best), y=list(best.values()), mode="markers", name="best of its column", hoverinfo="skip",
        marker={"symbol": "star", "size": 13, "color": style.DOT, "line": figures.WHITE_EDGE},
    )  # fmt: skip
    figure.update_xaxes(
        title=across.title, tickvals=list(range(len(across.values))), ticktext=across.own_is_bold(), ticks="",
        range=[-0.5, len(across.values) - 0.5], showgrid=False,
    )  # fmt: skip
    return figure.update_yaxes(
        tickvals=list(range(len(axis.values))), ticktext=names(whatif), showgrid=False, ticks="",
        range=[len(axis.values) - 0.5, -0.5], title=None if axis.is_cut else axis.title,
    )  # fmt: skip


def step_line(times_s: NDArray[np.float64], across: Axis) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A line through the best of each column (x and y), which goes up or down where the best changes."""
    best = best_by_column(times_s)
    turns = [
        left + (right - left) * (_share(times_s, left, right, best[left], best[right]) if across.is_numeric else 0.5)
        for left, right in itertools.pairwise(best)
    ]
    edges = [min(best) - 0.5, *turns, max(best) + 0.5]
    return np.repeat(edges, 2)[1:-1], np.repeat(np.array(list(best.values()), dtype=float), 2)


def _share(times_s: NDArray[np.float64], left: int, right: int, former: int, later: int) -> float:
    """Interpolate how far between two columns both are equally quick, by straight lines of logarithms of times."""
    logs = np.log(times_s)
    ahead, behind = logs[later, left] - logs[former, left], logs[former, right] - logs[later, right]
    if not (ahead >= 0 and behind >= 0 and ahead + behind > 0):  # unknown, or equally quick all the way
        return 0.5
    return float(ahead / (ahead + behind))


@dataclass(frozen=True)
class Reign:
    """Stretch of an axis on which one value is the best: indices, and the number at which the next takes over."""

    best: int
    first: int
    last: int
    until: float | None = None


def reigns(times_s: NDArray[np.float64], across: Axis) -> list[Reign]:
    """Find which value is best where along `across`. A new best takes over when it is clearly quicker."""
    found: list[Reign] = []
    for column, best in best_by_column(times_s).items():
        if found and times_s[best, column] >= times_s[found[-1].best, column] * (1 - ALIKE):
            found[-1] = replace(found[-1], last=column)
            continue
        if found and across.is_numeric:
            found[-1] = replace(found[-1], until=_takeover(times_s, across, found[-1], column, best))
        found.append(Reign(best, column, column))
    return found


def _takeover(times_s: NDArray[np.float64], across: Axis, former: Reign, column: int, later: int) -> float:
    """The number at which both are equally quick."""
    low, high = across.values[former.last], across.values[column]
    share = _share(times_s, former.last, column, former.best, later)
    is_log = wide_axis(across.values[0], across.values[-1])["type"] == "log"
    return float(low * (high / low) ** share if low > 0 and is_log else low + (high - low) * share)
