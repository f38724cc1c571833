"""The table of what it costs that clients go away, or are too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.report import display
from sfl_sim.report.results import Column, unranked_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from sfl_sim.report.frames import Frames, Variant

COLUMNS = [
    Column("A round takes", "round_s", display.duration),
    Column("There when it begins", "present", display.tenths),
    Column("Nobody there between rounds", "idle_s", display.duration),
    Column("Clients lost in a round", "lost", display.tenths),
    Column("of those who take part", "lost_share", display.percent),
    Column("Device time in vain", "lost_device_s", display.duration),
    Column("Bytes in vain", "lost_bytes", display.data_size),
    Column("of all bytes", "byte_share", display.percent),
]


def unreliable(frames: Frames) -> list[Variant]:
    """The variants whose clients may go away, or be too late."""
    known = frames.rounds.groupby("variant")["present"].count()
    return [variant for variant in frames.variants if known[variant.label]]


def costs(frames: Frames) -> pd.DataFrame:
    """What absence took of every run: a row per variant and seed, by the keys of `COLUMNS`."""
    rounds = frames.rounds.dropna(subset="present")
    before_s = rounds.groupby(["variant", "seed"])["ended_s"].shift(fill_value=0.0)
    rounds = rounds.assign(
        round_s=rounds["ended_s"] - rounds["started_s"],
        idle_s=rounds["started_s"] - before_s,
        all_bytes=rounds["bytes_up"] + rounds["bytes_down"],
    )
    runs = rounds.groupby(["variant", "seed"])
    total, mean = runs.sum(numeric_only=True), runs.mean(numeric_only=True)
    return (
        total[["idle_s", "lost_device_s", "lost_bytes"]]
        .assign(
            round_s=mean["round_s"],
            present=mean["present"],
            lost=mean["lost"],
            lost_share=total["lost"] / total["participants"],
            byte_share=total["lost_bytes"] / total["all_bytes"],
        )
        .reset_index()
    )


def costs_table(frames: Frames, variants: Sequence[Variant]) -> str:
    """The table as HTML: medians over seeds and their spread. None is the best: what waits loses nobody, but time."""
    return unranked_table(COLUMNS, costs(frames), variants)
