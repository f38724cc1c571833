"""Figures: accuracy and performance gap round by round, against simulated time, rounds and bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_BANDS, MAX_NARROW_BANDS, add_share
from sfl_sim.report.way import BYTES, ROUNDS, TIME, Leg

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.way import Aim

MAX_LINEAR = 20
"""If the last variant is done this many times later than the first, an axis of time is logarithmic."""
TICKS_S = {
    "1 ms": 1e-3, "10 ms": 1e-2, "0.1 s": 0.1, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0,
    "6 h": 21600.0, "1 d": 86400.0, "1 week": 604800.0, "1 month": 2629746.0, "1 year": 31556952.0,
}  # fmt: skip
"""Where it may have ticks."""


def accuracy_over_time(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round against the median simulated time at its end, ± over seeds, and the target."""
    unit_s = display.time_unit(frames.rounds["ended_s"].max())[1]
    return _add_target(_over_time(frames, aim.variants, "accuracy"), frames, aim, TIME, unit_s)


def accuracy_over_rounds(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round, ± over seeds, and the target."""
    return _add_target(_over_rounds(frames, aim.variants, "accuracy"), frames, aim, ROUNDS)


def accuracy_over_bytes(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round against the median bytes that have crossed links by then, up and down."""
    unit, unit_bytes = display.data_unit(frames.rounds["bytes_moved"].max())
    figure = _curves(frames, aim.variants, "bytes_moved", unit_bytes, "accuracy")
    return _add_target(figure, frames, aim, BYTES, unit_bytes).update_xaxes(title=f"bytes up and down ({unit})")


def client_accuracy_over_rounds(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Mean over the clients of the accuracy on their own test sets, median ± over seeds."""
    return _over_rounds(frames, variants, "client_accuracy")


def hybrid_accuracy_over_time(frames: Frames) -> go.Figure:
    """Median hybrid accuracy whenever clients were asked, against the median simulated time, ± over seeds."""
    return _over_time(frames, frames.variants, "hybrid_accuracy")


def gap_over_time(frames: Frames) -> go.Figure:
    """Median performance gap after each round against the median simulated time at its end, ± over seeds."""
    return _over_time(frames, frames.variants, "performance_gap")


def gap_over_rounds(frames: Frames) -> go.Figure:
    """Median performance gap after each round, ± over seeds."""
    return _over_rounds(frames, frames.variants, "performance_gap")


def _over_time(frames: Frames, variants: Sequence[Variant], column: str) -> go.Figure:
    unit, unit_s = display.time_unit(frames.rounds["ended_s"].max())
    figure = _curves(frames, variants, "ended_s", unit_s, column)
    ends_s = frames.rounds.groupby("variant")["ended_s"].max()
    if ends_s.max() <= MAX_LINEAR * ends_s.min():
        return figure.update_xaxes(title=f"simulated time ({unit})")
    first_s = frames.rounds["ended_s"].min()
    ticks = [(at_s / unit_s, text) for text, at_s in TICKS_S.items() if first_s <= at_s <= ends_s.max()]
    at, texts = ([tick[i] for tick in ticks[:: 1 + len(ticks) // 6]] for i in (0, 1))
    return figure.update_xaxes(type="log", title="simulated time", tickvals=at, ticktext=texts, tickangle=0)


def _over_rounds(frames: Frames, variants: Sequence[Variant], column: str) -> go.Figure:
    figure = _curves(frames, variants, "round", 1.0, column)
    return figure.update_xaxes(style.round_axis(frames.rounds["round"].max()))


def _curves(frames: Frames, variants: Sequence[Variant], x: str, scale: float, column: str) -> go.Figure:
    is_gap = column == "performance_gap"
    figure = style.canvas(330)
    rounds = frames.rounds.assign(x=frames.rounds[x] / scale).dropna(subset=column)
    for variant in variants:
        rows = rounds[rounds["variant"] == variant.label]
        if rows.empty:
            continue
        hover = f"%{{y:.1f}} {'points' if is_gap else '%'} at %{{x:.4~g}}"
        band = len(variants) <= (MAX_BANDS if is_gap else MAX_NARROW_BANDS)  # gaps are restless
        add_share(figure, variant, rows, by="round", x="x", y=column, hover=hover, band=band)
    title = "performance gap (points)" if is_gap else "accuracy (%)"
    return figure.update_xaxes(rangemode="tozero").update_yaxes(title=title, rangemode="tozero")


def _add_target(figure: go.Figure, frames: Frames, aim: Aim, leg: Leg, scale: float = 1.0) -> go.Figure:
    """A line for the target, and on each curve a mark where it is reached, or a cross at its end if it is not."""
    if aim.target is None:
        return figure
    figure.add_hline(100 * aim.target, line={"color": style.MUTED, "dash": "dot", "width": 1.2})
    for variant in aim.variants:
        rounds = frames.rounds[frames.rounds["variant"] == variant.label].dropna(subset="accuracy")
        curve = display.over_seeds(rounds, "round", [leg.along, "accuracy"])
        needed = leg.median(aim.seeds(variant))
        reached = math.isfinite(needed)
        at = needed if reached else curve[leg.along].iloc[-1]
        height = np.interp(at, curve[leg.along], curve["accuracy"])
        if reached:  # where most seeds get there, the median of their accuracies may still be lower
            height = max(height, aim.target)
        if reached:
            figure.add_scatter(
                x=[at / scale] * 2, y=[0, 100 * height], mode="lines", hoverinfo="skip", showlegend=False,
                line={"color": variant.colour, "dash": "dot", "width": 1.2},
            )  # fmt: skip
        figure.add_scatter(
            x=[at / scale], y=[100 * height], mode="markers", showlegend=False,
            marker={"symbol": variant.symbol if reached else "x-thin", "size": 11, "color": variant.colour,
                    "line": {"color": "#FFFFFF" if reached else variant.colour, "width": 1.5 if reached else 2.5}},
            customdata=[f"{variant.label}: {leg.cell(aim.seeds(variant)).text}"],
            hovertemplate="%{customdata}<extra></extra>",
        )  # fmt: skip
    return figure
