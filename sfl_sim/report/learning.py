"""Figures: accuracy as it grows, against simulated time and against rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.report import display, style
from sfl_sim.report.curves import add_share

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames


def accuracy_over_time(frames: Frames) -> go.Figure:
    """Median accuracy after each round against the median simulated time at its end, ± over seeds."""
    unit, unit_s = display.time_unit(frames.rounds["ended_s"].max())
    return _curves(frames, "ended_s", unit_s).update_xaxes(title=f"simulated time ({unit})")


def accuracy_over_rounds(frames: Frames) -> go.Figure:
    """Median accuracy after each round, ± over seeds."""
    return _curves(frames, "round", 1.0).update_xaxes(style.round_axis(frames.rounds["round"].max()))


def client_accuracy_over_rounds(frames: Frames) -> go.Figure:
    """Mean over the clients of the accuracy on their own test sets, median ± over seeds."""
    figure = _curves(frames, "round", 1.0, "client_accuracy")
    return figure.update_xaxes(style.round_axis(frames.rounds["round"].max()))


def _curves(frames: Frames, x: str, scale: float, column: str = "accuracy") -> go.Figure:
    figure = style.canvas(330)
    rounds = frames.rounds.assign(x=frames.rounds[x] / scale).dropna(subset=column)
    for variant in frames.variants:
        rows = rounds[rounds["variant"] == variant.label]
        add_share(figure, variant, rows, by="round", x="x", y=column)
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
    return figure.update_xaxes(rangemode="tozero").update_yaxes(title="accuracy (%)", rangemode="tozero")
