"""Panels on served requests: how long answers take, up to which rate a fleet keeps up, and what accuracy costs."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.metrics.exit_metrics import at_rho, hybrid, oracle, over_clients, thresholds, trade_off
from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.metrics.serving import PARTS, QUANTILES, saturation
from sfl_sim.report import display, figures, style
from sfl_sim.report.figures import value_axis, wide_axis
from sfl_sim.report.panel import Declared, Panel
from sfl_sim.report.serving_load import ONLINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.panel import Drawing
    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX, TIME_HEIGHT_PX, LOAD_HEIGHT_PX, STRIP_ROW_PX = 360, 280, 300, 15
CURVE_POINTS, RAREST = 160, 1e-4
SHARES = (1, 0.5, 0.2, 0.05, 0.01, 0.001)
MAX_STRETCHES, REQUESTS_PER_STRETCH = 60, 200
PALE = 0.3
MIN_CHOICES = 3

# How long an answer takes


def survival(served: Served) -> go.Figure:
    """The share of requests that take longer than a latency, seeds together; marks at p50, p95 and p99."""
    unit, unit_s = display.time_unit(served.at_rate["p95_s"].max())
    figure = figures.canvas(HEIGHT_PX)
    ends: list[float] = []
    rarest = 1.0
    for series, trials in served.detailed:
        requests = served.requests(trials, ["arrived_s", "ended_s"])
        latency = (requests["ended_s"] - requests["arrived_s"]).to_numpy() / unit_s
        share = np.geomspace(1, max(1 / len(latency), RAREST), CURVE_POINTS)
        curve = np.quantile(latency, 1 - share)
        ends, rarest = [*ends, curve[0], curve[-1]], min(rarest, share[-1])
        figures.lines(figure, series, curve, 100 * share, f"%{{y:.3~g}} % take longer than %{{x:.3~g}} {unit}")
        marked = list(QUANTILES.values())
        figures.marks(
            figure, series, np.quantile(latency, marked), [100 * (1 - mark) for mark in marked],
            f"%{{text}}: %{{x:.3~g}} {unit}", text=[key.removesuffix("_s") for key in QUANTILES],
            marker={"size": 9}, showlegend=False,
        )  # fmt: skip
    shown = [share for share in SHARES if share >= rarest]
    figure.update_yaxes(
        type="log",
        title="requests that take longer (%)",
        range=[np.log10(80 * rarest), np.log10(125)],
        tickvals=[100 * share for share in shown],
        ticktext=[f"{100 * share:g}" for share in shown],
    )
    return figure.update_xaxes(figures.wide_axis(max(min(ends), 1e-9), max(ends)), title=f"latency ({unit})")


def parts(served: Served, prefix: str = "") -> go.Figure:
    """Mean seconds of a request by where it spends them, a stacked bar for each series; `tail_` for those near p95."""
    rows = {}
    for series, trials in served.detailed:
        means_s = trials[[f"{prefix}{part}_s" for part in PARTS]].mean().set_axis(list(PARTS))
        rows[f"{figures.on_a_phone(series)} {display.duration(means_s.sum())}"] = means_s
    return figures.bars(rows, "latency", "latency")


def drawn(served: Served) -> dict[str, str]:
    """Give the words of a caption on which of the requests are drawn."""
    return {"drawn": served.drawn}


survival_panels: Declared[Served] = Declared(
    "How long an answer takes",
    "Each curve gives the share of requests that take longer than a latency. The farther left it is, the quicker the "
    "answers; the steeper it is, the less they vary. Marks are p50, p95 and p99 ({drawn}; seeds together).",
    {"Latency of requests": survival},
    words=drawn,
)
part_panels: Declared[Served] = Declared(
    "Where the time goes",
    "Waiting for the device or a link counts as that device or link. The warm colour is waiting at the server, for a "
    "free worker or for a batch to fill. Requests near p95 show what makes the slowest answers slow ({drawn}; means "
    "over requests and seeds).",
    {"All requests": parts, "Requests near p95": partial(parts, prefix="tail_")},
    words=drawn,
    columns=2,
)

# Thresholds over time


def adapting(served: Served) -> list[tuple[Series, pd.DataFrame]]:
    """The series in detail whose thresholds move, with their trials."""
    return [(series, trials) for series, trials in served.detailed if series.threshold in ONLINE]


def over_time(binned: Sequence[tuple[Series, pd.DataFrame, pd.DataFrame]], column: str) -> go.Figure:
    """Median threshold, offloaded share or p95 in equal stretches of time; dotted is what a rule is to hold."""
    unit, unit_s = display.time_unit(max(stretches["p95_s"].max() for _, _, stretches in binned))
    time, time_s = display.time_unit(max(stretches.index.max() for _, _, stretches in binned))
    titles = {"threshold": "entropy (nats)", "offloaded": "offloaded (%)", "p95_s": f"latency ({unit})"}
    title, size = titles[column], {"offloaded": 0.01, "p95_s": unit_s}.get(column, 1.0)
    figure = figures.canvas(TIME_HEIGHT_PX)
    for series, trials, stretches in binned:
        hover = f"{title}: %{{y:.3~g}} at %{{x:.3~g}} {time}<extra></extra>"
        x, y = stretches.index / time_s, stretches[column] / size
        figures.lines(figure, series, x, y, hover, mode="lines", width=2)
        if column == ("offloaded" if series.threshold == "offload_rate" else "p95_s"):
            figures.level(figure, trials["threshold_value"].iloc[0] / size, series.colour)
    return figure.update_yaxes(title=title, rangemode="tozero").update_xaxes(title=f"simulated time ({time})")


def _by_time(served: Served, trial: pd.DataFrame) -> pd.DataFrame:
    """Sum up the requests of one trial in each stretch of time, by the middle of the stretch in seconds."""
    columns = ["arrived_s", "ended_s", "offloaded", "threshold"]
    requests = served.requests(trial.assign(warm_up=0.0), columns)
    stretches = min(max(len(requests) // REQUESTS_PER_STRETCH, 2), MAX_STRETCHES)
    edges_s = np.linspace(0, requests["arrived_s"].max(), stretches + 1)
    place = np.searchsorted(edges_s[1:-1], requests["arrived_s"])
    there = requests.assign(latency_s=requests["ended_s"] - requests["arrived_s"]).groupby(place)
    found = there.agg(threshold=("threshold", "median"), offloaded=("offloaded", "mean"))
    found["p95_s"] = there["latency_s"].quantile(0.95)
    return found.set_axis(((edges_s[:-1] + edges_s[1:]) / 2)[found.index])


def rule_panels(served: Served) -> list[Panel]:
    """List the panel on thresholds that move, if there are any."""
    binned = [(series, trials, _by_time(served, trials.head(1))) for series, trials in adapting(served)]
    caption = (
        "These rules need no labels. After each request a client moves its threshold, to keep a share of offloaded "
        f"requests or a latency (dotted). Requests of the warm-up are included ({served.drawn}; first seed)."
    )
    headings = {"Median threshold": "threshold", "Offload probability": "offloaded", "p95": "p95_s"}
    drawings = [(heading, partial(over_time, binned, column)) for heading, column in headings.items()]
    return [Panel("Thresholds over time", caption, drawings, columns=3)] if binned else []


# Under load


def load_panels(served: Served) -> list[Panel]:
    """Latency, and what follows the load, against the rate, if several were tried."""
    if not served.is_sweep:
        return []
    seeds = figures.over_seeds(served.trials["seed"].nunique()).replace("bands", "error bars")
    caption = (
        "The rate is that of all clients together. Hollow marks: the system is saturated, and latencies grow with the "
        "length of the run. A bar ends at the highest rate without saturation, and its pale end at the lowest rate "
        f"with it ({seeds})."
    )
    drawings: list[Drawing] = [("p95, and the rate at which each variant is saturated", partial(p95, served))]
    if served.trials["latency_eq12"].notna().all():
        drawings.append(("Simulated mean latency over Eq. (12)", partial(eq12, served)))
        caption += (
            " HARMONY's Eq. (12) has no queues. A value of 1 means that the simulated latency is as it predicts, in a "
            "unit that fits the middle of all variants at their lowest rates."
        )
    if any(series.threshold in ONLINE for series in served.series):  # else the load does not matter to them
        drawings.append(("Offload probability", partial(share, served, "offload_probability", "offloaded (%)")))
        if served.knows_accuracy:
            drawings.append(("Accuracy", partial(share, served, "accuracy", "accuracy (%)")))
    return [Panel("Under load", caption, drawings, columns=2)]


def p95(served: Served) -> go.Figure:
    """p95 against the rate; below it a bar for each series as far as it keeps up, pale where it may no longer."""
    strip_px = _strip_px(served)
    grid = {"shared_xaxes": True, "vertical_spacing": 0.02, "row_heights": [LOAD_HEIGHT_PX, strip_px]}
    figure = figures.canvas(LOAD_HEIGHT_PX + strip_px, rows=2, **grid)
    unit, unit_s = display.time_unit(served.trials["p95_s"].median())
    for row, (series, trials) in enumerate(served.swept):
        _add_line(figure, series, trials.assign(p95=trials["p95_s"] / unit_s), "p95", unit, row=1, col=1)
        # Where it is saturated, or else may be.
        lowest, highest = float(trials["rate_per_s"].min()), float(trials["rate_per_s"].max())
        last = float(trials.loc[trials["falls_behind"] == 0, "rate_per_s"].max())
        kept_up, behind = saturation(trials) or (last, highest)
        for ends, opacity in (((lowest, kept_up), 1.0), ((max(lowest, kept_up), behind), PALE)):
            if ends[0] <= ends[1]:
                figures.lines(
                    figure, series, ends, [row, row], "", mode="lines+markers", opacity=opacity, showlegend=False,
                    hoverinfo="skip", dash="solid", width=6, marker={"color": series.colour, "size": 6}, row=2, col=1,
                )  # fmt: skip
    latencies = served.trials["p95_s"] / unit_s
    figure.update_yaxes(wide_axis(latencies.min(), latencies.max()), title=f"p95 of the latency ({unit})", row=1)
    figure.update_yaxes(range=[len(served.swept) - 0.3, -0.7], showticklabels=False, showgrid=False, row=2)
    return figure.update_xaxes(_rate_axis(served)).update_xaxes(title="requests per second", row=2)


def _strip_px(served: Served) -> int:
    return 12 + STRIP_ROW_PX * len(served.swept)


def eq12(served: Served) -> go.Figure:
    """Simulated mean latency over Eq. (12), whose unit makes the middle of all series at their lowest rates 1."""
    of = [(series, own.assign(ratio=own["latency_s"] / own["latency_eq12"])) for series, own in served.swept]
    unit = np.median([own.loc[own["rate_per_s"] == own["rate_per_s"].min(), "ratio"].median() for _, own in of])
    figure = figures.canvas(LOAD_HEIGHT_PX + _strip_px(served))
    for series, own in of:
        _add_line(figure, series, own.assign(ratio=own["ratio"] / unit), "ratio", "times Eq. (12)")
    figures.level(figure, 1)
    ends = min(own["ratio"].min() for _, own in of) / unit, max(own["ratio"].max() for _, own in of) / unit
    figure.update_yaxes(wide_axis(*ends), title="mean latency / Eq. (12)")
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def share(served: Served, column: str, title: str) -> go.Figure:
    """A share of the requests, in percent, against the rate."""
    figure = figures.canvas(LOAD_HEIGHT_PX)
    for series, trials in served.swept:
        _add_line(figure, series, trials.assign(share=100 * trials[column]), "share", "%", ".1f")
    figure.update_yaxes(title=title)
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def _add_line(
    figure: go.Figure, series: Series, trials: pd.DataFrame, column: str, unit: str, form: str = ".3~g", **place: int
) -> None:
    """A line of medians over seeds with their spread; marks are hollow where the fleet falls behind."""
    curve = display.over_seeds(trials, "rate_per_s", [column])
    share = trials.groupby("rate_per_s")["falls_behind"].mean()
    behind = share >= 0.5
    ends = {"width": 0, "thickness": 1.2, "visible": len(trials) > len(curve)}
    above, below = ((curve[f"{column}_{end}"] - curve[column]).abs().to_numpy() for end in ("high", "low"))
    edge = {"color": series.colour, "width": 1.6}
    figures.lines(
        figure, series, curve.index, curve[column], f"%{{y:{form}}} {unit} at %{{x:.4~g}}/s%{{text}}",
        marker={"color": np.where(behind, "#FFFFFF", series.colour), "symbol": series.symbol, "size": 8, "line": edge},
        error_y={"array": above, "arrayminus": below, **ends}, mode="lines+markers",
        text=np.select([behind, share.isna()], [", saturated", ", too few requests to tell"], ""), **place,
    )  # fmt: skip


def _rate_axis(served: Served) -> dict[str, object]:
    rates = sorted(set(served.trials["rate_per_s"]))
    return value_axis(rates, [f"{rate:,.4g}" for rate in rates])


# What accuracy costs

RULES = {
    "fixed": ("fixed threshold (nats)", "circle"),
    "oracle": ("oracle", "star"),
    "offload_rate": ("target offload rate", "triangle-up"),
    "latency_budget": ("latency budget", "triangle-down"),
}
"""Name and mark of each kind of threshold."""


def accuracy_panels(served: Served) -> list[Panel]:
    """Accuracy against latency over a few thresholds, and against offloading if the answers were kept."""
    drawings: list[Drawing] = []
    caption = (
        "A higher threshold keeps more requests on the device, where answers are quick, but only as accurate as the "
        "device's exit. The oracle knows the labels: it is an upper bound."
    )
    if len(choices(served)) >= MIN_CHOICES:
        drawings.append((f"Served requests at {served.shown_rate}", partial(by_latency, served)))
    answers = served.answers()
    if answers is not None:
        drawings.append(("Whole test sets, whatever the load", partial(by_offload, served, answers)))
        caption += (
            " The figures of whole test sets use one threshold for all clients; they show means over clients and seeds."
        )
    return [Panel("What accuracy costs", caption, drawings, columns=len(drawings))] if drawings else []


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
    figures.front(figure, front["p95"].to_numpy(), front["accuracy"].to_numpy())
    for family, members in families(served).items():
        own = points.loc[[series.label for series in members if series.label in points.index]]
        fixed = own[own["threshold"] == "fixed"].sort_values("threshold_value")
        solid = {"mode": "lines", "dash": "solid", "width": 1.8, "hoverinfo": "skip", "showlegend": False}
        figures.lines(figure, members[0], fixed["p95"], fixed["accuracy"], "", **solid)
        figures.entry(figure, family, _mark("circle", members[0].colour))
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
            figures.entry(figure, name, _mark(symbol, style.INK))
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
