"""Marks that several figures share: a variant's line with its spread over seeds, and bars on a time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.report import display

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Variant

MAX_POINTS = 400
MAX_BANDS = 4
"""Of so many variants at most, wide bands over each other can still be told apart."""
MAX_NARROW_BANDS = 8
"""As `MAX_BANDS`, of narrow ones."""
LINES = "lines: medians over seeds"
BANDS = f"{LINES}; bands: ± standard deviation"
"""What `add_share` draws, for captions."""


def add_share(
    figure: go.Figure,
    variant: Variant,
    rows: pd.DataFrame,
    by: str,
    x: str,
    y: str = "accuracy",
    hover: str = "%{y:.1f} % at %{x:.4~g}",
    band: bool = True,
    **place: object,
) -> None:
    """Draw the median of `y` over seeds in each group of `by`, in percent, and with `band` ± around it if seeds differ.

    Args:
        rows: columns `by`, `x` and `y`; one row per seed and group.
        x: the column on the x axis, whose median over seeds is taken as well.
        y: a column of shares in [0, 1]; the band ends there.
        place: row and column of the subplot.
    """
    curve = display.thin(display.over_seeds(rows, by, [x, y]), MAX_POINTS)
    low, high = curve[f"{y}_low"], curve[f"{y}_high"]
    if band and (high > low).any():
        outline = pd.concat([high, low[::-1]]).clip(0, 1)
        figure.add_scatter(
            x=np.r_[curve[x], curve[x][::-1]], y=100 * outline.to_numpy(),
            mode="lines", fill="toself", fillcolor=variant.colour, opacity=0.16, line={"width": 0},
            legendgroup=variant.label, showlegend=False, hoverinfo="skip", **place,
        )  # fmt: skip
    figure.add_scatter(
        x=curve[x].to_numpy(), y=100 * curve[y].to_numpy(),
        name=variant.label, legendgroup=variant.label,
        mode="lines" if len(curve) > 1 else "markers",
        line={"color": variant.colour, "dash": variant.dash, "width": 2.2},
        marker={"color": variant.colour, "symbol": variant.symbol, "size": 8},
        hovertemplate=hover, **place,
    )  # fmt: skip


def bars(started: pd.Series, ended: pd.Series, level: pd.Series | float) -> dict[str, np.ndarray]:
    """x and y of one line trace that draws a horizontal bar from `started` to `ended` for each row.

    One broken line is one path on the page: thousands of bars stay light, unlike thousands of rectangles.
    """
    x = np.full((len(started), 3), np.nan, dtype=np.float32)
    x[:, 0], x[:, 1] = started, ended
    y = np.repeat(np.broadcast_to(np.asarray(level, dtype=np.float32), len(started)), 3)
    return {"x": x.ravel(), "y": y}
