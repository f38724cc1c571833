"""Panels on accuracy and forgetting round by round, against simulated time, rounds and bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup, escape

from sfl_sim.report import display, figures
from sfl_sim.report.figures import MAX_BANDS, MAX_NARROW_BANDS
from sfl_sim.report.panel import Panel
from sfl_sim.report.targets import BYTES, ROUNDS, TIME, Cost, accuracy, aims, target_table
from sfl_sim.scenario.given import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.targets import Aim

MAX_LINEAR = 20
"""Ratio of the largest variant's end to the least one's from which on an axis of time or bytes is logarithmic."""
TICKS_S = {
    "1 ms": 1e-3, "10 ms": 1e-2, "0.1 s": 0.1, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0,
    "6 h": 21600.0, "1 d": 86400.0, "1 week": 604800.0, "1 month": 2629746.0, "1 year": 31556952.0,
}  # fmt: skip
"""Places where it may have ticks."""
FORGETTING = (
    "The performance gap (PG) is the accuracy of the best label minus the mean over all labels. The "
    "lower it is, the less is forgotten "
)
AGAIN = (
    "Accuracy against simulated time, rounds and bytes. A variant that leads per round need not lead in "
    "time or in bytes"
)
BEFORE_EXITS = ". With early exits, this is the global model before any client has personalised it"
TARGET = (
    ". The dotted level is the target. A line comes down from it where a variant reaches it; a cross "
    "ends the curve of a variant that does not "
)


def accuracy_panels(frames: Frames) -> list[Panel]:
    """Accuracy, a panel for each target, and forgetting."""
    bands = figures.over_seeds(frames.n_seeds, len(frames.variants) <= MAX_BANDS)
    gaps = [
        ("Performance gap against simulated time", over_time(frames, frames.variants, "performance_gap")),
        ("Performance gap against rounds", over_rounds(frames, frames.variants, "performance_gap")),
    ]
    return [
        *(_accuracy(frames, aim) for aim in aims(frames)),
        Panel("Forgetting", f"{FORGETTING}({bands}).", gaps, columns=2),
    ]


def perplexity_panels(frames: Frames) -> list[Panel]:
    """The panel on perplexity, where a variant has predicted the next token at every position; none without."""
    if not frames.has_perplexity:
        return []
    bands = figures.over_seeds(frames.n_seeds, len(frames.variants) <= MAX_BANDS)
    caption = (
        "Perplexity is exp of the mean cross-entropy per token of the test set: the number of tokens among which the "
        f"model is still undecided ({bands}). Accuracy is per token, too, and the label of a sample is its owner."
    )
    return [Panel("Perplexity", caption, [("Perplexity against rounds", metric_over_rounds(frames, "perplexity"))])]


def own_metric_panels(frames: Frames) -> list[Panel]:
    """The panel on metrics of the user's own, with a figure for each that a variant has; none without them."""
    keys = dict.fromkeys(key for run in frames.runs for settings in run.settings.values() for key in settings)
    names = [key.removeprefix(METRICS) for key in keys if key.startswith(METRICS)]
    drawn = [(name, metric_over_rounds(frames, name)) for name in names if frames.rounds[name].notna().any()]
    bands = figures.over_seeds(frames.n_seeds, len(frames.variants) <= MAX_BANDS)
    caption = Markup("What <code>report.metrics</code> found after every round from the logits of the test set ({}).")
    return [Panel("Your metrics", caption.format(bands), drawn, columns=min(2, len(drawn)))] if drawn else []


def metric_over_rounds(frames: Frames, name: str) -> go.Figure:
    """Median over seeds of a metric of the user's own after each round, and its spread."""
    figure = figures.canvas(330)
    for variant in frames.variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label].dropna(subset=name)
        if rows.empty:
            continue
        curve = display.thin(display.over_seeds(rows, "round", [name]), figures.MAX_POINTS)
        if len(frames.variants) <= MAX_BANDS:
            figures.band(figure, variant, curve[f"{name}_low"], curve[f"{name}_high"], curve.index.to_series())
        figures.lines(figure, variant, curve.index, curve[name], "%{y:.4~g} in round %{x}", legendgroup=variant.label)
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title=str(escape(name)))


def _accuracy(frames: Frames, aim: Aim) -> Panel:
    drawn = [
        ("Accuracy against simulated time", accuracy_over_time(frames, aim)),
        ("Accuracy against rounds", accuracy_over_rounds(frames, aim)),
        ("Accuracy against bytes", accuracy_over_bytes(frames, aim)),
    ]
    if frames.has_client_accuracy:
        drawn.append(("Client accuracy against rounds", over_rounds(frames, aim.variants, "client_accuracy")))
    columns = 2 if len(drawn) == 4 else 3
    again = AGAIN + (BEFORE_EXITS if frames.summary["hybrid_accuracy"].notna().any() else "")
    bands = f"({figures.over_seeds(frames.n_seeds, len(aim.variants) <= MAX_NARROW_BANDS)})."
    if aim.target is None:
        return Panel("Accuracy", f"{again} {bands}", drawn, columns)
    caption = _compared(aim) + again + TARGET + bands
    return Panel(f"Time to {aim.name}", caption, drawn, columns, [target_table(aim)])


def _compared(aim: Aim) -> Markup:
    """Say where the target comes from, and with which variant the others are compared."""
    if aim.reference:
        text = Markup("The target is {} of the best accuracy of {}, the baseline of speed-ups. ")
        return text.format(accuracy(aim.share), aim.reference.html)
    if aim.baseline:
        text = Markup("The baseline of speed-ups is {}, the slowest variant that reaches the target. ")
        return text.format(aim.baseline.html)
    return Markup("")


def accuracy_over_time(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round against the median simulated time at its end, ± over seeds, and the target."""
    unit_s = display.time_unit(frames.rounds["ended_s"].max())[1]
    return _add_target(over_time(frames, aim.variants, "accuracy"), frames, aim, TIME, unit_s)


def accuracy_over_rounds(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round, ± over seeds, and the target."""
    return _add_target(over_rounds(frames, aim.variants, "accuracy"), frames, aim, ROUNDS)


def accuracy_over_bytes(frames: Frames, aim: Aim) -> go.Figure:
    """Median accuracy after each round against the median bytes that have crossed links by then, up and down."""
    unit, unit_bytes = display.data_unit(frames.rounds["bytes_moved"].max())
    figure = _curves(frames, aim.variants, "bytes_moved", unit_bytes, "accuracy")
    ends = frames.rounds.groupby("variant")["bytes_moved"].max() / unit_bytes
    if ends.max() > MAX_LINEAR * ends.min():
        figure.update_xaxes(figures.wide_axis(frames.rounds["bytes_moved"].min() / unit_bytes, ends.max()))
    return _add_target(figure, frames, aim, BYTES, unit_bytes).update_xaxes(title=f"bytes up and down ({unit})")


def over_time(frames: Frames, variants: Sequence[Variant], column: str) -> go.Figure:
    """Medians of a share after each round against the median simulated time at its end, ± over seeds."""
    unit, unit_s = display.time_unit(frames.rounds["ended_s"].max())
    figure = _curves(frames, variants, "ended_s", unit_s, column)
    ends_s = frames.rounds.groupby("variant")["ended_s"].max()
    if ends_s.max() <= MAX_LINEAR * ends_s.min():
        return figure.update_xaxes(title=f"simulated time ({unit})")
    first_s = frames.rounds["ended_s"].min()
    ticks = [(at_s / unit_s, text) for text, at_s in TICKS_S.items() if first_s <= at_s <= ends_s.max()]
    at, texts = ([tick[i] for tick in ticks[:: 1 + len(ticks) // 6]] for i in (0, 1))
    return figure.update_xaxes(type="log", title="simulated time", tickvals=at, ticktext=texts, tickangle=0)


def over_rounds(frames: Frames, variants: Sequence[Variant], column: str) -> go.Figure:
    """Medians of a share after each round, ± over seeds."""
    figure = _curves(frames, variants, "round", 1.0, column)
    return figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()))


def _curves(frames: Frames, variants: Sequence[Variant], x: str, scale: float, column: str) -> go.Figure:
    is_gap = column == "performance_gap"
    figure = figures.canvas(330)
    rounds = frames.rounds.assign(x=frames.rounds[x] / scale).dropna(subset=column)
    for variant in variants:
        rows = rounds[rounds["variant"] == variant.label]
        if rows.empty:
            continue
        hover = f"%{{y:.1f}} {'points' if is_gap else '%'} at %{{x:.4~g}}"
        with_band = len(variants) <= (MAX_BANDS if is_gap else MAX_NARROW_BANDS)  # gaps are restless
        figures.medians(figure, variant, rows, "x", column, by="round", hover=hover, with_band=with_band)
    title = "performance gap (points)" if is_gap else "accuracy (%)"
    return figure.update_xaxes(rangemode="tozero").update_yaxes(title=title, rangemode="tozero")


def _add_target(figure: go.Figure, frames: Frames, aim: Aim, cost: Cost, scale: float = 1.0) -> go.Figure:
    """A line for the target, and on each curve a mark where it is reached, or a cross at its end if it is not."""
    if aim.target is None:
        return figure
    figures.level(figure, 100 * aim.target)
    for variant in aim.variants:
        rounds = frames.rounds[frames.rounds["variant"] == variant.label].dropna(subset="accuracy")
        curve = display.over_seeds(rounds, "round", [cost.along, "accuracy"])
        needed = cost.median(aim.seeds(variant))
        reached = math.isfinite(needed)
        at = needed if reached else curve[cost.along].iloc[-1]
        height = np.interp(at, curve[cost.along], curve["accuracy"])
        if reached:  # where most seeds get there, the median of their accuracies may still be lower
            height = max(height, aim.target)
        if reached:
            down = {"dash": "dot", "width": 1.2, "hoverinfo": "skip", "showlegend": False, "name": None}
            figures.lines(figure, variant, [at / scale] * 2, [0, 100 * height], "", **down)
        cross = {"symbol": "x-thin", "line": {"color": variant.colour, "width": 2.5}}
        figures.marks(
            figure, variant, [at / scale], [100 * height], "%{customdata}<extra></extra>", showlegend=False, name=None,
            marker={} if reached else cross, customdata=[f"{variant.label}: {cost.cell(aim.seeds(variant)).text}"],
        )  # fmt: skip
    return figure
