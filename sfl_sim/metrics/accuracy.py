"""Accuracy, forgetting and what they cost, as functions of recorded rounds (METHODS.md section 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

LAST_ROUNDS = 5
"""A run's headline figures are medians over its last rounds (METHODS.md CHOICE 8)."""


def performance_gap(accuracy: ArrayLike) -> float:
    """PG = max_k A_k - mean_l A_l of the per-label accuracies of one round (Hydra Eq. 2 as intended).

    Zero exactly if all labels are equal; lower is better. Labels without test samples are NaN and do not count.
    """
    values = np.asarray(accuracy, dtype=float)
    values = values[~np.isnan(values)]
    return float(values.max() - values.mean())


def backward_transfer(history: ArrayLike) -> float | None:
    """BW = mean_l max_{r<R} (A_l^r - A_l^R) of a (rounds, labels) history (Hydra Eq. 1); lower is better.

    Signed: negative where the last round is a label's best. None for a single round.
    """
    values = np.asarray(history, dtype=float)
    if len(values) < 2:
        return None
    values = values[:, ~np.isnan(values).any(axis=0)]
    return float((values[:-1].max(axis=0) - values[-1]).mean())


def label_history(labels: pd.DataFrame) -> pd.DataFrame:
    """One run's per-label accuracies as rounds x labels."""
    return labels.pivot(index="round", columns="label", values="accuracy").sort_index()


def paper_like(history: ArrayLike) -> tuple[float, float]:
    """Median and spread of a (rounds, seeds) history in the second reading of METHODS.md CHOICE 8.

    Per round the median over seeds; then its median and standard deviation over the last rounds. So small spreads as
    Hydra prints seem to come about: they tell how restless the median is, not how far seeds lie apart. The spread of a
    single round is NaN.
    """
    last = pd.Series(np.median(np.asarray(history, dtype=float)[-LAST_ROUNDS:], axis=1))
    return float(last.median()), float(last.std())


def headline(rounds: pd.DataFrame, labels: pd.DataFrame, target_accuracy: float | None) -> dict[str, float | None]:
    """The accuracy figures of one run (one variant and seed) for `summary.json`.

    Args:
        rounds: its rows of rounds.parquet, in order.
        labels: its rows of labels.parquet.
        target_accuracy: for the `*_to_accuracy` figures; None, or a target that no round reaches, gives null.
    """
    found: dict[str, float | None] = dict.fromkeys(
        ["accuracy", "client_accuracy", "performance_gap", "backward_transfer", "target_accuracy", "rounds_to_accuracy",
         "time_to_accuracy_s", "bytes_to_accuracy"]
    )  # fmt: skip
    found["target_accuracy"] = target_accuracy
    if rounds.empty or rounds["accuracy"].isna().all():
        return found
    last = rounds.filter(["accuracy", "client_accuracy", "performance_gap"]).tail(LAST_ROUNDS).astype(float)
    found |= {str(column): value for column, value in last.median().dropna().items()}
    found["backward_transfer"] = backward_transfer(label_history(labels).to_numpy())
    if target_accuracy is not None:
        reached = rounds[rounds["accuracy"] >= target_accuracy]
        if not reached.empty:
            first = reached.iloc[0]
            until = rounds[rounds["round"] <= first["round"]]
            found["rounds_to_accuracy"] = int(first["round"])
            found["time_to_accuracy_s"] = float(first["ended_s"])
            found["bytes_to_accuracy"] = int(until["bytes_up"].sum() + until["bytes_down"].sum())
    return found
