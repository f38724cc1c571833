"""Panels round by round: accuracy and forgetting, what they cost, and what replay and stale updates do."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.colors import hex_to_rgb

from sfl_sim.metrics.rounds import replay_costs
from sfl_sim.metrics.scores import SCORES
from sfl_sim.report import display, figures
from sfl_sim.report.figures import MAX_BANDS, MAX_NARROW_BANDS, MAX_POINTS
from sfl_sim.report.frames import Frames, ShownVariant
from sfl_sim.report.load import TABLES
from sfl_sim.report.panel import Column, Declared, Panel, by_variant, columns_of
from sfl_sim.report.results import (
    BYTES,
    ROUNDS,
    TIME,
    Aim,
    ToTarget,
    accuracy,
    aims,
    in_words,
    is_share,
    knowing,
    of_each,
    target_table,
)
from sfl_sim.scenario.given import METRICS

LOW_PX = 280
MAX_LINEAR = 20
"""Ratio of the largest variant's end to the least one's from which on an axis of time or bytes is logarithmic."""
TICKS_S = {
    "1 ms": 1e-3, "10 ms": 1e-2, "0.1 s": 0.1, "1 s": 1.0, "10 s": 10.0, "1 min": 60.0, "10 min": 600.0, "1 h": 3600.0,
    "6 h": 21600.0, "1 d": 86400.0, "1 week": 604800.0, "1 month": 2629746.0, "1 year": 31556952.0,
}  # fmt: skip
"""Places where it may have ticks."""
AGAIN = "{} against {}, rounds and bytes. A variant that leads per round need not lead in time or in bytes"
BEFORE_EXITS = ". With early exits, this is the global model before any client has personalised it"
TARGET = (
    ". The dotted level is the target. A line comes down from it where a variant reaches it; a cross "
    "ends the curve of a variant that does not "
)


def bands(most: int) -> Callable[[Frames], Mapping[str, object]]:
    """Give the words of a caption that explain lines and bands, where at most so many variants have bands."""
    return lambda frames: {"bands": figures.over_seeds(frames.n_seeds, len(frames.variants) <= most)}


def over_rounds(
    frames: Frames, y: str, title: str, hover: str, variants: Sequence[ShownVariant], **more: Any
) -> go.Figure:
    """Medians over seeds of a column after each round, and how far they spread; `more` goes to `figures.curves`."""
    figure = figures.curves(of_each(frames.rounds, variants), "round", y, hover, **more)
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title=title)


def metric(frames: Frames, name: str) -> go.Figure:
    """A number that is no share, such as a metric of the user's own."""
    hover = "%{y:.4~g} in round %{x}"
    return over_rounds(frames, name, str(escape(name)), hover, frames.variants, share=False, most_bands=MAX_BANDS)


perplexity_panels = Declared(
    "Perplexity",
    "Perplexity is exp of the mean cross-entropy per token of the test set: the number of tokens among which the model "
    "is still undecided ({bands}). Accuracy is per token, too, and the label of a sample is its owner.",
    {"Perplexity against rounds": partial(metric, name="perplexity")},
    when=lambda frames: frames.has_perplexity,
    words=bands(MAX_BANDS),
)


def own_metric_panels(frames: Frames) -> list[Panel]:
    """The panel on metrics of the user's own, with a figure for each that a variant has; none without them."""
    keys = dict.fromkeys(key for run in frames.runs for settings in run.settings.values() for key in settings)
    names = [key.removeprefix(METRICS) for key in keys if key.startswith(METRICS)]
    drawings = [(name, partial(metric, frames, name)) for name in names if frames.rounds[name].notna().any()]
    caption = Markup("What <code>report.metrics</code> found after every round from the logits of the test set ({}).")
    told = caption.format(bands(MAX_BANDS)(frames)["bands"])
    return [Panel("Your metrics", told, drawings, columns=min(2, len(drawings)))] if drawings else []


# Accuracy and forgetting


def against(frames: Frames, y: str, cost: ToTarget, variants: Sequence[ShownVariant] | None = None) -> go.Figure:
    """Medians of a score after each round, ± over seeds, against what was spent by then: time, rounds or bytes."""
    variants = frames.variants if variants is None else variants
    unit, size = _unit(frames, cost)
    is_gap, share = y == "performance_gap", y not in SCORES or is_share(y)
    hover = f"%{{y:.1f}} {'points' if is_gap else '%'} at %{{x:.4~g}}" if share else "%{y:.3f} at %{x:.4~g}"
    of = of_each(frames.rounds.assign(x=frames.rounds[cost.along] / size), variants)
    most_bands = MAX_BANDS if is_gap else MAX_NARROW_BANDS  # gaps are restless
    figure = figures.curves(of, "x", y, hover, by="round", most_bands=most_bands, share=share)
    title = "performance gap (points)" if is_gap else f"{in_words(y)}{' (%)' * share}"
    figure.update_yaxes(title=title, rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    if cost is ROUNDS:
        return figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()))
    ends = frames.rounds.groupby("variant")[cost.along].max()
    first, last, is_wide = frames.rounds[cost.along].min(), ends.max(), ends.max() > MAX_LINEAR * ends.min()
    if cost is BYTES:
        axis = figures.wide_axis(first / size, last / size) if is_wide else {}
        return figure.update_xaxes(axis, title=f"bytes up and down ({unit})")
    if not is_wide:
        return figure.update_xaxes(title=f"{frames.clock} ({unit})")
    ticks = [(at_s / size, text) for text, at_s in TICKS_S.items() if first <= at_s <= last]
    at, texts = ([tick[i] for tick in ticks[:: 1 + len(ticks) // 6]] for i in (0, 1))
    return figure.update_xaxes(type="log", title=frames.clock, tickvals=at, ticktext=texts, tickangle=0)


def _unit(frames: Frames, cost: ToTarget) -> tuple[str, float]:
    if cost is ROUNDS:
        return "", 1.0
    return (display.data_unit if cost is BYTES else display.time_unit)(frames.rounds[cost.along].max())


def accuracy_against(frames: Frames, aim: Aim, cost: ToTarget) -> go.Figure:
    """Accuracy and the target: on each curve a mark where it is reached, or a cross at its end if it is not."""
    figure = against(frames, aim.score, cost, aim.variants)
    if aim.target is None:
        return figure
    scale, (_, size) = 100 if is_share(aim.score) else 1, _unit(frames, cost)
    figures.level(figure, scale * aim.target)
    for variant, rows in of_each(frames.rounds.dropna(subset=aim.score), aim.variants):
        curve = display.over_seeds(rows, "round", [cost.along, aim.score])
        needed = cost.median(aim.seeds(variant))
        reached = math.isfinite(needed)
        at = needed if reached else curve[cost.along].iloc[-1]
        height = np.interp(at, curve[cost.along], curve[aim.score])
        if reached:
            height = max(height, aim.target)  # most seeds are there; the median of their accuracies may be lower
            down = {"dash": "dot", "width": 1.2, "hoverinfo": "skip", "showlegend": False, "name": None}
            figures.lines(figure, variant, [at / size] * 2, [0, scale * height], "", **down)
        cross = {"symbol": "x-thin", "line": {"color": variant.colour, "width": 2.5}}
        figures.marks(
            figure, variant, [at / size], [scale * height], "%{customdata}<extra></extra>", showlegend=False, name=None,
            marker={} if reached else cross, customdata=[f"{variant.label}: {cost.cell(aim.seeds(variant)).text}"],
        )  # fmt: skip
    return figure


def accuracy_panels(frames: Frames) -> list[Panel]:
    """List a panel for each target."""
    return [_accuracy(frames, aim) for aim in aims(frames)]


def _accuracy(frames: Frames, aim: Aim) -> Panel:
    title = TABLES["rounds"].columns[aim.score].title
    drawings = [
        (f"{title} against {spent}", partial(accuracy_against, frames, aim, cost))
        for spent, cost in ((frames.clock, TIME), ("rounds", ROUNDS), ("bytes", BYTES))
    ]
    if frames.has_client_accuracy:
        over = partial(against, frames, "client_accuracy", ROUNDS, aim.variants)
        drawings.append(("Client accuracy against rounds", over))
    columns = 2 if len(drawings) == 4 else 3
    again = AGAIN.format(title, frames.clock) + (
        BEFORE_EXITS if frames.summary["hybrid_accuracy"].notna().any() else ""
    )
    spread = f"({figures.over_seeds(frames.n_seeds, len(aim.variants) <= MAX_NARROW_BANDS)})."
    if aim.target is None:
        return Panel(title, f"{again} {spread}", drawings, columns)
    # Where the target comes from, and with which variant the others are compared.
    compared = Markup("")
    if aim.reference:
        text = Markup("The target is {} of the best {} of {}, the baseline of speed-ups. ")
        compared = text.format(accuracy(aim.share), in_words(aim.score), aim.reference.html)
    elif aim.baseline:
        text = Markup("The baseline of speed-ups is {}, the slowest variant of which every seed reaches the target. ")
        compared = text.format(aim.baseline.html)
    return Panel(f"Time to {aim.name}", compared + again + TARGET + spread, drawings, columns, [target_table(aim)])


def nobody_asked(frames: Frames) -> bool:
    """Return True if no variants differ in method or order, of which one would ask which of them forgets less."""
    return len({(variant.method, variant.order) for variant in frames.variants}) == 1


forgetting_panels = Declared(
    "Forgetting",
    "The performance gap (PG) is the accuracy of the best label minus the mean over all labels. The lower it is, the "
    "less is forgotten ({bands}).",
    lambda frames: [
        (f"Performance gap against {frames.clock}", partial(against, frames, "performance_gap", TIME)),
        ("Performance gap against rounds", partial(against, frames, "performance_gap", ROUNDS)),
    ],
    when=lambda frames: frames.rounds["performance_gap"].notna().any(),
    words=bands(MAX_BANDS),
    columns=2,
)


# Replay


def replaying(frames: Frames) -> list[ShownVariant]:
    """The variants that have asked for samples."""
    asked = frames.rounds.groupby("variant")["replay_requested"].sum()
    return [variant for variant in frames.variants if asked[variant.label] > 0]


def replay_words(frames: Frames) -> dict[str, str]:
    """Say in a sentence what replay costs: the least and the most of the variants' medians."""
    middle = replay_costs(frames.rounds).groupby("variant").median()

    def ranging(key: str, text: Callable[[float], str]) -> str:
        return " to ".join(dict.fromkeys([text(middle[key].min()), text(middle[key].max())]))

    costs = (
        f"Replay takes {ranging('byte_share', display.percent)} of all bytes, and mini-batches wait for assistants for "
        f"{ranging('waiting_s', display.duration)} of a round ({ranging('waiting_share', display.percent)} of it)."
    )
    return {"costs": costs, "bands": figures.over_seeds(frames.n_seeds, len(replaying(frames)) <= MAX_NARROW_BANDS)}


def replay_share(frames: Frames, y: str, title: str) -> go.Figure:
    """A share of replay in each round: of the samples of main clients, or of all bytes that cross links."""
    all_bytes = frames.rounds["bytes_up"] + frames.rounds["bytes_down"]
    known = replace(frames, rounds=frames.rounds.assign(byte_share=frames.rounds["replay_bytes"] / all_bytes))
    hover = "%{y:.3~g} % in round %{x}"
    figure = over_rounds(known, y, title, hover, replaying(frames), height_px=LOW_PX)
    return figure.update_yaxes(rangemode="tozero")


def two_lines(
    frames: Frames,
    variants: Sequence[ShownVariant],
    dotted: tuple[str, str],
    solid: tuple[str, str],
    title: str,
    shaded: bool,
) -> go.Figure:
    """Medians over seeds of two columns after each round, one of them as a thin dotted line.

    Args:
        frames, variants: what is drawn.
        dotted, solid: the column, and what is said of it on hovering.
        title: of the axis.
        shaded: whether what lies between the lines is.
    """
    figure = figures.canvas(LOW_PX)
    for variant, rows in of_each(frames.rounds, variants):
        middle = display.thin(rows.groupby("round")[[dotted[0], solid[0]]].median(), MAX_POINTS)
        both = {"mode": "lines"} if shaded else {}
        thin = both | {"dash": "dot", "width": 1.2, "showlegend": False}
        pale = f"rgba({', '.join(map(str, hex_to_rgb(variant.colour)))}, 0.16)"
        thick = both | ({"fill": "tonexty", "fillcolor": pale} if shaded else {})
        for (column, said), look in ((dotted, thin), (solid, thick)):
            hover = f"{said} in round %{{x}}{'<extra></extra>' if look is thin else ''}"
            figures.lines(figure, variant, middle.index, middle[column], hover, **look)
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title=title, rangemode="tozero")


def samples(frames: Frames) -> go.Figure:
    """Samples that are asked for (dotted) and that come in each round; shaded: the shortage."""
    asked, came = ("replay_requested", "%{y:,.0f} asked for"), ("replay_collected", "%{y:,.0f} came")
    return two_lines(frames, replaying(frames), asked, came, "samples in a round", shaded=True)


REPLAY_COLUMNS = [
    *columns_of("rounds", "replay_bytes"),
    Column("Share of all bytes", "byte_share", display.percent),
    Column("Waiting for assistants, a round", "waiting_s", display.duration),
    Column("Share of the round", "waiting_share", display.percent),
    *columns_of("rounds", "replay_requested"),
    Column("of which arrived", "came", display.percent),
    Column("Assistants passed over, a round", "passed_over", display.tenths),
]
replay_panels = Declared(
    "What replay costs",
    "{costs} Assistants are clients that do not take part themselves. They receive the model and send features of "
    "labels that are rare where it trains: as many as the proportion demands, but at least one per label. Dotted is "
    "what is asked for, and shaded the part of it that does not arrive ({bands}).",
    {
        "Proportion of replay": partial(replay_share, y="replay_proportion", title="proportion (%)"),
        "Replayed samples": samples,
        "Share of the bytes": partial(replay_share, y="byte_share", title="share of all bytes (%)"),
    },
    when=replaying,
    words=replay_words,
    columns=3,
    # What costs more may teach more: no cell is the best.
    tables=lambda frames: [
        by_variant(REPLAY_COLUMNS, of_each(replay_costs(frames.rounds), replaying(frames)), ranked=False)
    ],
)


# Staleness


def staleness(frames: Frames) -> go.Figure:
    """Versions by which each round's updates are stale: their mean, and dotted the most."""
    most, mean = ("staleness_max", "at most %{y}"), ("staleness_mean", "%{y:.3~g} on average")
    return two_lines(frames, knowing(frames, "staleness_mean"), most, mean, "versions", shaded=False)


def staleness_of_runs(frames: Frames) -> pd.DataFrame:
    """A row per variant and seed, by the keys of `STALENESS_COLUMNS`: the mean over its rounds, the most, the sum."""
    runs = frames.rounds.dropna(subset="staleness_mean").groupby(["variant", "seed"])
    by_column = {"staleness_mean": "mean", "staleness_max": "max", "updates_discarded": "sum"}
    return runs[list(by_column)].agg(by_column).reset_index()


STALENESS_COLUMNS = columns_of("rounds", "staleness_mean", "staleness_max", "updates_discarded")
staleness_panels = Declared(
    "Staleness of updates",
    "An asynchronous server does not wait for clients. While a client trains, updates of other clients change the "
    "global model. The number of these newer versions is the staleness of the client's update; the staler an update "
    "is, the less it counts. The solid line is the mean staleness of a round's updates, the dotted line the largest "
    "({lines}).",
    {"Staleness of the updates of a round": staleness},
    when=partial(knowing, column="staleness_mean"),
    words=lambda frames: {"lines": figures.over_seeds(frames.n_seeds, with_bands=False)},
    # Fresher updates are fewer, or wait: no cell is the best.
    tables=lambda frames: [
        by_variant(
            STALENESS_COLUMNS, of_each(staleness_of_runs(frames), knowing(frames, "staleness_mean")), ranked=False
        )
    ],
)


# Cuts that change


def mean_cut(frames: Frames) -> go.Figure:
    """The mean over each round's clients of the last layer that they hold."""
    hover, variants = "%{y:.2f} layers in round %{x}", knowing(frames, "cut_mean")
    figure = over_rounds(frames, "cut_mean", "layers at a client", hover, variants, share=False, height_px=LOW_PX)
    return figure.update_yaxes(rangemode="tozero")


def length_of_rounds(frames: Frames) -> go.Figure:
    """Seconds that each round takes."""
    rounds = frames.rounds
    lasted = replace(frames, rounds=rounds.assign(lasted_s=rounds["ended_s"] - rounds["started_s"]))
    variants, hover = knowing(frames, "cut_mean"), "%{y:.3~g} s in round %{x}"
    figure = over_rounds(lasted, "lasted_s", "seconds", hover, variants, share=False, height_px=LOW_PX)
    return figure.update_yaxes(rangemode="tozero")


changing_cut_panels = Declared(
    "Cuts that change",
    "Before each round the clients' cuts are drawn or chosen anew; a policy chooses by how long earlier rounds took. "
    "The file participants.parquet has the cut of each client in each round ({bands}).",
    {"Mean cut of the clients of a round": mean_cut, "Length of the round": length_of_rounds},
    when=partial(knowing, column="cut_mean"),
    words=bands(MAX_NARROW_BANDS),
    columns=2,
)
