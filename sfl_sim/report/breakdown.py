"""Figure: where the average client's round goes."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from sfl_sim.report import display, style
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

NOTHING = 1e-6
"""The share of a round below which a resource is left out."""
ROW_PX = 62
PHONE_LETTERS = 32


def round_breakdown(frames: Frames) -> go.Figure:
    """Mean seconds of a round by resource, over rounds and seeds: one stacked bar per variant."""
    parts = [f"{part}_s" for part in BREAKDOWN]
    mean_s = frames.rounds.groupby("variant")[parts].mean().loc[[v.label for v in frames.variants]]
    total_s = mean_s.sum(axis="columns")
    unit, unit_s = display.time_unit(total_s.max())
    names = [f"{_two_lines(variant)} {display.duration(total_s[variant.label])}" for variant in frames.variants]
    figure = style.canvas(90 + ROW_PX * len(names))
    for part in BREAKDOWN:
        if (mean_s[f"{part}_s"] < NOTHING * total_s).all():
            continue
        figure.add_bar(
            y=list(range(len(names))), x=(mean_s[f"{part}_s"] / unit_s).to_numpy(),
            orientation="h", width=0.36,
            name=style.RESOURCE_NAMES[part], marker_color=style.RESOURCE_COLOURS[part],
            customdata=(100 * mean_s[f"{part}_s"] / total_s).to_numpy(),
            hovertemplate=f"%{{x:.3~g}} {unit}, %{{customdata:.0f}} % of the round",
        )  # fmt: skip
    for row, name in enumerate(names):
        # It stands over its bar, not beside it: long names would leave no room for the bar on a phone.
        figure.add_annotation(
            text=name, x=0, y=row - 0.2, xanchor="left", yanchor="bottom", align="left", showarrow=False
        )
    figure.update_layout(barmode="stack")
    figure.update_yaxes(showticklabels=False, showgrid=False, range=[len(names) - 0.7, -0.75])
    return figure.update_xaxes(title=f"mean time of a round ({unit})")


def _two_lines(variant: Variant) -> str:
    """The variant's name, broken so that it fits on a phone: Plotly does not break lines by itself."""
    lines = textwrap.wrap(variant.label, PHONE_LETTERS, break_long_words=False, break_on_hyphens=False)
    return variant.html.replace(variant.label, "<br>".join(lines))
