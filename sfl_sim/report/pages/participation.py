"""Panel on clients that come and go: which were there when, which got lost, and what that costs.

A variant that waits for absent clients may run for days while others run for hours: figures end when half of the
variants are done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup

from sfl_sim.report import display, figures
from sfl_sim.report.figures import MAX_POINTS
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import of_each
from sfl_sim.report.table import Column, by_variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MAX_CLIENTS = 40
LANE_PX = 13
SPANS = 500
"""Number of stretches of the axis; a line that changes more often keeps four levels in each of them."""
THERE = "#C9D6E2"
NUMBER = "#9DB3C7"
SMALL = {"size": 7, "opacity": 0.85, "line": None}
COLUMNS = [
    Column("A round takes", "round_s", display.duration),
    Column("Available at its start", "present", display.tenths),
    Column("No client available between rounds", "idle_s", display.duration),
    Column("Clients that dropped out in a round", "lost", display.tenths),
    Column("share of the participants", "lost_share", display.percent),
    Column("Wasted device time", "lost_device_s", display.duration),
    Column("Wasted bytes", "lost_bytes", display.data_size),
    Column("of all bytes", "byte_share", display.percent),
]
CAPTION = (
    "{bar} mark shows where a client dropped out of a round, since it went away or was too late. Its work in "
    "that round is wasted, except for what a shared server-side submodel (part-2) has learned from it. A "
    "variant that waits for absent clients has no dropouts, but needs more time (first seeds, until half "
    "of the variants are done: {until})."
)


def participation_panels(frames: Frames) -> list[Panel]:
    """The panel on clients that come and go, if any may."""
    variants = unreliable(frames)
    if not variants:
        return []
    window = first_window(frames, variants)
    table = by_variant(
        COLUMNS, of_each(costs(frames), variants), ranked=False
    )  # waiting avoids dropouts, but takes time
    return [Panel("Availability and dropouts", caption(window), drawn(frames, window), tables=[table])]


def unreliable(frames: Frames) -> list[Variant]:
    """The variants whose clients may go away, or be too late."""
    known = frames.rounds.groupby("variant")["present"].count()
    return [variant for variant in frames.variants if known[variant.label]]


def costs(frames: Frames) -> pd.DataFrame:
    """Sum up what absence cost every run: a row per variant and seed, by the keys of `COLUMNS`."""
    rounds = frames.rounds.dropna(subset="present")
    before_s = rounds.groupby(["variant", "seed"])["ended_s"].shift(fill_value=0.0)
    rounds = rounds.assign(
        round_s=rounds["ended_s"] - rounds["started_s"],
        idle_s=rounds["started_s"] - before_s,
        all_bytes=rounds["bytes_up"] + rounds["bytes_down"],
    )
    runs = rounds.groupby(["variant", "seed"])
    total, mean = runs.sum(numeric_only=True), runs.mean(numeric_only=True)
    return (
        total[["idle_s", "lost_device_s", "lost_bytes"]]
        .assign(
            round_s=mean["round_s"],
            present=mean["present"],
            lost=mean["lost"],
            lost_share=total["lost"] / total["participants"],
            byte_share=total["lost_bytes"] / total["all_bytes"],
        )
        .reset_index()
    )


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

    variants: Sequence[Variant]
    until_s: float
    whose: Variant
    stays: pd.DataFrame
    alike: bool

    @property
    def unit(self) -> tuple[str, float]:
        """Unit of the time axes: its name and its seconds."""
        return display.time_unit(self.until_s)

    def on_time_axis(self, figure: go.Figure) -> go.Figure:
        """The figure with its time axis."""
        unit, unit_s = self.unit
        return figure.update_xaxes(title=f"simulated time ({unit})", range=[0, self.until_s / unit_s])


def first_window(frames: Frames, variants: Sequence[Variant]) -> TimeWindow:
    """Find what is seen until half of the variants are done."""
    ended = [(float(_rounds(frames, variant)["ended_s"].max()), variant) for variant in variants]
    ends_s = sorted(end_s for end_s, _ in ended)
    until_s = ends_s[(len(ends_s) - 1) // 2]
    whose = max(ended, key=lambda pair: pair[0])[1]
    alike = all(_stays(v, min(end_s, until_s)).equals(_stays(whose, min(end_s, until_s))) for end_s, v in ended)
    return TimeWindow(variants, until_s, whose, _stays(whose, until_s), alike)


def caption(window: TimeWindow) -> Markup:
    """Say what to see in the figures."""
    whose = Markup("") if window.alike else Markup(" of {}").format(window.whose.html)
    bar = Markup("A bar shows when a client{} is available; a").format(whose) if len(window.stays) else "A"
    return Markup(CAPTION).format(bar=bar, until=display.duration(window.until_s))


def drawn(frames: Frames, window: TimeWindow) -> list[tuple[str, go.Figure]]:
    """Draw the figures that have something to show, with their headings."""
    found = []
    losses: dict[str, pd.DataFrame] = {variant.label: _losses(variant, window.until_s) for variant in window.variants}
    known = _lanes(window.stays, [client for each in losses.values() for client in each["client"]])
    if len(known):
        lanes = display.thin(known, MAX_CLIENTS)
        cut = f": {len(lanes)} of {len(known)} clients" if len(lanes) < len(known) else ""
        found.append((f"Availability of clients{cut}", attendance(window, lanes.index, losses)))
    found.append(("Available clients, and participants that finish the round", present(frames, window)))
    if frames.rounds["lost"].sum():
        found.append(("Share of participants that drop out", lost(frames, window.variants)))
    return found


def attendance(window: TimeWindow, clients: pd.Index, losses: Mapping[str, pd.DataFrame]) -> go.Figure:
    """One lane for each of the clients, the first on top: bars while it is there, marks where variants lose it.

    Args:
        losses: of each variant, by its label.
    """
    unit, unit_s = window.unit
    lane = pd.Series(range(len(clients)), clients)
    figure = figures.canvas(80 + LANE_PX * len(lane))
    stays = window.stays[window.stays["client"].isin(clients)]
    if len(stays):
        ends = stays["from_s"] / unit_s, stays["until_s"] / unit_s
        figures.spans(figure, *ends, stays["client"].map(lane), colour=THERE, width=LANE_PX - 4, name="available")
    for variant in window.variants:
        ours = losses[variant.label]
        ours = ours[ours["client"].isin(clients)]
        why = [_why(*loss) for loss in zip(ours["cause"], ours["returned_s"] - ours["lost_s"], strict=True)]
        figures.marks(
            figure, variant, ours["lost_s"].astype(float) / unit_s, ours["client"].map(lane),
            f"client %{{customdata[0]}} in round %{{customdata[1]}}, at %{{x:.4~g}} {unit}: %{{customdata[2]}}",
            customdata=np.column_stack([ours[["client", "round"]].astype(str), why]), marker=SMALL,
        )  # fmt: skip
    figure.update_yaxes(
        range=[len(lane) - 0.4, -0.6], showgrid=False, tickfont_size=10, title="client",
        tickvals=lane.to_numpy(), ticktext=[str(client) for client in clients],
    )  # fmt: skip
    return window.on_time_axis(figure)


def present(frames: Frames, window: TimeWindow) -> go.Figure:
    """Clients that are there at any time, and how many of each round's participants it has not lost."""
    unit, unit_s = window.unit
    figure = figures.canvas(280)
    number = _visible(numbers(window))
    if len(number):
        figure.add_scatter(
            x=number.index.to_numpy(dtype=float) / unit_s,
            y=number.to_numpy(),
            mode="lines",
            name="available",
            line={"color": NUMBER, "width": 1.6, "shape": "hv"},
            hovertemplate=f"%{{y}} available at %{{x:.4~g}} {unit}<extra></extra>",
        )
    for variant in window.variants:
        rows = _rounds(frames, variant)
        rows = display.thin(rows[rows["started_s"] < window.until_s], MAX_POINTS)
        figures.marks(
            figure, variant, rows["started_s"] / unit_s, rows["participants"] - rows["lost"],
            "%{y} of %{customdata[1]} finish round %{customdata[0]}",
            customdata=rows[["round", "participants"]].to_numpy(), marker=SMALL,
        )  # fmt: skip
    return window.on_time_axis(figure).update_yaxes(title="clients", rangemode="tozero")


def lost(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Participants that have dropped out since the beginning, as a share of all who took part, seeds together."""
    figure = figures.canvas(280)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        total = rows.groupby("round")[["lost", "participants"]].sum().cumsum()
        total = display.thin(total, MAX_POINTS)
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


def _lanes(stays: pd.DataFrame, lost: Sequence[int]) -> pd.DataFrame:
    """The clients that are there or get lost, those first that are there most, then those that get lost most.

    Args:
        lost: a client for every loss.
    """
    there_s = (stays["until_s"] - stays["from_s"]).groupby(stays["client"]).sum()
    known = pd.DataFrame({"there_s": there_s, "losses": pd.Series(lost, dtype=int).value_counts()}).fillna(0.0)
    return known.sort_values(["there_s", "losses"], ascending=False, kind="stable")


def _why(cause: str, away_s: float) -> str:
    """Say why a client was lost, for its mark."""
    if cause == "deadline":
        return "too late"
    return "away for good" if math.isnan(away_s) else f"away for {display.duration(away_s)}"


def _rounds(frames: Frames, variant: Variant) -> pd.DataFrame:
    return frames.rounds.query("variant == @variant.label and seed == @variant.seed")


def _stays(variant: Variant, until_s: float) -> pd.DataFrame:
    stays = variant.run.stays(variant.name, variant.seed)[["client", "from_s", "until_s"]]
    stays = stays[stays["from_s"] < until_s].reset_index(drop=True)
    return stays.assign(until_s=stays["until_s"].astype(float).clip(upper=until_s))


def _losses(variant: Variant, until_s: float) -> pd.DataFrame:
    """One row per client and round in which it was lost."""
    losses = variant.run.losses(variant.name, variant.seed).drop_duplicates(["round", "client"])
    return losses[losses["lost_s"].astype(float) <= until_s]
