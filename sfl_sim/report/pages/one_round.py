"""One typical round in detail: the server's queue, labels in training, a Gantt chart, and why it takes so long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from sfl_sim.metrics.critical_path import RESOURCES, WAITING, CriticalPath, critical_path
from sfl_sim.metrics.queue import held_idle, queue_length, work_by_label
from sfl_sim.ops import role_of
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import percent, plural
from sfl_sim.report.frames import Frames, ShownVariant, client_names, label_names, label_ranks
from sfl_sim.report.pages.learning import replaying
from sfl_sim.report.panel import Cell, Declared, Panel, Table, at_most
from sfl_sim.store import places
from sfl_sim.store.reading import matrix

ASSISTING = ["request", "recall", "knowledge"]
"""Kinds of operations of clients that give features to others: what is asked, done and sent."""
MAX_POINTS = 1500
BINS = 400
ALIKE = 1e-3
"""Share of a round that cannot be seen in a figure of it."""
READABLE = 0.5
FIGURE_PX = 190
PLOT_PX, GAP_PX = 112, 12
PX_PER_LABEL, MAX_STRIP_PX, PX_PER_TICK = 12, 160, 12
OWN_AXES = " Rounds differ by much in length, so each figure has a time axis of its own."


@dataclass(frozen=True)
class RoundView:
    """The operations of the round that is drawn, of one seed of a variant; times are seconds since its start.

    Attributes:
        ops: columns node, kind, step, client, requested_s, started_s, ended_s, macs.
        mean_waiting: jobs in the server's queue, averaged over the time of the whole run.
        label_samples: (the round's clients x labels in the cyclic order) how many samples of each label they hold;
            without columns if unknown.
        names: of the round's clients: label 2, client 27.
        alike: further variants with the same round.
    """

    variant: ShownVariant
    duration_s: float
    ops: pd.DataFrame
    mean_waiting: float
    label_samples: pd.DataFrame
    names: dict[Any, str]
    alike: tuple[ShownVariant, ...] = ()

    @property
    def html(self) -> Markup:
        """The names of all variants whose round this is."""
        return display.listed([variant.html for variant in (self.variant, *self.alike)])

    def looks_like(self, other: RoundView) -> bool:
        """Return True if the eye cannot tell both apart: no operation differs by a thousandth of the round."""
        ours, theirs = (view.ops[view.ops["client"] != places.NOBODY] for view in (self, other))
        what, times = (["node", "kind", "step", "client"], ["requested_s", "started_s", "ended_s"])
        return (
            np.array_equal(ours[what].astype(str), theirs[what].astype(str))
            and np.allclose(ours[times], theirs[times], rtol=0, atol=ALIKE * self.duration_s)
            and math.isclose(self.mean_waiting, other.mean_waiting, rel_tol=ALIKE, abs_tol=ALIKE)
            and self.label_samples.equals(other.label_samples)
        )

    @cached_property
    def queue(self) -> pd.DataFrame:
        """The server's queue over the round, as `queue_length` gives it."""
        return queue_length(self.ops[places.at_servers(self.ops["node"])])

    @cached_property
    def held(self) -> pd.DataFrame:
        """Times when the server is held idle, as `held_idle` gives them."""
        return held_idle(self.queue)

    @cached_property
    def critical(self) -> CriticalPath:
        """Critical path: why the round takes so long."""
        return critical_path(self.ops, 0.0, self.duration_s)

    @cached_property
    def speedups(self) -> pd.DataFrame:
        """Times of a round with other systems, as in speedups.parquet; no rows if unknown."""
        return self.variant.rows("speedups")

    @cached_property
    def training(self) -> pd.DataFrame:
        """The training jobs of the server, in the order of service."""
        jobs = self.ops[places.at_servers(self.ops["node"])]
        return jobs[jobs["kind"] == "train"].sort_values("started_s")

    @cached_property
    def assistants(self) -> list[int]:
        """The clients that give features to others and do not train in the round themselves."""
        own = self.ops[places.at(self.ops["node"], places.DEVICE)]
        assisting = self.ops.loc[self.ops["kind"].isin(ASSISTING), "client"]
        return sorted(set(assisting) - set(own.loc[~own["kind"].isin(ASSISTING), "client"]))

    @cached_property
    def without_features(self) -> pd.DataFrame:
        """Times when mini-batches wait for features of assistants: from arrival of smashed data to the server's job.

        Columns client, started_s, ended_s.
        """
        smashed = self.ops[places.at(self.ops["node"], places.UPLINK) & (self.ops["kind"] == "smashed")]
        are_any = (self.ops["kind"] == "knowledge").any()
        jobs = self.training[["client", "step", "requested_s"]]
        pairs = smashed[["client", "step", "ended_s"]].merge(jobs if are_any else jobs.head(0))
        return pairs.set_axis(["client", "step", "started_s", "ended_s"], axis=1)

    def trained(self, edges_s: NDArray[np.float64]) -> pd.DataFrame:
        """Measure what the server trains between two instants, as `work_by_label` gives it."""
        return work_by_label(self.training, self.label_samples, edges_s)

    def trained_in_turn(self, edges: NDArray[np.float64]) -> pd.DataFrame:
        """The same for jobs counted from 0 instead of instants."""
        jobs = self.training
        turns = np.arange(len(jobs))
        return work_by_label(jobs.assign(started_s=turns, ended_s=turns + 1), self.label_samples, edges)


@dataclass(frozen=True)
class OneRound:
    """The typical round of the first variants: what the detailed sections of the page show."""

    frames: Frames

    @cached_property
    def views(self) -> list[RoundView]:
        """The rounds; one that looks like an earlier one is entered there."""
        views: list[RoundView] = []
        for view in (_view(self.frames, variant) for variant in self.frames.variants[: style.MAX_DETAILED]):
            same = next((i for i, other in enumerate(views) if other.looks_like(view)), None)
            if same is None:
                views.append(view)
            else:
                views[same] = replace(views[same], alike=(*views[same].alike, view.variant))
        return views

    @property
    def words(self) -> dict[str, object]:
        """What captions say: which round it is, and that only the first variants are drawn, if there are more."""
        return {"round": self.frames.typical_round, "drawn": drawn(self.frames)}


def drawn(frames: Frames) -> str:
    """Say in a caption that only the first variants are drawn; empty if all are."""
    n_variants = frames.n_variants
    return f"; the first {style.MAX_DETAILED} of {n_variants:,} variants" if n_variants > style.MAX_DETAILED else ""


def _view(frames: Frames, variant: ShownVariant) -> RoundView:
    times = ["requested_s", "started_s", "ended_s"]
    rounds = variant.first_seed(frames.rounds).set_index("round")
    started_s, ended_s = rounds.loc[frames.typical_round, ["started_s", "ended_s"]].to_numpy(dtype=float)
    ops = variant.rows("ops", ["node", "kind", "step", "client", *times, "macs"], round=frames.typical_round)
    ops[times] -= started_s
    jobs = variant.rows("ops", ["node", "requested_s", "started_s"])
    jobs = jobs[places.at_servers(jobs["node"])]
    waited_s = (jobs["started_s"] - jobs["requested_s"]).sum()
    run_s = rounds["ended_s"].max() - rounds["started_s"].min()
    clients = variant.first_seed(frames.clients).set_index("client")
    clients = clients[clients.index.isin(ops["client"])]
    held, names = pd.DataFrame(index=clients.index), label_names(frames, variant)
    if clients["label_samples"].notna().all() and len(clients):
        samples = pd.DataFrame(matrix(clients["label_samples"]), clients.index)
        in_order = samples[names.index].set_axis(list(names), axis=1) if len(names) else None
        held = samples.add_prefix(f"{frames.group} ") if in_order is None else in_order
    called = client_names(frames, variant, clients)
    return RoundView(variant, ended_s - started_s, ops, float(waited_s / run_s), held, called)


# Labels in the order of service, and the server's queue

UNSEEN_REPLAY = ". Replayed samples are not shown"
order_panels: Declared[OneRound] = Declared(
    "{Group}s in the order of service",
    "Each column is a training job of the server, dark at the {group}s that its client holds. Where clients share the "
    "server-side submodel (part-2), a long dark stretch overwrites what was learned before; {group}s that return soon "
    "are remembered{replayed} (round {round}, a typical one, of the first seed{in_order}{drawn}).",
    lambda details: [
        (view.html, partial(service_order, view))
        for view in details.views
        if len(view.training) and view.label_samples.size
    ],
    words=lambda details: {
        **details.words,
        "replayed": UNSEEN_REPLAY if replaying(details.frames) else "",
        "group": details.frames.group,
        "Group": details.frames.group.capitalize(),
        "in_order": "; labels in its cyclic order" if len(details.frames.labels) else "",
    },
    columns=at_most(2),
)


def queue_panels(details: OneRound) -> list[Panel]:
    """The panel on the server's queue."""
    views = details.views
    ends_s = figures.extents([view.duration_s for view in views])
    most_waiting = max([1, *(view.queue["waiting"].max() for view in views if len(view.queue))])
    queues, by_clock = [], False
    for view, end_s in zip(views, ends_s, strict=True):
        held_s = (view.held["ended_s"] - view.held["started_s"]).sum()
        heading = view.html + f": held idle for {percent(held_s / view.duration_s, 0)} of the round"
        queues.append((heading, partial(server_queue, view, end_s, most_waiting)))
        by_clock |= tells_labels(view, end_s)
    strip = (
        f"The strip above shows the {details.frames.group}s of the same jobs over time, where single jobs are wide "
        "enough to see. "
    )
    caption = (
        "Red marks show what a fixed scheduling policy costs: jobs wait, but the server is idle until the client whose "
        f"turn it is arrives. {strip * by_clock}(Round {details.frames.typical_round}, a typical one, of the first seed"
        f"{drawn(details.frames)}.)"
    )
    return [Panel("The server's queue", caption + OWN_AXES * (len(set(ends_s)) > 1), queues)]


def server_queue(view: RoundView, longest_s: float, most_waiting: int) -> go.Figure:
    """Jobs that wait for the server over one round; red marks at the foot: held idle.

    Above: labels in training, where they can be told apart.

    Args:
        view: the round.
        longest_s: the end of the time axis: that of the longest of the rounds that are compared, or of this one.
        most_waiting: the longest of their queues, which sets the common height.
    """
    unit, unit_s = display.time_unit(longest_s)
    # Of several steps that become one, the longest queue stays.
    several = np.arange(len(view.queue)) // (len(view.queue) // MAX_POINTS + 1)
    queue = view.queue.groupby(several).agg({"time_s": "first", "waiting": "max"})
    figure = figures.canvas(FIGURE_PX)
    figure.add_scatter(
        x=(queue["time_s"] / unit_s).to_numpy(), y=queue["waiting"].to_numpy(), mode="lines", fill="tozeroy",
        line={"shape": "hv", "color": view.variant.colour, "width": 1, "dash": "solid"},
        hovertemplate="%{y} waiting<extra></extra>", showlegend=False,
    )  # fmt: skip
    figure.add_scatter(
        x=[0, view.duration_s / unit_s], y=[view.mean_waiting] * 2, mode="lines", name="mean over the whole run",
        line={"color": style.INK, "width": 1.4, "dash": "dash"}, hovertemplate="%{y:.2f} waiting<extra></extra>",
    )  # fmt: skip
    held = view.held["started_s"] / unit_s, view.held["ended_s"] / unit_s
    figures.spans(figure, *held, 0.0, colour=style.ALARM, width=6, name="server held idle while jobs wait")
    figure.update_yaxes(title="waiting jobs", range=[-0.04 * most_waiting, 1.08 * most_waiting], nticks=4)
    if tells_labels(view, longest_s):
        edges_s = _bins_s(longest_s)
        strip_px = _add_strip(figure, view.trained(edges_s), edges_s / unit_s, "y2")
        below = PLOT_PX / (PLOT_PX + GAP_PX + strip_px)
        share = (1 - below) * strip_px / (GAP_PX + strip_px)
        figure.update_layout(
            height=FIGURE_PX + GAP_PX + strip_px,
            yaxis={"domain": [0, below]},
            yaxis2={"domain": [1 - share, 1], "anchor": "x"},
        )
        figure.update_traces(_key(share), selector={"type": "heatmap"})
    return figure.update_xaxes(title=f"time in the round ({unit})", range=[0, longest_s / unit_s])


def tells_labels(view: RoundView, longest_s: float) -> bool:
    """Return True if labels can be told apart by the clock; a fast server trains them all within a bin.

    Where it works, the darkest label is on average at least `READABLE` times as dark as that of a single job.
    """
    if not view.label_samples.size:
        return False
    by_job = view.trained_in_turn(np.arange(len(view.training) + 1.0))
    return _darkness(view.trained(_bins_s(longest_s))) >= READABLE * _darkness(by_job)


def _darkness(work: pd.DataFrame) -> float:
    """The share of the darkest label, averaged over the bins with work; NaN if there are none."""
    return float((work.max() / work.sum()).mean())


def _bins_s(longest_s: float) -> NDArray[np.float64]:
    return np.linspace(0, longest_s, BINS + 1)


def service_order(view: RoundView) -> go.Figure:
    """Labels x training jobs of the server in the order of service: the share of each label in what is trained."""
    jobs = len(view.training)
    edges = np.linspace(0, jobs, min(jobs, BINS) + 1)
    figure = figures.canvas(FIGURE_PX - PLOT_PX)
    height_px = _add_strip(figure, view.trained_in_turn(edges), edges, "y")
    figure.update_layout(height=FIGURE_PX - PLOT_PX + height_px).update_traces(_key(1.0))
    return figure.update_xaxes(title="training jobs in order of service", range=[0, jobs])


def _key(share: float) -> dict[str, object]:
    """The colour bar of a strip that takes this share of the figure's height."""
    return {"showscale": True, "colorbar": figures.percent_bar(share)}


def _add_strip(figure: go.Figure, work: pd.DataFrame, edges: NDArray[np.float64], axis: str) -> int:
    """A heat map of labels x bins on the y axis of this name, and how many pixels it wants to be high."""
    share = (work / work.sum().replace(0, 1)).to_numpy(dtype=np.float32)
    strip_px = min(PX_PER_LABEL * len(work), MAX_STRIP_PX)
    hover = "%{y}: %{z:.0f} % of what is trained<extra></extra>"
    figures.heat(figure, edges, list(work.index), share.round(3), hover, yaxis=axis, colorscale=style.SHARE_SCALE)
    names = list(work.index[:: -(-len(work) * PX_PER_TICK // strip_px)])
    look = {"autorange": "reversed", "type": "category", "tickvals": names, "tickfont": {"size": 11}}
    quiet = {"showgrid": False, "zeroline": False, "automargin": True, "linecolor": style.GRID}
    figure.update_layout({axis.replace("y", "yaxis"): look | quiet})
    return strip_px


# Operation by operation

MAX_CLIENTS = 30
MAX_ASSISTANTS = 8
MAX_SERVERS, MAX_SERVER_LANES = 16, 4
"""Numbers of servers, and of lanes of each, that are drawn; a lane of each where there are several."""
MAX_OPS = 4000
BATCHES_AT_FIRST_SIGHT = 8
WAITS = ("queue", "assistants")
LANE_PX = 20
SERVER_LANE = -1.3
UNDER_THE_BAR = 0.4
SERVERS = "any server"
CLIENT_SPANS = {
    "queue": (SERVERS, "requested_s", "started_s"),
    "device": ("client", "started_s", "ended_s"),
    "uplink": ("uplink", "started_s", "ended_s"),
    "backbone": ("backbone", "started_s", "ended_s"),
    "server": (SERVERS, "started_s", "ended_s"),
    "downlink": ("downlink", "started_s", "ended_s"),
}
"""Bars on a client's lane, by resource: the node of the operations (`SERVERS`: any), their start and their end."""


def gantt_panels(details: OneRound) -> list[Panel]:
    """The charts of the first variants, on one scale unless they differ by much."""
    frames, views = details.frames, details.views
    ends_s = figures.extents([_first_sight_s(view) for view in views])
    clients = max(frames.rounds.loc[frames.rounds["round"] == frames.typical_round, "participants"])
    assisting = max(len(view.assistants) for view in views)
    helpers = min(assisting, MAX_ASSISTANTS)
    sorting = f"by {frames.group}" if frames.labels.empty else "in the cyclic order"
    caption = (
        "Each row is a client, and the top rows are the server's workers. At the server a job has its client's colour: "
        "a fixed scheduling policy repeats the same sequence of colours, arrival order mixes them. Blank is the "
        "straggler wait. The dark line is the critical path: it runs under the operations that make the round as long "
        f"as it is (round {frames.typical_round}, first seed; clients with their dominant {frames.group}s, {sorting}"
        f"{drawn(frames)}). Drag to zoom, double-click for the whole round."
    )
    if clients > MAX_CLIENTS:
        caption += f" Of {clients} clients, {MAX_CLIENTS} are drawn."
    if helpers:
        caption += f" Below, in italics, are the busiest {helpers} of {plural(assisting, 'assistant')}."
    charts = [(view.html, partial(gantt, frames, view, end_s)) for view, end_s in zip(views, ends_s, strict=True)]
    return [Panel("One round, operation by operation", caption + OWN_AXES * (len(set(ends_s)) > 1), charts)]


def _first_sight_s(view: RoundView) -> float:
    """The end of the job that completes the first batches of all clients: what a chart shows at first."""
    ended_s = np.sort(view.ops.loc[places.at_servers(view.ops["node"]), "ended_s"])
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
    jobs = view.ops[places.at_servers(view.ops["node"])].nsmallest(MAX_OPS, "started_s")
    jobs, servers = lanes_of_servers(jobs)
    jobs = jobs.join(clients[["colour", "label"]], on="client").fillna({"colour": style.MUTED, "label": "server"})

    top, bottom = min([0.0, *jobs["lane"]]) - 0.7, len(shown) - 0.3
    figure = figures.canvas(100 + round(LANE_PX * (bottom - top)))
    lane = pd.Series(range(len(shown)), shown.index)
    ops = ops.assign(node=ops["node"].astype(str).mask(places.at_servers(ops["node"]), SERVERS))
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
        range=[bottom, top], showgrid=False, tickfont_size=11, tickvals=[*servers.values(), *lane],
        ticktext=[*servers, *shown["text"]],
    )  # fmt: skip
    return figure.update_xaxes(title=f"time in the round ({unit})", range=[0, 1.01 * until_s / unit_s])


def lanes_of_servers(jobs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, float]]:
    """Give the jobs that are drawn, with their lane, and the height of each server's name above the clients' lanes."""
    names = sorted(jobs["node"].unique(), key=lambda name: (-len(role_of(name)), len(name), name))
    most = MAX_SERVER_LANES if len(names) == 1 else 1
    drawn, where, lane = [], {}, SERVER_LANE
    for name in names[:MAX_SERVERS][::-1]:
        own = jobs[jobs["node"] == name]
        own = own.assign(lane=server_lanes(own))
        own = own[own["lane"] < most]
        n = int(own["lane"].max()) + 1
        drawn.append(own.assign(lane=lane - own["lane"]))
        where[name] = lane - (n - 1) / 2
        lane -= n
    return pd.concat(drawn) if drawn else jobs.assign(lane=0.0), where


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
    names = label_names(frames, view.variant)
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
    "workers x2": "Workers ×2", "no latency": "No latency", "backbone x2": "Backbone ×2",
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
    known = {change for view in views for change in view.speedups["change"]}
    changes = [change for change in CHANGES if change in known]
    for view in views:
        speedups = view.speedups.set_index("change")
        if len(speedups):
            now_s, after_s = speedups["before_s"].iloc[0], speedups["after_s"].reindex(changes)
            cells = [_changed(seconds, now_s, seconds == after_s.min()) for seconds in after_s]
            now = Cell(display.duration(now_s), f"round {speedups['round'].iloc[0]}")
            rows.append([Cell(view.html), now, *cells])
    titles = ["Variant", "As it is", *map(CHANGES.__getitem__, changes)]
    return Table(titles, rows, title="What would help") if rows else None


def _changed(after_s: float, now_s: float, is_least: bool) -> Cell:
    """Say what a change comes to, and whether no other does better."""
    if math.isnan(after_s):
        return Cell("–")
    share = after_s / now_s - 1
    if abs(share) < LITTLE:
        return Cell(display.duration(after_s), "no change")
    sign, most = "−" if share < 0 else "+", ", most" if share < 0 and is_least else ""
    return Cell(display.duration(after_s), f"{sign}{display.percent(abs(share))}{most}")


HELPING = (
    " Below, the same round is timed again with one thing faster. A faster resource off the path does not help; where "
    "the path gets shorter, another one may become the longest."
)
path_panels: Declared[OneRound] = Declared(
    "Why a round takes so long",
    "Only operations on the critical path make a round longer. The path (the dark line above) leads from the round's "
    "end back to its start, in each step to the operation that was waited for. Slack is how much later a client could "
    "finish without making the round longer (round {round}, first seed{drawn}).{helping}",
    {},
    words=lambda details: details.words | {"helping": HELPING if help_table(details.views) else ""},
    tables=lambda details: list(filter(None, [path_table(details.views), help_table(details.views)])),
)
