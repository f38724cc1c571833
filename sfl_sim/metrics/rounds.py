"""Figures of whole rounds: which one is typical, and what clients that go away and replay cost over all of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.store import places
from sfl_sim.system.presence import Presence

TRIAL = ["variant", "seed"]
MAX_VARIANTS = 21
"""Number of variants, the first ones, whose durations decide which round is typical."""


def typical_round(rounds: pd.DataFrame) -> int:
    """Choose the round to show in detail: of the middle half, the nearest to the median durations of first seeds.

    Args:
        rounds: columns variant, seed, round, started_s, ended_s.
    """
    rounds = rounds[rounds["variant"].isin(rounds["variant"].unique()[:MAX_VARIANTS])]
    rounds = rounds[rounds["seed"] == rounds.groupby("variant")["seed"].transform("min")]
    duration_s = rounds.assign(duration_s=rounds["ended_s"] - rounds["started_s"]).pivot(
        index="round", columns="variant", values="duration_s"
    )
    off_median = (duration_s.dropna() / duration_s.median() - 1).abs().sum(axis="columns")
    quarter = len(off_median) // 4
    middle = off_median.iloc[quarter : len(off_median) - quarter]
    return int(middle.index[int(middle.argmin())])


def absence_costs(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sum up what clients that go away cost each run; a row per run in which they may.

    Returns:
        variant, seed; means over rounds: round_s, present, lost; sums: idle_s (no client was available between
        rounds), lost_device_s, lost_bytes; lost_share of all participants, byte_share of all bytes.
    """
    rounds = rounds.dropna(subset="present")
    before_s = rounds.groupby(TRIAL)["ended_s"].shift(fill_value=0.0)
    total, mean = _over_rounds(rounds.assign(idle_s=rounds["started_s"] - before_s))
    costs = pd.concat([total[["idle_s", "lost_device_s", "lost_bytes"]], mean[["round_s", "present", "lost"]]], axis=1)
    return costs.assign(
        lost_share=total["lost"] / total["participants"],
        byte_share=total["lost_bytes"] / total["all_bytes"],
    ).reset_index()


def replay_costs(rounds: pd.DataFrame) -> pd.DataFrame:
    """Sum up what replay costs each run of a variant that replays.

    Returns:
        variant, seed; sums: replay_bytes, replay_requested; byte_share of all bytes; means over rounds: waiting_s (of
        the average participant for assistants), passed_over (assistants that were late); waiting_share of the time of
        all rounds, came (share of the samples that arrived).
    """
    total, mean = _over_rounds(rounds[rounds.groupby("variant")["replay_requested"].transform("sum") > 0])
    return (
        total[["replay_bytes", "replay_requested"]]
        .assign(
            byte_share=total["replay_bytes"] / total["all_bytes"],
            waiting_s=mean["assistants_s"],
            waiting_share=total["assistants_s"] / total["round_s"],
            came=total["replay_collected"] / total["replay_requested"],
            passed_over=mean["replay_late"],
        )
        .reset_index()
    )


def _over_rounds(rounds: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return sums and means over the rounds of each run, also of their length `round_s` and of `all_bytes`."""
    runs = rounds.assign(
        round_s=rounds["ended_s"] - rounds["started_s"], all_bytes=rounds["bytes_up"] + rounds["bytes_down"]
    ).groupby(TRIAL)
    return runs.sum(numeric_only=True), runs.mean(numeric_only=True)


class Spent(NamedTuple):
    """Seconds of devices, seconds of links and bytes."""

    device_s: float
    link_s: float
    bytes: int


def spent_by(rows: NDArray[np.void], lost: Mapping[int, float], presence: Sequence[Presence] | None = None) -> Spent:
    """Sum what the clients that a round has `lost` had spent on it until then.

    All of it is wasted, except what a part-2 that clients share has learned from them, and updates that a client of an
    asynchronous method had delivered earlier in the round.

    Args:
        rows: the round's operations (`OP_DTYPE`).
        lost: clients that dropped out -> the last instant at which they did.
        presence: when each client is present, since nothing is spent while it is away; None if always.
    """
    rows = rows[np.isin(rows["client"], list(lost))]
    rows = rows[rows["started_s"] <= [lost[client] for client in rows["client"].tolist()]]
    device, link = (rows[places.at(rows["node"], *which)] for which in ([places.DEVICE], places.LINKS))
    return Spent(_seconds(device, presence), _seconds(link, presence), int(link["bytes"].sum()))


def _seconds(rows: NDArray[np.void], presence: Sequence[Presence] | None) -> float:
    if presence is None:
        return float((rows["ended_s"] - rows["started_s"]).sum())
    times = zip(rows["client"].tolist(), rows["started_s"].tolist(), rows["ended_s"].tolist(), strict=True)
    return float(sum(presence[c].seconds_by(to_s) - presence[c].seconds_by(from_s) for c, from_s, to_s in times))
