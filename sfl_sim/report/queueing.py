"""Figure: the server's queue during one round, and the times when the server was held idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.report import display, style
from sfl_sim.report.curves import bars

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.snapshot import RoundView

MAX_POINTS = 1500


def server_queue(view: RoundView, longest_s: float, most_waiting: int) -> go.Figure:
    """Jobs that wait for the server over one round; red marks at the foot: held idle.

    Args:
        view: the round.
        longest_s: the longest of the rounds that are compared, which sets the common time axis.
        most_waiting: the longest of their queues, which sets the common height.
    """
    unit, unit_s = display.time_unit(longest_s)
    queue = _thin_steps(view.queue)
    figure = style.canvas(190)
    figure.add_scatter(
        x=(queue["time_s"] / unit_s).to_numpy(), y=queue["waiting"].to_numpy(), mode="lines", fill="tozeroy",
        line={"shape": "hv", "color": view.variant.colour, "width": 1, "dash": "solid"},
        hovertemplate="%{y} waiting<extra></extra>", showlegend=False,
    )  # fmt: skip
    figure.add_scatter(
        x=[0, view.duration_s / unit_s], y=[view.mean_waiting] * 2, mode="lines",
        line={"color": style.INK, "width": 1.4, "dash": "dash"},
        hovertemplate="%{y:.2f} waiting<extra></extra>", name="mean over the whole run",
    )  # fmt: skip
    figure.add_scatter(
        **bars(view.held["started_s"] / unit_s, view.held["ended_s"] / unit_s, 0.0), mode="lines",
        line={"color": style.ALARM, "width": 6, "dash": "solid", "simplify": False},
        hoverinfo="skip", name="server held idle while jobs wait",
    )  # fmt: skip
    figure.update_yaxes(title="waiting jobs", range=[-0.04 * most_waiting, 1.08 * most_waiting], nticks=4)
    return figure.update_xaxes(title=f"time in the round ({unit})", range=[0, longest_s / unit_s])


def _thin_steps(queue: pd.DataFrame) -> pd.DataFrame:
    """At most `MAX_POINTS` steps; where several become one, the longest queue among them stays."""
    size = len(queue) // MAX_POINTS + 1
    return queue.groupby(np.arange(len(queue)) // size).agg({"time_s": "first", "waiting": "max"})
