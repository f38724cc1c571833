"""One typical round in detail: its operations, the server's queue in it, and which labels the server trained when."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sfl_sim.metrics.critical_path import CriticalPath, critical_path
from sfl_sim.metrics.queue import held_idle, queue_length, work_by_label
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import percent
from sfl_sim.report.frames import client_names, label_names
from sfl_sim.report.pages.learning import replaying
from sfl_sim.report.panel import Panel
from sfl_sim.store import places

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from markupsafe import Markup
    from numpy.typing import NDArray

    from sfl_sim.report.frames import Frames, Variant

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

    variant: Variant
    duration_s: float
    ops: pd.DataFrame
    mean_waiting: float
    label_samples: pd.DataFrame
    names: dict[Any, str]
    alike: tuple[Variant, ...] = ()

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
        return queue_length(self.ops[places.at(self.ops["node"], places.SERVER)])

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

    @property
    def training(self) -> pd.DataFrame:
        """The training jobs of the server, in the order of service."""
        jobs = self.ops[places.at(self.ops["node"], places.SERVER)]
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
        """One view for each round that looks different."""
        return round_views(self.frames)

    @property
    def drawn(self) -> str:
        """Note in captions that only the first variants are drawn; empty if all are."""
        return drawn(self.frames)


def drawn(frames: Frames) -> str:
    """Say in a caption that only the first variants are drawn; empty if all are."""
    n_variants = frames.n_variants
    return f"; the first {style.MAX_DETAILED} of {n_variants:,} variants" if n_variants > style.MAX_DETAILED else ""


def round_views(frames: Frames) -> list[RoundView]:
    """The typical round of each of the first variants; one that looks like an earlier one is entered there."""
    views: list[RoundView] = []
    for view in (_view(frames, variant) for variant in frames.variants[: style.MAX_DETAILED]):
        same = next((i for i, other in enumerate(views) if other.looks_like(view)), None)
        if same is None:
            views.append(view)
        else:
            views[same] = replace(views[same], alike=(*views[same].alike, view.variant))
    return views


def _view(frames: Frames, variant: Variant) -> RoundView:
    times = ["requested_s", "started_s", "ended_s"]
    rounds = variant.first_seed(frames.rounds).set_index("round")
    started_s, ended_s = rounds.loc[frames.typical_round, ["started_s", "ended_s"]].to_numpy(dtype=float)
    ops = variant.rows("ops", ["node", "kind", "step", "client", *times, "macs"], round=frames.typical_round)
    ops[times] -= started_s
    jobs = variant.rows("ops", ["requested_s", "started_s"], node=places.SERVER)
    waited_s = (jobs["started_s"] - jobs["requested_s"]).sum()
    run_s = rounds["ended_s"].max() - rounds["started_s"].min()
    clients = variant.first_seed(frames.clients).set_index("client")
    clients = clients[clients.index.isin(ops["client"])]
    held, names = pd.DataFrame(index=clients.index), label_names(frames, variant)
    if clients["label_samples"].notna().all() and len(clients):
        samples = pd.DataFrame(np.stack(list(clients["label_samples"])), clients.index)
        in_order = samples[names.index].set_axis(list(names), axis=1) if len(names) else None
        held = samples.add_prefix("label ") if in_order is None else in_order
    return RoundView(variant, ended_s - started_s, ops, float(waited_s / run_s), held, client_names(frames, variant))


def order_panels(details: OneRound) -> list[Panel]:
    """The panel on the labels in the order of service, if they are known."""
    views = [view for view in details.views if len(view.training) and view.label_samples.size]
    if not views:
        return []
    replayed = ". Replayed samples are not shown" if replaying(details.frames) else ""
    caption = (
        "Each column is a training job of the server, dark at the labels that its client holds. Where clients share "
        "the server-side submodel (part-2), a long dark stretch overwrites what was learned before; labels that return "
        f"soon are remembered{replayed} (round {details.frames.typical_round}, a typical one, of the first seed; "
        f"labels in its cyclic order{details.drawn})."
    )
    orders = [(view.html, partial(service_order, view)) for view in views]
    return [Panel("Labels in the order of service", caption, orders, columns=min(len(views), 2))]


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
    strip = "The strip above shows the labels of the same jobs over time, where single jobs are wide enough to see. "
    caption = (
        "Red marks show what a fixed scheduling policy costs: jobs wait, but the server is idle until the client whose "
        f"turn it is arrives. {strip * by_clock}(Round {details.frames.typical_round}, a typical one, of the first seed"
        f"{details.drawn}.)"
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
        x=[0, view.duration_s / unit_s],
        y=[view.mean_waiting] * 2,
        mode="lines",
        line={"color": style.INK, "width": 1.4, "dash": "dash"},
        hovertemplate="%{y:.2f} waiting<extra></extra>",
        name="mean over the whole run",
    )
    held = view.held["started_s"] / unit_s, view.held["ended_s"] / unit_s
    figures.spans(figure, *held, 0.0, colour=style.ALARM, width=6, name="server held idle while jobs wait")
    figure.update_yaxes(title="waiting jobs", range=[-0.04 * most_waiting, 1.08 * most_waiting], nticks=4)
    if tells_labels(view, longest_s):
        edges_s = _bins_s(longest_s)
        strip_px = _add_strip(figure, view.trained(edges_s), edges_s / unit_s, "y2")
        below = PLOT_PX / (PLOT_PX + GAP_PX + strip_px)
        figure.update_layout(
            height=FIGURE_PX + GAP_PX + strip_px,
            yaxis={"domain": [0, below]},
            yaxis2={"domain": [1 - (1 - below) * strip_px / (GAP_PX + strip_px), 1], "anchor": "x"},
        )
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
    figure.update_layout(height=FIGURE_PX - PLOT_PX + height_px)
    return figure.update_xaxes(title="training jobs in order of service", range=[0, jobs])


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
