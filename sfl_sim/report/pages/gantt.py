"""Panels on one round as a Gantt chart, which explains what an order of service does, and on why it takes so long."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from plotly.colors import sample_colorscale

from sfl_sim.metrics.critical_path import RESOURCES, WAITING
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import plural
from sfl_sim.report.frames import label_ranks
from sfl_sim.report.pages.one_round import OWN_AXES
from sfl_sim.report.panel import Declared, Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.store import places

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
WAITS = ("queue", "assistants")
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


def gantt_panels(details: OneRound) -> list[Panel]:
    """The charts of the first variants, on one scale unless they differ by much."""
    frames, views = details.frames, details.views
    ends_s = figures.extents([_first_sight_s(view) for view in views])
    clients = max(frames.rounds.loc[frames.rounds["round"] == frames.typical_round, "participants"])
    assisting = max(len(view.assistants) for view in views)
    helpers = min(assisting, MAX_ASSISTANTS)
    sorting = "by label" if frames.labels.empty else "in the cyclic order"
    caption = (
        "Each row is a client, and the top rows are the server's workers. At the server a job has its client's colour: "
        "a fixed scheduling policy repeats the same sequence of colours, arrival order mixes them. Blank is the "
        "straggler wait. The dark line is the critical path: it runs under the operations that make the round as long "
        f"as it is (round {frames.typical_round}, first seed; clients with their dominant labels, {sorting}"
        f"{details.drawn}). Drag to zoom, double-click for the whole round."
    )
    if clients > MAX_CLIENTS:
        caption += f" Of {clients} clients, {MAX_CLIENTS} are drawn."
    if helpers:
        caption += f" Below, in italics, are the busiest {helpers} of {plural(assisting, 'assistant')}."
    charts = [(view.html, partial(gantt, frames, view, end_s)) for view, end_s in zip(views, ends_s, strict=True)]
    return [Panel("One round, operation by operation", caption + OWN_AXES * (len(set(ends_s)) > 1), charts)]


def _first_sight_s(view: RoundView) -> float:
    """The end of the job that completes the first batches of all clients: what a chart shows at first."""
    ended_s = np.sort(view.ops.loc[places.at(view.ops["node"], places.SERVER), "ended_s"])
    last = BATCHES_AT_FIRST_SIGHT * (view.ops["client"].nunique() - len(view.assistants))
    return float(ended_s[last]) if last < len(ended_s) else view.duration_s


def gantt(frames: Frames, view: RoundView, until_s: float) -> go.Figure:
    """One lane per client (device, uplink, queue, server, downlink), under the lanes of the server.

    Clients stand in the cyclic order of their dominant labels. A job at the server has the colour of its client:
    dark for the first in that order, bright for the last. Clients that only assist others stand below, in italics.
    A dark line under the bars is the critical path. `until_s` is shown at first.
    """
    unit, unit_s = display.time_unit(until_s)
    clients = _clients(frames, view)
    assisting = view.ops[view.ops["client"].isin(view.assistants)]
    busy_s = (assisting["ended_s"] - assisting["started_s"]).groupby(assisting["client"]).sum()
    busiest = clients.index.isin(busy_s.nlargest(MAX_ASSISTANTS).index)
    training = display.thin(clients[~clients.index.isin(view.assistants)], MAX_CLIENTS)
    shown = pd.concat([training, clients[busiest]])
    ops = view.ops[view.ops["client"].isin(shown.index)].nsmallest(MAX_OPS, "started_s")
    jobs = view.ops[places.at(view.ops["node"], places.SERVER)].nsmallest(MAX_OPS, "started_s")
    jobs = jobs.assign(lane=server_lanes(jobs)).query("lane < @MAX_SERVER_LANES")
    jobs["lane"] = SERVER_LANE - jobs["lane"]
    jobs = jobs.join(clients[["colour", "label"]], on="client").fillna({"colour": style.MUTED, "label": "server"})

    top, bottom = min([0.0, *jobs["lane"]]) - 0.7, len(shown) - 0.3
    figure = figures.canvas(100 + round(LANE_PX * (bottom - top)))
    lane = pd.Series(range(len(shown)), shown.index)
    bars = {part: ops[ops["node"] == node] for part, (node, _, _) in CLIENT_SPANS.items()}
    if len(waits := view.without_features.query("client in @shown.index")):
        bars["assistants"] = waits
    for part, rows in bars.items():
        _, start, end = CLIENT_SPANS.get(part, CLIENT_SPANS["device"])
        figures.spans(
            figure, rows[start] / unit_s, rows[end] / unit_s, rows["client"].map(lane),
            colour=style.RESOURCE_COLOURS[part], width=3 if part in WAITS else 11, name=style.RESOURCE_NAMES[part],
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
    # In the lane of the client that makes the round longer, or else in the server's.
    path = view.critical.path
    level = path["client"].map(lane).where(path["client"] >= 0, 0.5 + SERVER_LANE) + UNDER_THE_BAR
    ends_s = path[["from_s", "to_s"]].to_numpy(dtype=np.float32) / unit_s
    figure.add_scatter(
        x=ends_s.ravel(), y=np.repeat(level.to_numpy(dtype=np.float32), 2), mode="lines", opacity=0.85,
        line={"color": style.INK, "width": 2, "dash": "solid", "simplify": False}, name="critical path",
        hoverinfo="skip",
    )  # fmt: skip
    figure.add_vline(view.duration_s / unit_s, line={"color": style.INK, "width": 1.2})
    figure.update_yaxes(
        range=[bottom, top], showgrid=False, tickfont_size=11, tickvals=[(top - 0.6) / 2, *lane],
        ticktext=["server" if len(jobs) else "", *shown["text"]],
    )  # fmt: skip
    return figure.update_xaxes(title=f"time in the round ({unit})", range=[0, 1.01 * until_s / unit_s])


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


def _clients(frames: Frames, view: RoundView) -> pd.DataFrame:
    """The clients of the round in the order of their dominant labels: their colour, label and text."""
    clients = view.variant.first_seed(frames.clients).set_index("client")
    dominant = clients.loc[clients.index.isin(view.ops["client"]), "dominant_label"]
    labels = view.variant.first_seed(frames.labels).drop_duplicates("label")
    ranks = dict(zip(labels["label"], label_ranks(labels), strict=True))
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


# Why it takes so long

TITLES = style.RESOURCE_NAMES | {"queue": "server held idle", WAITING: "no operation"}
CHANGES = {
    "uplink x2": "Uplinks ×2", "downlink x2": "Downlinks ×2", "devices x2": "Devices ×2", "server x2": "Server ×2",
    "workers x2": "Workers ×2", "no latency": "No latency",
}  # fmt: skip
"""The changes of speedups.parquet, as columns."""
LITTLE = 0.0005
"""The share of a round that counts as nothing."""


def path_table(views: Sequence[RoundView]) -> Table:
    """Tabulate the critical paths: seconds by resource, the clients that are on them most, and slack."""
    spent_s = pd.DataFrame({view.variant.label: view.critical.seconds_by("resource") for view in views})
    spent_s = spent_s.reindex([*RESOURCES]).fillna(0.0)
    lengths_s = pd.Series({view.variant.label: view.duration_s for view in views})
    spent_s = spent_s[(spent_s > LITTLE * lengths_s).any(axis="columns")]
    titles = [TITLES[resource].capitalize() for resource in spent_s.index]
    rows = []
    for view in views:
        shares = [(seconds, seconds / view.duration_s) for seconds in spent_s[view.variant.label]]
        cells = [
            Cell(display.duration(seconds), display.percent(share, 0)) if share > LITTLE else Cell("–")
            for seconds, share in shares
        ]
        on_it = view.critical.seconds_by("client").drop(-1, errors="ignore").head(3) / view.duration_s
        told = [f"{view.names[c]}: {display.percent(share, 0)}" for c, share in on_it.items() if share > LITTLE]
        rows.append([Cell(view.html), *cells, Cell((told or ["–"])[0], ", ".join(told[1:])), *_slack(view)])
    return Table(["Variant", *titles, "Most on it", "Median slack", "Most slack"], rows)


def _slack(view: RoundView) -> tuple[Cell, Cell]:
    """Give the median with the range, and the client that has most."""
    slack_s = view.critical.slack_s
    if slack_s.empty:
        return Cell("–"), Cell("–")
    least, most = display.duration(slack_s.min()), display.duration(slack_s.max())
    if not slack_s.any():
        return Cell(least, "no client has any"), Cell("–")
    return Cell(display.duration(slack_s.median()), f"{least} to {most}"), Cell(view.names[slack_s.idxmax()], most)


def help_table(views: Sequence[RoundView]) -> Table | None:
    """Tabulate how long the rounds would take in other system configurations; None if none was timed again."""
    rows = []
    for view in views:
        speedups = view.speedups.set_index("change")
        if len(speedups):
            now_s, after_s = speedups["before_s"].iloc[0], speedups["after_s"].reindex([*CHANGES])
            cells = [_changed(seconds, now_s, seconds == after_s.min()) for seconds in after_s]
            now = Cell(display.duration(now_s), f"round {speedups['round'].iloc[0]}")
            rows.append([Cell(view.html), now, *cells])
    titles = ["Variant", "As it is", *CHANGES.values()]
    return Table(titles, rows, title="What would help") if rows else None


def _changed(after_s: float, now_s: float, is_least: bool) -> Cell:
    """Say what a change comes to, and whether no other does better."""
    share = after_s / now_s - 1
    if abs(share) < LITTLE:
        return Cell(display.duration(after_s), "no change")
    sign, most = "−" if share < 0 else "+", ", most" if share < 0 and is_least else ""
    return Cell(display.duration(after_s), f"{sign}{display.percent(abs(share))}{most}")


path_panels: Declared[OneRound] = Declared(
    "Why a round takes so long",
    "Only operations on the critical path make a round longer. The path (the dark line above) leads from the round's "
    "end back to its start, in each step to the operation that was waited for. Slack is how much later a client could "
    "finish without making the round longer (round {round}, first seed{drawn}).{helping}",
    {},
    words=lambda details: {
        "round": details.frames.typical_round,
        "drawn": details.drawn,
        "helping": " Below, the same round is timed again with one thing faster. A faster resource off the path does "
        "not help; where the path gets shorter, another one may become the longest."
        if help_table(details.views)
        else "",
    },
    tables=lambda details: list(filter(None, [path_table(details.views), help_table(details.views)])),
)
