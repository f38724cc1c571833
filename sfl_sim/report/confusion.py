"""Figure: what the global model knows while a round goes on, label by label (Hydra's Fig. 11, and its whole film)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from plotly.subplots import make_subplots

from sfl_sim.report import display, style
from sfl_sim.report.labels import MAX_TICKS, label_names
from sfl_sim.report.round_view import MAX_VARIANTS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

FILMED_ROUNDS = 2
MAX_SNAPSHOTS = 400
MAX_DOTS = 400
MATRICES = 5
STRIP_SHARE = 0.56
DOT_COLOUR = "#F2A33A"  # seen on the palest and on the darkest of the accuracies


@dataclass(frozen=True)
class RoundFilm:
    """The snapshots of one round of a variant's first seed.

    Attributes:
        names: of the labels by number, in the cyclic order.
        matrices: by the number of jobs run before; true labels x answers, both in the cyclic order.
        served: the dominant labels of the clients whose training jobs the server ran, in order.
    """

    variant: Variant
    round: int
    names: pd.Series
    matrices: dict[Any, pd.DataFrame]
    served: pd.Series

    @property
    def known(self) -> pd.DataFrame:
        """Share of each label that is answered right: labels x jobs."""
        return pd.DataFrame({job: np.diag(matrix) for job, matrix in self.matrices.items()}, self.names.index)


def round_films(frames: Frames) -> list[RoundFilm]:
    """The first rounds that were looked into, of each of the first variants."""
    films = []
    for variant in frames.variants[:MAX_VARIANTS]:
        rows = frames.confusion.query("variant == @variant.label and seed == @variant.seed")
        films += [_film(frames, variant, number, rows) for number in sorted(rows["round"].unique())[:FILMED_ROUNDS]]
    return films


def _film(frames: Frames, variant: Variant, number: int, rows: pd.DataFrame) -> RoundFilm:
    names = label_names(frames, variant)
    matrices = {
        job: table.pivot(index="true_label", columns="predicted_label", values="share").loc[names.index, names.index]
        for job, table in rows[rows["round"] == number].groupby("job")
    }
    clients = frames.clients.query("variant == @variant.label and seed == @variant.seed").set_index("client")
    jobs = variant.ops(["client", "started_s"], node="server", kind="train", round=number).sort_values("started_s")
    served = jobs["client"].map(clients["dominant_label"])
    return RoundFilm(variant, number, names, matrices, served)


def round_film(film: RoundFilm) -> go.Figure:
    """Share of each label answered right after so many jobs, above confusion matrices at a few of these moments.

    A column stands for the jobs since the snapshot before, so that a label's turn and what it taught share a column.
    Dots are the jobs, on the row of their client's dominant label.
    """
    known = display.thin(film.known.T, MAX_SNAPSHOTS).T
    moments = display.thin(known.T, MATRICES).index
    scale = {"zmin": 0, "zmax": 100, "colorscale": style.ACCURACY_SCALE}
    names, edges, columns = list(film.names), _edges(known.columns), len(moments)
    figure = make_subplots(
        rows=2, cols=columns, specs=[[{"colspan": columns}, *[None] * (columns - 1)], [{}] * columns],
        row_heights=[STRIP_SHARE, 1 - STRIP_SHARE], vertical_spacing=0.24, horizontal_spacing=0.02,
        subplot_titles=["", *(f"after<br>{job:,} jobs" if job else "start" for job in moments)],
    )  # fmt: skip
    figure.update_layout(style.canvas(460).layout, showlegend=False)
    figure.add_heatmap(
        x=edges, y=names, z=(100 * known).round(1).to_numpy(), **scale,
        colorbar=style.percent_bar(STRIP_SHARE), hovertemplate="%{y}: %{z:.0f} % right<extra></extra>", row=1, col=1,
    )  # fmt: skip
    figure.add_scatter(**_dots(film), row=1, col=1)
    for column, job in enumerate(moments, start=1):
        figure.add_heatmap(
            x=names, y=names, z=(100 * film.matrices[job]).round(1).to_numpy(), showscale=False, **scale,
            hovertemplate="%{y} taken for %{x}: %{z:.0f} %<extra></extra>", row=2, col=column,
        )  # fmt: skip
    figure.update_annotations(font_size=11, font_color=style.MUTED)
    style.tidy(figure)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_yaxes(row=1, tickvals=names[:: -(-len(names) // MAX_TICKS)])
    figure.update_yaxes(row=2, showticklabels=False)
    figure.update_yaxes(row=2, col=1, title="true label")
    figure.update_xaxes(row=2, type="category", showticklabels=False, showgrid=False)
    figure.update_xaxes(row=2, col=(columns + 1) // 2, title="answer")
    until = max(edges[-1], len(film.served))
    return figure.update_xaxes(row=1, showgrid=False, title="training jobs at the server", range=[edges[0], until])


def _edges(jobs: pd.Index) -> list[int]:
    """A column for each snapshot, from that before to its own; the round's start gets one of its own."""
    first = jobs[1] - jobs[0] if len(jobs) > 1 else 1
    return [-first, *jobs]


def _dots(film: RoundFilm) -> dict[str, object]:
    served = film.served if len(film.served) <= MAX_DOTS else film.served.iloc[:0]
    return {
        "x": np.arange(len(served)) + 0.5, "y": list(served.map(film.names)), "mode": "markers", "hoverinfo": "skip",
        "marker": {"size": 3.5, "color": DOT_COLOUR, "line": {"width": 0}},
    }  # fmt: skip
