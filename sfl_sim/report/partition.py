"""Figure: how many samples each client holds, and of which labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from sfl_sim.report import display, style
from sfl_sim.report.frames import distinct
from sfl_sim.report.labels import MAX_TICKS
from sfl_sim.report.round_view import MAX_VARIANTS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames

MAX_CLIENTS = 400
MAX_CLIENT_TICKS = 30


def holdings(counts: pd.DataFrame) -> go.Figure:
    """The label distributions of the clients as a heat map, below their numbers of samples; `counts`: clients x labels.

    The scale is always that of all shares, so that small differences between the clients look small.
    """
    drawn = display.thin(_sorted(counts), MAX_CLIENTS)
    clients = [f"client {client}" for client in drawn.index]
    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.05, row_heights=[0.22, 0.78])
    figure.update_layout(style.canvas(460).layout, showlegend=False, bargap=0.15 if len(clients) <= 40 else 0)
    figure.add_bar(
        x=clients, y=drawn.sum(axis=1).to_numpy(), marker={"color": style.MUTED, "line": {"width": 0}},
        hovertemplate="%{x}: %{y:,} samples<extra></extra>", row=1, col=1,
    )  # fmt: skip
    figure.add_heatmap(
        x=clients, y=list(drawn.columns), z=(100 * _shares(drawn)).round(3).to_numpy().T,
        zmin=0, zmax=100, colorscale=style.SHARE_SCALE, colorbar=style.percent_bar(0.78, "bottom"),
        hovertemplate="%{z:.1f} % of %{x} is %{y}<extra></extra>", row=2, col=1,
    )  # fmt: skip
    names = drawn.columns[:: -(-drawn.shape[1] // MAX_TICKS)]
    some = f"{len(drawn):,} of {len(counts):,} " if len(drawn) < len(counts) else ""
    figure.update_yaxes(row=1, title="samples", nticks=3, rangemode="tozero")
    figure.update_yaxes(row=2, type="category", autorange="reversed", showgrid=False, tickvals=names)
    figure.update_xaxes(type="category", showgrid=False, showticklabels=False)
    figure.update_xaxes(row=2, title=f"{some}clients, by dominant label")
    if len(clients) <= MAX_CLIENT_TICKS:
        figure.update_xaxes(row=2, showticklabels=True, tickvals=clients, ticktext=list(map(str, drawn.index)))
    return style.tidy(figure)


def held(frames: Frames) -> list[tuple[list[str], pd.DataFrame]]:
    """What the clients hold, clients x labels: the distinct partitions of the first seeds, and who has each."""
    found = []
    for variant in frames.variants:
        clients = frames.clients.query("variant == @variant.label and seed == @variant.seed").set_index("client")
        if clients["label_samples"].notna().all():
            labels = frames.labels.query("variant == @variant.label").drop_duplicates("label")
            names = dict(zip(labels["label"], labels["label_name"], strict=True))
            counts = pd.DataFrame(np.stack(list(clients["label_samples"])), index=clients.index)
            found.append((variant.html, counts.rename(columns=lambda label: names.get(label, str(label)))))  # noqa: B023
    return distinct(found)[:MAX_VARIANTS]


def _sorted(counts: pd.DataFrame) -> pd.DataFrame:
    """The clients by dominant label, the most one-sided of each first; empty ones last."""
    shares = _shares(counts).to_numpy()
    return counts.iloc[np.lexsort((-shares.max(axis=1), shares.argmax(axis=1), shares.sum(axis=1) == 0))]


def _shares(counts: pd.DataFrame) -> pd.DataFrame:
    """The label distribution of each client; zeros for one without samples."""
    return counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
