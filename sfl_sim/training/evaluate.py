"""Evaluation of the global model: in eval mode, in large batches, without use of random streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from sfl_sim.training.alternatives import Alternatives, Model
from sfl_sim.training.codecs import Codec

BATCH = 1000


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        hits: (N,), True for test samples that were answered correctly.
        confusion: (L, L), numbers of samples by true label (row) and answer (column).
        loss: mean cross-entropy.
        logits: (N, L), if they were wanted.
    """

    hits: NDArray[np.bool_]
    confusion: NDArray[np.int64]
    loss: float
    logits: Tensor | None = None

    @property
    def correct(self) -> NDArray[np.int64]:
        """Number of correct answers by label, (L,)."""
        return self.confusion.diagonal()

    @property
    def samples(self) -> NDArray[np.int64]:
        """Number of test samples by label, (L,)."""
        return np.asarray(self.confusion.sum(axis=1))

    @property
    def accuracy(self) -> float:
        """Share of correct answers."""
        return float(self.correct.sum() / self.samples.sum())

    @property
    def by_label(self) -> NDArray[np.float64]:
        """Accuracies (L,) of the labels; NaN for a label without test samples."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / self.samples, dtype=np.float64)

    def client_accuracy(self, test_sets: Sequence[NDArray[np.int64]]) -> float | None:
        """Average the accuracy of clients on their own test sets, indices into the test samples; None without sets."""
        return float(np.mean([self.hits[own].mean() for own in test_sets])) if test_sets else None


CodedAt = tuple[int, Codec]
"""How many layers come before the cut, and the codec of what crosses it, each sample by itself."""


def evaluate(
    model: Model,
    x: Tensor,
    y: Tensor,
    n_labels: int,
    prepare: Callable[[Tensor], Tensor],
    keeps_logits: bool = False,
    coded: CodedAt | None = None,
) -> Evaluation:
    """Evaluate the parts of `model`, one after another, on uint8 test samples x (N, ...) with labels y (N,).

    Nothing is changed: no gradient, no batch-norm update, no random number. A GPU is awaited once, at the end.
    """
    answers, losses, kept = [], [], []
    with torch.inference_mode():
        for start in range(0, len(x), BATCH):
            out = logits(model, prepare(x[start : start + BATCH]), coded)
            target = y[start : start + BATCH]
            kept += [out] if keeps_logits else []
            answers.append(out.argmax(dim=1))
            losses.append(cross_entropy(out, target, reduction="sum"))
        answer = torch.cat(answers)
        confusion = torch.bincount(y * n_labels + answer, minlength=n_labels**2).view(n_labels, n_labels)
        loss = float(torch.stack(losses).sum() / len(x))
    hits, by_label = (answer == y).cpu().numpy(), confusion.cpu().numpy()
    return Evaluation(hits, by_label, loss, torch.cat(kept) if keeps_logits else None)


def logits(model: Model, x: Tensor, coded: CodedAt | None = None) -> Tensor:
    """Compute the logits (n, L) for prepared inputs x (n, ...), of the most confident if the model has alternatives."""
    first, *others = model
    if isinstance(first, Alternatives):
        return first.most_confident(logits([replica, *others], x, coded) for replica in first.replicas.values())
    out = first.weights(x, training=False)
    if coded:
        depth, codec = coded
        coded = depth - len(first.part.skeleton), codec
        out = out if coded[0] else codec.alone(out)
    return logits(others, out, coded) if others else out.to(first.part.dtype)
