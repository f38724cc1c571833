"""Panel on served requests against the rate at which they come, and up to which rate a fleet keeps up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.metrics.serving import saturation
from sfl_sim.report import display, figures
from sfl_sim.report.figures import MAX_TICKS, WIDE, wide_axis
from sfl_sim.report.html_page import Panel
from sfl_sim.report.serving_load import ONLINE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX, STRIP_ROW_PX = 300, 15
PALE = 0.3
CAPTION = """The rate is that of all clients. Hollow marks: the fleet falls behind, and its latencies grow with the \
length of the run. A bar ends where a fleet last keeps up, and its pale end where it does no longer (medians over \
seeds, ± standard deviation)."""
EQ12 = """ HARMONY's Eq. (12) knows no queues: 1 is what it says, in a unit that fits the middle of all variants at \
their lowest rates."""


def load_panels(served: Served) -> list[Panel]:
    """Latency, and what follows the load, against the rate, if several were tried."""
    if not served.is_sweep:
        return []
    caption, drawn = CAPTION, [("p95, and how far each keeps up", p95(served))]
    if served.cells["latency_eq12"].notna().all():
        drawn.append(("Simulated mean latency over Eq. (12)", eq12(served)))
        caption += EQ12
    if any(series.threshold in ONLINE for series in served.series):  # else the load does not matter to them
        drawn.append(("Offload probability", share(served, "offload_probability", "offloaded (%)")))
        if served.knows_accuracy:
            drawn.append(("Accuracy", share(served, "accuracy", "accuracy (%)")))
    return [Panel("Under load", caption, drawn, columns=2)]


def p95(served: Served) -> go.Figure:
    """p95 against the rate; below it a bar for each series as far as it keeps up, pale where it may no longer."""
    series_cells, strip_px = served.swept, _strip_px(served)
    figure = figures.canvas(
        HEIGHT_PX + strip_px, rows=2, shared_xaxes=True, vertical_spacing=0.02, row_heights=[HEIGHT_PX, strip_px]
    )
    unit, unit_s = display.time_unit(served.cells["p95_s"].median())
    for row, (series, cells) in enumerate(series_cells):
        _add(figure, series, cells.assign(p95=cells["p95_s"] / unit_s), "p95", f"%{{y:.3~g}} {unit}", row=1, col=1)
        _add_saturation(figure, series, cells, row)
    latencies = served.cells["p95_s"] / unit_s
    figure.update_yaxes(wide_axis(latencies.min(), latencies.max()), title=f"p95 of the latency ({unit})", row=1)
    figure.update_yaxes(range=[len(series_cells) - 0.3, -0.7], showticklabels=False, showgrid=False, row=2)
    return figure.update_xaxes(_rate_axis(served)).update_xaxes(title="requests per second", row=2)


def _strip_px(served: Served) -> int:
    return 12 + STRIP_ROW_PX * len(served.swept)


def eq12(served: Served) -> go.Figure:
    """Simulated mean latency over Eq. (12), whose unit makes the middle of all series at their lowest rates 1."""
    ratios = [
        (series, cells.assign(ratio=cells["latency_s"] / cells["latency_eq12"])) for series, cells in served.swept
    ]
    unit = np.median([own.loc[own["rate_per_s"] == own["rate_per_s"].min(), "ratio"].median() for _, own in ratios])
    figure = figures.canvas(HEIGHT_PX + _strip_px(served))
    for series, own in ratios:
        _add(figure, series, own.assign(ratio=own["ratio"] / unit), "ratio", "%{y:.3~g} times Eq. (12)")
    figures.level(figure, 1)
    shown = [own["ratio"] / unit for _, own in ratios]
    figure.update_yaxes(
        wide_axis(min(own.min() for own in shown), max(own.max() for own in shown)), title="mean latency / Eq. (12)"
    )
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def share(served: Served, column: str, title: str) -> go.Figure:
    """A share of the requests, in percent, against the rate."""
    figure = figures.canvas(HEIGHT_PX)
    for series, cells in served.swept:
        _add(figure, series, cells.assign(share=100 * cells[column]), "share", "%{y:.1f} %")
    figure.update_yaxes(title=title)
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def _add(figure: go.Figure, series: Series, cells: pd.DataFrame, column: str, hover: str, **place: int) -> None:
    """A line of medians over seeds with their spread; marks are hollow where the fleet falls behind."""
    curve = display.over_seeds(cells, "rate_per_s", [column])
    share = cells.groupby("rate_per_s")["falls_behind"].mean()
    behind = share >= 0.5
    spread = (curve[f"{column}_high"] - curve[column]).to_numpy()
    edge = {"color": series.colour, "width": 1.6}
    figures.lines(
        figure, series, curve.index, curve[column], f"{hover} at %{{x:.4~g}}/s%{{text}}", mode="lines+markers",
        marker={"color": np.where(behind, "#FFFFFF", series.colour), "symbol": series.symbol, "size": 8, "line": edge},
        error_y={"array": spread, "thickness": 1.2, "width": 0, "visible": bool(spread.any())},
        text=np.select([behind, share.isna()], [", falls behind", ", too few requests to tell"], ""),
        **place,
    )  # fmt: skip


def _add_saturation(figure: go.Figure, series: Series, cells: pd.DataFrame, row: int) -> None:
    found = saturation(cells)
    lowest, highest = float(cells["rate_per_s"].min()), float(cells["rate_per_s"].max())
    kept_up, behind = found or (float(cells.loc[cells["falls_behind"] == 0, "rate_per_s"].max()), highest)
    for ends, opacity in (((lowest, kept_up), 1.0), ((max(lowest, kept_up), behind), PALE)):
        if ends[0] <= ends[1]:
            figures.lines(
                figure, series, ends, [row, row], "", mode="lines+markers", opacity=opacity, showlegend=False,
                hoverinfo="skip", dash="solid", width=6, marker={"color": series.colour, "size": 6}, row=2, col=1,
            )  # fmt: skip


def _rate_axis(served: Served) -> dict[str, object]:
    """An axis with ticks at the rates, if they are few; logarithmic where they differ by much."""
    rates = np.unique(served.cells["rate_per_s"])
    axis: dict[str, object] = {"type": "log" if rates[-1] >= WIDE * rates[0] else "linear"}
    if len(rates) <= MAX_TICKS:
        axis |= {"tickvals": rates, "ticktext": [f"{rate:,.4g}" for rate in rates]}
    elif axis["type"] == "log":
        axis = wide_axis(rates[0], rates[-1])
    return axis
