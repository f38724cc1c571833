"""Confusion matrices as tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def confusion_table(confusion: NDArray[np.int64]) -> pd.DataFrame:
    """A confusion matrix row by row, with `share` of the samples of `true_label` that are taken for `predicted_label`.

    Args:
        confusion: (L, L) numbers of samples, rows are true labels. Without samples of a label its shares are NaN.
    """
    true, predicted = np.indices(confusion.shape)
    with np.errstate(invalid="ignore"):
        share = confusion / confusion.sum(axis=1, keepdims=True)
    return pd.DataFrame({"true_label": true.ravel(), "predicted_label": predicted.ravel(), "share": share.ravel()})
