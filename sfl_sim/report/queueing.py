"""Figure: the server's queue during one round, and the times when the server was held idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sfl_sim.report import display, style
from sfl_sim.report.curves import bars
from sfl_sim.report.snapshot import RoundView, held_idle, queue_length

MAX_POINTS = 1500


def server_queue(views: Sequence[RoundView]) -> go.Figure:
    """Jobs that wait for the server over one round, one row per variant; red marks at the foot: held idle."""
    longest_s = max(view.duration_s for view in views)
    unit, unit_s = display.time_unit(longest_s)
    queues = [queue_length(view.ops[view.ops["node"] == "server"]) for view in views]
    figure = make_subplots(rows=len(views), shared_xaxes=True, vertical_spacing=0.24 / len(views))
    figure.update_layout(style.canvas(90 + 150 * len(views)).layout, showlegend=False)
    for row, (view, queue) in enumerate(zip(views, queues, strict=True), start=1):
        held = held_idle(queue)
        for trace in _traces(view, _thin_steps(queue), held, unit_s):
            figure.add_trace(trace, row=row, col=1)
        held_share = (held["ended_s"] - held["started_s"]).sum() / view.duration_s
        figure.add_annotation(
            text=f"{view.variant.html} {display.percent(held_share, 0)} held idle",
            x=0, xref="x domain", y=1, yref="y domain", xanchor="left", yanchor="bottom",
            showarrow=False, row=row, col=1,
        )  # fmt: skip
    longest = max([1, *(queue["waiting"].max() for queue in queues if len(queue))])
    style.tidy(figure)
    figure.update_yaxes(title="jobs", range=[-0.04 * longest, 1.08 * longest], nticks=4)
    figure.update_xaxes(range=[0, longest_s / unit_s])
    return figure.update_xaxes(title=f"time since the round began ({unit})", row=len(views))


def _traces(view: RoundView, queue: pd.DataFrame, held: pd.DataFrame, unit_s: float) -> list[go.Scatter]:
    colour = view.variant.colour
    return [
        go.Scatter(
            x=(queue["time_s"] / unit_s).to_numpy(), y=queue["waiting"].to_numpy(), mode="lines",
            line={"shape": "hv", "color": colour, "width": 1}, fill="tozeroy",
            hovertemplate="%{y} waiting<extra></extra>",
        ),
        go.Scatter(
            x=[0, view.duration_s / unit_s], y=[view.mean_waiting] * 2, mode="lines",
            line={"color": style.INK, "width": 1.4, "dash": "dash"},
            hovertemplate="%{y:.2f} waiting, mean of the run<extra></extra>",
        ),
        go.Scatter(
            **bars(held["started_s"] / unit_s, held["ended_s"] / unit_s, 0.0), mode="lines",
            line={"color": style.ALARM, "width": 6, "simplify": False}, hoverinfo="skip",
        ),
    ]  # fmt: skip


def _thin_steps(queue: pd.DataFrame) -> pd.DataFrame:
    """At most `MAX_POINTS` steps; where several become one, the longest queue among them stays."""
    size = len(queue) // MAX_POINTS + 1
    return queue.groupby(np.arange(len(queue)) // size).agg({"time_s": "first", "waiting": "max"})
