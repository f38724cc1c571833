"""Panels on early exits: how well devices and server answer together, and what the last layer sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup

from sfl_sim.metrics.exit_metrics import achieved, at_rho, trade_off
from sfl_sim.report import display, figures, style
from sfl_sim.report.figures import MAX_NARROW_BANDS
from sfl_sim.report.frames import label_names
from sfl_sim.report.pages.learning import over_time
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Column, Table, by_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

HEIGHT_PX = 340
RHO_STEPS, THRESHOLDS = 5, 21
MAP_PX = 300
STAR = {"symbol": "star", "size": 14}
REST = "other labels"
COLUMNS = [
    Column("Devices alone", "device_accuracy", display.percent, more_is_better=True),
    Column("Server alone", "server_accuracy", display.percent, more_is_better=True),
    Column("Hybrid accuracy", "hybrid_accuracy", display.percent, more_is_better=True),
    Column("on seen labels", "hybrid_seen", display.percent, more_is_better=True),
    Column("on unseen labels", "hybrid_unseen", display.percent, more_is_better=True),
    Column("Offloaded", "offload_probability", display.percent, more_is_better=None),
]
EXITS = (
    "A device answers by itself where the entropy of its exit is below a threshold, and offloads the "
    "rest. The hybrid accuracy, drawn as a star, is that of an oracle, which knows the best of a few "
    "thresholds for every client; HARMONY reports this number. {unseen}In the figure of accuracy against "
    "offloading, one threshold for all clients falls from left to right. Where a line is higher than "
    "both its ends, devices and server know different things, and together they answer best (the "
    "clients' models on their own test sets, means over clients; {bands})."
)
UNSEEN = "The steeper a line falls with ρ, the more its devices know only their own labels. "
REPRESENTATIONS = (
    "Each dot is a test sample, placed by its input to the last layer. The farther apart the colours "
    "are, the easier it is for that layer to tell the labels apart. Each sample goes through the "
    "client-side submodel of one client, then through the rest. t-SNE keeps neighbours together; "
    "distances between far groups mean nothing. The silhouette is that of the inputs themselves: 1 where "
    "labels lie far apart, 0 or less where they mix (drawn: the first seed; silhouettes: medians over "
    "seeds ± standard deviation)."
)


def exit_panels(frames: Frames) -> list[Panel]:
    """The panel on early exits, and that on representations, if they were recorded."""
    return [*_exits_panel(frames), *_representations_panel(frames)]


def _exits_panel(frames: Frames) -> list[Panel]:
    found = exits(frames)
    if not found:
        return []
    drawn = [("Accuracy against offloading", accuracy_by_offload(found))]
    unseen = any(len(one.by_rho) for one in found)
    if unseen:
        drawn.insert(0, ("Hybrid accuracy against unseen labels", accuracy_by_rho(found)))
    if frames.rounds.dropna(subset="hybrid_accuracy").groupby(["variant", "seed"]).size().max() > 1:
        over = over_time(frames, frames.variants, "hybrid_accuracy")
        drawn.append(("Hybrid accuracy against simulated time", over))
    bands = figures.over_seeds(frames.n_seeds, len(found) <= MAX_NARROW_BANDS)
    caption = EXITS.format(unseen=UNSEEN if unseen else "", bands=bands)
    return [Panel("Early exits", caption, drawn, len(drawn), [exits_table(found)])]


def _representations_panel(frames: Frames) -> list[Panel]:
    drawn = [(silhouette(frames, variant), scatter(frames, variant)) for variant in mapped(frames)]
    return [Panel("Inputs of the last layer", REPRESENTATIONS, drawn, columns=3)] if drawn else []


@dataclass(frozen=True)
class Exits:
    """Answers of the models of one variant; a row per seed, or several, means over clients.

    Attributes:
        achieved: as `metrics.exit_metrics.achieved` gives it.
        by_rho: the same on test sets with fewer samples of unseen labels (`rho`); empty if these are of another kind.
        by_threshold: as `metrics.exit_metrics.trade_off` gives it, from all at the server to all on the devices.
    """

    variant: Variant
    achieved: pd.DataFrame
    by_rho: pd.DataFrame
    by_threshold: pd.DataFrame


def exits(frames: Frames) -> list[Exits]:
    """List the exits of every variant whose answers were recorded; none if no device has an exit."""
    rho = frames.summary.groupby("variant")["rho"].first()
    n_labels = frames.labels.groupby("variant")["label"].nunique()
    found = [_exits(v, answers, rho[v.label], n_labels[v.label]) for v, answers in _answers(frames)]
    return found if any(one.achieved["device_accuracy"].notna().any() for one in found) else []


def _answers(frames: Frames) -> list[tuple[Variant, pd.DataFrame]]:
    asked = ((variant, variant.answers()) for variant in frames.variants)
    return [(variant, answers) for variant, answers in asked if len(answers)]


def _exits(variant: Variant, answers: pd.DataFrame, rho: float, n_labels: int) -> Exits:
    smaller = np.linspace(0, rho, RHO_STEPS).round(9).tolist() if rho > 0 else []
    by_rho = [achieved(at_rho(answers, each), n_labels).assign(rho=each) for each in smaller]
    return Exits(
        variant,
        achieved(answers, n_labels),
        pd.concat(by_rho) if by_rho else pd.DataFrame(),
        trade_off(answers, _evenly(answers["entropy"])).reset_index(),
    )


def _evenly(entropy: pd.Series) -> list[float]:
    """Thresholds by which more and more samples stay on the device, from none to all."""
    told = entropy[np.isfinite(entropy)]
    return [0.0, *told.quantile(np.linspace(0, 1, THRESHOLDS)).unique(), math.inf]


def exits_table(found: Sequence[Exits]) -> Table:
    """Medians over seeds and their spread; less is offloaded where the devices know more."""
    return by_variant(COLUMNS, [(one.variant, one.achieved) for one in found])


def accuracy_by_rho(found: Sequence[Exits]) -> go.Figure:
    """Hybrid accuracy at the oracle's thresholds against the share of unseen labels, median ± over seeds."""
    figure = figures.canvas(HEIGHT_PX)
    for one in found:
        if len(one.by_rho):
            hover = "%{y:.1f} % at ρ = %{x:.2g}"
            band = len(found) <= MAX_NARROW_BANDS
            figures.medians(figure, one.variant, one.by_rho, "rho", "hybrid_accuracy", hover=hover, with_band=band)
    figure.update_xaxes(title="ρ: unseen samples per seen one", rangemode="tozero")
    return figure.update_yaxes(title="hybrid accuracy (%)")


def accuracy_by_offload(found: Sequence[Exits]) -> go.Figure:
    """Accuracy against what is offloaded, as one threshold for all clients rises; stars are the oracle's."""
    figure = figures.canvas(HEIGHT_PX)
    hover = "%{y:.1f} % with %{x:.0f} % offloaded"
    for one in found:
        swept = one.by_threshold.assign(offloaded=100 * one.by_threshold["offload_probability"])
        band = len(found) <= MAX_NARROW_BANDS
        figures.medians(figure, one.variant, swept, "offloaded", by="threshold", hover=hover, with_band=band)
    for one in found:
        best = 100 * one.achieved[["offload_probability", "hybrid_accuracy"]].median()
        x, y = [best["offload_probability"]], [best["hybrid_accuracy"]]
        said = f"oracle: {hover}<extra>{one.variant.label}</extra>"
        figures.marks(figure, one.variant, x, y, said, marker=STAR, showlegend=False)
    ink = {**STAR, "color": style.INK, "line": figures.WHITE_EDGE}
    figure.add_scatter(x=[None], y=[None], mode="markers", name="oracle's thresholds", marker=ink)
    figure.update_xaxes(title="offloaded (%)", range=[-3, 103])
    return figure.update_yaxes(title="accuracy (%)")


def mapped(frames: Frames) -> list[Variant]:
    """The variants whose representations were recorded."""
    known = set(frames.representations["variant"])
    return [variant for variant in frames.variants if variant.label in known]


def silhouette(frames: Frames, variant: Variant) -> Markup:
    """The variant and its silhouette score, the mean over samples: median ± over seeds."""
    rows = frames.representations[frames.representations["variant"] == variant.label]
    scores = rows.groupby("seed")["silhouette"].mean()
    if not math.isfinite(scores.median()):
        return variant.html
    spread = f" ± {scores.std():.2f}" if len(scores) > 1 else ""
    return variant.html + f": silhouette {scores.median():.2f}{spread}".replace("-", "−")


def scatter(frames: Frames, variant: Variant) -> go.Figure:
    """The first seed's samples where t-SNE put them, coloured by label."""
    rows = frames.representations.query("variant == @variant.label and seed == @variant.seed")
    names = label_names(frames, variant)
    coloured = sorted(names.index)[: len(style.LABEL_COLOURS)]
    figure = figures.canvas(MAP_PX)
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
