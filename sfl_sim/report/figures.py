"""Figures: the look that all share, and the few marks that they are made of.

A mark with a name stands in the legend of its panel. Texts are Plotly's HTML: names in it must be escaped.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sfl_sim.report import display, style
from sfl_sim.report.style import Named

MAX_POINTS = 400
"""Largest number of points of one line."""
MAX_BANDS = 4
"""Largest number of variants whose wide bands over each other can still be told apart."""
MAX_NARROW_BANDS = 8
"""The same for narrow bands."""
MAX_TICKS, WIDE = 7, 5
"""Limits of axes: at most so many ticks; logarithmic if the largest number is so many times the least."""
MAX_NAMES = 20
"""Names beside the rows of a heat map, at most."""
NOTHING = 1e-6
"""The share of a round below which a resource is left out of bars."""
ROW_PX, LINE_PX, PHONE_LETTERS = 62, 16, 32
WHITE_EDGE = {"color": "#FFFFFF", "width": 1.2}


def over_seeds(n_seeds: int, with_bands: bool = True) -> str:
    """Explain in a caption what `medians` draws."""
    if n_seeds == 1:
        return "one seed"
    bands = "least to most" if n_seeds < display.ENOUGH_SEEDS else "± standard deviation"
    return "lines: medians over seeds" + (f"; bands: {bands}" if with_bands else "")


def canvas(height_px: float, **grid: Any) -> go.Figure:
    """An empty figure: transparent, as wide as the page lets it be, with the subplots that `grid` asks for."""
    figure = make_subplots(**grid) if grid else go.Figure()
    figure.update_layout(
        height=round(height_px),
        template="none",
        font={"family": style.FONT, "size": 13, "color": style.INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#B6BDC5", "activecolor": style.MUTED},
        hoverlabel={"font": {"family": style.FONT, "size": 12}},
        legend={"orientation": "h", "y": -0.2},
    )
    axis = {"automargin": True, "gridcolor": style.GRID, "linecolor": style.GRID, "zeroline": False}
    return figure.update_xaxes(axis, title_standoff=10).update_yaxes(axis, title_standoff=10)


def lines(figure: go.Figure, named: Named, x: Any, y: Any, hover: str, **more: Any) -> None:
    """A line in the colour and dash of `named`, or a mark where there is only one point; `more` goes to the trace."""
    look = {"color": named.colour, "dash": more.pop("dash", named.dash), "width": more.pop("width", 2.2)}
    marker = {"color": named.colour, "symbol": named.symbol, "size": 8}
    trace = {"mode": "lines" if len(x) > 1 else "markers", "name": named.label, "hovertemplate": hover}
    figure.add_scatter(x=np.asarray(x), y=np.asarray(y), **trace | {"line": look, "marker": marker} | more)


def band(figure: go.Figure, named: Named, low: pd.Series, high: pd.Series, x: pd.Series, **subplot: Any) -> None:
    """A pale area between two lines, unless they are one."""
    if not (high > low).any():
        return
    known = pd.DataFrame({"x": x, "low": low, "high": high}).dropna()
    figure.add_scatter(
        x=np.r_[known["x"], known["x"][::-1]], y=np.r_[known["high"], known["low"][::-1]],
        mode="lines", fill="toself", fillcolor=named.colour, opacity=0.16, line={"width": 0},
        showlegend=False, hoverinfo="skip", **subplot,
    )  # fmt: skip


def medians(
    figure: go.Figure,
    named: Named,
    rows: pd.DataFrame,
    x: str,
    y: str = "accuracy",
    *,
    hover: str = "%{y:.1f} % at %{x:.4~g}",
    by: str | None = None,
    share: bool = True,
    with_band: bool = True,
    **subplot: Any,
) -> None:
    """Draw the median of a column over seeds, and around it how far they spread, if they differ.

    Args:
        figure: to draw on.
        named: whose line it is.
        rows: one row per seed and group, with the columns `by`, `x` and `y`.
        x: the column on the x axis, whose median over seeds is taken as well.
        y: the column that is drawn.
        hover: Plotly's template.
        by: the column of groups; default `x`.
        share: whether `y` is a share in [0, 1], where the band ends; it is drawn in percent.
        with_band: whether the spread is drawn.
        subplot: row and column of the subplot, and more that goes to the line.
    """
    curve = display.thin(display.over_seeds(rows, by or x, [x, y]), MAX_POINTS)
    middle, low, high = (curve[column] for column in (y, f"{y}_low", f"{y}_high"))
    if share:
        middle, low, high = 100 * middle, 100 * low.clip(0, 1), 100 * high.clip(0, 1)
    if with_band:
        band(figure, named, low, high, curve[x], **{key: subplot[key] for key in ("row", "col") if key in subplot})
    lines(figure, named, curve[x], middle, hover, **subplot)


def curves(
    of: Sequence[tuple[Named, pd.DataFrame]],
    x: str,
    y: str,
    hover: str,
    *,
    most_bands: int = MAX_NARROW_BANDS,
    height_px: float = 330,
    **more: Any,
) -> go.Figure:
    """Draw `medians` of every variant that knows `y`, with their spread unless `of` has more than `most_bands`.

    `more` goes to `medians`.
    """
    figure = canvas(height_px)
    for named, rows in of:
        if len(known := rows.dropna(subset=y)):
            medians(figure, named, known, x, y, hover=hover, with_band=len(of) <= most_bands, **more)
    return figure


def marks(figure: go.Figure, named: Named, x: Any, y: Any, hover: str, **more: Any) -> None:
    """Marks in the colour and shape of `named`; `more` goes to the trace, `marker` over the look."""
    marker = {"color": named.colour, "symbol": named.symbol, "size": 11, "line": WHITE_EDGE} | more.pop("marker", {})
    trace = {"mode": "markers", "name": named.label, "marker": marker, "hovertemplate": hover}
    figure.add_scatter(x=np.asarray(x), y=np.asarray(y), **trace | more)


def front(figure: go.Figure, x: Any, y: Any, dash: str = "solid", **more: Any) -> None:
    """The Pareto front as steps; `more` goes to the trace."""
    line = {"shape": "hv", "color": style.MUTED, "width": 1.4, "dash": dash}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, name="Pareto front", hoverinfo="skip", **more)


def entry(figure: go.Figure, name: str, marker: Mapping[str, object], **more: Any) -> None:
    """An entry of the legend that stands for no mark in particular."""
    figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=dict(marker), **more)


def spans(figure: go.Figure, started: pd.Series, ended: pd.Series, level: Any, **look: Any) -> None:
    """A horizontal bar from `started` to `ended` on its `level` for each row; `look` has colour, width and name.

    One broken line is one path on the page: thousands of bars stay light, unlike thousands of rectangles.
    """
    x = np.full((len(started), 3), np.nan, dtype=np.float32)
    x[:, 0], x[:, 1] = started, ended
    y = np.repeat(np.broadcast_to(np.asarray(level, dtype=np.float32), len(started)), 3)
    line = {"color": look.pop("colour"), "width": look.pop("width"), "dash": "solid", "simplify": False}
    figure.add_scatter(**{"x": x.ravel(), "y": y, "mode": "lines", "line": line, "hoverinfo": "skip"} | look)


def extents(lengths: Sequence[float]) -> list[float]:
    """Where the axes of figures end: all at the longest, or each at its own if they differ more than `WIDE` times."""
    longest = max(lengths)
    return list(lengths) if longest > WIDE * min(lengths) else [longest] * len(lengths)


def bars(parts_s: Mapping[str, pd.Series], title: str, whole: str, row_px: float = ROW_PX) -> go.Figure:
    """Seconds by resource, or shares if sums differ by much: a stacked bar for each text, which stands over its bar.

    Not beside it: long names would leave no room for the bar on a phone.

    Args:
        parts_s: by text, seconds by the names of resources, alike for all.
        title: of the axis, without its unit.
        whole: what the parts add up to, for hovering.
        row_px: the height of a bar and its text of up to two lines.
    """
    table_s = pd.DataFrame(list(parts_s.values()))
    totals_s = table_s.sum(axis="columns")
    unit, length_s = display.time_unit(totals_s.max())
    units_s = pd.Series(length_s, totals_s.index)
    if len(set(extents(list(totals_s)))) > 1:
        title, unit, units_s = f"share of the {whole}", "%", totals_s / 100
    bar_px = 0.36 * row_px
    row_px += LINE_PX * max((text.count("<br>") - 1 for text in parts_s if "<br>" in text), default=0)
    bar = bar_px / row_px
    figure = canvas(90 + row_px * len(table_s))
    for part in table_s:
        figure.add_bar(
            y=list(range(len(table_s))), x=(table_s[part] / units_s).to_numpy(), orientation="h", width=bar,
            name=style.RESOURCE_NAMES[str(part)], marker_color=style.RESOURCE_COLOURS[str(part)],
            customdata=(100 * table_s[part] / totals_s.clip(lower=np.finfo(float).tiny)).to_numpy(),
            hovertemplate=f"%{{x:.3~g}} {unit}{'' if unit == '%' else ', %{customdata:.0f} %'} of the {whole}",
        )  # fmt: skip
    for row, text in enumerate(parts_s):
        figure.add_annotation(
            text=text, x=0, y=row - bar / 2 - 0.02, xanchor="left", yanchor="bottom", align="left", showarrow=False
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(showticklabels=False, showgrid=False, range=[len(table_s) - 0.88 + bar / 2, bar / 2 - 0.93])
    return figure.update_xaxes(title=f"{title} ({unit})", range=[0, 100] if unit == "%" else None)


def on_a_phone(named: Named) -> str:
    """The name beside its mark, broken where a phone ends: Plotly does not break lines by itself."""
    broken = textwrap.wrap(named.label, PHONE_LETTERS, break_long_words=False, break_on_hyphens=False)
    return str(named.html).replace(named.label, "<br>".join(broken))


def ecdf(
    figure: go.Figure, values: pd.Series, about: pd.Series, tell: Callable[[Any], str], hover: str, **look: Any
) -> None:
    """Steps: which share of `values`, in percent, is at most so much; hovering tells what `about` has of each."""
    steps = pd.DataFrame({"x": values, "about": about}).sort_values("x", kind="stable")
    steps["y"] = 100 * np.arange(1, len(values) + 1) / len(values)
    steps = pd.concat([steps.head(1).assign(y=0.0), display.thin(steps, MAX_POINTS)])
    figure.add_scatter(
        x=steps["x"].to_numpy(), y=steps["y"].to_numpy(), customdata=[tell(one) for one in steps["about"]],
        mode="lines", line_shape="hv", line_width=2.4, hovertemplate=hover, **look,
    )  # fmt: skip


def heat(figure: go.Figure, x: Any, y: Any, shares: Any, hover: str, **more: Any) -> None:
    """A heat map of shares in [0, 1], shown in percent: pale is little, dark is much."""
    look = {"zmin": 0, "zmax": 100, "colorscale": style.ACCURACY_SCALE, "showscale": "colorbar" in more}
    figure.add_heatmap(x=x, y=y, z=(100 * np.asarray(shares)).round(3), hovertemplate=hover, **look | more)


def percent_bar(length: float, at: str = "top") -> dict[str, object]:
    """The colour bar of a heat map of percentages that takes this share of a figure's height, at its top or bottom."""
    end = {"y": 1 if at == "top" else 0, "yanchor": at}
    return colour_bar(length) | end | {"title": {"text": "%"}, "tickvals": [0, 50, 100]}


def colour_bar(length: float = 0.9) -> dict[str, Any]:
    """A slim colour bar beside a figure that takes this share of its height."""
    return {"thickness": 9, "outlinewidth": 0, "x": 1.01, "xpad": 2, "len": length}


def evenly_spaced(names: Sequence[Any], most: int = MAX_NAMES) -> list[Any]:
    """Keep at most so many of the names, evenly spaced, the first among them."""
    return list(names[:: max(1, -(-len(names) // most))])


def level(figure: go.Figure, y: float, colour: str = style.MUTED, **more: Any) -> None:
    """A dotted horizontal line: a target."""
    figure.add_hline(y, line={"color": colour, "dash": "dot", "width": 1.2}, **more)


def round_axis(last: int) -> dict[str, object]:
    """An axis of rounds: whole numbers, even if there are few."""
    return {"title": "round", "dtick": 1 if last <= 10 else None}


def value_axis(values: Sequence[float], texts: Sequence[str]) -> dict[str, object]:
    """An axis of increasing numbers, logarithmic if they differ by much, with ticks at them if they are few."""
    scale = wide_axis(values[0], values[-1]) if values[0] > 0 else {"type": "linear"}
    return scale | ({"tickvals": values, "ticktext": texts} if len(values) <= MAX_TICKS else {})


def wide_axis(lowest: float, highest: float) -> dict[str, object]:
    """A logarithmic axis with a few round ticks (1, 2, 5 of every decade, or only 1) if numbers differ by much."""
    if highest < WIDE * lowest:
        return {"type": "linear"}
    decades = [10.0**power for power in range(-9, 13)]
    for digits in ((1, 2, 5), (1,)):
        ticks = [digit * decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if lowest / 1.2 <= tick <= 1.2 * highest]
        if len(ticks) <= MAX_TICKS:
            break
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}
