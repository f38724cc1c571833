"""Figures: which labels are known and which are forgotten, in the order in which the server meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import display, style
from sfl_sim.report.curves import add_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MAX_ROUNDS = 120
MAX_TICKS = 20
PALE = "#AEB6BF"


def label_ranks(labels: pd.DataFrame) -> pd.Series:
    """The row on which each label is drawn, from 0: its place in its seed's cyclic order, or else its number."""
    return labels["position"].where(labels["position"] >= 0, labels["label"])


def label_names(frames: Frames, variant: Variant) -> pd.Series:
    """The labels' names by their numbers, in the cyclic order of the first seed; none if nothing was trained."""
    labels = frames.labels.query("variant == @variant.label and seed == @variant.seed").drop_duplicates("label")
    return labels.assign(rank=label_ranks(labels)).sort_values("rank").set_index("label")["label_name"]


def label_history(frames: Frames, variant: Variant) -> go.Figure:
    """Accuracy of each label after each round (median over seeds), above the performance gap."""
    labels = frames.labels.assign(rank=label_ranks(frames.labels))
    labels = labels[labels["variant"] == variant.label]
    accuracy = labels.pivot_table(index="round", columns="rank", values="accuracy", aggfunc="median")
    accuracy = display.thin(accuracy, MAX_ROUNDS)
    names = _rank_names(labels)

    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.72, 0.28])
    figure.update_layout(style.canvas(430).layout, showlegend=False)
    figure.add_heatmap(
        x=accuracy.index.to_numpy(), y=names.index.to_numpy(), z=100 * accuracy.to_numpy().T,
        zmin=0, zmax=100, colorscale=style.ACCURACY_SCALE, customdata=np.tile(names, (len(accuracy), 1)).T,
        colorbar=style.percent_bar(0.72),
        hovertemplate="%{customdata}: %{z:.1f} % after round %{x}<extra></extra>",
        row=1, col=1,
    )  # fmt: skip
    gap = frames.rounds[frames.rounds["variant"] == variant.label]
    hover = "PG %{y:.1f} points after round %{x}<extra></extra>"
    add_share(figure, variant, gap, by="round", x="round", y="performance_gap", hover=hover, row=2, col=1)
    figure.update_traces(showlegend=False, selector={"type": "scatter"})  # the heading names the variant
    shown = names.iloc[:: -(-len(names) // MAX_TICKS)]
    figure.update_yaxes(row=1, autorange="reversed", showgrid=False, tickvals=shown.index, ticktext=shown)
    figure.update_yaxes(row=2, title="PG (points)", range=[0, 110 * frames.rounds["performance_gap"].max()], nticks=4)
    figure.update_xaxes(style.round_axis(frames.rounds["round"].max()), row=2)
    return style.tidy(figure)


def accuracy_by_rank(frames: Frames, shown: Sequence[Variant]) -> go.Figure:
    """Accuracy of the labels over the last rounds by their place in the order: lines for `shown`, ± over seeds.

    The other variants are pale lines behind them.
    """
    figure = style.canvas(280)
    labels = frames.labels.assign(place=label_ranks(frames.labels) + 1)
    last = labels.groupby(["variant", "seed"])["round"].transform("max")
    labels = labels[labels["round"] > last - LAST_ROUNDS]
    known = labels.groupby(["variant", "seed", "place"], as_index=False)["accuracy"].median()
    others = known[~known["variant"].isin([variant.label for variant in shown])]
    for _, rows in others.groupby("variant"):
        middle = 100 * rows.groupby("place")["accuracy"].median()
        figure.add_scatter(
            x=middle.index.to_numpy(), y=middle.to_numpy(), mode="lines", hoverinfo="skip",
            line={"color": PALE, "width": 1.2, "dash": "solid"}, opacity=0.5, name="another variant",
        )  # fmt: skip
    for variant in shown:
        add_share(figure, variant, known[known["variant"] == variant.label], by="place", x="place")
        figure.update_traces(showlegend=others.empty, selector={"name": variant.label})  # else the heading names it
    figure.update_xaxes(title="place in the cyclic order", tickformat="d")
    return figure.update_yaxes(title="accuracy (%)", range=[0, min(108 * known["accuracy"].max(), 100)])


def _rank_names(labels: pd.DataFrame) -> pd.Series:
    """What is written beside each row: its place in the order, and the label if all seeds agree on it."""
    by_rank = labels.groupby("rank")["label_name"]
    names = by_rank.first().where(by_rank.nunique() == 1, "")
    places = (names.index.to_series() + 1).astype(int).astype(str)
    return places.where(names == "", places + ": " + names)
