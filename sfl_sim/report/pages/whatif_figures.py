"""Panels on the time of a round: at each cut, the deepest at the bottom, and with other servers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import plural
from sfl_sim.report.figures import value_axis, wide_axis
from sfl_sim.report.pages.costs import NOTHING
from sfl_sim.report.panel import Panel
from sfl_sim.report.whatif_load import where_drawn
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.table import Table
    from sfl_sim.report.whatif_load import Axis, WhatIf

ROW_PX, COMPACT_ROW_PX, NUMERIC_PX, SERVER_PX = 19, 12.5, 340, 300
STAR = {"symbol": "star", "size": 12, "color": style.INK, "line": {"color": "#FFFFFF", "width": 1}}
PALE_NAME = "#98A2AD"
MAX_MULTIPLES = 6
"""Largest number of other systems for which the parts of a round are drawn."""
ROUNDS = Markup(
    "Where the time of the average client's round goes, {deep}. Warm colours are waiting{seeds}. The "
    "star marks the shortest round.{own}"
)
SERVER = (
    "The best configuration with the scenario’s own system, timed with other servers{seeds}. The ring "
    "marks the scenario’s own server. {faster}"
)


def round_panels(whatif: WhatIf, tables: Sequence[Table]) -> list[Panel]:
    """List the panel on a round by resource, with `tables` below, and one on all variants if there are several."""
    axis, shown = whatif.along, whatif.drawn
    title = "Time of a round by " + axis.noun
    own = Markup("")
    if axis.base is not None and not axis.is_numeric:
        own = Markup(" Bold is the scenario’s own {}.").format(axis.noun)
    if axis.is_cut and whatif.layers["pareto"].eq(False).any():
        own += " Pale names are cuts that are not Pareto-optimal."
    deep = "from the shallowest cut to the deepest" if axis.is_cut else "for each " + axis.noun
    caption = ROUNDS.format(deep=deep, seeds=whatif.over_seeds, own=own) + where_drawn(whatif.others) + _more(whatif)
    drawn = [(whatif.heading(one, _found(whatif, one)), stacked(whatif, one)) for one in shown]
    panels = [Panel(title, caption, drawn, min(len(drawn), 2), tables)]
    if len(shown) > 1:
        caption = escape(f"Stars mark the best of each{whatif.over_seeds}.") + where_drawn(whatif.others)
        panels.insert(0, Panel("All variants", caption, [(title, by_series(whatif))]))
    return panels


def elsewhere_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel with the figure of the first series at other values of the second axis: all if they are few."""
    across, shown = whatif.across, whatif.drawn
    if across is None or not shown:
        return []
    rest = [i for i in range(len(across.values)) if i != across.shown and len(whatif.times(shown[0], i))]
    chosen = [int(i) for i in display.thin(pd.DataFrame(index=rest), MAX_MULTIPLES).index]
    drawn = []
    for i in chosen:
        heading = whatif.heading(shown[0], _found(whatif, shown[0], i))
        drawn.append((heading, stacked(whatif, shown[0], i, compact=True)))
    some = f" {len(chosen)} of {plural(len(rest), 'other value')}." if len(chosen) < len(rest) else ""
    whose = " " + shown[0].html + " alone." if len(whatif.series) > 1 else ""
    caption = escape(f"Each figure has a scale of its own.{some}") + whose + where_drawn(whatif.others[1:])
    columns = {1: 1, 2: 2, 4: 2}.get(len(drawn), 3)
    return [Panel("At other values of " + across.noun, caption, drawn, columns)] if drawn else []


def _found(whatif: WhatIf, series: style.Named, across: int | None = None) -> Markup:
    """Say which value is the best at a value of the second axis."""
    best = whatif.along.said(whatif.best(series, across)) + " is the best"
    other = whatif.across
    return best if other is None else other.said(other.shown if across is None else across) + ": " + best


def _more(whatif: WhatIf) -> str:
    shown = len(whatif.drawn)
    return f" The first {shown} of {len(whatif.series)} variants are drawn." if shown < len(whatif.series) else ""


def server_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on other servers, if any were timed."""
    if whatif.server.empty:
        return []
    drawn = [
        ("Speed of the server", by_speedup(whatif)),
        ("Workers of the server", by_workers(whatif)),
    ]
    caption = SERVER.format(seeds=whatif.over_seeds, faster=faster_server(whatif))
    return [Panel("Another server", caption, drawn, columns=2)]


def stacked(whatif: WhatIf, series: style.Named, across: int | None = None, compact: bool = False) -> go.Figure:
    """Median seconds of a round by resource, stacked, for each value of the axis; the best has a star and its time."""
    axis = whatif.along
    rows = whatif.here(whatif.middle, series, across).dropna(subset="round_s").sort_values(axis.column)
    unit, unit_s = display.time_unit(rows["round_s"].median())
    figure = canvas(axis, compact)
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
            **({"x": [None], "y": [None]} if axis.is_numeric else at | about),
            name=name,
            marker_color=colour,
            orientation="v" if axis.is_numeric else "h",
            width=0.78,
        )
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


def by_speedup(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round against the server's speed-up, with its own number of workers."""
    own = sweep(whatif, "speedup")
    figure = _drawn(whatif, own.assign(x=own["speedup"]), "speedup")
    return figure.update_xaxes(
        wide_axis(own["speedup"].min(), own["speedup"].max()), title="server/client compute ratio"
    )


def by_workers(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round against the number of workers, beside each other, at the server's own speed-up."""
    own = sweep(whatif, "workers")
    numbers = np.unique(own["workers"])
    figure = _drawn(whatif, own.assign(x=np.searchsorted(numbers, own["workers"])), "workers")
    places = list(range(len(numbers)))
    return figure.update_xaxes(title="workers of the server", tickvals=places, ticktext=list(map(_number, numbers)))


def faster_server(whatif: WhatIf) -> str:
    """Say what the fastest server that was tried would save of the first series' round."""
    own = sweep(whatif, "speedup")
    own = own[own["series"] == whatif.series[0].label]
    here = own[own["own"]]
    if here.empty:
        return ""
    fastest = own.sort_values("speedup").iloc[-1]
    if fastest["speedup"] <= here["speedup"].iloc[0]:
        return ""
    saved = 1 - fastest["round_s"] / here["round_s"].iloc[0]
    share = display.percent(saved, 0) if saved >= ALIKE else f"less than {display.percent(ALIKE, 0)}"
    return f"One {fastest['speedup'] / here['speedup'].iloc[0]:.3g} times as fast would save {share} of the round."


def sweep(whatif: WhatIf, column: str) -> pd.DataFrame:
    """One row per series and value of `column`, speedup or workers, the other one being the scenario's own.

    `round_s` is the median over seeds, and `own` whether it is the scenario's own server.
    """
    server = whatif.server
    alike = {name: _equal(server[name], server[f"scenario_{name}"]) for name in ("speedup", "workers")}
    rows = server.assign(own=alike[column])[alike["workers" if column == "speedup" else "speedup"]]
    return rows.groupby(["series", column], as_index=False).agg({"round_s": "median", "own": "first"})


def _number(number: float) -> str:
    return "unlimited" if math.isinf(number) else f"{number:g}"


def _equal(one: pd.Series, other: pd.Series) -> pd.Series:
    return pd.Series(np.isclose(one, other, rtol=1e-6), index=one.index)


def _drawn(whatif: WhatIf, rows: pd.DataFrame, column: str) -> go.Figure:
    unit, unit_s = display.time_unit(rows["round_s"].max())
    figure = figures.canvas(SERVER_PX)
    for series in whatif.series:
        own = rows[rows["series"] == series.label]
        figures.lines(
            figure, series, own["x"], own["round_s"] / unit_s, f"%{{y:.3~g}} {unit} with %{{text}}<extra></extra>",
            text=own[column].map(_number), mode="lines+markers", width=2,
            showlegend=len(whatif.series) > 1, marker={"color": series.colour, "size": 6},
        )  # fmt: skip
        here = own[own["own"]]
        ring = {"color": "#FFFFFF", "symbol": "circle", "size": 12, "line": {"color": series.colour, "width": 3}}
        skipped = {"hoverinfo": "skip", "showlegend": False}
        figures.marks(figure, series, here["x"], here["round_s"] / unit_s, "", marker=ring, **skipped)
    return figure.update_yaxes(title=f"time of a round ({unit})", rangemode="tozero")
