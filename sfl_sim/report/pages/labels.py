"""Panels on labels: which are known and which are forgotten, from round to round and within a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import display, figures, style
from sfl_sim.report.figures import MAX_BANDS, MAX_NAMES
from sfl_sim.report.frames import label_names, label_ranks
from sfl_sim.report.pages.one_round import drawn
from sfl_sim.report.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MAX_ROUNDS = 120
PALE = "#AEB6BF"
FILMED_ROUNDS = 2
MAX_SNAPSHOTS = 400
MAX_DOTS = 400
MATRICES = 5
STRIP_SHARE = 0.56
HISTORY = (
    "Rows are labels in the cyclic order of the seed, the first on top. If colours get paler from top to "
    "bottom, labels that were served last overwrite the first, and the performance gap (PG) below stays "
    "high "
)
LAST = "A flat line means that no label is forgotten; a slope shows which places in the order are forgotten "
FILM = (
    "Above, the share of each label that the global model would answer correctly if the round ended "
    "there. Dots are the server's jobs, at their clients' dominant labels. A row that gets darker at its "
    "dots and paler after them is learned and forgotten within the round. Below, the confusion matrix: a "
    "dark column is a label that is predicted for everything (first seed; labels in its cyclic "
    "order{drawn})."
)


def label_panels(frames: Frames) -> list[Panel]:
    """Labels from round to round and within a round, if they were recorded."""
    return [*_between_rounds(frames), *_within_rounds(frames)]


def _between_rounds(frames: Frames) -> list[Panel]:
    known = set(frames.labels["variant"])
    trained = [variant for variant in frames.variants if variant.label in known]
    if not trained:
        return []
    history = [(variant.html, label_history(frames, variant)) for variant in trained]
    by_rank = (
        [("Accuracy by place in the cyclic order", accuracy_by_rank(frames, trained))]
        if len(trained) <= MAX_BANDS
        else [(variant.html, accuracy_by_rank(frames, [variant])) for variant in trained]
    )
    spread = figures.over_seeds(frames.n_seeds)
    last = f"{LAST}(per seed the median of the last {LAST_ROUNDS} rounds; {spread})."
    return [
        Panel("Which labels are forgotten", f"{HISTORY}({spread}; colours: medians).", history, min(len(history), 3)),
        Panel("Accuracy of the labels in the last rounds", last, by_rank, columns=min(len(by_rank), 4)),
    ]


def _within_rounds(frames: Frames) -> list[Panel]:
    films = round_films(frames)
    if not films:
        return []
    shown = [(film.variant.html + f", round {film.round}", round_film(film)) for film in films]
    columns = min(len({film.round for film in films}), FILMED_ROUNDS)
    return [Panel("What the model knows during a round", FILM.format(drawn=drawn(frames)), shown, columns)]


def label_history(frames: Frames, variant: Variant) -> go.Figure:
    """Accuracy of each label after each round (median over seeds), above the performance gap."""
    labels = frames.labels.assign(rank=label_ranks(frames.labels))
    labels = labels[labels["variant"] == variant.label]
    accuracy = labels.pivot_table(index="round", columns="rank", values="accuracy", aggfunc="median")
    accuracy = display.thin(accuracy, MAX_ROUNDS)
    names = _rank_names(labels)

    figure = figures.canvas(430, rows=2, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.72, 0.28])
    figures.heat(
        figure, accuracy.index, names.index, accuracy.T, "%{customdata}: %{z:.1f} % after round %{x}<extra></extra>",
        customdata=np.tile(names, (len(accuracy), 1)).T, colorbar=figures.percent_bar(0.72), row=1, col=1,
    )  # fmt: skip
    gap = frames.rounds[frames.rounds["variant"] == variant.label]
    hover = "PG %{y:.1f} points after round %{x}<extra></extra>"
    figures.medians(figure, variant, gap, "round", "performance_gap", hover=hover, row=2, col=1)
    figure.update_traces(showlegend=False, selector={"type": "scatter"})  # the heading names the variant
    shown = names.iloc[:: -(-len(names) // MAX_NAMES)]
    figure.update_yaxes(row=1, autorange="reversed", showgrid=False, tickvals=shown.index, ticktext=shown)
    figure.update_yaxes(row=2, title="PG (points)", range=[0, 110 * frames.rounds["performance_gap"].max()], nticks=4)
    return figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), row=2)


def accuracy_by_rank(frames: Frames, shown: Sequence[Variant]) -> go.Figure:
    """Accuracy of the labels over the last rounds by their place in the order: lines for `shown`, ± over seeds.

    The other variants are pale lines behind them.
    """
    figure = figures.canvas(280)
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
        figures.medians(figure, variant, known[known["variant"] == variant.label], "place")
        figure.update_traces(showlegend=others.empty, selector={"name": variant.label})  # else the heading names it
    places = {"title": "place in the cyclic order", "dtick": 1 if known["place"].max() <= 10 else None}
    figure.update_xaxes(places, tickformat="d")
    return figure.update_yaxes(title="accuracy (%)", range=[0, min(108 * known["accuracy"].max(), 100)])


def _rank_names(labels: pd.DataFrame) -> pd.Series:
    """Name each row: its place in the order, and the label if all seeds agree on it."""
    by_rank = labels.groupby("rank")["label_name"]
    names = by_rank.first().where(by_rank.nunique() == 1, "")
    places = (names.index.to_series() + 1).astype(int).astype(str)
    return places.where(names == "", places + ": " + names)


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
    for variant in frames.variants[: style.MAX_DETAILED]:
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
    names, edges, columns = list(film.names), _edges(known.columns), len(moments)
    figure = figures.canvas(
        460, rows=2, cols=columns, specs=[[{"colspan": columns}, *[None] * (columns - 1)], [{}] * columns],
        row_heights=[STRIP_SHARE, 1 - STRIP_SHARE], vertical_spacing=0.24, horizontal_spacing=0.02,
        subplot_titles=["", *(f"after<br>{job:,} jobs" if job else "start" for job in moments)],
    )  # fmt: skip
    figures.heat(
        figure, edges, names, known, "%{y}: %{z:.0f} % correct<extra></extra>",
        colorbar=figures.percent_bar(STRIP_SHARE), row=1, col=1,
    )  # fmt: skip
    figure.add_scatter(**_dots(film), row=1, col=1)
    for column, job in enumerate(moments, start=1):
        hover = "%{y} predicted as %{x}: %{z:.0f} %<extra></extra>"
        figures.heat(figure, names, names, film.matrices[job], hover, row=2, col=column)
    figure.update_annotations(font_size=11, font_color=style.MUTED)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_yaxes(row=1, tickvals=figures.some(names))
    figure.update_yaxes(row=2, showticklabels=False)
    figure.update_yaxes(row=2, col=1, title="true label")
    figure.update_xaxes(row=2, type="category", showticklabels=False, showgrid=False)
    figure.update_xaxes(row=2, col=(columns + 1) // 2, title="predicted label")
    until = max(edges[-1], len(film.served))
    return figure.update_xaxes(row=1, showgrid=False, title="training jobs at the server", range=[edges[0], until])


def _edges(jobs: pd.Index) -> list[int]:
    """A column for each snapshot, from that before to its own; the round's start gets one of its own."""
    first = jobs[1] - jobs[0] if len(jobs) > 1 else 1
    return [-first, *jobs]


def _dots(film: RoundFilm) -> dict[str, object]:
    served = film.served if len(film.served) <= MAX_DOTS else film.served.iloc[:0]
    return {
        "x": np.arange(len(served)) + 0.5,
        "y": list(served.map(film.names)),
        "mode": "markers",
        "hoverinfo": "skip",
        "marker": {"size": 3.5, "color": style.DOT, "line": {"width": 0}},
    }
