"""Panels on what only some methods do: replay samples of other clients, or take in stale updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from plotly.colors import hex_to_rgb

from sfl_sim.report import display, figures
from sfl_sim.report.figures import MAX_NARROW_BANDS, MAX_POINTS
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import of_each
from sfl_sim.report.table import Column, by_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

HEIGHT_PX = 280
REPLAY_COLUMNS = [
    Column("Bytes of replay", "replay_bytes", display.data_size),
    Column("Share of all bytes", "byte_share", display.percent),
    Column("Waiting for assistants, a round", "waiting_s", display.duration),
    Column("Share of the round", "waiting_share", display.percent),
    Column("Samples asked for", "replay_requested", display.prefixed),
    Column("of which arrived", "came", display.percent),
    Column("Assistants passed over, a round", "passed_over", display.tenths),
]
REPLAY_CAPTION = (
    "{costs} Assistants are clients that do not take part themselves. They receive the model and send "
    "features of labels that are rare where it trains: as many as the proportion demands, but at least "
    "one per label. Dotted is what is asked for, and shaded the part of it that does not arrive "
    "({bands})."
)
STALENESS_COLUMNS = [
    Column("Mean staleness (versions)", "staleness_mean", display.tenths),
    Column("Stalest", "staleness_max", display.tenths),
    Column("Updates discarded, too stale", "updates_discarded", display.tenths),
]
STALENESS_CAPTION = (
    "An asynchronous server does not wait for clients. While a client trains, updates of other clients "
    "change the global model. The number of these newer versions is the staleness of the client's "
    "update; the staler an update is, the less it counts. The solid line is the mean staleness of a "
    "round's updates, the dotted line the largest ({lines})."
)


def replay_panels(frames: Frames) -> list[Panel]:
    """The panel on replay, if any variant replays."""
    variants = replaying(frames)
    if not variants:
        return []
    bands = figures.over_seeds(frames.n_seeds, len(variants) <= MAX_NARROW_BANDS)
    drawn = [
        ("Proportion of replay", proportion(frames, variants)),
        ("Replayed samples", samples(frames, variants)),
        ("Share of the bytes", byte_share(frames, variants)),
    ]
    caption = REPLAY_CAPTION.format(costs=cost_in_words(frames, variants), bands=bands)
    rows = of_each(costs(frames, variants), variants)
    table = by_variant(REPLAY_COLUMNS, rows, ranked=False)  # what costs more may teach more
    return [Panel("What replay costs", caption, drawn, columns=3, tables=[table])]


def replaying(frames: Frames) -> list[Variant]:
    """The variants that have asked for samples."""
    asked = frames.rounds.groupby("variant")["replay_requested"].sum()
    return [variant for variant in frames.variants if asked[variant.label] > 0]


def costs(frames: Frames, variants: Sequence[Variant]) -> pd.DataFrame:
    """Sum up what replay cost every run: a row per variant and seed, by the keys of `REPLAY_COLUMNS`."""
    rounds = frames.rounds[frames.rounds["variant"].isin([variant.label for variant in variants])]
    rounds = rounds.assign(
        length_s=rounds["ended_s"] - rounds["started_s"], all_bytes=rounds["bytes_up"] + rounds["bytes_down"]
    )
    runs = rounds.groupby(["variant", "seed"])
    total, mean = runs.sum(numeric_only=True), runs.mean(numeric_only=True)
    return (
        total[["replay_bytes", "replay_requested"]]
        .assign(
            byte_share=total["replay_bytes"] / total["all_bytes"],
            waiting_s=mean["assistants_s"],
            waiting_share=total["assistants_s"] / total["length_s"],
            came=total["replay_collected"] / total["replay_requested"],
            passed_over=mean["replay_late"],
        )
        .reset_index()
    )


def cost_in_words(frames: Frames, variants: Sequence[Variant]) -> str:
    """Say what replay costs: the least and the most of the variants' medians."""
    middle = costs(frames, variants).groupby("variant").median()

    def ranging(key: str, text: Callable[[float], str]) -> str:
        return " to ".join(dict.fromkeys([text(middle[key].min()), text(middle[key].max())]))

    return (
        f"Replay takes {ranging('byte_share', display.percent)} of all bytes, and mini-batches wait for assistants for "
        f"{ranging('waiting_s', display.duration)} of a round ({ranging('waiting_share', display.percent)} of it)."
    )


def proportion(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Samples to be replayed in each round per sample of the main clients, median ± over seeds."""
    return _shares(frames.rounds, variants, "replay_proportion").update_yaxes(title="proportion (%)")


def byte_share(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Bytes of replay in each round as a share of all bytes that cross links, median ± over seeds."""
    all_bytes = frames.rounds["bytes_up"] + frames.rounds["bytes_down"]
    rounds = frames.rounds.assign(byte_share=frames.rounds["replay_bytes"] / all_bytes)
    return _shares(rounds, variants, "byte_share").update_yaxes(title="share of all bytes (%)")


def _shares(rounds: pd.DataFrame, variants: Sequence[Variant], column: str) -> go.Figure:
    figure = figures.canvas(HEIGHT_PX)
    for variant in variants:
        rows = rounds[rounds["variant"] == variant.label]
        hover = "%{y:.3~g} % in round %{x}"
        with_band = len(variants) <= MAX_NARROW_BANDS
        figures.medians(figure, variant, rows, "round", column, hover=hover, with_band=with_band)
    figure.update_xaxes(figures.round_axis(rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(rangemode="tozero")


def samples(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Samples that are asked for (dotted) and that come in each round, medians over seeds; shaded: the shortage."""
    figure = figures.canvas(HEIGHT_PX)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        middle = rows.groupby("round")[["replay_requested", "replay_collected"]].median()
        pale = f"rgba({', '.join(map(str, hex_to_rgb(variant.colour)))}, 0.16)"
        figures.lines(
            figure, variant, middle.index, middle["replay_requested"],
            "%{y:,.0f} asked for in round %{x}<extra></extra>", dash="dot", width=1.2, mode="lines", showlegend=False,
        )  # fmt: skip
        figures.lines(
            figure, variant, middle.index, middle["replay_collected"], "%{y:,.0f} came in round %{x}",
            mode="lines", fill="tonexty", fillcolor=pale,
        )  # fmt: skip
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="samples in a round", rangemode="tozero")


def staleness_panels(frames: Frames) -> list[Panel]:
    """The panel on staleness, if a server is asynchronous."""
    variants = asynchronous(frames)
    if not variants:
        return []
    caption = STALENESS_CAPTION.format(lines=figures.over_seeds(frames.n_seeds, with_bands=False))
    drawn = [("Staleness of the updates of a round", staleness(frames, variants))]
    rows = of_each(staleness_of_runs(frames), variants)
    table = by_variant(STALENESS_COLUMNS, rows, ranked=False)  # fresher updates are fewer, or wait
    return [Panel("Staleness of updates", caption, drawn, tables=[table])]


def asynchronous(frames: Frames) -> list[Variant]:
    """The variants whose server waits for no client."""
    known = frames.rounds.groupby("variant")["staleness_mean"].count()
    return [variant for variant in frames.variants if known[variant.label]]


def staleness_of_runs(frames: Frames) -> pd.DataFrame:
    """A row per variant and seed, by the keys of `STALENESS_COLUMNS`: the mean over its rounds, the most, the sum."""
    runs = frames.rounds.dropna(subset="staleness_mean").groupby(["variant", "seed"])
    by_column = {"staleness_mean": "mean", "staleness_max": "max", "updates_discarded": "sum"}
    return runs[list(by_column)].agg(by_column).reset_index()


def staleness(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Versions by which each round's updates are stale: their mean, and dotted the most; medians over seeds."""
    figure = figures.canvas(280)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        middle = display.thin(rows.groupby("round")[["staleness_mean", "staleness_max"]].median(), MAX_POINTS)
        figures.lines(
            figure, variant, middle.index, middle["staleness_max"], "at most %{y} in round %{x}<extra></extra>",
            dash="dot", width=1.2, showlegend=False,
        )  # fmt: skip
        hover = "%{y:.3~g} on average in round %{x}"
        figures.lines(figure, variant, middle.index, middle["staleness_mean"], hover)
    figure.update_xaxes(figures.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="versions", rangemode="tozero")
