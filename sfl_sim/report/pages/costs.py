"""Panels on costs: where the time of a round goes, what less forgetting costs, and clients that come and go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from sfl_sim.metrics.choices import non_dominated
from sfl_sim.metrics.rounds import absence_costs
from sfl_sim.metrics.scores import LAST_ROUNDS
from sfl_sim.report import display, figures, lead, style
from sfl_sim.report.figures import MAX_POINTS
from sfl_sim.report.frames import Frames, ShownVariant
from sfl_sim.report.lead import Sentence
from sfl_sim.report.panel import Column, Declared, Panel, by_variant, columns_of
from sfl_sim.report.results import (
    TIME,
    MedianRow,
    columns_for,
    common_target,
    knowing,
    of_each,
    time_compared,
    time_in_words,
)
from sfl_sim.store.columns import BREAKDOWN

# Where the time goes


def round_breakdown(frames: Frames) -> go.Figure:
    """Mean seconds of a round by resource, over rounds and seeds: one stacked bar per variant."""
    columns = {f"{part}_s": part for part in BREAKDOWN}
    mean_s = frames.rounds.groupby("variant")[list(columns)].mean().rename(columns=columns)
    total_s = mean_s.sum(axis="columns")
    shown_s = mean_s.loc[:, mean_s.ge(figures.NOTHING * total_s, axis="index").any()]
    rows = {}
    for variant in frames.variants:
        text = f"{figures.on_a_phone(variant)} {display.duration(total_s[variant.label])}"
        rows[text] = pd.Series(shown_s.loc[variant.label])
    return figures.bars(rows, "mean time of a round", "round")


breakdown_panels = Declared(
    "Where the time goes",
    "Warm colours are waiting: in the server's queue{assistants} or for stragglers (slower clients). All other colours "
    "are work of the average participating client{absent} (mean over rounds and seeds).",
    {"Mean time of a round by resource": round_breakdown},
    words=lambda frames: {
        "assistants": ", for assistants" if frames.rounds["assistants_s"].any() else "",
        "absent": ", and include the time while it is away" if knowing(frames, "present") else "",
    },
)


# What less forgetting costs

MIN_VARIANTS = 3
TOLD = ["accuracy", "performance_gap", "simulated_s"]
PALE = 0.45
MARGIN, LEAST_MARGIN_POINTS = 0.07, 1.0
"""Room between the marks and the frame: a share of what they span, and at least so much."""


@dataclass(frozen=True)
class Frontier:
    """Places of the variants between time and forgetting.

    Attributes:
        aim: the accuracy to which `time_s` leads; None if it is the time of a round.
        seeds: one row per variant and seed: variant, seed, time_s (infinite if the target is not reached), gap in
            points, and `paced_s`: the time divided by the pace of the seed.
        middle: medians of time_s and gap by variant, and `best`: whether the variant is on the Pareto front.
    """

    aim: float | None
    seeds: pd.DataFrame
    middle: pd.DataFrame

    @property
    def cost(self) -> str:
        """What `time_s` is, in words."""
        return time_in_words(self.aim)

    @property
    def anyone_late(self) -> bool:
        """True if a seed does not reach the target."""
        return bool(np.isinf(self.seeds["time_s"]).any())

    @property
    def seeds_that_agree(self) -> str:
        """How many seeds with all variants have the same front, as the end of a sentence; empty if all have."""
        of_all = set(self.middle.index[self.middle["best"]])
        whole = [rows for _, rows in self.seeds.groupby("seed") if len(rows) == len(self.middle)]
        fronts = [set(rows.loc[_on_front(rows), "variant"]) for rows in whole]
        agreeing = fronts.count(of_all)
        said = f" (by medians; {agreeing} of {len(fronts)} seeds alone say the same)"
        return "" if agreeing == len(fronts) else said


def frontier(frames: Frames) -> Frontier | None:
    """The variants between time and forgetting; None for fewer than three whose forgetting is known.

    Variants share the clients of a seed. `paced_s` is divided by how slow a round of the seed is for the average
    variant: it spreads only as far as the variants answer differently to these clients, or as learning takes more or
    fewer rounds.
    """
    known = frames.summary.dropna(subset="performance_gap")
    aim, time_s = time_compared(frames)
    round_s = known["simulated_s"] / known["rounds"]
    slowness = round_s / round_s.groupby(known["variant"]).transform("median")
    seeds = known[["variant", "seed"]].assign(time_s=time_s, gap=100 * known["performance_gap"])
    seeds["paced_s"] = seeds["time_s"] / slowness.groupby(known["seed"]).transform("mean")
    middle = seeds.groupby("variant")[["time_s", "gap"]].median()
    return Frontier(aim, seeds, middle.assign(best=_on_front(middle))) if len(middle) >= MIN_VARIANTS else None


def _on_front(points: pd.DataFrame) -> pd.Series[bool]:
    """Whether no other of the points is at least as good in time and gap, and better in one of them."""
    read = _as_read(points)
    on_front: pd.Series[bool] = np.isfinite(read["time_s"]) & non_dominated(read["time_s"], read["gap"])
    return on_front


def _as_read(points: pd.DataFrame) -> pd.DataFrame:
    """Round times and gaps as a reader sees them: what reads the same is the same."""
    read_s = points["time_s"].map(lambda time_s: float(f"{time_s:.3g}"))
    return points[[]].assign(time_s=read_s, gap=points["gap"].round(1))


def frontier_panels(frames: Frames) -> list[Panel]:
    """The panel on the front; none for fewer than three variants whose forgetting is known."""
    front = frontier(frames)
    if front is None:
        return []
    late = ", or if it does not reach the target" if front.anyone_late else ""
    when = "" if front.aim is None else ", the time when the target was first reached"
    caption = (
        "The best corner is the lower left. The line is the Pareto front: along it, less forgetting costs more time. A "
        f"variant is drawn pale if another one is at least as good in both{late}. The gap is that of the last "
        f"{LAST_ROUNDS} rounds{when}. Large marks are medians over seeds with ± standard deviation; small marks are "
        "single seeds. Clients differ from seed to seed, so the times of single seeds, and their ±, are divided by how "
        "slow the seed is for the average variant."
    )
    drawings = [(f"Performance gap against {front.cost}", partial(frontier_figure, frames, front))]
    return [Panel("What less forgetting costs in time", caption, drawings)]


def choice(frames: Frames) -> list[Sentence]:
    """Say in a sentence which variants are on the front; nothing if all of them are."""
    front = frontier(frames)
    if front is None or front.middle["best"].equals(np.isfinite(front.middle["time_s"])):
        return []
    names = {v.label: v.html for v in frames.variants if front.middle["best"].get(v.label, False)}
    late = " that reaches the target" if np.isinf(front.middle["time_s"]).any() else ""
    return [lead.choice([front.cost, "performance gap"], names, late, front.seeds_that_agree)]


def frontier_figure(frames: Frames, front: Frontier) -> go.Figure:
    """One mark per variant with its spread, its seeds as small ones, and the front as steps.

    Variants that do not reach the target stand on a strip at the right, which has no time.
    """
    unit, unit_s = display.time_unit(front.seeds["paced_s"].replace(math.inf, 0).max())
    seeds = front.seeds.assign(time=front.seeds["paced_s"] / unit_s).set_index("variant")[["time", "gap"]]
    middle = front.middle.assign(time=front.middle["time_s"] / unit_s)
    spread = seeds.replace(math.inf, math.nan).groupby("variant").std().fillna(0.0)
    ends = pd.concat([seeds, *(middle[["time", "gap"]] + sign * spread for sign in (-1, 1))]).replace(math.inf, 0)
    right = (1 + MARGIN) * ends["time"].max()
    margin = max(MARGIN * (ends["gap"].max() - ends["gap"].min()), LEAST_MARGIN_POINTS)
    bottom, top = max(ends["gap"].min() - margin, 0.0), ends["gap"].max() + margin

    widths = [0.87, 0.13] if front.anyone_late else [1.0]
    figure = figures.canvas(380, cols=len(widths), shared_yaxes=True, column_widths=widths, horizontal_spacing=0.015)
    # Steps from one of the best to the next, and on to the edges of the figure as dashed lines.
    steps = middle[middle["best"]].sort_values(["time", "gap"])
    time, gap = list(steps["time"]), list(steps["gap"])
    beyond = [time[0], time[0], None, time[-1], right], [top, gap[0], None, gap[-1], gap[-1]]
    for (x, y), dash in (((time, gap), "solid"), (beyond, "dash")):
        figures.front(figure, x, y, dash, showlegend=dash == "solid", row=1, col=1)
    columns = [column for column in columns_for(frames) if column.key in TOLD]
    columns += [TIME] if common_target(frames) is not None else []
    for variant, summary in of_each(frames.summary, frames.variants):
        if variant.label in middle.index:
            # What the tables say of the variant, with accuracy first.
            cells = ((column.title, column.cell(summary)) for column in columns)
            text = "<br>".join(f"{title}: {escape(cell.text)} {cell.below}" for title, cell in cells)
            median, deviation = (rows.loc[variant.label].to_dict() for rows in (middle, spread))
            _draw_point(figure, variant, seeds.loc[[variant.label]], median, deviation, text)
    figure.update_yaxes(range=[bottom, top])
    figure.update_yaxes(title="performance gap (points)", col=1)
    figure.update_xaxes(title=f"{front.cost} ({unit}),<br>{frames.clock}", range=[0, right], col=1)
    if front.anyone_late:
        figure.update_xaxes(range=[-1, 1], showgrid=False, showticklabels=False, col=2)
        figure.add_shape(
            xref="x2 domain", x0=0, x1=1, yref="y domain", y0=0, y1=1,
            layer="below", fillcolor=style.GRID, opacity=0.5, line_width=0,
        )  # fmt: skip
        figure.add_annotation(
            text="not reached", textangle=-90, showarrow=False, font={"color": style.MUTED, "size": 12},
            xref="x2 domain", x=1, xanchor="right", yref="y domain", y=0.02, yanchor="bottom",
        )  # fmt: skip
    return figure


def _draw_point(
    figure: go.Figure, variant: ShownVariant, seeds: pd.DataFrame, middle: MedianRow, spread: MedianRow, text: str
) -> None:
    """Mark a variant's seeds, and over them its median with ± the spread; pale off the front."""
    opacity = 1.0 if middle["best"] else PALE
    for late, rows in seeds.groupby(np.isinf(seeds["time"])):
        figures.marks(
            figure, variant, np.zeros(len(rows)) if late else rows["time"], rows["gap"], "", name=None, row=1,
            col=2 if late else 1, marker={"size": 5, "line": None}, opacity=0.6 * opacity, showlegend=False,
            hoverinfo="skip",
        )  # fmt: skip
    late = math.isinf(middle["time"])
    bars = {"color": variant.colour, "thickness": 1.3, "width": 0}
    figures.marks(
        figure, variant, [0.0 if late else middle["time"]], [middle["gap"]], "%{customdata}", customdata=[text],
        marker={"size": 12}, opacity=opacity, row=1, col=2 if late else 1,
        error_x={"array": [0.0 if late else spread["time"]], **bars}, error_y={"array": [spread["gap"]], **bars},
    )  # fmt: skip


# Clients that come and go. A variant that waits for absent clients may run for days while others run for hours: figures
# end when half of the variants are done.

MAX_CLIENTS = 40
LANE_PX = 13
SPANS = 500
"""Number of stretches of the axis; a line that changes more often keeps four levels in each of them."""
THERE = "#C9D6E2"
NUMBER = "#9DB3C7"
SMALL = {"size": 7, "opacity": 0.85, "line": None}
ABSENCE_COLUMNS = [
    Column("A round takes", "round_s", display.duration),
    *columns_of("rounds", "present"),
    *columns_of("summary", "idle_s"),
    *columns_of("rounds", "lost"),
    *columns_of("summary", "lost_share", "lost_device_s", "lost_bytes"),
    Column("of all bytes", "byte_share", display.percent),
]


@dataclass(frozen=True)
class TimeWindow:
    """Extent of the figures, of first seeds.

    Attributes:
        variants: those whose clients may go away, or be too late.
        until_s: the end of all time axes.
        whose: the variant whose clients are drawn while they are there: the one that runs longest.
        stays: of those clients, clipped; no rows if no client is ever away.
        alike: whether the clients of all variants are there at the same times.
    """

    variants: Sequence[ShownVariant]
    until_s: float
    whose: ShownVariant
    stays: pd.DataFrame
    alike: bool

    @property
    def unit(self) -> tuple[str, float]:
        """Unit of the time axes: its name and its seconds."""
        return display.time_unit(self.until_s)

    def on_time_axis(self, figure: go.Figure) -> go.Figure:
        """The figure with its time axis."""
        unit, unit_s = self.unit
        return figure.update_xaxes(title=f"time ({unit})", range=[0, self.until_s / unit_s])

    @cached_property
    def losses(self) -> dict[Markup, pd.DataFrame]:
        """By label of a variant, one row per client and round in which it was lost."""
        of_all = {v.label: v.rows("dropouts").drop_duplicates(["round", "client"]) for v in self.variants}
        return {label: losses[losses["lost_s"].astype(float) <= self.until_s] for label, losses in of_all.items()}

    @cached_property
    def clients(self) -> pd.Index:
        """The clients that are there or get lost, those first that are there most, then those that get lost most."""
        there_s = (self.stays["until_s"] - self.stays["from_s"]).groupby(self.stays["client"]).sum()
        lost = pd.concat([losses["client"] for losses in self.losses.values()]).astype(int).value_counts()
        known = pd.DataFrame({"there_s": there_s, "lost": lost}).fillna(0.0)
        return known.sort_values(["there_s", "lost"], ascending=False, kind="stable").index


def first_window(frames: Frames, variants: Sequence[ShownVariant]) -> TimeWindow:
    """Find what is seen until half of the variants are done."""

    def stays_of(variant: ShownVariant, until_s: float) -> pd.DataFrame:
        stays = variant.rows("presence", ["client", "from_s", "until_s"])
        stays = stays[stays["from_s"] < until_s].reset_index(drop=True)
        return stays.assign(until_s=stays["until_s"].astype(float).clip(upper=until_s))

    ended = [(float(variant.first_seed(frames.rounds)["ended_s"].max()), variant) for variant in variants]
    ends_s = sorted(end_s for end_s, _ in ended)
    until_s = ends_s[(len(ends_s) - 1) // 2]
    whose = max(ended, key=lambda pair: pair[0])[1]
    seen = [(v, min(end_s, until_s)) for end_s, v in ended]
    alike = all(stays_of(variant, end_s).equals(stays_of(whose, end_s)) for variant, end_s in seen)
    return TimeWindow(variants, until_s, whose, stays_of(whose, until_s), alike)


def participation_panels(frames: Frames) -> list[Panel]:
    """The panel on clients that come and go, if any may."""
    variants = knowing(frames, "present")
    if not variants:
        return []
    window = first_window(frames, variants)
    whose = Markup("") if window.alike else Markup(" of {}").format(window.whose.html)
    bar = Markup("A bar shows when a client{} is available; a").format(whose) if len(window.stays) else "A"
    caption = Markup(
        "{} mark shows where a client dropped out of a round, since it went away, was too late or was overtaken. Its "
        "work in that round is wasted, except for what a shared server-side submodel (part-2) has learned from it. A "
        "variant that waits for absent clients has no dropouts, but needs more time (first seeds, until half of the "
        "variants are done: {})."
    )
    drawings = [("Available clients, and participants that finish the round", partial(present, frames, window))]
    if n := len(window.clients):
        cut = f": {MAX_CLIENTS} of {n} clients" if n > MAX_CLIENTS else ""
        drawings.insert(0, (f"Availability of clients{cut}", partial(attendance, window)))
    if frames.rounds["lost"].sum():
        drawings.append(("Share of participants that drop out", partial(lost, frames, variants)))
    rows = of_each(absence_costs(frames.rounds), variants)
    table = by_variant(ABSENCE_COLUMNS, rows, ranked=False)  # waiting avoids dropouts, but takes time
    told = caption.format(bar, display.duration(window.until_s))
    return [Panel("Availability and dropouts", told, drawings, tables=[table])]


def attendance(window: TimeWindow) -> go.Figure:
    """One lane for each of the clients, the first on top: bars while it is there, marks where variants lose it."""
    unit, unit_s = window.unit
    shown = display.thin(window.clients.to_frame(), MAX_CLIENTS).index
    lane = pd.Series(range(len(shown)), shown)
    figure = figures.canvas(80 + LANE_PX * len(lane))
    stays = window.stays[window.stays["client"].isin(shown)]
    if len(stays):
        ends = stays["from_s"] / unit_s, stays["until_s"] / unit_s
        figures.spans(figure, *ends, stays["client"].map(lane), colour=THERE, width=LANE_PX - 4, name="available")
    for variant in window.variants:
        losses = window.losses[variant.label]
        losses = losses[losses["client"].isin(shown)]
        why = [_why(*loss) for loss in zip(losses["cause"], losses["returned_s"] - losses["lost_s"], strict=True)]
        figures.marks(
            figure, variant, losses["lost_s"].astype(float) / unit_s, losses["client"].map(lane),
            f"client %{{customdata[0]}} in round %{{customdata[1]}}, at %{{x:.4~g}} {unit}: %{{customdata[2]}}",
            customdata=np.column_stack([losses[["client", "round"]].astype(str), why]), marker=SMALL,
        )  # fmt: skip
    figure.update_yaxes(
        range=[len(lane) - 0.4, -0.6], showgrid=False, tickfont_size=10, title="client",
        tickvals=lane.to_numpy(), ticktext=[str(client) for client in shown],
    )  # fmt: skip
    return window.on_time_axis(figure)


def _why(cause: str, away_s: float) -> str:
    """Say why a client was lost, for its mark."""
    if cause == "deadline":
        return "too late"
    return "away for good" if math.isnan(away_s) else f"away for {display.duration(away_s)}"


def present(frames: Frames, window: TimeWindow) -> go.Figure:
    """Clients that are there at any time, and how many of each round's participants it has not lost."""
    unit, unit_s = window.unit
    figure = figures.canvas(280)
    number = _visible(numbers(window))
    if len(number):
        figure.add_scatter(
            x=number.index.to_numpy(dtype=float) / unit_s, y=number.to_numpy(), mode="lines", name="available",
            line={"color": NUMBER, "width": 1.6, "shape": "hv"},
            hovertemplate=f"%{{y}} available at %{{x:.4~g}} {unit}<extra></extra>",
        )  # fmt: skip
    for variant in window.variants:
        rows = variant.first_seed(frames.rounds)
        rows = display.thin(rows[rows["started_s"] < window.until_s], MAX_POINTS)
        figures.marks(
            figure, variant, rows["started_s"] / unit_s, rows["participants"] - rows["lost"],
            "%{y} of %{customdata[1]} finish round %{customdata[0]}",
            customdata=rows[["round", "participants"]].to_numpy(), marker=SMALL,
        )  # fmt: skip
    return window.on_time_axis(figure).update_yaxes(title="clients", rangemode="tozero")


def lost(frames: Frames, variants: Sequence[ShownVariant]) -> go.Figure:
    """Participants that have dropped out since the beginning, as a share of all who took part, seeds together."""
    figure = figures.canvas(280)
    for variant, rows in of_each(frames.rounds, variants):
        total = display.thin(rows.groupby("round")[["lost", "participants"]].sum().cumsum(), MAX_POINTS)
        share = 100 * total["lost"] / total["participants"]
        figures.lines(figure, variant, total.index, share, "%{y:.3~g} % until round %{x}")
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="dropped out so far (%)", rangemode="tozero")


def numbers(window: TimeWindow) -> pd.Series:
    """Count the clients that are there, from each time on at which that changes; empty if none is ever away."""
    if window.stays.empty:
        return pd.Series(dtype=int)
    come, gone = (pd.Series(by, window.stays[when]) for by, when in ((1, "from_s"), (-1, "until_s")))
    number = pd.concat([pd.Series(0, [0.0]), come, gone]).groupby(level=0).sum().cumsum()
    number = number[number.index < window.until_s]
    return pd.concat([number, pd.Series(number.iloc[-1], [window.until_s])])


def _visible(number: pd.Series) -> pd.Series:
    """Keep the steps of a line that can be seen: it looks the same, and no step is made up."""
    if len(number) <= 4 * SPANS:
        return number
    spans = number.reset_index(drop=True).groupby(np.floor(number.index / number.index[-1] * SPANS))
    return number.iloc[np.unique([spans.idxmin(), spans.idxmax(), spans.head(1).index, spans.tail(1).index])]
