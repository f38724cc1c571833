"""Panel on what accuracy costs, in latency of served requests and in offloaded ones, over thresholds of the exit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sfl_sim.metrics.exit_metrics import at_rho, hybrid, oracle, over_clients, thresholds, trade_off
from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.report import display, figures, style
from sfl_sim.report.panel import Panel

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX = 360
MIN_CHOICES = 3
RULES = {
    "fixed": ("fixed threshold (nats)", "circle"),
    "oracle": ("oracle", "star"),
    "offload_rate": ("target offload rate", "triangle-up"),
    "latency_budget": ("latency budget", "triangle-down"),
}
"""Name and mark of each kind of threshold."""
CAPTION = (
    "A higher threshold keeps more requests on the device, where answers are quick, but only as accurate "
    "as the device's exit. The oracle knows the labels: it is an upper bound."
)
WHOLE = " The figures of whole test sets use one threshold for all clients; they show means over clients and seeds."


def accuracy_panels(served: Served) -> list[Panel]:
    """Accuracy against latency over a few thresholds, and against offloading if the answers were kept."""
    caption, drawn = CAPTION, []
    if len(choices(served)) >= MIN_CHOICES:
        drawn.append((f"Served requests at {served.shown_rate}", by_latency(served)))
    answers = served.answers()
    if answers is not None:
        drawn.append(("Whole test sets, whatever the load", by_offload(served, answers)))
        caption += WHOLE
    return [Panel("What accuracy costs", caption, drawn, columns=len(drawn))] if drawn else []


def families(served: Served) -> dict[str, list[Series]]:
    """The series by what was trained; the first one's colour stands for all."""
    found: dict[str, list[Series]] = {}
    for series in served.series:
        found.setdefault(series.family, []).append(series)
    return found


def choices(served: Served) -> pd.DataFrame:
    """Place each series with known accuracy at the rate of the details: medians over seeds, by series."""
    trials = served.at_rate.dropna(subset="accuracy")
    by_series = trials.groupby("series", sort=False)
    middle = by_series[["p95_s", "accuracy", "offload_probability", "threshold_value"]].median()
    best = non_dominated(middle["p95_s"], -middle["accuracy"])
    return middle.assign(threshold=by_series["threshold"].first(), best=best)


def by_latency(served: Served) -> go.Figure:
    """Accuracy against p95 over thresholds, fixed ones of a family joined by a line, and the Pareto front as steps."""
    points = choices(served)
    unit, unit_s = display.time_unit(points["p95_s"].median())
    points = points.assign(p95=points["p95_s"] / unit_s, accuracy=100 * points["accuracy"])
    figure = figures.canvas(HEIGHT_PX)
    front = points[points["best"]].sort_values("p95")
    figure.add_scatter(
        x=front["p95"].to_numpy(), y=front["accuracy"].to_numpy(), mode="lines", hoverinfo="skip", name="Pareto front",
        line={"shape": "hv", "color": style.MUTED, "width": 1.4, "dash": "solid"},
    )  # fmt: skip
    for family, members in families(served).items():
        own = points.loc[[series.label for series in members if series.label in points.index]]
        fixed = own[own["threshold"] == "fixed"].sort_values("threshold_value")
        solid = {"mode": "lines", "dash": "solid", "width": 1.8, "hoverinfo": "skip", "showlegend": False}
        figures.lines(figure, members[0], fixed["p95"], fixed["accuracy"], "", **solid)
        figure.add_scatter(x=[None], y=[None], mode="markers", name=family, marker=_mark("circle", members[0].colour))
        for kind, (_, symbol) in RULES.items():
            rows = own[own["threshold"] == kind]
            values = [f"{value:g}" if math.isfinite(value) else "" for value in rows["threshold_value"]]
            figures.marks(
                figure, members[0], rows["p95"], rows["accuracy"],
                f"%{{hovertext}}: %{{y:.1f}} %, p95 %{{x:.3~g}} {unit}, %{{customdata:.0f}} % offloaded",
                mode="markers+text", showlegend=False,
                marker=_mark(symbol, members[0].colour), hovertext=rows.index.to_numpy(), cliponaxis=False,
                text=values if kind == "fixed" else None, textposition="top center",
                textfont={"color": style.MUTED, "size": 11},
                customdata=100 * rows["offload_probability"].to_numpy(),
            )  # fmt: skip
    for kind, (name, symbol) in RULES.items():
        if (points["threshold"] == kind).any():
            figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=_mark(symbol, style.INK))
    figure.update_yaxes(title="accuracy (%)")
    return figure.update_xaxes(
        figures.wide_axis(points["p95"].min(), points["p95"].max()), title=f"p95 of the latency ({unit})"
    )


def by_offload(served: Served, answers: pd.DataFrame) -> go.Figure:
    """Accuracy against offload probability, means over clients, with one threshold for all and with the oracle's."""
    figure = figures.canvas(HEIGHT_PX)
    for family, members in families(served).items():
        trial = served.trials[served.trials["series"] == members[0].label].iloc[0]
        own = answers[answers["variant"] == trial["trained"]]
        if own.empty:
            continue
        grid = thresholds(int(trial["n_labels"]))
        asked = own if math.isnan(trial["rho"]) else at_rho(own, trial["rho"])
        curve = trade_off(asked, [0.0, *grid, math.inf]).groupby("threshold").mean()
        best = over_clients(hybrid(asked, oracle(asked, grid))).mean()
        figures.lines(
            figure, members[0], 100 * curve["offload_probability"], 100 * curve["accuracy"],
            "%{y:.1f} % at a threshold of %{text:.3~g}, %{x:.0f} % offloaded", text=curve.index.to_numpy(),
            name=family, mode="lines+markers", dash="solid", width=1.8, marker={"color": members[0].colour, "size": 6},
        )  # fmt: skip
        figures.marks(
            figure, members[0], [100 * best["offload_probability"]], [100 * best["accuracy"]],
            "oracle: %{y:.1f} %, %{x:.0f} % offloaded", marker=_mark("star", members[0].colour), showlegend=False,
        )  # fmt: skip
    figure.update_yaxes(title="accuracy (%)")
    return figure.update_xaxes(title="offloaded (%)", range=[-3, 103])


def _mark(symbol: str, colour: str) -> dict[str, object]:
    size = {"circle": 10}.get(symbol, 15)
    return {"symbol": symbol, "color": colour, "size": size, "line": figures.WHITE_EDGE}
