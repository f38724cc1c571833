"""Panels on served requests: how long they take, where they spend it, and what a moving threshold does meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.metrics.serving import PARTS, QUANTILES
from sfl_sim.report import display, figures
from sfl_sim.report.html_page import Panel
from sfl_sim.report.serving_load import ONLINE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX, TIME_HEIGHT_PX = 360, 280
CURVE_POINTS, RAREST = 160, 1e-4
SHARES = (1, 0.5, 0.2, 0.05, 0.01, 0.001)
MAX_STRETCHES, REQUESTS_PER_STRETCH = 60, 200
SURVIVAL = """The share of requests that take longer than so much: the farther left, the quicker, and the steeper, the \
more alike. Marks: p50, p95 and p99 ({drawn}; seeds together)."""
WHERE = """Waiting for the device or a link counts as that device or link; the warm colour is waiting at the server, \
for a free lane or for a batch to fill. Requests near p95 show what makes the tail ({drawn}; means over requests and \
seeds)."""
RULES = """These rules see no labels: each client moves its threshold with every request, to hold a share of offloaded \
requests or a latency (dotted). From the first request on, warm-up included ({drawn}; first seed)."""


def latency_panels(served: Served) -> list[Panel]:
    """How long answers take, and where the time goes."""
    where = [("All requests", parts(served)), ("Requests near p95", parts(served, "tail_"))]
    return [
        Panel(
            "How long an answer takes",
            SURVIVAL.format(drawn=served.drawn),
            [("Latency of requests", survival(served))],
        ),
        Panel("Where the time goes", WHERE.format(drawn=served.drawn), where, columns=2),
    ]


def rule_panels(served: Served) -> list[Panel]:
    """What thresholds that move do meanwhile, if there are any."""
    if not adapting(served):
        return []
    return [Panel("Rules at work", RULES.format(drawn=served.drawn), over_time(served), columns=3)]


def survival(served: Served) -> go.Figure:
    """The share of requests that take longer than a latency, seeds together; marks at p50, p95 and p99."""
    unit, unit_s = display.time_unit(served.at_rate["p95_s"].max())
    figure = figures.canvas(HEIGHT_PX)
    ends: list[float] = []
    rarest = 1.0
    for series, cells in served.detailed:
        requests = served.requests(cells, ["arrived_s", "ended_s"])
        latency = (requests["ended_s"] - requests["arrived_s"]).to_numpy() / unit_s
        share = np.geomspace(1, max(1 / len(latency), RAREST), CURVE_POINTS)
        curve = np.quantile(latency, 1 - share)
        ends, rarest = [*ends, curve[0], curve[-1]], min(rarest, share[-1])
        figures.lines(figure, series, curve, 100 * share, f"%{{y:.3~g}} % take longer than %{{x:.3~g}} {unit}")
        marked = list(QUANTILES.values())
        figures.marks(
            figure, series, np.quantile(latency, marked), [100 * (1 - mark) for mark in marked],
            f"%{{text}}: %{{x:.3~g}} {unit}", text=[key.removesuffix("_s") for key in QUANTILES],
            marker={"size": 9}, showlegend=False,
        )  # fmt: skip
    shown = [share for share in SHARES if share >= rarest]
    figure.update_yaxes(
        type="log", title="requests that take longer (%)", range=[np.log10(80 * rarest), np.log10(125)],
        tickvals=[100 * share for share in shown], ticktext=[f"{100 * share:g}" for share in shown],
    )  # fmt: skip
    return figure.update_xaxes(figures.wide_axis(max(min(ends), 1e-9), max(ends)), title=f"latency ({unit})")


def parts(served: Served, prefix: str = "") -> go.Figure:
    """Mean seconds of a request by where it spends them, a stacked bar for each series; `tail_` for those near p95."""
    rows = {}
    for series, cells in served.detailed:
        means_s = cells[[f"{prefix}{part}_s" for part in PARTS]].mean().set_axis(list(PARTS))
        rows[f"{figures.on_a_phone(series)} {display.duration(means_s.sum())}"] = means_s
    return figures.bars(rows, "latency", "latency")


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
    drawn = {column: figures.canvas(TIME_HEIGHT_PX) for column in columns}
    for series, cells, own in binned:
        for column, (_, title, size) in columns.items():
            hover = f"{title}: %{{y:.3~g}} at %{{x:.3~g}} {time}<extra></extra>"
            x, y = own.index.to_numpy() / time_s, own[column] / size
            figures.lines(drawn[column], series, x, y, hover, mode="lines", width=2)
        held = "offloaded" if series.threshold == "offload_rate" else "p95_s"
        target = cells["threshold_value"].iloc[0] / columns[held][2]
        figures.level(drawn[held], target, series.colour)
    for column, (_, title, _) in columns.items():
        drawn[column].update_yaxes(title=title, rangemode="tozero").update_xaxes(title=f"simulated time ({time})")
    return [(heading, drawn[column]) for column, (heading, _, _) in columns.items()]


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
