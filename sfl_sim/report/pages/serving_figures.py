"""Panels on how long answers to requests take, where the time goes, and up to which rate a fleet keeps up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.metrics.serving import PARTS, QUANTILES, saturation
from sfl_sim.report import display, figures
from sfl_sim.report.figures import value_axis, wide_axis
from sfl_sim.report.panel import Panel
from sfl_sim.report.serving_load import ONLINE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.serving_load import Series, Served

HEIGHT_PX, TIME_HEIGHT_PX = 360, 280
CURVE_POINTS, RAREST = 160, 1e-4
SHARES = (1, 0.5, 0.2, 0.05, 0.01, 0.001)
MAX_STRETCHES, REQUESTS_PER_STRETCH = 60, 200
SURVIVAL = (
    "Each curve gives the share of requests that take longer than a latency. The farther left it is, the "
    "quicker the answers; the steeper it is, the less they vary. Marks are p50, p95 and p99 ({drawn}; "
    "seeds together)."
)
WHERE = (
    "Waiting for the device or a link counts as that device or link. The warm colour is waiting at the "
    "server, for a free worker or for a batch to fill. Requests near p95 show what makes the slowest "
    "answers slow ({drawn}; means over requests and seeds)."
)
RULES = (
    "These rules need no labels. After each request a client moves its threshold, to keep a share of "
    "offloaded requests or a latency (dotted). Requests of the warm-up are included ({drawn}; first "
    "seed)."
)
LOAD_HEIGHT_PX, STRIP_ROW_PX = 300, 15
PALE = 0.3
LOAD = (
    "The rate is that of all clients together. Hollow marks: the system is saturated, and latencies grow "
    "with the length of the run. A bar ends at the highest rate without saturation, and its pale end at "
    "the lowest rate with it ({seeds})."
)
EQ12 = (
    " HARMONY's Eq. (12) has no queues. A value of 1 means that the simulated latency is as it predicts, "
    "in a unit that fits the middle of all variants at their lowest rates."
)


def latency_panels(served: Served) -> list[Panel]:
    """List the panels on how long answers take and where the time goes."""
    where = [("All requests", parts(served)), ("Requests near p95", parts(served, "tail_"))]
    return [
        Panel(
            "How long an answer takes",
            SURVIVAL.format(drawn=served.drawn),
            [("Latency of requests", survival(served))],
        ),
        Panel("Where the time goes", WHERE.format(drawn=served.drawn), where, columns=2),
    ]


def rule_panels(served: Served) -> list[Panel]:
    """List the panel on thresholds that move, if there are any."""
    if not adapting(served):
        return []
    return [Panel("Thresholds over time", RULES.format(drawn=served.drawn), over_time(served), columns=3)]


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


def adapting(served: Served) -> list[tuple[Series, pd.DataFrame]]:
    """The series in detail whose thresholds move, with their trials."""
    return [(series, trials) for series, trials in served.detailed if series.threshold in ONLINE]


def over_time(served: Served) -> list[tuple[str, go.Figure]]:
    """Median threshold, offloaded share and p95 in equal stretches of time, first seed, each under its heading.

    Dotted is what a rule is to hold: a share, or a latency.
    """
    binned = [(series, trials, _by_time(served, trials.head(1))) for series, trials in adapting(served)]
    unit, unit_s = display.time_unit(max(own["p95_s"].max() for _, _, own in binned))
    time, time_s = display.time_unit(max(own.index.max() for _, _, own in binned))
    columns = {
        "threshold": ("Median threshold", "entropy (nats)", 1.0),
        "offloaded": ("Offload probability", "offloaded (%)", 0.01),
        "p95_s": ("p95", f"latency ({unit})", unit_s),
    }
    drawn = {column: figures.canvas(TIME_HEIGHT_PX) for column in columns}
    for series, trials, own in binned:
        for column, (_, title, size) in columns.items():
            hover = f"{title}: %{{y:.3~g}} at %{{x:.3~g}} {time}<extra></extra>"
            x, y = own.index.to_numpy() / time_s, own[column] / size
            figures.lines(drawn[column], series, x, y, hover, mode="lines", width=2)
        held = "offloaded" if series.threshold == "offload_rate" else "p95_s"
        target = trials["threshold_value"].iloc[0] / columns[held][2]
        figures.level(drawn[held], target, series.colour)
    for column, (_, title, _) in columns.items():
        drawn[column].update_yaxes(title=title, rangemode="tozero").update_xaxes(title=f"simulated time ({time})")
    return [(heading, drawn[column]) for column, (heading, _, _) in columns.items()]


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


def load_panels(served: Served) -> list[Panel]:
    """Latency, and what follows the load, against the rate, if several were tried."""
    if not served.is_sweep:
        return []
    seeds = figures.over_seeds(served.trials["seed"].nunique()).replace("bands", "error bars")
    caption, drawn = LOAD.format(seeds=seeds), [("p95, and the rate at which each variant is saturated", p95(served))]
    if served.trials["latency_eq12"].notna().all():
        drawn.append(("Simulated mean latency over Eq. (12)", eq12(served)))
        caption += EQ12
    if any(series.threshold in ONLINE for series in served.series):  # else the load does not matter to them
        drawn.append(("Offload probability", share(served, "offload_probability", "offloaded (%)")))
        if served.knows_accuracy:
            drawn.append(("Accuracy", share(served, "accuracy", "accuracy (%)")))
    return [Panel("Under load", caption, drawn, columns=2)]


def p95(served: Served) -> go.Figure:
    """p95 against the rate; below it a bar for each series as far as it keeps up, pale where it may no longer."""
    series_trials, strip_px = served.swept, _strip_px(served)
    figure = figures.canvas(
        LOAD_HEIGHT_PX + strip_px,
        rows=2,
        shared_xaxes=True,
        vertical_spacing=0.02,
        row_heights=[LOAD_HEIGHT_PX, strip_px],
    )
    unit, unit_s = display.time_unit(served.trials["p95_s"].median())
    for row, (series, trials) in enumerate(series_trials):
        _add_line(
            figure, series, trials.assign(p95=trials["p95_s"] / unit_s), "p95", f"%{{y:.3~g}} {unit}", row=1, col=1
        )
        _add_saturation(figure, series, trials, row)
    latencies = served.trials["p95_s"] / unit_s
    figure.update_yaxes(wide_axis(latencies.min(), latencies.max()), title=f"p95 of the latency ({unit})", row=1)
    figure.update_yaxes(range=[len(series_trials) - 0.3, -0.7], showticklabels=False, showgrid=False, row=2)
    return figure.update_xaxes(_rate_axis(served)).update_xaxes(title="requests per second", row=2)


def _strip_px(served: Served) -> int:
    return 12 + STRIP_ROW_PX * len(served.swept)


def eq12(served: Served) -> go.Figure:
    """Simulated mean latency over Eq. (12), whose unit makes the middle of all series at their lowest rates 1."""
    ratios = [
        (series, trials.assign(ratio=trials["latency_s"] / trials["latency_eq12"])) for series, trials in served.swept
    ]
    unit = np.median([own.loc[own["rate_per_s"] == own["rate_per_s"].min(), "ratio"].median() for _, own in ratios])
    figure = figures.canvas(LOAD_HEIGHT_PX + _strip_px(served))
    for series, own in ratios:
        _add_line(figure, series, own.assign(ratio=own["ratio"] / unit), "ratio", "%{y:.3~g} times Eq. (12)")
    figures.level(figure, 1)
    shown = [own["ratio"] / unit for _, own in ratios]
    figure.update_yaxes(
        wide_axis(min(own.min() for own in shown), max(own.max() for own in shown)), title="mean latency / Eq. (12)"
    )
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def share(served: Served, column: str, title: str) -> go.Figure:
    """A share of the requests, in percent, against the rate."""
    figure = figures.canvas(LOAD_HEIGHT_PX)
    for series, trials in served.swept:
        _add_line(figure, series, trials.assign(share=100 * trials[column]), "share", "%{y:.1f} %")
    figure.update_yaxes(title=title)
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def _add_line(figure: go.Figure, series: Series, trials: pd.DataFrame, column: str, hover: str, **place: int) -> None:
    """A line of medians over seeds with their spread; marks are hollow where the fleet falls behind."""
    curve = display.over_seeds(trials, "rate_per_s", [column])
    share = trials.groupby("rate_per_s")["falls_behind"].mean()
    behind = share >= 0.5
    ends = {"width": 0, "thickness": 1.2, "visible": len(trials) > len(curve)}
    above, below = ((curve[f"{column}_{end}"] - curve[column]).abs().to_numpy() for end in ("high", "low"))
    edge = {"color": series.colour, "width": 1.6}
    figures.lines(
        figure, series, curve.index, curve[column], f"{hover} at %{{x:.4~g}}/s%{{text}}", mode="lines+markers",
        marker={"color": np.where(behind, "#FFFFFF", series.colour), "symbol": series.symbol, "size": 8, "line": edge},
        error_y={"array": above, "arrayminus": below, **ends},
        text=np.select([behind, share.isna()], [", saturated", ", too few requests to tell"], ""),
        **place,
    )  # fmt: skip


def _add_saturation(figure: go.Figure, series: Series, trials: pd.DataFrame, row: int) -> None:
    found = saturation(trials)
    lowest, highest = float(trials["rate_per_s"].min()), float(trials["rate_per_s"].max())
    kept_up, behind = found or (float(trials.loc[trials["falls_behind"] == 0, "rate_per_s"].max()), highest)
    for ends, opacity in (((lowest, kept_up), 1.0), ((max(lowest, kept_up), behind), PALE)):
        if ends[0] <= ends[1]:
            figures.lines(
                figure, series, ends, [row, row], "", mode="lines+markers", opacity=opacity, showlegend=False,
                hoverinfo="skip", dash="solid", width=6, marker={"color": series.colour, "size": 6}, row=2, col=1,
            )  # fmt: skip


def _rate_axis(served: Served) -> dict[str, object]:
    rates = sorted(set(served.trials["rate_per_s"]))
    return value_axis(rates, [f"{rate:,.4g}" for rate in rates])
