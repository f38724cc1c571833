"""Table and figures of early exits: how well devices and server answer together, and how much is offloaded for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.metrics.exits import achieved, at_rho, trade_off
from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_NARROW_BANDS, add_share
from sfl_sim.report.results import Column
from sfl_sim.report.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

HEIGHT_PX = 340
RHO_STEPS, THRESHOLDS = 5, 21
COLUMNS = [
    Column("Devices alone", "device_accuracy", display.percent, more_is_better=True),
    Column("Server alone", "server_accuracy", display.percent, more_is_better=True),
    Column("Hybrid accuracy", "hybrid_accuracy", display.percent, more_is_better=True),
    Column("on seen labels", "hybrid_seen", display.percent, more_is_better=True),
    Column("on unseen labels", "hybrid_unseen", display.percent, more_is_better=True),
]
OFFLOADED = Column("Offloaded", "offload_probability", display.percent)


@dataclass(frozen=True)
class Exits:
    """What the models of one variant answered; a row per seed, or several, means over clients.

    Attributes:
        achieved: as `metrics.exits.achieved` gives it.
        by_rho: the same on test sets with fewer samples of unseen labels (`rho`); empty if these are of another kind.
        by_threshold: as `metrics.exits.trade_off` gives it, from all at the server to all on the devices.
    """

    variant: Variant
    achieved: pd.DataFrame
    by_rho: pd.DataFrame
    by_threshold: pd.DataFrame


def exits(frames: Frames) -> list[Exits]:
    """Of every variant whose answers were recorded; of none if no device has an exit."""
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


def exits_table(found: Sequence[Exits]) -> str:
    """The table as HTML: medians over seeds and their spread; less is offloaded where the devices know more."""
    rows = []
    for one in found:
        cells = [column.cell(one.achieved) for column in COLUMNS]
        rows.append((one.variant.html, [*cells, OFFLOADED.cell(one.achieved)._replace(merit=math.nan)]))
    return table([column.title for column in [*COLUMNS, OFFLOADED]], rows)


def accuracy_by_rho(found: Sequence[Exits]) -> go.Figure:
    """Hybrid accuracy at the oracle's thresholds against the share of unseen labels, median ± over seeds."""
    figure = style.canvas(HEIGHT_PX)
    for one in found:
        if len(one.by_rho):
            hover = "%{y:.1f} % at ρ = %{x:.2g}"
            band = len(found) <= MAX_NARROW_BANDS
            add_share(figure, one.variant, one.by_rho, "rho", "rho", "hybrid_accuracy", hover, band)
    figure.update_xaxes(title="ρ: unseen samples per seen one", rangemode="tozero")
    return figure.update_yaxes(title="hybrid accuracy (%)")


def accuracy_by_offload(found: Sequence[Exits]) -> go.Figure:
    """Accuracy against what is offloaded, as one threshold for all clients rises; stars are the oracle's."""
    figure = style.canvas(HEIGHT_PX)
    hover = "%{y:.1f} % with %{x:.0f} % offloaded"
    for one in found:
        swept = one.by_threshold.assign(offloaded=100 * one.by_threshold["offload_probability"])
        band = len(found) <= MAX_NARROW_BANDS
        add_share(figure, one.variant, swept, "threshold", "offloaded", "accuracy", hover, band)
    for one in found:
        best = 100 * one.achieved[["offload_probability", "hybrid_accuracy"]].median()
        figure.add_scatter(
            x=[best["offload_probability"]], y=[best["hybrid_accuracy"]], mode="markers", showlegend=False,
            marker=_star(one.variant.colour), hovertemplate=f"oracle: {hover}<extra>{one.variant.label}</extra>",
        )  # fmt: skip
    figure.add_scatter(x=[None], y=[None], mode="markers", name="oracle's thresholds", marker=_star(style.INK))
    figure.update_xaxes(title="offloaded (%)", range=[-3, 103])
    return figure.update_yaxes(title="accuracy (%)")


def _star(colour: str) -> dict[str, object]:
    return {"symbol": "star", "color": colour, "size": 14, "line": {"color": "#FFFFFF", "width": 1.2}}
