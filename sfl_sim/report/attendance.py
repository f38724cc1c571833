"""Figures: who was there when, and who got lost.

Who waits for the absent may run for days while others run for hours: figures end when half of the variants are done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_POINTS, bars

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MAX_CLIENTS = 40
LANE_PX = 13
SPANS = 500
"""Of a line that changes more often, the first, last, lowest and highest level in each so long part of the axis."""
THERE = "#C9D6E2"


@dataclass(frozen=True)
class Sight:
    """What the figures show, of first seeds.

    Attributes:
        variants: those whose clients may go away, or be too late.
        until_s: the end of all time axes.
        whose: the variant whose clients are drawn while they are there: it runs longest.
        stays: of those clients, clipped; no rows if nobody is ever away.
        alike: whether the clients of all variants are there at the same times.
    """

    variants: Sequence[Variant]
    until_s: float
    whose: Variant
    stays: pd.DataFrame
    alike: bool

    @property
    def unit(self) -> tuple[str, float]:
        """Of the time axes: its name and its seconds."""
        return display.time_unit(self.until_s)

    def on_time_axis(self, figure: go.Figure) -> go.Figure:
        """The figure with its time axis."""
        unit, unit_s = self.unit
        return figure.update_xaxes(title=f"simulated time ({unit})", range=[0, self.until_s / unit_s])


def first_sight(frames: Frames, variants: Sequence[Variant]) -> Sight:
    """Until half of the variants are done."""
    ended = [(float(_rounds(frames, variant)["ended_s"].max()), variant) for variant in variants]
    ends_s = sorted(end_s for end_s, _ in ended)
    until_s = ends_s[(len(ends_s) - 1) // 2]
    whose = max(ended, key=lambda pair: pair[0])[1]
    alike = all(_stays(v, min(end_s, until_s)).equals(_stays(whose, min(end_s, until_s))) for end_s, v in ended)
    return Sight(variants, until_s, whose, _stays(whose, until_s), alike)


def caption(sight: Sight) -> str:
    """What to see in the figures that `figures` gives."""
    whose = "" if sight.alike else f" of {sight.whose.html}"
    bar = f"A bar while a client{whose} is there; a" if len(sight.stays) else "A"
    return (
        f"{bar} mark where a round goes on without it, since it has gone away or is too late: what it did in that "
        "round was in vain, but for what a part-2 that clients share has learned from it. Who waits for the absent "
        f"loses nobody, but time (first seeds, until half of the variants are done: {display.duration(sight.until_s)})."
    )


def figures(frames: Frames, sight: Sight) -> list[tuple[str, go.Figure]]:
    """Those that have something to show, with their headings."""
    found = []
    losses = {variant.label: _losses(variant, sight.until_s) for variant in sight.variants}
    known = _lanes(sight.stays, [client for each in losses.values() for client in each["client"]])
    if len(known):
        lanes = display.thin(known, MAX_CLIENTS)
        cut = f": {len(lanes)} of {len(known)} clients" if len(lanes) < len(known) else ""
        found.append((f"Who was there when{cut}", attendance(sight, lanes.index, losses)))
    found.append(("How many are there, and how many of those who take part come through", present(frames, sight)))
    if frames.rounds["lost"].sum():
        found.append(("How many of those who take part get lost", lost(frames, sight.variants)))
    return found


def attendance(sight: Sight, clients: pd.Index, losses: Mapping[str, pd.DataFrame]) -> go.Figure:
    """One lane for each of the clients, the first on top: bars while it is there, marks where variants lose it.

    Args:
        losses: of each variant, by its label.
    """
    unit, unit_s = sight.unit
    lane = pd.Series(range(len(clients)), clients)
    figure = style.canvas(80 + LANE_PX * len(lane))
    stays = sight.stays[sight.stays["client"].isin(clients)]
    if len(stays):
        figure.add_scatter(
            **bars(stays["from_s"] / unit_s, stays["until_s"] / unit_s, stays["client"].map(lane)),
            mode="lines", line={"color": THERE, "width": LANE_PX - 4, "simplify": False}, name="there",
            hoverinfo="skip",
        )  # fmt: skip
    for variant in sight.variants:
        ours = losses[variant.label]
        ours = ours[ours["client"].isin(clients)]
        why = [_why(*loss) for loss in zip(ours["cause"], ours["returned_s"] - ours["lost_s"], strict=True)]
        figure.add_scatter(
            x=ours["lost_s"].to_numpy(dtype=float) / unit_s, y=ours["client"].map(lane).to_numpy(), mode="markers",
            marker={"color": variant.colour, "symbol": variant.symbol, "size": 7, "opacity": 0.85},
            name=variant.label, customdata=np.column_stack([ours[["client", "round"]].astype(str), why]),
            hovertemplate=f"client %{{customdata[0]}} in round %{{customdata[1]}}, at %{{x:.4~g}} {unit}: "
            "%{customdata[2]}",
        )  # fmt: skip
    figure.update_yaxes(
        range=[len(lane) - 0.4, -0.6], showgrid=False, tickfont_size=10, title="client",
        tickvals=lane.to_numpy(), ticktext=[str(client) for client in clients],
    )  # fmt: skip
    return sight.on_time_axis(figure)


def present(frames: Frames, sight: Sight) -> go.Figure:
    """Clients that are there at any time, and how many of each round's participants it has not lost."""
    unit, unit_s = sight.unit
    figure = style.canvas(280)
    number = _visible(numbers(sight))
    if len(number):
        figure.add_scatter(
            x=number.index.to_numpy(dtype=float) / unit_s, y=number.to_numpy(), mode="lines", name="there",
            line={"color": "#9DB3C7", "width": 1.6, "shape": "hv"},
            hovertemplate=f"%{{y}} there at %{{x:.4~g}} {unit}<extra></extra>",
        )  # fmt: skip
    for variant in sight.variants:
        rows = _rounds(frames, variant)
        rows = display.thin(rows[rows["started_s"] < sight.until_s], MAX_POINTS)
        figure.add_scatter(
            x=rows["started_s"].to_numpy() / unit_s, y=(rows["participants"] - rows["lost"]).to_numpy(), mode="markers",
            marker={"color": variant.colour, "symbol": variant.symbol, "size": 6, "opacity": 0.85},
            name=variant.label, customdata=rows[["round", "participants"]].to_numpy(),
            hovertemplate="%{y} of %{customdata[1]} come through round %{customdata[0]}",
        )  # fmt: skip
    return sight.on_time_axis(figure).update_yaxes(title="clients", rangemode="tozero")


def lost(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Participants that have got lost since the beginning, as a share of all who took part, seeds together."""
    figure = style.canvas(280)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        total = rows.groupby("round")[["lost", "participants"]].sum().cumsum()
        total = display.thin(total, MAX_POINTS)
        figure.add_scatter(
            x=total.index.to_numpy(), y=100 * (total["lost"] / total["participants"]).to_numpy(),
            mode="lines" if len(total) > 1 else "markers",
            name=variant.label, line={"color": variant.colour, "dash": variant.dash, "width": 2.2},
            marker={"color": variant.colour, "symbol": variant.symbol, "size": 8},
            hovertemplate="%{y:.3~g} % until round %{x}",
        )  # fmt: skip
    figure.update_xaxes(style.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="lost so far (%)", rangemode="tozero")


def numbers(sight: Sight) -> pd.Series:
    """How many clients are there from each time on at which that changes; nothing if nobody is ever away."""
    if sight.stays.empty:
        return pd.Series(dtype=int)
    come, gone = (pd.Series(by, sight.stays[when]) for by, when in ((1, "from_s"), (-1, "until_s")))
    number = pd.concat([pd.Series(0, [0.0]), come, gone]).groupby(level=0).sum().cumsum()
    number = number[number.index < sight.until_s]
    return pd.concat([number, pd.Series(number.iloc[-1], [sight.until_s])])


def _visible(number: pd.Series) -> pd.Series:
    """Of a line with many steps those that can be seen: it looks the same, and no step is made up."""
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
    """Of a loss, for its mark."""
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
