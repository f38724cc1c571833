"""Figures of served requests: how long they take, where they spend it, and what a moving threshold does meanwhile."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.metrics.serving import PARTS, QUANTILES
from sfl_sim.report import display, style
from sfl_sim.report.serving_load import ONLINE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX, TIME_HEIGHT_PX = 360, 280
CURVE_POINTS, RAREST = 160, 1e-4
SHARES = (1, 0.5, 0.2, 0.05, 0.01, 0.001)
MAX_STRETCHES, REQUESTS_PER_STRETCH = 60, 200
ROW_PX, PHONE_LETTERS = 62, 34
MAX_TICKS, WIDE = 7, 5


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


def survival(served: Served) -> go.Figure:
    """The share of requests that take longer than a latency, seeds together; marks at p50, p95 and p99."""
    unit, unit_s = display.time_unit(served.at_rate["p95_s"].max())
    figure = style.canvas(HEIGHT_PX)
    ends: list[float] = []
    rarest = 1.0
    for series, cells in served.detailed:
        requests = served.requests(cells, ["arrived_s", "ended_s"])
        latency = (requests["ended_s"] - requests["arrived_s"]).to_numpy() / unit_s
        share = np.geomspace(1, max(1 / len(latency), RAREST), CURVE_POINTS)
        curve = np.quantile(latency, 1 - share)
        ends, rarest = [*ends, curve[0], curve[-1]], min(rarest, share[-1])
        figure.add_scatter(
            x=curve, y=100 * share, mode="lines", name=series.label,
            line={"color": series.colour, "dash": series.dash, "width": 2.2},
            hovertemplate=f"%{{y:.3~g}} % take longer than %{{x:.3~g}} {unit}",
        )  # fmt: skip
        marks = list(QUANTILES.values())
        figure.add_scatter(
            x=np.quantile(latency, marks), y=[100 * (1 - mark) for mark in marks], mode="markers",
            name=series.label, showlegend=False, text=[key.removesuffix("_s") for key in QUANTILES],
            marker={**_mark(series), "size": 9}, hovertemplate=f"%{{text}}: %{{x:.3~g}} {unit}",
        )  # fmt: skip
    shown = [share for share in SHARES if share >= rarest]
    figure.update_yaxes(
        type="log", title="requests that take longer (%)", range=[np.log10(80 * rarest), np.log10(125)],
        tickvals=[100 * share for share in shown], ticktext=[f"{100 * share:g}" for share in shown],
    )  # fmt: skip
    return figure.update_xaxes(wide_axis(max(min(ends), 1e-9), max(ends)), title=f"latency ({unit})")


def _mark(series: Series) -> dict[str, object]:
    return {"color": series.colour, "symbol": series.symbol, "line": {"color": "#FFFFFF", "width": 1.2}}


def parts(served: Served, prefix: str = "") -> go.Figure:
    """Mean seconds of a request by where it spends them, a stacked bar for each series; `tail_` for those near p95."""
    means_s = {series: cells[[f"{prefix}{part}_s" for part in PARTS]].mean() for series, cells in served.detailed}
    totals_s = [own.sum() for own in means_s.values()]
    unit, unit_s = display.time_unit(max(totals_s))
    figure = style.canvas(90 + ROW_PX * len(means_s))
    for part in PARTS:
        seconds = np.array([own[f"{prefix}{part}_s"] for own in means_s.values()])
        figure.add_bar(
            y=list(range(len(seconds))), x=seconds / unit_s, orientation="h", width=0.36,
            name=style.RESOURCE_NAMES[part], marker_color=style.RESOURCE_COLOURS[part],
            customdata=100 * seconds / np.maximum(totals_s, np.finfo(float).tiny),
            hovertemplate=f"%{{x:.3~g}} {unit}, %{{customdata:.0f}} % of the latency",
        )  # fmt: skip
    for row, (series, total_s) in enumerate(zip(means_s, totals_s, strict=True)):
        figure.add_annotation(
            text=f"{_on_a_phone(series)} {display.duration(total_s)}",
            x=0, y=row - 0.2, xanchor="left", yanchor="bottom", align="left", showarrow=False,
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(showticklabels=False, showgrid=False, range=[len(means_s) - 0.7, -0.75])
    return figure.update_xaxes(title=f"latency ({unit})")


def _on_a_phone(series: Series) -> str:
    """The label, broken where a phone ends: Plotly does not break lines by itself."""
    lines = textwrap.wrap(series.label, PHONE_LETTERS, break_long_words=False, break_on_hyphens=False)
    return series.html.replace(series.label, "<br>".join(lines))


def adapting(served: Served) -> list[tuple[Series, pd.DataFrame]]:
    """The series in detail whose thresholds move, with their cells."""
    return [(series, cells) for series, cells in served.detailed if series.threshold in ONLINE]


def over_time(served: Served) -> list[tuple[str, go.Figure]]:
    """Median threshold, offloaded share and p95 in equal stretches of time, first seed, each under its heading.

    Dotted is what a rule is to hold: a share, or a latency.
    """
    binned = [(series, cells, _by_time(served, cells.head(1))) for series, cells in adapting(served)]
    unit, unit_s = display.time_unit(max(own["p95_s"].max() for _, _, own in binned))
    time, time_s = display.time_unit(max(own.index.max() for _, _, own in binned))
    columns = {
        "threshold": ("Median threshold", "entropy (nats)", 1.0),
        "offloaded": ("Offload probability", "offloaded (%)", 0.01),
        "p95_s": ("p95", f"latency ({unit})", unit_s),
    }
    figures = {column: style.canvas(TIME_HEIGHT_PX) for column in columns}
    for series, cells, own in binned:
        for column, (_, title, size) in columns.items():
            figures[column].add_scatter(
                x=own.index.to_numpy() / time_s, y=(own[column] / size).to_numpy(), mode="lines", name=series.label,
                line={"color": series.colour, "dash": series.dash, "width": 2},
                hovertemplate=f"{title}: %{{y:.3~g}} at %{{x:.3~g}} {time}<extra></extra>",
            )  # fmt: skip
        held = "offloaded" if series.threshold == "offload_rate" else "p95_s"
        target = cells["threshold_value"].iloc[0] / columns[held][2]
        figures[held].add_hline(target, line={"color": series.colour, "dash": "dot", "width": 1.2})
    for column, (_, title, _) in columns.items():
        figures[column].update_yaxes(title=title, rangemode="tozero").update_xaxes(title=f"simulated time ({time})")
    return [(heading, figures[column]) for column, (heading, _, _) in columns.items()]


def _by_time(served: Served, cell: pd.DataFrame) -> pd.DataFrame:
    """What one cell's requests are like in each stretch of time, by the middle of the stretch in seconds."""
    columns = ["arrived_s", "ended_s", "offloaded", "threshold"]
    requests = served.requests(cell.assign(warm_up=0.0), columns)
    stretches = min(max(len(requests) // REQUESTS_PER_STRETCH, 2), MAX_STRETCHES)
    edges_s = np.linspace(0, requests["arrived_s"].max(), stretches + 1)
    place = np.searchsorted(edges_s[1:-1], requests["arrived_s"])
    there = requests.assign(latency_s=requests["ended_s"] - requests["arrived_s"]).groupby(place)
    found = there.agg(threshold=("threshold", "median"), offloaded=("offloaded", "mean"))
    found["p95_s"] = there["latency_s"].quantile(0.95)
    return found.set_axis(((edges_s[:-1] + edges_s[1:]) / 2)[found.index])
