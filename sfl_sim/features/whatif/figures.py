"""Figures of a what-if: the time of a round along an axis, in other systems, of classes of clients, and of draws."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from sfl_sim.features.whatif.load import CLIENT_PARTS, ShownAxis, WhatIfFolder
from sfl_sim.report import display, figures, style
from sfl_sim.report.figures import WIDE, value_axis, wide_axis
from sfl_sim.report.lead import best_by_column
from sfl_sim.store.columns import PARTS

# Values along the axis that a best one is sought on

ROW_PX, COMPACT_ROW_PX, NUMERIC_PX = 19, 12.5, 340
STAR = {"symbol": "star", "size": 12, "color": style.INK, "line": {"color": "#FFFFFF", "width": 1}}
PALE_NAME = "#98A2AD"


def canvas(axis: ShownAxis, compact: bool = False) -> go.Figure:
    """An empty figure with room for all values of the axis."""
    if axis.is_numeric:
        return figures.canvas(NUMERIC_PX)
    return figures.canvas(round(90 + (COMPACT_ROW_PX if compact else ROW_PX) * max(len(axis.values), 4)))


def placed(
    axis: ShownAxis, indices: Sequence[int] | pd.Series | pd.Index, numbers: Sequence[float] | pd.Series
) -> dict[str, np.ndarray]:
    """Place numbers: to the right in the rows of named values, or upwards over an axis of numbers."""
    found = np.asarray(numbers, dtype=float)
    if axis.is_numeric:
        return {"x": np.asarray([axis.values[i] for i in indices], dtype=float), "y": found}
    return {"x": found, "y": np.asarray(indices)}


def dressed(whatif: WhatIfFolder, figure: go.Figure, title: str, most: float | None = None) -> go.Figure:
    """Give `figure` the axis of values, and the other one from 0 to `most` with `title`."""
    axis = whatif.along
    upright = {"title": title, "rangemode": "tozero", "range": None if most is None else [0, most]}
    if axis.is_numeric:
        figure.update_yaxes(upright).update_xaxes(value_axis(axis.values, axis.names), title=axis.title)
    else:
        size = 10 if figure.layout.height < 90 + 16 * len(axis.values) else 12
        figure.update_xaxes(upright)
        figure.update_yaxes(rows_of_values(whatif), range=[len(axis.values) - 0.4, -0.6], tickfont={"size": size})
    return figure


def rows_of_values(whatif: WhatIfFolder) -> dict[str, object]:
    """A y axis with a row for each value, from the first on top."""
    axis = whatif.along
    title, ticks = None if axis.is_cut else axis.title, list(range(len(axis.values)))
    return {"title": title, "tickvals": ticks, "ticktext": names(whatif), "ticks": "", "showgrid": False}


def wide(whatif: WhatIfFolder, figure: go.Figure, title: str, numbers: Sequence[pd.Series]) -> go.Figure:
    """Dress the figure with a logarithmic axis if the numbers differ by much."""
    figure = dressed(whatif, figure, title)
    scale = wide_axis(min(own.min() for own in numbers), max(own.max() for own in numbers))
    return figure.update_yaxes(scale) if whatif.along.is_numeric else figure.update_xaxes(scale)


def names(whatif: WhatIfFolder) -> list[str]:
    """The names of the values: the scenario's own is bold, and cuts that are not Pareto are pale."""
    axis = whatif.along
    pale = list(whatif.layers.loc[whatif.layers["pareto"].eq(False), "layer"]) if axis.is_cut else []
    return [
        f'<span style="color:{PALE_NAME}">{name}</span>' if value in pale and i != axis.base else name
        for i, (value, name) in enumerate(zip(axis.values, axis.own_is_bold(), strict=True))
    ]


def along(
    whatif: WhatIfFolder, of: Mapping[style.Named, pd.Series], title: str, unit: tuple[str, float], best: bool = True
) -> go.Figure:
    """A line through the numbers (by index on the axis) of each bearer of a name.

    With a star at the least of each, if a user decides the axis, which may be logarithmic, if the `best` are sought.
    """
    axis, (name, size) = whatif.along, unit
    figure = canvas(axis)
    for named, unscaled in of.items():
        numbers = unscaled / size
        figures.lines(
            figure, named, **placed(axis, numbers.index, numbers), mode="lines+markers", width=2,
            hover=f"{named.label}: %{{{'y' if axis.is_numeric else 'x'}:.3~g}} {name} at %{{text}}<extra></extra>",
            text=[axis.names[i] for i in numbers.index], marker={"color": named.colour, "size": 5},
        )  # fmt: skip
        if best and axis.is_chosen:
            least = numbers.nsmallest(1)
            figures.marks(
                figure, named, **placed(axis, least.index, least), hover="", showlegend=False, hoverinfo="skip",
                marker={**STAR, "color": named.colour, "size": 15}, cliponaxis=False,
            )  # fmt: skip
    title = f"{title} ({name})"
    return wide(whatif, figure, title, [own / size for own in of.values()]) if best else dressed(whatif, figure, title)


def by_series(whatif: WhatIfFolder) -> go.Figure:
    """Median seconds of a round for each value of the axis, a line for each series, and a star on its best."""
    times_s = {series: own for series in whatif.series if len(own := whatif.times(series))}
    return along(whatif, times_s, "time of a round", display.time_unit(min(own.median() for own in times_s.values())))


def parts_shown(middle: pd.DataFrame) -> list[str]:
    """The resources that take more than nothing of a round."""
    return [part for part in PARTS if (middle[f"{part}_s"] > figures.NOTHING * middle["round_s"]).any()]


def stacked(whatif: WhatIfFolder, series: style.Named, across: int | None = None) -> go.Figure:
    """Median seconds of a round by resource, stacked, for each value of the axis; the best has a star and its time.

    `across` is a value of the second axis that is not the scenario's own, where figures are compact.
    """
    axis = whatif.along
    rows = whatif.here(whatif.middle, series, across).dropna(subset="round_s").sort_values(axis.key)
    unit, unit_s = display.time_unit(rows["round_s"].median())
    figure = canvas(axis, compact=across is not None)
    for part in parts_shown(whatif.middle):
        name, colour = style.RESOURCE_NAMES[part], style.RESOURCE_COLOURS[part]
        at = placed(axis, rows[axis.key], rows[f"{part}_s"] / unit_s)
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
    best = rows.nsmallest(int(axis.is_chosen), "round_s")
    figure.add_scatter(
        **placed(axis, best[axis.key], best["round_s"] / unit_s), name="best", mode="markers+text",
        marker=STAR, text=[f" <b>{display.duration(seconds)}</b>" for seconds in best["round_s"]], cliponaxis=False,
        textposition="top left" if axis.is_numeric else "middle right", hoverinfo="skip", showlegend=axis.is_chosen,
    )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0)
    return dressed(whatif, figure, f"time of a round ({unit})", most=1.08 * rows["round_s"].max() / unit_s)


# Over cuts and one more axis

DAY_S = 86400
TICKS_S = (1e-3, 1e-2, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000,
           DAY_S, 3 * DAY_S, 10 * DAY_S, 30 * DAY_S, 100 * DAY_S, 365 * DAY_S)  # fmt: skip
MAX_SLOWER = 10.0
"""Factor over the best of a column from which on everything is equally pale."""
SLOWER_TICKS = (1, 1.2, 1.5, 2, 3, 5, MAX_SLOWER)


def field(whatif: WhatIfFolder, series: style.Named, across: ShownAxis) -> NDArray[np.float64]:
    """Median seconds of a round: rows are values of the first axis, columns those of `across`; NaN if unknown."""
    times_s = np.full((len(whatif.along.values), len(across.values)), np.nan)
    for column in range(len(across.values)):
        own = whatif.times(series, column)
        times_s[own.index, column] = own
    return times_s


def time_map(whatif: WhatIfFolder, series: style.Named, across: ShownAxis, over_best: bool = False) -> go.Figure:
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
    told = [["" for _ in across.values] for _ in axis.values]
    for row, column in np.argwhere(times_s > 0):
        duration, ratio = display.duration(times_s[row, column]), ratios[row, column]
        told[row][column] = f"{axis.said(row)}, {across.said(column)}: {duration}, {ratio:.3g} times the best"
    figure, best = figures.canvas(100 + ROW_PX * max(len(axis.values), 8)), best_by_column(times_s)
    figure.add_heatmap(
        z=colours, colorscale=style.LOSS_SCALE, customdata=told, hovertemplate="%{customdata}<extra></extra>",
        hoverongaps=False, xgap=1, ygap=0.5, colorbar=figures.colour_bar() | bar,
    )  # fmt: skip
    if axis.is_chosen:
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
    return figure.update_yaxes(rows_of_values(whatif), range=[len(axis.values) - 0.5, -0.5])


def step_line(times_s: NDArray[np.float64], across: ShownAxis) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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


# Clients

CLASS_PX = 56
NO_MEMORY = Markup(" How much memory training takes is not known.")
NO_ENERGY = Markup(" No power of the devices is known (<code>clients.power</code>), so there is no energy.")
COSTS = {
    "client_memory_bytes": ("Memory", "client memory", "the most of any client", NO_MEMORY),
    "client_joule": ("Energy", "energy of a client and round", "mean of all clients", NO_ENERGY),
}
"""What a client needs: its name, what is drawn of it, what the line for all is, and what is said if it is unknown."""


def classes(whatif: WhatIfFolder) -> list[style.Named]:
    """The classes of devices, the slowest first, in colours of a ramp."""
    slowest_first = whatif.clients.groupby("group")["macs_per_s"].median().sort_values().index
    colours = sample_colorscale("Plasma", np.linspace(0.08, 0.78, max(len(slowest_first), 2)))
    return [style.Named(Markup(name), colour, "solid") for name, colour in zip(slowest_first, colours, strict=False)]


def by_class(whatif: WhatIfFolder, series: style.Named, *columns: str) -> pd.DataFrame:
    """The sum of the columns in the scenario's own system, mean over clients and seeds: index of the axis by class."""
    means = whatif.here(whatif.clients, series).groupby(["group", whatif.along.key])[list(columns)].mean()
    return means.sum(axis="columns", min_count=1).unstack("group").dropna(how="all")


def preferences(whatif: WhatIfFolder, series: style.Named) -> go.Figure:
    """Draw the own time of each class, without waiting for others, along the axis; stars mark the best of each."""
    times_s = by_class(whatif, series, *CLIENT_PARTS)
    of = {one: times_s[one.label].dropna() for one in classes(whatif) if one.label in times_s}
    return along(whatif, of, "own time in a round", display.time_unit(times_s.median().min()))


def spent(whatif: WhatIfFolder, series: style.Named, at: int) -> go.Figure:
    """Draw where the time of each class goes at one value of the axis, a stacked bar for each class."""
    rows = whatif.here(whatif.clients, series)
    rows = rows[rows[whatif.along.key] == at]
    means = rows.groupby("group")[[*CLIENT_PARTS, "rest_s"]].mean()
    parts = means.loc[[one.label for one in classes(whatif) if one.label in means.index]]
    slowest_s = rows[CLIENT_PARTS].sum(axis="columns").groupby(rows["group"]).max()
    own_s = parts[CLIENT_PARTS].sum(axis="columns")
    parts = parts.rename(columns=lambda column: "barrier" if column == "rest_s" else column.removesuffix("_s"))
    bars = {}
    for name, seconds in zip(map(str, parts.index), parts.to_dict("records"), strict=True):
        mean, most = display.duration(own_s[name]), display.duration(slowest_s[name])
        bars[f"<b>{name}</b>: {mean} of its own, at most {most}"] = pd.Series(seconds)
    return figures.bars(bars, "time of a round", "round", CLASS_PX)


def client_cost(whatif: WhatIfFolder, series: style.Named, column: str) -> go.Figure:
    """What a client needs for each value of the axis: a line over all clients, and one for each class if they differ.

    Of memory it is the most of any client, of energy the mean.
    """
    _, title, of_all, _ = COSTS[column]
    overall = whatif.here(whatif.middle, series).set_index(whatif.along.key)[column]
    if column == "client_joule":
        unit = ("kJ", 1e3) if overall.median() >= 2e3 else ("J", 1.0)
    else:
        unit = display.data_unit(overall.max())
    costs, of = by_class(whatif, series, column.removeprefix("client_")), dict[style.Named, pd.Series]()
    least, most = (costs.agg(end, axis="columns") / unit[1] for end in ("min", "max"))
    if not np.allclose(least, most, equal_nan=True):
        of = {one: costs[one.label].dropna() for one in classes(whatif) if one.label in costs}
    of[style.Named(Markup(of_all), style.INK, "dash")] = overall.dropna()
    return along(whatif, of, title, unit, best=False)


# What survives uncertainty

ROW = 0.7
"""Part of a row that marks of several series take."""


def intervals(whatif: WhatIfFolder) -> go.Figure:
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


def firsts(whatif: WhatIfFolder) -> go.Figure:
    """Share of the draws in which each point of the scenario's own system comes first."""
    here = whatif.here(whatif.survival)
    figure, axis = canvas(whatif.along), "y" if whatif.along.is_numeric else "x"
    for series in whatif.drawn:
        own = here[here["series"] == series.label]
        at = _beside(whatif, series, own, 100 * own["first"])
        figures.marks(figure, series, **at, hover=f"%{{{axis}:.0f}} %<extra></extra>", showlegend=False)
    return dressed(whatif, figure, "share of the draws (%)", most=104)


def _beside(whatif: WhatIfFolder, series: style.Named, own: pd.DataFrame, numbers: pd.Series) -> dict[str, np.ndarray]:
    """Place numbers as `placed`, those of several series in the row of a named value beside each other."""
    at = placed(whatif.along, own[whatif.along.key], numbers)
    if not whatif.along.is_numeric:
        at["y"] = at["y"] + ROW * ((whatif.drawn.index(series) + 0.5) / len(whatif.drawn) - 0.5)
    return at


# Points that were trained

TRAINED_PX, TRAINED_ROW_PX = 320, 40


def time_to_target(whatif: WhatIfFolder, points: pd.DataFrame) -> go.Figure:
    """Simulated time to the target at the trained `points` of the scenario's own system."""
    axis, in_time = whatif.along, points["valid"] & np.isfinite(points["time_to_accuracy_s"])
    longest_s = float(points.loc[in_time, "time_to_accuracy_s"].max()) if in_time.any() else 1.0
    unit, unit_s = display.time_unit(longest_s)
    values = sorted(points[axis.key].unique())
    figure = figures.canvas(90 + TRAINED_ROW_PX * max(len(values), 3))
    for series in whatif.series:
        own = points[points["series"] == series.label]
        reached = in_time[own.index]
        ends = [f" {display.percent(share)}" for share in own["accuracy"]]
        figures.marks(
            figure, series, own["time_to_accuracy_s"].where(reached, 0) / unit_s, own[axis.key].map(values.index),
            f"%{{x:.3~g}} {unit}, ends at%{{text}}<extra></extra>", mode="markers+text",
            marker={"opacity": reached.astype(float).to_numpy()},
            text=np.select([reached, own["valid"]], [ends, "not reached"], "must be trained"),
            textposition="middle right", textfont={"size": 12, "color": style.MUTED},
            cliponaxis=False, showlegend=False,
        )  # fmt: skip
    figure.update_xaxes(title=f"time to the target ({unit})", range=[0, 1.2 * longest_s / unit_s])
    ticks = {"tickvals": list(range(len(values))), "ticktext": [axis.names[index] for index in values], "ticks": ""}
    return figure.update_yaxes(ticks, range=[len(values) - 0.4, -0.6], title=axis.title)


def accuracy_by_round(whatif: WhatIfFolder, points: pd.DataFrame) -> go.Figure:
    """Accuracy reached against the time of a round, a mark for each valid one of the trained `points`."""
    unit, unit_s = display.time_unit(points["round_s"].median())
    figure = figures.canvas(TRAINED_PX)
    for series in whatif.series:
        own = points[(points["series"] == series.label) & points["valid"]]
        figures.marks(
            figure, series, own["round_s"] / unit_s, 100 * own["accuracy"],
            f"%{{text}}: %{{y:.1f}} %, a round takes %{{x:.3~g}} {unit}<extra></extra>", mode="markers+text",
            text=[whatif.along.names[i] for i in own[whatif.along.key]], textposition="top center",
            cliponaxis=False, showlegend=False,
        )  # fmt: skip
        look = {"symbol": series.symbol, "color": series.colour}  # the legend knows one colour a name
        figures.entry(figure, series.label, look, showlegend=len(whatif.series) > 1)
    figure.update_yaxes(title="accuracy reached (%)")
    scale = figures.wide_axis(points["round_s"].min() / unit_s, points["round_s"].max() / unit_s)
    return figure.update_xaxes(scale, title=f"time of a round ({unit})")
