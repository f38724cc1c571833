"""Figure and table: how many versions old updates are that an asynchronous server takes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_POINTS
from sfl_sim.report.results import Column, unranked_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

COLUMNS = [
    Column("Mean staleness (versions)", "staleness_mean", display.tenths),
    Column("Stalest", "staleness_max", display.tenths),
    Column("Updates discarded, too stale", "updates_discarded", display.tenths),
]


def asynchronous(frames: Frames) -> list[Variant]:
    """The variants whose server waits for nobody."""
    known = frames.rounds.groupby("variant")["staleness_mean"].count()
    return [variant for variant in frames.variants if known[variant.label]]


def summed_up(frames: Frames) -> pd.DataFrame:
    """A row per variant and seed, by the keys of `COLUMNS`: the mean over its rounds, the most, the sum."""
    runs = frames.rounds.dropna(subset="staleness_mean").groupby(["variant", "seed"])
    by_column = {"staleness_mean": "mean", "staleness_max": "max", "updates_discarded": "sum"}
    return runs[list(by_column)].agg(by_column).reset_index()


def staleness_table(frames: Frames, variants: Sequence[Variant]) -> str:
    """The table as HTML: medians over seeds and their spread. None is the best: fresher updates are fewer, or wait."""
    return unranked_table(COLUMNS, summed_up(frames), variants)


def staleness(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Versions by which each round's updates are stale: their mean, and dotted the most; medians over seeds."""
    figure = style.canvas(280)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        middle = display.thin(rows.groupby("round")[["staleness_mean", "staleness_max"]].median(), MAX_POINTS)
        mode = "lines" if len(middle) > 1 else "markers"
        mark = {"color": variant.colour, "symbol": variant.symbol, "size": 8}
        figure.add_scatter(
            x=middle.index.to_numpy(), y=middle["staleness_max"].to_numpy(), mode=mode, showlegend=False,
            line={"color": variant.colour, "dash": "dot", "width": 1.2}, marker=mark,
            hovertemplate="at most %{y} in round %{x}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=middle.index.to_numpy(), y=middle["staleness_mean"].to_numpy(), mode=mode, name=variant.label,
            line={"color": variant.colour, "dash": variant.dash, "width": 2.2}, marker=mark,
            hovertemplate="%{y:.3~g} on average in round %{x}",
        )  # fmt: skip
    figure.update_xaxes(style.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="versions", rangemode="tozero")
