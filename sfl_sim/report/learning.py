"""Figures: accuracy and performance gap round by round, against simulated time and against rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_BANDS, add_share

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames


def accuracy_over_time(frames: Frames) -> go.Figure:
    """Median accuracy after each round against the median simulated time at its end, ± over seeds."""
    return _over_time(frames, "accuracy")


def accuracy_over_rounds(frames: Frames) -> go.Figure:
    """Median accuracy after each round, ± over seeds."""
    return _over_rounds(frames, "accuracy")


def client_accuracy_over_rounds(frames: Frames) -> go.Figure:
    """Mean over the clients of the accuracy on their own test sets, median ± over seeds."""
    return _over_rounds(frames, "client_accuracy")


def gap_over_time(frames: Frames) -> go.Figure:
    """Median performance gap after each round against the median simulated time at its end, ± over seeds."""
    return _over_time(frames, "performance_gap")


def gap_over_rounds(frames: Frames) -> go.Figure:
    """Median performance gap after each round, ± over seeds."""
    return _over_rounds(frames, "performance_gap")


def _over_time(frames: Frames, column: str) -> go.Figure:
    unit, unit_s = display.time_unit(frames.rounds["ended_s"].max())
    return _curves(frames, "ended_s", unit_s, column).update_xaxes(title=f"simulated time ({unit})")


def _over_rounds(frames: Frames, column: str) -> go.Figure:
    return _curves(frames, "round", 1.0, column).update_xaxes(style.round_axis(frames.rounds["round"].max()))


def _curves(frames: Frames, x: str, scale: float, column: str) -> go.Figure:
    is_gap = column == "performance_gap"
    figure = style.canvas(330)
    rounds = frames.rounds.assign(x=frames.rounds[x] / scale).dropna(subset=column)
    for variant in frames.variants:
        rows = rounds[rounds["variant"] == variant.label]
        hover = f"%{{y:.1f}} {'points' if is_gap else '%'} at %{{x:.4~g}}"
        band = not is_gap or len(frames.variants) <= MAX_BANDS  # gaps are restless: their bands lie over each other
        add_share(figure, variant, rows, by="round", x="x", y=column, hover=hover, band=band)
    targets = frames.summary["target_accuracy"].dropna() if column == "accuracy" else pd.Series(dtype=float)
    for target in sorted(targets.unique()):
        figure.add_hline(
            100 * target,
            line={"color": style.MUTED, "dash": "dot", "width": 1.2},
            annotation={
                "text": f"target {display.percent(target, 0)}",
                "font": {"color": style.MUTED, "size": 12},
            },
            annotation_position="top left",
        )
    title = "performance gap (points)" if is_gap else "accuracy (%)"
    return figure.update_xaxes(rangemode="tozero").update_yaxes(title=title, rangemode="tozero")
