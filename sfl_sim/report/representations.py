"""Figure: the inputs of the last layer in two dimensions, and how well labels keep apart in them (HARMONY's Fig. 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sfl_sim.report import style
from sfl_sim.report.labels import label_names

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

HEIGHT_PX = 300
REST = "other labels"


def mapped(frames: Frames) -> list[Variant]:
    """The variants whose representations were recorded."""
    known = set(frames.representations["variant"])
    return [variant for variant in frames.variants if variant.label in known]


def heading(frames: Frames, variant: Variant) -> str:
    """The variant and its silhouette score, the mean over samples: median ± over seeds."""
    rows = frames.representations[frames.representations["variant"] == variant.label]
    scores = rows.groupby("seed")["silhouette"].mean()
    if not math.isfinite(scores.median()):
        return variant.html
    spread = f" ± {scores.std():.2f}" if len(scores) > 1 else ""
    return f"{variant.html}: silhouette {scores.median():.2f}{spread}".replace("-", "−")


def scatter(frames: Frames, variant: Variant) -> go.Figure:
    """The first seed's samples where t-SNE put them, coloured by label."""
    rows = frames.representations.query("variant == @variant.label and seed == @variant.seed")
    names = label_names(frames, variant)
    coloured = sorted(names.index)[: len(style.LABEL_COLOURS)]
    figure = style.canvas(HEIGHT_PX)
    _add(figure, rows[~rows["label"].isin(coloured)], names, REST, style.MUTED)
    for label, colour in zip(coloured, style.LABEL_COLOURS, strict=False):
        _add(figure, rows[rows["label"] == label], names, names[label], colour)
    frame = {"showgrid": False, "showticklabels": False, "mirror": True}
    figure.update_xaxes(frame)
    return figure.update_yaxes(frame, scaleanchor="x")


def _add(figure: go.Figure, rows: pd.DataFrame, names: pd.Series, name: str, colour: str) -> None:
    if rows.empty:
        return
    figure.add_scatter(
        x=rows["x"].to_numpy(), y=rows["y"].to_numpy(), mode="markers", name=name, text=list(rows["label"].map(names)),
        customdata=rows[["client", "silhouette"]].to_numpy(),
        marker={"symbol": "circle", "color": colour, "size": 6, "opacity": 0.85},
        hovertemplate="%{text}, client %{customdata[0]}, silhouette %{customdata[1]:.2f}<extra></extra>",
    )  # fmt: skip
