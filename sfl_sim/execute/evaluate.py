"""Evaluation of the global model: in eval mode, in large batches, off every training stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.models.replica import Replica

BATCH = 1000


@dataclass(frozen=True)
class Evaluation:
    """`hits`: was each test sample (N,) answered correctly; by label `correct` and `samples`; mean cross-entropy."""

    hits: NDArray[np.bool_]
    correct: NDArray[np.int64]
    samples: NDArray[np.int64]
    loss: float

    @property
    def accuracy(self) -> float:
        """Correct answers of all."""
        return float(self.correct.sum() / self.samples.sum())

    @property
    def by_label(self) -> NDArray[np.float64]:
        """Accuracy of each label; NaN for one without test samples."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / self.samples, dtype=np.float64)

    def client_accuracy(self, test_sets: Sequence[NDArray[np.int64]]) -> float | None:
        """Mean over clients of the accuracy on their own test sets, indices into the test samples; None if none."""
        return float(np.mean([self.hits[own].mean() for own in test_sets])) if test_sets else None


def evaluate(
    model: Sequence[Replica], x: Tensor, y: Tensor, n_labels: int, prepare: Callable[[Tensor], Tensor]
) -> Evaluation:
    """Apply the parts of `model` one after another to uint8 test images x (N, C, H, W) with labels y (N,).

    Reads the weights only: no gradient, no batch-norm update, no random number. One synchronisation at the end.
    """
    hits, losses = [], []
    with torch.inference_mode():
        for start in range(0, len(x), BATCH):
            out = prepare(x[start : start + BATCH])
            for part in model:
                out = part.weights(out, training=False)
            out = out.to(model[-1].part.dtype)
            target = y[start : start + BATCH]
            hits.append(out.argmax(dim=1) == target)
            losses.append(cross_entropy(out, target, reduction="sum"))
        right = torch.cat(hits)
        correct = torch.bincount(y[right], minlength=n_labels)
        samples = torch.bincount(y, minlength=n_labels)
        loss = float(torch.stack(losses).sum() / len(x))
    return Evaluation(right.cpu().numpy(), correct.cpu().numpy(), samples.cpu().numpy(), loss)
