"""Figures and table: how much is replayed, whether it comes, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from plotly.colors import hex_to_rgb

from sfl_sim.report import display, style
from sfl_sim.report.curves import MAX_NARROW_BANDS, add_share
from sfl_sim.report.results import Column, unranked_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

HEIGHT_PX = 280
COLUMNS = [
    Column("Bytes of replay", "replay_bytes", display.data_size),
    Column("Share of all bytes", "byte_share", display.percent),
    Column("Waiting for assistants, a round", "waiting_s", display.duration),
    Column("Share of the round", "waiting_share", display.percent),
    Column("Samples asked for", "replay_requested", display.prefixed),
    Column("of which came", "came", display.percent),
    Column("Assistants passed over, a round", "passed_over", display.tenths),
]


def replaying(frames: Frames) -> list[Variant]:
    """The variants that have asked for samples."""
    asked = frames.rounds.groupby("variant")["replay_requested"].sum()
    return [variant for variant in frames.variants if asked[variant.label] > 0]


def costs(frames: Frames, variants: Sequence[Variant]) -> pd.DataFrame:
    """What replay took of every run: a row per variant and seed, by the keys of `COLUMNS`."""
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


def costs_table(frames: Frames, variants: Sequence[Variant]) -> str:
    """The table as HTML: medians over seeds and their spread. None is the best: what costs more may learn more."""
    return unranked_table(COLUMNS, costs(frames, variants), variants)


def cost_in_words(frames: Frames, variants: Sequence[Variant]) -> str:
    """What replay costs, as a sentence with the least and the most of the variants' medians."""
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
    figure = style.canvas(HEIGHT_PX)
    for variant in variants:
        rows = rounds[rounds["variant"] == variant.label]
        hover = "%{y:.3~g} % in round %{x}"
        add_share(figure, variant, rows, "round", "round", column, hover, band=len(variants) <= MAX_NARROW_BANDS)
    figure.update_xaxes(style.round_axis(rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(rangemode="tozero")


def samples(frames: Frames, variants: Sequence[Variant]) -> go.Figure:
    """Samples that are asked for (dotted) and that come in each round, medians over seeds; shaded: the shortage."""
    figure = style.canvas(HEIGHT_PX)
    for variant in variants:
        rows = frames.rounds[frames.rounds["variant"] == variant.label]
        middle = rows.groupby("round")[["replay_requested", "replay_collected"]].median()
        asked = {"color": variant.colour, "dash": "dot", "width": 1.2}
        pale = f"rgba({', '.join(map(str, hex_to_rgb(variant.colour)))}, 0.16)"
        figure.add_scatter(
            x=middle.index.to_numpy(), y=middle["replay_requested"].to_numpy(), mode="lines", line=asked,
            showlegend=False, hovertemplate="%{y:,.0f} asked for in round %{x}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=middle.index.to_numpy(), y=middle["replay_collected"].to_numpy(), mode="lines", name=variant.label,
            line={"color": variant.colour, "dash": variant.dash, "width": 2.2}, fill="tonexty",
            fillcolor=pale,
            hovertemplate="%{y:,.0f} came in round %{x}",
        )  # fmt: skip
    figure.update_xaxes(style.round_axis(frames.rounds["round"].max()), rangemode="tozero")
    return figure.update_yaxes(title="samples in a round", rangemode="tozero")
