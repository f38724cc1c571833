"""Panel of one round as a Gantt chart, the picture that explains what an order of service does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from plotly.colors import sample_colorscale

from sfl_sim.report import display, figures, style
from sfl_sim.report.display import plural
from sfl_sim.report.frames import label_ranks
from sfl_sim.report.pages.one_round import OWN_AXES, drawn
from sfl_sim.report.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames
    from sfl_sim.report.pages.one_round import OneRound, RoundView

MAX_CLIENTS = 30
MAX_ASSISTANTS = 8
MAX_SERVER_LANES = 4
MAX_OPS = 4000
BATCHES_AT_FIRST_SIGHT = 8
LANE_PX = 20
SERVER_LANE = -1.3
UNDER_THE_BAR = 0.4
CLIENT_SPANS = {
    "queue": ("server", "requested_s", "started_s"),
    "device": ("client", "started_s", "ended_s"),
    "uplink": ("uplink", "started_s", "ended_s"),
    "server": ("server", "started_s", "ended_s"),
    "downlink": ("downlink", "started_s", "ended_s"),
}
"""Bars on a client's lane, by resource: the node of the operations, their start and their end."""
CAPTION = (
    "Each row is a client, and the top rows are the server's workers. At the server a job has its "
    "client's colour: a fixed scheduling policy repeats the same sequence of colours, arrival order "
    "mixes them. Blank is the straggler wait. The dark line is the critical path: it runs under the "
    "operations that make the round as long as it is (round {round}, first seed; clients with their "
    "dominant labels, {sorting}{drawn}). Drag to zoom, double-click for the whole round.{cut}{assistants}"
)


def gantt_panels(details: OneRound) -> list[Panel]:
    """The charts of the first variants, on one scale unless they differ by much."""
    frames, views = details.frames, details.views
    ends_s = first_sights_s(views)
    clients = max(frames.rounds.loc[frames.rounds["round"] == frames.typical_round, "participants"])
    assisting = max(len(view.assistants) for view in views)
    helpers = min(assisting, MAX_ASSISTANTS)
    caption = CAPTION.format(
        round=frames.typical_round,
        sorting="by label" if frames.labels.empty else "in the cyclic order",
        drawn=drawn(frames),
        cut=f" Of {clients} clients, {MAX_CLIENTS} are drawn." if clients > MAX_CLIENTS else "",
        assistants=f" Below, in italics, are the busiest {helpers} of {plural(assisting, 'assistant')}."
        if helpers
        else "",
    )
    charts = [(view.html, gantt(frames, view, end_s)) for view, end_s in zip(views, ends_s, strict=True)]
    return [Panel("One round, operation by operation", caption + (OWN_AXES if len(set(ends_s)) > 1 else ""), charts)]


def first_sights_s(views: Sequence[RoundView]) -> list[float]:
    """Seconds that each chart shows at first: some batches of each client, or the round; alike if they compare."""
    return figures.extents([_first_sight_s(view) for view in views])


def gantt(frames: Frames, view: RoundView, until_s: float) -> go.Figure:
    """One lane per client (device, uplink, queue, server, downlink), under the lanes of the server.

    Clients stand in the cyclic order of their dominant labels. A job at the server has the colour of its client:
    dark for the first in that order, bright for the last. Clients that only assist others stand below, in italics.
    A dark line under the bars is the critical path. `until_s` is shown at first.
    """
    unit, unit_s = display.time_unit(until_s)
    clients = _clients(frames, view)
    busiest = clients.index.isin(_busiest(view.ops[view.ops["client"].isin(view.assistants)]))
    training = ~clients.index.isin(view.assistants)
    shown = pd.concat([display.thin(clients[training], MAX_CLIENTS), clients[busiest]])
    ops = view.ops[view.ops["client"].isin(shown.index)].nsmallest(MAX_OPS, "started_s")
    jobs = _server_jobs(view.ops, clients)

    top, bottom = min([0.0, *jobs["lane"]]) - 0.7, len(shown) - 0.3
    figure = figures.canvas(100 + round(LANE_PX * (bottom - top)))
    lane = pd.Series(range(len(shown)), shown.index)
    for part, (node, start, end) in CLIENT_SPANS.items():
        rows = ops[ops["node"] == node]
        figures.spans(
            figure, rows[start] / unit_s, rows[end] / unit_s, rows["client"].map(lane),
            colour=style.RESOURCE_COLOURS[part], width=3 if part == "queue" else 11, name=style.RESOURCE_NAMES[part],
        )  # fmt: skip
    waits = view.without_features.query("client in @shown.index")
    if len(waits):
        figures.spans(
            figure, waits["started_s"] / unit_s, waits["ended_s"] / unit_s, waits["client"].map(lane),
            colour=style.RESOURCE_COLOURS["assistants"], width=3, name=style.RESOURCE_NAMES["assistants"],
        )  # fmt: skip
    for label, rows in jobs.groupby("label"):
        colour = rows["colour"].iloc[0]
        figures.spans(
            figure, rows["started_s"] / unit_s, rows["ended_s"] / unit_s, rows["lane"],
            colour=colour, width=17, mode="lines+markers", name=str(label), showlegend=False, hoverinfo=None,
            # A tick at both ends: a fast server's jobs are too short to be seen as bars.
            marker={"symbol": "line-ns", "size": 12, "line": {"color": colour, "width": 1.5}},
            hovertemplate="%{x:.4~g} " + unit,
        )  # fmt: skip
    _add_critical_path(figure, view, lane, unit_s)
    figure.add_vline(view.duration_s / unit_s, line={"color": style.INK, "width": 1.2})
    figure.update_yaxes(
        range=[bottom, top],
        showgrid=False,
        tickfont_size=11,
        tickvals=[(top - 0.6) / 2, *lane],
        ticktext=["server" if len(jobs) else "", *shown["text"]],
    )
    return figure.update_xaxes(title=f"time in the round ({unit})", range=[0, 1.01 * until_s / unit_s])


def _add_critical_path(figure: go.Figure, view: RoundView, lane: pd.Series, unit_s: float) -> None:
    """Draw a line under the bars, in the lane of the client that makes the round longer, or else in the server's."""
    path = view.critical.path
    level = path["client"].map(lane).where(path["client"] >= 0, 0.5 + SERVER_LANE) + UNDER_THE_BAR
    ends_s = path[["from_s", "to_s"]].to_numpy(dtype=np.float32) / unit_s
    figure.add_scatter(
        x=ends_s.ravel(), y=np.repeat(level.to_numpy(dtype=np.float32), 2), mode="lines", opacity=0.85,
        line={"color": style.INK, "width": 2, "dash": "solid", "simplify": False}, name="critical path",
        hoverinfo="skip",
    )  # fmt: skip


def _busiest(ops: pd.DataFrame) -> pd.Index:
    """The clients that take most of the time of `ops`, `MAX_ASSISTANTS` at most."""
    return (ops["ended_s"] - ops["started_s"]).groupby(ops["client"]).sum().nlargest(MAX_ASSISTANTS).index


def _server_jobs(ops: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """The server's jobs with their lane on the chart, and the colour and label of their client."""
    jobs = ops[ops["node"] == "server"].nsmallest(MAX_OPS, "started_s")
    jobs = jobs.assign(lane=server_lanes(jobs)).query("lane < @MAX_SERVER_LANES")
    jobs["lane"] = SERVER_LANE - jobs["lane"]
    jobs = jobs.join(clients[["colour", "label"]], on="client")
    return jobs.fillna({"colour": style.MUTED, "label": "server"})


def server_lanes(jobs: pd.DataFrame) -> pd.Series:
    """Find for each job the lowest lane, from 0, that is free when it starts."""
    order = np.argsort(jobs["started_s"].to_numpy(), kind="stable")
    started_s, ended_s = jobs["started_s"].to_numpy()[order], jobs["ended_s"].to_numpy()[order]
    free_at_s: list[float] = []
    lanes = np.zeros(len(jobs), dtype=int)
    for job, start_s, end_s in zip(order, started_s, ended_s, strict=True):
        lane = next((i for i, free_s in enumerate(free_at_s) if free_s <= start_s), len(free_at_s))
        free_at_s[lane : lane + 1] = [end_s]
        lanes[job] = lane
    return pd.Series(lanes, jobs.index)


def _first_sight_s(view: RoundView) -> float:
    """The end of the job that completes the first batches of all clients."""
    ended_s = np.sort(view.ops.loc[view.ops["node"] == "server", "ended_s"])
    last = BATCHES_AT_FIRST_SIGHT * (view.ops["client"].nunique() - len(view.assistants))
    return float(ended_s[last]) if last < len(ended_s) else view.duration_s


def _clients(frames: Frames, view: RoundView) -> pd.DataFrame:
    """The clients of the round in the order of their dominant labels: their colour, label and text."""
    ours = "variant == @view.variant.label and seed == @view.variant.seed"
    clients = frames.clients.query(ours).set_index("client")
    dominant = clients.loc[clients.index.isin(view.ops["client"]), "dominant_label"]
    labels = frames.labels.assign(rank=label_ranks(frames.labels)).query(ours).drop_duplicates("label")
    ranks = dict(zip(labels["label"], labels["rank"], strict=True))
    names = dict(zip(labels["label"], labels["label_name"], strict=True))

    rank = dominant.map(lambda label: ranks.get(label, label)).sort_values(kind="stable")
    dominant = dominant[rank.index]
    colour = sample_colorscale(style.TURN_SCALE, list(rank / max(rank.max(), 1)))
    name = [names.get(label, f"label {label}") for label in dominant]
    text = [
        f"<i>{view.names[client]}</i>"
        if client in view.assistants
        else f"{view.names[client]} <span style='color:{c}'>■</span>"
        for client, c in zip(dominant.index, colour, strict=True)
    ]
    return pd.DataFrame({"colour": colour, "label": name, "text": text}, dominant.index)
