"""Scores of goals other than labels: of numbers, of sets of labels, and of labels of pixels (docs/howto/losses.md).

Each goal has a first score, of which more is better and 1 is perfect, as of an accuracy: it is what targets, early
stopping and pages ask for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

SCORES = ("accuracy", "r2", "mean_average_precision", "mean_iou")
"""Columns of rounds.parquet that hold the first score of a goal; a run has one of them."""
MORE_SCORES = ("mae", "rmse", "f1_macro", "f1_micro", "pixel_accuracy")
"""Columns of further scores."""


def score_of(rounds: pd.DataFrame) -> str:
    """Return the column of the first score that the rounds of a run know; accuracy if they know none."""
    known = (column for column in SCORES if column in rounds and rounds[column].notna().any())
    return next(known, SCORES[0])


def of_numbers(predicted: NDArray[Any], true: NDArray[Any]) -> dict[str, float]:
    """Score numbers (N, K), N of 2 and more, as scikit-learn does: averages over the K of them.

    What a diverged network predicts is infinitely wrong.
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    if not np.isfinite(predicted).all():
        return {"r2": -np.inf, "mae": np.inf, "rmse": np.inf}
    return {
        "r2": float(r2_score(true, predicted)),
        "mae": float(mean_absolute_error(true, predicted)),
        "rmse": float(root_mean_squared_error(true, predicted)),
    }


def of_sets(logits: NDArray[Any], sets: NDArray[Any]) -> dict[str, float]:
    """Score logits (N, L) of sets (N, L) by those labels that occur; a logit above 0 answers that a label is there.

    The mean average precision and the macro F1 are means over labels.
    """
    from sklearn.metrics import average_precision_score, f1_score

    occurs = sets.any(axis=0)
    logits, sets = np.nan_to_num(logits[:, occurs]), sets[:, occurs].astype(int)
    macro, micro = (f1_score(sets, logits > 0, average=over, zero_division=0.0) for over in ("macro", "micro"))
    precision = average_precision_score(sets, logits, average="macro")
    return {"mean_average_precision": float(precision), "f1_macro": float(macro), "f1_micro": float(micro)}


def of_pixels(confusion: NDArray[np.int64]) -> dict[str, float | None]:
    """Score a confusion matrix (L, L) of pixels: intersection over union, as a mean over labels that occur."""
    right, union = confusion.diagonal(), confusion.sum(axis=0) + confusion.sum(axis=1) - confusion.diagonal()
    occurs = confusion.sum(axis=1) > 0
    if not occurs.any():
        return {"mean_iou": None, "pixel_accuracy": None}
    return {
        "mean_iou": float((right[occurs] / union[occurs]).mean()),
        "pixel_accuracy": float(right.sum() / confusion.sum()),
    }
