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


def headline(rounds: pd.DataFrame, labels: pd.DataFrame) -> dict[str, float | None]:
    """The accuracy figures of one run (one variant and seed) for `summary.json`.

    Args:
        rounds: its rows of rounds.parquet, in order.
        labels: its rows of labels.parquet.
    """
    found: dict[str, float | None] = dict.fromkeys(
        ["accuracy", "client_accuracy", "performance_gap", "accuracy_spread", "backward_transfer", "best_accuracy"]
    )
    if rounds.empty or rounds["accuracy"].isna().all():
        return found
    last = rounds.filter(["accuracy", "client_accuracy", "performance_gap"]).tail(LAST_ROUNDS).astype(float)
    found |= {str(column): value for column, value in last.median().dropna().items()}
    if len(last) > 1:
        found["accuracy_spread"] = float(last["accuracy"].std())
    found["backward_transfer"] = backward_transfer(label_history(labels).to_numpy())
    found["best_accuracy"] = float(rounds["accuracy"].max())
    return found


def way_to(target_accuracy: float | None, rounds: pd.DataFrame) -> dict[str, float | None]:
    """The target and what one run took to reach it, for `summary.json`; null without a target, or if no round does.

    Args:
        target_accuracy: in [0, 1].
        rounds: the run's rows of rounds.parquet, in order.
    """
    found: dict[str, float | None] = dict.fromkeys(["rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"])
    if target_accuracy is not None and (reached := rounds["accuracy"].astype(float) >= target_accuracy).any():
        until = rounds[: reached.to_numpy().argmax() + 1]
        found["rounds_to_accuracy"] = int(until["round"].iloc[-1])
        found["time_to_accuracy_s"] = float(until["ended_s"].iloc[-1])
        found["bytes_to_accuracy"] = int(until["bytes_up"].sum() + until["bytes_down"].sum())
    return {"target_accuracy": target_accuracy, **found}
