"""Costs of absence and of replay, summed up for each run (a variant with a seed) from its rows of rounds.parquet."""

from __future__ import annotations

import pandas as pd

TRIAL = ["variant", "seed"]


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
