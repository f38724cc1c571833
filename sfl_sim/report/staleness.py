"""Panel on staleness: how many versions old updates are that an asynchronous server takes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.report import display, figures
from sfl_sim.report.figures import LINES, MAX_POINTS
from sfl_sim.report.html_page import Panel
from sfl_sim.report.results import of_each
from sfl_sim.report.table import Column, by_variant

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
CAPTION = f"""An asynchronous server waits for nobody: while a client trains, updates of others move the global model \
on. By as many versions its own is stale when it comes, and counts the less. Solid is the mean of the updates of a \
round, dotted the stalest of them ({LINES})."""


def staleness_panels(frames: Frames) -> list[Panel]:
    """The panel on staleness, if a server is asynchronous."""
    variants = asynchronous(frames)
    if not variants:
        return []
    drawn = [("Staleness of the updates of a round", staleness(frames, variants))]
    table = by_variant(
        COLUMNS, of_each(summed_up(frames), variants), ranked=False
    )  # fresher updates are fewer, or wait
    return [Panel("How stale updates are", CAPTION, drawn, tables=[table])]


def asynchronous(frames: Frames) -> list[Variant]:
    """The variants whose server waits for nobody."""
    known = frames.rounds.groupby("variant")["staleness_mean"].count()
    return [variant for variant in frames.variants if known[variant.label]]


def summed_up(frames: Frames) -> pd.DataFrame:
    """A row per variant and seed, by the keys of `COLUMNS`: the mean over its rounds, the most, the sum."""
    runs = frames.rounds.dropna(subset="staleness_mean").groupby(["variant", "seed"])
    by_column = {"staleness_mean": "mean", "staleness_max": "max", "updates_discarded": "sum"}
    return runs[list(by_column)].agg(by_column).reset_index()


def staleness(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Versions by which each round's updates are stale: their mean, and dotted the most; medians over seeds."""
    figure = figures.canvas(280)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        middle = display.thin(rows.groupby("round")[["staleness_mean", "staleness_max"]].median(), MAX_POINTS)
        figures.lines(
            figure, variant, middle.index, middle["staleness_max"], "at most %{y} in round %{x}<extra></extra>",
            dash="dot", width=1.2, showlegend=False,
        )  # fmt: skip
        hover = "%{y:.3~g} on average in round %{x}"
        figures.lines(figure, variant, middle.index, middle["staleness_mean"], hover)
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="versions", rangemode="tozero")
