"""The page on served requests: how long answers take, where the time goes, and what accuracy costs under load."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape
from rich.console import Group

from sfl_sim.features.serve.load import ONLINE, Series, ServedFolder, load_serving, rate
from sfl_sim.metrics.choices import non_dominated
from sfl_sim.metrics.exit_metrics import at_rho, hybrid, oracle, over_clients, thresholds, trade_off
from sfl_sim.metrics.serving import PARTS, QUANTILES, Saturation, saturation
from sfl_sim.report import display, figures, style
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.figures import value_axis, wide_axis
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Compared, Sentence, best_along, lead
from sfl_sim.report.panel import Cell, Column, Declared, Drawing, Panel, Table, by_variant, columns_of, panels_of
from sfl_sim.report.terminal import in_terminal

CHANCE = 0.05
"""Share by which p95 must be less for another variant to take the lead; a smaller difference is chance."""
RATE = Column("Requests/s", "rate_per_s", "{:,.4g}".format, more_is_better=None)
NUMBERS = ("p50_s", "p95_s", "p99_s", "accuracy", "offload_probability", "throughput_per_s", "utilisation")
COLUMNS = columns_of("trials", *NUMBERS, kind="serving")
"""The best is marked among variants at one rate."""
IN_TERMINAL = {RATE.title, *(column.title for column in COLUMNS if column.key in ("p95_s", "accuracy"))}
HEIGHT_PX, TIME_HEIGHT_PX, LOAD_HEIGHT_PX, STRIP_ROW_PX = 360, 280, 300, 15
CURVE_POINTS, RAREST = 160, 1e-4
SHARES = (1, 0.5, 0.2, 0.05, 0.01, 0.001)
MAX_STRETCHES, REQUESTS_PER_STRETCH = 60, 200
PALE = 0.3
MIN_CHOICES = 3


def write_serving(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim serve` left in `folder` to the file `out` and return its path.

    Raises ScenarioError if the folder holds no served requests, or the page cannot be written.
    """
    served = load_serving(folder)
    trials = served.trials
    variants, seeds = plural(trials["variant"].nunique(), "variant"), plural(trials["seed"].nunique(), "seed")
    warm_up = ", ".join(percent(share, 0) for share in trials["warm_up"].unique())
    n_requests = plural(trials["requests"].sum(), "request")
    settings = list(served.settings.values())
    return write_page(
        out, "serving", title=served.name, kind="serving", headlines=headline(served),
        about=f"{variants}, {seeds}, {n_requests}, of which the first {warm_up} do not count",
        setup=setup_in_words(settings, served=True), warnings=warnings(served), panels=panels(served),
        results=results(served), runs=[served],
    )  # fmt: skip


def serving_in_terminal(folder: Path) -> Group:
    """Say what the page says, and tabulate latency and accuracy of every variant at every rate."""
    served = load_serving(folder)
    run = served.manifest["run"]
    table = results_table(served, served.trials, note=f"Answers of {run}." if run else "")
    return in_terminal(headline(served), table.only(IN_TERMINAL))


def panels(served: ServedFolder) -> list[Panel]:
    """List all sections that there are data for."""
    return panels_of([survival_panels, part_panels, load_panels, accuracy_panels, rule_panels], served)


def results(served: ServedFolder) -> list[Table]:
    """The table at one rate, and below it, to be opened, that of all rates and that of groups of clients."""
    tables = [results_table(served, served.at_rate)]
    if len(served.at_rate) < len(served.trials):
        tables.append(results_table(served, served.trials, "All rates"))
    if served.groups["group"].nunique() > 1:
        tables.append(groups_table(served))
    return tables


def headline(served: ServedFolder) -> list[Sentence]:
    """Say who is quick and who is right at the rate of the details, and who is the quickest at which rate."""
    names = {str(series.label): series.html for series in served.series}
    sentences = []
    for column, compared in (
        ("p95_s", Compared(f"p95 of the latency at {served.shown_rate}", "shortest", duration, learned=False)),
        ("accuracy", Compared(f"accuracy at {served.shown_rate}", "best", percent, more_is_better=True)),
    ):
        by_seed = served.at_rate.pivot_table(index="seed", columns="series", values=column, dropna=False)
        sentences += lead(compared, {str(label): by_seed[label] for label in by_seed}, names)
    # Among rates that at least one keeps up with.
    trials = pd.concat([trials for _, trials in served.swept]) if served.is_sweep else served.trials[:0]
    trials = trials[trials.groupby("rate_per_s")["falls_behind"].transform("min") != 1]
    p95_s = trials.pivot_table(index="series", columns="rate_per_s", values="p95_s", aggfunc="median").dropna(axis=1)
    if len(p95_s) < 2:
        return sentences
    rates = [escape(rate(per_s)) for per_s in p95_s.columns.to_numpy(float)]
    rows = [names[str(label)] for label in p95_s.index]
    by = "variant by median p95" if trials["seed"].nunique() > 1 else "variant by p95"
    return sentences + best_along(by, "rate", rows, rates, p95_s.to_numpy(), CHANCE)


def saturations(served: ServedFolder) -> Markup:
    """Say between which rates which variants stop keeping up; empty if nothing is known."""
    by_span: dict[Saturation | None, list[Markup]] = {}
    for series, trials in served.swept:
        at_most = trials[trials["rate_per_s"] == trials["rate_per_s"].max()]
        if (where := saturation(trials)) or at_most["falls_behind"].notna().any():
            by_span.setdefault(where, []).append(series.html)
    told = []
    for where, names in sorted(by_span.items(), key=lambda item: item[0].fell_behind_per_s if item[0] else math.inf):
        who = Markup("all variants") if 1 < len(names) == len(served.series) else Markup(", ").join(names)
        if where is None:
            span = "at no rate that was tried"
        elif where.kept_up_per_s:
            span = f"between {where.kept_up_per_s:,.4g} and {rate(where.fell_behind_per_s)}"
        else:
            span = f"even at {rate(where.fell_behind_per_s)}"
        told.append(who + f" {span}")
    return " Saturated: " + Markup("; ").join(told) + "." if told else Markup("")


def warnings(served: ServedFolder) -> list[str]:
    """Give the sentences that a reader must know before believing the rest."""
    texts = []
    if served.interrupted:
        texts.append("Serving was interrupted: what follows is what was served until then.")
    if served.trials["falls_behind"].isna().any():
        texts.append(
            "Where too few requests came, it is unknown whether the system is saturated: run longer or raise the rate."
        )
    if served.at_rate["falls_behind"].eq(1).any():
        texts.append(
            f"At {served.shown_rate} some variants are saturated: requests arrive faster than they are answered. "
            "Their latencies grow with the length of the run and say little else."
        )
    if not served.knows_accuracy:
        texts.append(
            "Timing-only. No model answered, so there is no accuracy; whether a device answered was drawn with a "
            "probability."
        )
    return texts


def results_table(served: ServedFolder, trials: pd.DataFrame, folded: str = "", note: str = "") -> Table:
    """Medians over seeds of `trials`, a row for each variant, the best marked; folded under a title if one is given."""
    rows = []
    for series in served.series:
        own = trials[trials["series"] == series.label].sort_values("rate_per_s", kind="stable")
        for _, seeds in own.groupby("variant", sort=False):
            share = seeds["falls_behind"].mean()
            behind = " · too few requests to tell" if math.isnan(share) else " · saturated" if share >= 0.5 else ""
            about = f"{seeds['method'].iloc[0]} · {plural(len(seeds), 'seed')}{behind}"
            rows.append((Cell(series.html, about), seeds))
    columns = [RATE, *(column for column in COLUMNS if trials[column.key].notna().any())]
    ranked = trials["rate_per_s"].nunique() == 1
    return by_variant(columns, rows, ranked=ranked, title=folded, note=note, folded=bool(folded))


def groups_table(served: ServedFolder) -> Table:
    """The table of groups of clients, a row for each series and group at the rate of the details."""
    groups = served.groups
    columns = [*columns_of("trials", "requests", kind="serving"), *COLUMNS[:5]]
    rows = []
    for series, trials in served.detailed:
        own = groups[groups["variant"] == trials["variant"].iloc[0]].groupby("group", sort=False)
        rows += [(Cell(series.html, str(name)), seeds) for name, seeds in own]
    columns = [column for column in columns if groups[column.key].notna().any()]
    return by_variant(columns, rows, ranked=False, title="Groups of clients", folded=True)


# How long an answer takes


def survival(served: ServedFolder) -> go.Figure:
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
    figure.update_yaxes(type="log", title="requests that take longer (%)", range=np.log10([80 * rarest, 125]).tolist())
    figure.update_yaxes(tickvals=[100 * share for share in shown], ticktext=[f"{100 * share:g}" for share in shown])
    return figure.update_xaxes(wide_axis(max(min(ends), 1e-9), max(ends)), title=f"latency ({unit})")


def parts(served: ServedFolder, prefix: str = "") -> go.Figure:
    """Mean seconds of a request by where it spends them, a stacked bar for each series; `tail_` for those near p95."""
    rows = {}
    for series, trials in served.detailed:
        means_s = trials[[f"{prefix}{part}_s" for part in PARTS]].mean().set_axis(list(PARTS))
        rows[f"{figures.on_a_phone(series)} {display.duration(means_s.sum())}"] = means_s
    return figures.bars(rows, "latency", "latency")


def drawn(served: ServedFolder) -> dict[str, str]:
    """Give the words of a caption on which of the requests are drawn."""
    return {"drawn": served.drawn}


survival_panels: Declared[ServedFolder] = Declared(
    "How long an answer takes",
    "Each curve gives the share of requests that take longer than a latency. The farther left it is, the quicker the "
    "answers; the steeper it is, the less they vary. Marks are p50, p95 and p99 ({drawn}; seeds together).",
    {"Latency of requests": survival},
    words=drawn,
)
part_panels: Declared[ServedFolder] = Declared(
    "Where the time goes",
    "Waiting for the device or a link counts as that device or link. The warm colour is waiting at the server, for a "
    "free worker or for a batch to fill. Requests near p95 show what makes the slowest answers slow ({drawn}; means "
    "over requests and seeds).",
    {"All requests": parts, "Requests near p95": partial(parts, prefix="tail_")},
    words=drawn,
    columns=2,
)

# Thresholds over time


def adapting(served: ServedFolder) -> list[tuple[Series, pd.DataFrame]]:
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


def _by_time(served: ServedFolder, trial: pd.DataFrame) -> pd.DataFrame:
    """Sum up the requests of one trial in each stretch of time, by the middle of the stretch in seconds."""
    columns = ["arrived_s", "ended_s", "offloaded", "threshold"]
    requests = served.requests(trial.assign(warm_up=0.0), columns)
    stretches = min(max(len(requests) // REQUESTS_PER_STRETCH, 2), MAX_STRETCHES)
    edges_s = np.linspace(0, requests["arrived_s"].max(), stretches + 1)
    slot = np.searchsorted(edges_s[1:-1], requests["arrived_s"])
    there = requests.assign(latency_s=requests["ended_s"] - requests["arrived_s"]).groupby(slot)
    found = there.agg(threshold=("threshold", "median"), offloaded=("offloaded", "mean"))
    found["p95_s"] = there["latency_s"].quantile(0.95)
    return found.set_axis(((edges_s[:-1] + edges_s[1:]) / 2)[found.index])


def rule_drawings(served: ServedFolder) -> list[Drawing]:
    """Figures of thresholds that move, if there are any."""
    binned = [(series, trials, _by_time(served, trials.head(1))) for series, trials in adapting(served)]
    headings = {"Median threshold": "threshold", "Offload probability": "offloaded", "p95": "p95_s"}
    return [(heading, partial(over_time, binned, column)) for heading, column in headings.items() if binned]


rule_panels: Declared[ServedFolder] = Declared(
    "Thresholds over time",
    "These rules need no labels. After each request a client moves its threshold, to keep a share of offloaded "
    "requests or a latency (dotted). Requests of the warm-up are included ({drawn}; first seed).",
    rule_drawings,
    words=drawn,
    columns=3,
)

# Under load


def load_panels(served: ServedFolder) -> list[Panel]:
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
    return [Panel("Under load", escape(caption) + saturations(served), drawings, columns=2)]


def p95(served: ServedFolder) -> go.Figure:
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


def _strip_px(served: ServedFolder) -> int:
    return 12 + STRIP_ROW_PX * len(served.swept)


def eq12(served: ServedFolder) -> go.Figure:
    """Simulated mean latency over Eq. (12), whose unit makes the middle of all series at their lowest rates 1."""
    of = [(series, own.assign(ratio=own["latency_s"] / own["latency_eq12"])) for series, own in served.swept]
    unit = np.median([own.loc[own["rate_per_s"] == own["rate_per_s"].min(), "ratio"].median() for _, own in of])
    ratios = pd.concat([own["ratio"] for _, own in of]) / unit
    figure = figures.canvas(LOAD_HEIGHT_PX + _strip_px(served))
    for series, own in of:
        _add_line(figure, series, own.assign(ratio=ratios[own.index]), "ratio", "times Eq. (12)")
    figures.level(figure, 1)
    figure.update_yaxes(wide_axis(ratios.min(), ratios.max()), title="mean latency / Eq. (12)")
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def share(served: ServedFolder, column: str, title: str) -> go.Figure:
    """A share of the requests, in percent, against the rate."""
    figure = figures.canvas(LOAD_HEIGHT_PX)
    for series, trials in served.swept:
        _add_line(figure, series, trials.assign(share=100 * trials[column]), "share", "%", ".1f")
    figure.update_yaxes(title=title)
    return figure.update_xaxes(_rate_axis(served), title="requests per second")


def _add_line(
    figure: go.Figure, series: Series, trials: pd.DataFrame, column: str, unit: str, form: str = ".3~g", **subplot: int
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
        text=np.select([behind, share.isna()], [", saturated", ", too few requests to tell"], ""), **subplot,
    )  # fmt: skip


def _rate_axis(served: ServedFolder) -> dict[str, object]:
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


def accuracy_panels(served: ServedFolder) -> list[Panel]:
    """Accuracy against latency over a few thresholds, and against offloading if the answers were kept."""
    drawings: list[Drawing] = []
    caption = (
        "A higher threshold keeps more requests on the device, where answers are quick, but only as accurate as the "
        "device's exit. The oracle knows the labels: it is an upper bound."
    )
    if len(choices(served)) >= MIN_CHOICES:
        drawings.append((f"Served requests at {served.shown_rate}", partial(by_latency, served)))
    answers = served.rows("answers")
    if len(answers):
        drawings.append(("Whole test sets, whatever the load", partial(by_offload, served, answers)))
        caption += (
            " The figures of whole test sets use one threshold for all clients; they show means over clients and seeds."
        )
    return [Panel("What accuracy costs", caption, drawings, columns=len(drawings))] if drawings else []


def families(served: ServedFolder) -> dict[str, list[Series]]:
    """The series by what was trained; the first one's colour stands for all."""
    found: dict[str, list[Series]] = {}
    for series in served.series:
        found.setdefault(series.family, []).append(series)
    return found


def choices(served: ServedFolder) -> pd.DataFrame:
    """Place each series with known accuracy at the rate of the details: medians over seeds, by series."""
    trials = served.at_rate.dropna(subset="accuracy")
    by_series = trials.groupby("series", sort=False)
    middle = by_series[["p95_s", "accuracy", "offload_probability", "threshold_value"]].median()
    best = non_dominated(middle["p95_s"], -middle["accuracy"])
    return middle.assign(threshold=by_series["threshold"].first(), best=best)


def by_latency(served: ServedFolder) -> go.Figure:
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
        wide_axis(points["p95"].min(), points["p95"].max()), title=f"p95 of the latency ({unit})"
    )


def by_offload(served: ServedFolder, answers: pd.DataFrame) -> go.Figure:
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
