"""Panels of a what-if on the time of a round: at each cut, with other servers, and over cuts and one more axis."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import plural
from sfl_sim.report.figures import WIDE, value_axis, wide_axis
from sfl_sim.report.pages.costs import NOTHING
from sfl_sim.report.panel import Declared, Panel
from sfl_sim.report.whatif_load import where_drawn
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    from numpy.typing import NDArray

    from sfl_sim.report.panel import Drawing
    from sfl_sim.report.table import Table
    from sfl_sim.report.whatif_load import Axis, WhatIf

# Values along the axis that a best one is sought on

ROW_PX, COMPACT_ROW_PX, NUMERIC_PX, SERVER_PX = 19, 12.5, 340, 300
STAR = {"symbol": "star", "size": 12, "color": style.INK, "line": {"color": "#FFFFFF", "width": 1}}
PALE_NAME = "#98A2AD"


def add_line(
    figure: go.Figure, axis: Axis, numbers: pd.Series, named: style.Named, unit: str, starred: bool = True
) -> None:
    """A line through `numbers` (by index on the axis), with a star at the least if one is sought."""
    told = "y" if axis.is_numeric else "x"
    figures.lines(
        figure, named, **placed(axis, numbers.index, numbers), mode="lines+markers", width=2,
        hover=f"{named.label}: %{{{told}:.3~g}} {unit} at %{{text}}<extra></extra>",
        text=[axis.names[i] for i in numbers.index], marker={"color": named.colour, "size": 5},
    )  # fmt: skip
    if not starred:
        return
    least = numbers.nsmallest(1)
    figures.marks(
        figure, named, **placed(axis, least.index, least), hover="", showlegend=False, hoverinfo="skip",
        marker={**STAR, "color": named.colour, "size": 15}, cliponaxis=False,
    )  # fmt: skip


def canvas(axis: Axis, compact: bool = False) -> go.Figure:
    """An empty figure with room for all values of the axis."""
    if axis.is_numeric:
        return figures.canvas(NUMERIC_PX)
    return figures.canvas(round(90 + (COMPACT_ROW_PX if compact else ROW_PX) * max(len(axis.values), 4)))


def placed(
    axis: Axis, indices: Sequence[int] | pd.Series | pd.Index, numbers: Sequence[float] | pd.Series
) -> dict[str, np.ndarray]:
    """Place numbers: to the right in the rows of named values, or upwards over an axis of numbers."""
    found = np.asarray(numbers, dtype=float)
    if axis.is_numeric:
        return {"x": np.asarray([axis.values[i] for i in indices], dtype=float), "y": found}
    return {"x": found, "y": np.asarray(indices)}


def dressed(whatif: WhatIf, figure: go.Figure, title: str, most: float | None = None) -> go.Figure:
    """Give `figure` the axis of values, and the other one from 0 to `most` with `title`."""
    axis = whatif.along
    upright = {"title": title, "rangemode": "tozero", "range": None if most is None else [0, most]}
    if axis.is_numeric:
        figure.update_yaxes(upright).update_xaxes(value_axis(axis.values, axis.names), title=axis.title)
    else:
        size = 10 if figure.layout.height < 90 + 16 * len(axis.values) else 12
        figure.update_xaxes(upright)
        figure.update_yaxes(
            range=[len(axis.values) - 0.4, -0.6], showgrid=False, ticks="", tickvals=list(range(len(axis.values))),
            ticktext=names(whatif), tickfont={"size": size}, title=None if axis.is_cut else axis.title,
        )  # fmt: skip
    return figure


def wide(whatif: WhatIf, figure: go.Figure, title: str, numbers: Sequence[pd.Series]) -> go.Figure:
    """Dress the figure with a logarithmic axis if the numbers differ by much."""
    figure = dressed(whatif, figure, title)
    scale = wide_axis(min(own.min() for own in numbers), max(own.max() for own in numbers))
    return figure.update_yaxes(scale) if whatif.along.is_numeric else figure.update_xaxes(scale)


def names(whatif: WhatIf) -> list[str]:
    """The names of the values: the scenario's own is bold, and cuts that are not Pareto are pale."""
    axis = whatif.along
    pale = list(whatif.layers.loc[whatif.layers["pareto"].eq(False), "layer"]) if axis.is_cut else []
    return [
        f'<span style="color:{PALE_NAME}">{name}</span>' if value in pale and i != axis.base else name
        for i, (value, name) in enumerate(zip(axis.values, axis.own_is_bold(), strict=True))
    ]


# At each cut

MAX_MULTIPLES = 6
"""Largest number of other systems for which the parts of a round are drawn."""


def round_panels(whatif: WhatIf, tables: Sequence[Table]) -> list[Panel]:
    """List the panel on a round by resource, with `tables` below, and one on all variants if there are several."""
    axis, shown = whatif.along, whatif.drawn
    title, where = "Time of a round by " + axis.noun, where_drawn(whatif.others)
    own = Markup("")
    if axis.base is not None and not axis.is_numeric:
        own = Markup(" Bold is the scenario’s own {}.").format(axis.noun)
    if axis.is_cut and whatif.layers["pareto"].eq(False).any():
        own += " Pale names are cuts that are not Pareto-optimal."
    deep = "from the shallowest cut to the deepest" if axis.is_cut else "for each " + axis.noun
    caption = Markup(
        "Where the time of the average client's round goes, {}. Warm colours are waiting{}. The star marks the "
        "shortest round.{}"
    ).format(deep, whatif.over_seeds, own)
    more = f" The first {len(shown)} of {len(whatif.series)} variants are drawn."
    drawings = [_stacked(whatif, one) for one in shown]
    told = caption + where + more * (len(shown) < len(whatif.series))
    panels = [Panel(title, told, drawings, min(len(drawings), 2), tables)]
    if len(shown) > 1:
        caption = escape(f"Stars mark the best of each{whatif.over_seeds}.") + where
        panels.insert(0, Panel("All variants", caption, [(title, partial(by_series, whatif))]))
    return panels


def elsewhere_panels(whatif: WhatIf) -> list[Panel]:
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
    drawings = [_stacked(whatif, shown[0], i) for i in chosen]
    return [Panel("At other values of " + across.noun, caption, drawings, columns)] if chosen else []


def _stacked(whatif: WhatIf, series: style.Named, across: int | None = None) -> Drawing:
    """The figure of a round by resource, headed by which value is the best at a value of the second axis."""
    heading, other = whatif.along.said(whatif.best(series, across)) + " is the best", whatif.across
    if other is not None:
        heading = other.said(other.shown if across is None else across) + ": " + heading
    return whatif.heading(series, heading), partial(stacked, whatif, series, across)


def stacked(whatif: WhatIf, series: style.Named, across: int | None = None) -> go.Figure:
    """Median seconds of a round by resource, stacked, for each value of the axis; the best has a star and its time.

    `across` is a value of the second axis that is not the scenario's own, where figures are compact.
    """
    axis = whatif.along
    rows = whatif.here(whatif.middle, series, across).dropna(subset="round_s").sort_values(axis.column)
    unit, unit_s = display.time_unit(rows["round_s"].median())
    figure = canvas(axis, compact=across is not None)
    shown = [part for part in BREAKDOWN if (whatif.middle[f"{part}_s"] > NOTHING * whatif.middle["round_s"]).any()]
    for part in shown:
        name, colour = style.RESOURCE_NAMES[part], style.RESOURCE_COLOURS[part]
        at = placed(axis, rows[axis.column], rows[f"{part}_s"] / unit_s)
        about = {
            "customdata": np.stack([100 * rows[f"{part}_s"] / rows["round_s"], rows["round_s"] / unit_s], axis=1),
            "hovertemplate": f"%{{{'y' if axis.is_numeric else 'x'}:.3~g}} of %{{customdata[1]:.3~g}} {unit}, "
            f"%{{customdata[0]:.0f}} %<extra>{name}</extra>",
        }
        if axis.is_numeric:
            figure.add_scatter(
                **at, **about, mode="lines", stackgroup="round", fillcolor=colour, showlegend=False,
                name=name, line={"width": 0.5, "color": colour},
            )  # fmt: skip
        figure.add_bar(
            **({"x": [None], "y": [None]} if axis.is_numeric else at | about), name=name, marker_color=colour,
            orientation="v" if axis.is_numeric else "h", width=0.78,
        )  # fmt: skip
    best = rows.nsmallest(1, "round_s")
    figure.add_scatter(
        **placed(axis, best[axis.column], best["round_s"] / unit_s), name="best", mode="markers+text",
        marker=STAR, text=[f" <b>{display.duration(seconds)}</b>" for seconds in best["round_s"]], cliponaxis=False,
        textposition="top left" if axis.is_numeric else "middle right", hoverinfo="skip",
    )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0)
    return dressed(whatif, figure, f"time of a round ({unit})", most=1.08 * rows["round_s"].max() / unit_s)


def by_series(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round for each value of the axis, a line for each series, and a star on its best."""
    axis = whatif.along
    figure = canvas(axis)
    times = {series: own for series in whatif.series if len(own := whatif.times(series))}
    unit, unit_s = display.time_unit(min(own.median() for own in times.values()))
    for series, own in times.items():
        add_line(figure, axis, own / unit_s, series, unit)
    return wide(whatif, figure, f"time of a round ({unit})", [own / unit_s for own in times.values()])


# With other servers


def sweep(whatif: WhatIf, column: str) -> pd.DataFrame:
    """One row per series and value of `column`, speedup or workers, the other one being the scenario's own.

    `round_s` is the median over seeds, and `own` whether it is the scenario's own server.
    """
    server, other = whatif.server, "workers" if column == "speedup" else "speedup"
    own, rest = (np.isclose(server[name], server[f"scenario_{name}"], rtol=1e-6) for name in (column, other))
    rows = server.assign(own=own)[rest]
    return rows.groupby(["series", column], as_index=False).agg({"round_s": "median", "own": "first"})


def by_server(whatif: WhatIf, column: str) -> go.Figure:
    """Median seconds of a round against the server's speed-up or workers, the other one being the scenario's own."""
    rows = sweep(whatif, column)
    values = np.unique(rows[column])
    names = ["unlimited" if math.isinf(value) else f"{value:g}" for value in values]
    place = np.searchsorted(values, rows[column])
    rows = rows.assign(x=rows[column] if column == "speedup" else place, name=[names[i] for i in place])
    unit, unit_s = display.time_unit(rows["round_s"].max())
    figure = figures.canvas(SERVER_PX)
    for series in whatif.series:
        own = rows[rows["series"] == series.label]
        figures.lines(
            figure, series, own["x"], own["round_s"] / unit_s, f"%{{y:.3~g}} {unit} with %{{text}}<extra></extra>",
            text=own["name"], mode="lines+markers", width=2, showlegend=len(whatif.series) > 1,
            marker={"color": series.colour, "size": 6},
        )  # fmt: skip
        here = own[own["own"]]
        ring = {"color": "#FFFFFF", "symbol": "circle", "size": 12, "line": {"color": series.colour, "width": 3}}
        skipped = {"hoverinfo": "skip", "showlegend": False}
        figures.marks(figure, series, here["x"], here["round_s"] / unit_s, "", marker=ring, **skipped)
    figure.update_yaxes(title=f"time of a round ({unit})", rangemode="tozero")
    if column == "speedup":
        return figure.update_xaxes(wide_axis(values[0], values[-1]), title="server/client compute ratio")
    return figure.update_xaxes(title="workers of the server", tickvals=list(range(len(values))), ticktext=names)


def faster_server(whatif: WhatIf) -> str:
    """Say what the fastest server that was tried would save of the first series' round."""
    own = sweep(whatif, "speedup")
    own = own[own["series"] == whatif.series[0].label].sort_values("speedup")
    here = own[own["own"]]
    if here.empty or own["speedup"].iloc[-1] <= here["speedup"].iloc[0]:
        return ""
    faster, shorter = (own[column].iloc[-1] / here[column].iloc[0] for column in ("speedup", "round_s"))
    share = display.percent(1 - shorter, 0) if 1 - shorter >= ALIKE else f"less than {display.percent(ALIKE, 0)}"
    return f"One {faster:.3g} times as fast would save {share} of the round."


server_panels: Declared[WhatIf] = Declared(
    "Another server",
    "The best configuration with the scenario’s own system, timed with other servers{seeds}. The ring marks the "
    "scenario’s own server. {faster}",
    {
        "Speed of the server": partial(by_server, column="speedup"),
        "Workers of the server": partial(by_server, column="workers"),
    },
    when=lambda whatif: len(whatif.server),
    words=lambda whatif: {"seeds": whatif.over_seeds, "faster": faster_server(whatif)},
    columns=2,
)

# Over cuts and one more axis

DAY_S = 86400
TICKS_S = (1e-3, 1e-2, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000,
           DAY_S, 3 * DAY_S, 10 * DAY_S, 30 * DAY_S, 100 * DAY_S, 365 * DAY_S)  # fmt: skip
MAX_SLOWER = 10.0
"""Factor over the best of a column from which on everything is equally pale."""
SLOWER_TICKS = (1, 1.2, 1.5, 2, 3, 5, MAX_SLOWER)


def map_panels(whatif: WhatIf, tables: Sequence[Table]) -> list[Panel]:
    """List the panel with two maps for each variant and `tables` below, if a second axis was varied."""
    across, axis = whatif.across, whatif.along
    if across is None or len(across.values) < 2 or not whatif.drawn:
        return []
    drawings: list[Drawing] = []
    for one in whatif.drawn:
        against = "against the best of the same " + across.noun
        drawings.append((whatif.heading(one, Markup("time of a round")), partial(time_map, whatif, one, across)))
        drawings.append((whatif.heading(one, against), partial(time_map, whatif, one, across, over_best=True)))
    every = "every combination of the other settings" if len(whatif.others) > 1 else "every " + across.noun
    caption = Markup(
        "Dark is quick. A star marks the best {noun} of its column, and the line shows where the best one changes"
        "{seeds}.{at} The table has the best {noun} for {every}."
    ).format(noun=axis.noun, seeds=whatif.over_seeds, at=where_drawn(whatif.others[1:]), every=every)
    return [Panel("Where the best " + axis.noun + " changes", caption, drawings, 2, tables)]


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


def time_map(whatif: WhatIf, series: style.Named, across: Axis, over_best: bool = False) -> go.Figure:
    """The time of a round, or how many times longer it is than at the best of its column; dark where it is short."""
    axis, times_s = whatif.along, field(whatif, series, across)
    ratios = np.divide(times_s, np.fmin.reduce(times_s, axis=0))
    least_s, most_s = np.nanmin(times_s), np.nanmax(times_s)
    bar: dict[str, object]
    if over_best:
        slower = np.fmin(ratios, MAX_SLOWER)
        at = [tick for tick in SLOWER_TICKS if tick <= np.nanmax(slower)]
        texts = [f"{'≥ ' if tick == MAX_SLOWER else ''}{tick:g}×" for tick in at]
        colours, bar = np.log10(slower), {"tickvals": np.log10(at), "ticktext": texts}
    elif most_s > WIDE * least_s:
        at = [tick for tick in TICKS_S if least_s <= tick <= most_s]
        colours, bar = np.log10(times_s), {"tickvals": np.log10(at), "ticktext": list(map(display.duration, at))}
    else:
        unit, unit_s = display.time_unit(least_s)
        colours, bar = times_s / unit_s, {"title": {"text": unit}}
    told = [
        [
            f"{axis.said(row)}, {across.said(column)}: {display.duration(seconds)}, {ratio:.3g} times the best"
            if seconds > 0
            else ""
            for column, (seconds, ratio) in enumerate(zip(*pairs, strict=True))
        ]
        for row, pairs in enumerate(zip(times_s, ratios, strict=True))
    ]
    figure, best = figures.canvas(100 + ROW_PX * max(len(axis.values), 8)), best_by_column(times_s)
    figure.add_heatmap(
        z=colours, colorscale=style.LOSS_SCALE, customdata=told, hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False, xgap=1, ygap=0.5, colorbar=figures.colour_bar() | bar,
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
            former = found[-1]
            low, high = across.values[former.last], across.values[column]
            share = _share(times_s, former.last, column, former.best, best)
            is_log = low > 0 and wide_axis(across.values[0], across.values[-1])["type"] == "log"
            until = low * (high / low) ** share if is_log else low + (high - low) * share
            found[-1] = replace(former, until=float(until))
        found.append(Reign(best, column, column))
    return found
