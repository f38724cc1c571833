"""Figure: where the average client's round goes."""

from __future__ import annotations

import plotly.graph_objects as go

from sfl_sim.records import BREAKDOWN
from sfl_sim.report import display, style
from sfl_sim.report.frames import Frames


def round_breakdown(frames: Frames) -> go.Figure:
    """Mean seconds of a round by resource, over rounds and seeds: one stacked bar per variant."""
    parts = [f"{part}_s" for part in BREAKDOWN]
    mean_s = frames.rounds.groupby("variant")[parts].mean().loc[[v.label for v in frames.variants]]
    total_s = mean_s.sum(axis="columns")
    unit, unit_s = display.time_unit(total_s.max())
    figure = style.canvas(90 + 58 * len(mean_s))
    for part in BREAKDOWN:
        figure.add_bar(
            y=list(range(len(mean_s))), x=(mean_s[f"{part}_s"] / unit_s).to_numpy(), orientation="h", width=0.42,
            name=style.RESOURCE_NAMES[part], marker_color=style.RESOURCE_COLOURS[part],
            customdata=(100 * mean_s[f"{part}_s"] / total_s).to_numpy(),
            hovertemplate=f"%{{x:.3~g}} {unit}, %{{customdata:.0f}} % of the round",
        )  # fmt: skip
    for row, variant in enumerate(frames.variants):
        # The name stands over its bar, not beside it: long names would leave no room for the bar on a phone.
        figure.add_annotation(
            text=f"{variant.html} {display.duration(total_s[variant.label])}", x=0, y=row - 0.23,
            xanchor="left", yanchor="bottom", showarrow=False,
        )  # fmt: skip
    figure.update_layout(barmode="stack", legend_traceorder="normal")
    figure.update_yaxes(showticklabels=False, showgrid=False, range=[len(mean_s) - 0.65, -0.7])
    return figure.update_xaxes(title=f"mean time of a round ({unit})")
