"""Figure: one round as a Gantt chart, the picture that explains what an order of service does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from sfl_sim.report import display, style
from sfl_sim.report.curves import bars
from sfl_sim.report.frames import Frames
from sfl_sim.report.labels import label_ranks
from sfl_sim.report.snapshot import RoundView

MAX_CLIENTS = 30
MAX_SERVER_LANES = 4
MAX_OPS = 4000
BATCHES_AT_FIRST_SIGHT = 8
LANE_PX = 20
BAR_PX = {"queue": 3, "device": 11, "uplink": 11, "server": 11, "downlink": 11, "aggregate": 11}


def first_sight_s(views: Sequence[RoundView]) -> float:
    """Seconds that all charts show at first, so that they compare: some batches of each client, at most a round."""
    return max(_first_sight_s(view) for view in views)


def gantt(frames: Frames, view: RoundView, until_s: float) -> go.Figure:
    """One lane per client (device, uplink, queue, server, downlink), under the lanes of the server.

    Clients stand in the cyclic order of their dominant labels. A job at the server has the colour of its client: dark
    for the first in that order, bright for the last. `until_s` is shown at first.
    """
    unit, unit_s = display.time_unit(until_s)
    ops = view.ops.nsmallest(MAX_OPS, "started_s")
    clients = _clients(frames, view, ops)
    shown = display.thin(clients, MAX_CLIENTS)
    lane = pd.Series(range(len(shown)), shown.index)
    jobs = ops[ops["node"] == "server"]
    jobs = jobs.assign(lane=-1.3 - server_lanes(jobs)).query("lane > -1.3 - @MAX_SERVER_LANES")

    top, bottom = min(jobs["lane"].min(), 0) - 0.7, len(shown) - 0.3
    figure = style.canvas(100 + round(LANE_PX * (bottom - top)))
    for part, (started_s, ended_s, client) in _client_spans(ops).items():
        figure.add_scatter(
            **bars(started_s / unit_s, ended_s / unit_s, client.map(lane)),
            mode="lines", line={"color": style.RESOURCE_COLOURS[part], "width": BAR_PX[part], "simplify": False},
            name=style.RESOURCE_NAMES[part], hoverinfo="skip",
        )  # fmt: skip
    for client, rows in jobs.groupby("client"):
        figure.add_scatter(
            **bars(rows["started_s"] / unit_s, rows["ended_s"] / unit_s, rows["lane"]),
            mode="lines", line={"color": clients["colour"].get(client, style.MUTED), "width": 17, "simplify": False},
            name=f"client {client}", hovertemplate="%{x:.4~g} " + unit, showlegend=False,
        )  # fmt: skip
    figure.add_vline(view.duration_s / unit_s, line={"color": style.INK, "width": 1.2})
    figure.update_yaxes(
        range=[bottom, top], showgrid=False,
        tickvals=[jobs["lane"].mean(), *lane], ticktext=["server", *shown["text"]], tickfont_size=11,
    )  # fmt: skip
    return figure.update_xaxes(title=f"time since the round began ({unit})", range=[0, 1.01 * until_s / unit_s])


def server_lanes(jobs: pd.DataFrame) -> pd.Series:
    """For each job the lowest lane, from 0, that is free when it starts: as many lanes as jobs that overlap."""
    free_at_s: list[float] = []
    lanes = pd.Series(0, jobs.index)
    for job in jobs.sort_values("started_s").itertuples():
        lane = next((i for i, free_s in enumerate(free_at_s) if free_s <= job.started_s), len(free_at_s))
        free_at_s[lane : lane + 1] = [job.ended_s]
        lanes[job.Index] = lane
    return lanes


def _first_sight_s(view: RoundView) -> float:
    """The end of the job that completes the first batches of all clients."""
    ended_s = np.sort(view.ops.loc[view.ops["node"] == "server", "ended_s"])
    last = BATCHES_AT_FIRST_SIGHT * view.ops["client"].nunique()
    return float(ended_s[last]) if last < len(ended_s) else view.duration_s


def _clients(frames: Frames, view: RoundView, ops: pd.DataFrame) -> pd.DataFrame:
    """The clients of the round in the order of their dominant labels: the colour and the text of each lane."""
    ours = "variant == @view.variant.label and seed == @view.variant.seed"
    clients = frames.clients.query(ours).set_index("client")
    dominant = clients.loc[clients.index.isin(ops["client"]), "dominant_label"]
    labels = frames.labels.assign(rank=label_ranks(frames.labels)).query(ours).drop_duplicates("label")
    ranks = dict(zip(labels["label"], labels["rank"], strict=True))
    names = dict(zip(labels["label"], labels["label_name"], strict=True))

    rank = dominant.map(lambda label: ranks.get(label, label)).sort_values(kind="stable")
    dominant = dominant[rank.index]
    colour = sample_colorscale(style.TURN_SCALE, list(rank / max(rank.max(), 1)))
    text = [
        f"{names.get(label, f'label {label}')} · {client} <span style='color:{c}'>■</span>"
        for (client, label), c in zip(dominant.items(), colour, strict=True)
    ]
    return pd.DataFrame({"colour": colour, "text": text}, dominant.index)


def _client_spans(ops: pd.DataFrame) -> dict[str, tuple[pd.Series, pd.Series, pd.Series]]:
    """Start, end and client of what is drawn on the clients' lanes, by resource."""
    spans = {}
    for part, node, start, end in (
        ("queue", "server", "requested_s", "started_s"),
        ("device", "client", "started_s", "ended_s"),
        ("uplink", "uplink", "started_s", "ended_s"),
        ("server", "server", "started_s", "ended_s"),
        ("downlink", "downlink", "started_s", "ended_s"),
    ):
        rows = ops[ops["node"] == node]
        spans[part] = rows[start], rows[end], rows["client"]
    return spans
