"""Evaluation of the global model: in eval mode, in large batches, without use of random streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.training.alternatives import Alternatives, Model, replicas_by_name
from sfl_sim.training.codecs import Codec

BATCH = 1000


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        hits: (N,), True for test samples that were answered correctly; of token targets the share of the tokens.
        correct, samples: (L,), number of correct answers and of test samples by label; of token targets those of
            tokens, by the samples' labels.
        loss: mean loss.
        logits: (N, L) or (N, T, V), if they were wanted.
        confusion: (L, S), numbers of samples by true label (row) and answer (column); None of token targets. S is L, or
            larger where answers are tokens of a vocabulary that begins with the labels.
    """

    hits: NDArray[np.bool_] | NDArray[np.float64]
    correct: NDArray[np.int64]
    samples: NDArray[np.int64]
    loss: float
    logits: Tensor | None = None
    confusion: NDArray[np.int64] | None = None

    @property
    def perplexity(self) -> float | None:
        """exp of the mean cross-entropy of tokens; None for labels, and where it is larger than any number."""
        return math.exp(self.loss) if self.confusion is None and not self.loss > 700 else None

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
        return float(np.mean([self.hits[test_set].mean() for test_set in test_sets])) if test_sets else None


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
    targets: Callable[[Tensor, Tensor], Tensor] = lambda x, y: y,
) -> Evaluation:
    """Evaluate the parts of `model`, one after another, on test samples x (N, ...) with labels y (N,).

    Nothing is changed: no gradient, no batch-norm update, no random number. A GPU is awaited once, at the end.

    Args:
        prepare: makes samples the input of the model.
        targets: makes samples and their labels what it has to predict: labels (n,) or tokens (n, T).
    """
    answers, losses, kept = [], [], []
    part = next(iter(replicas_by_name(model).values())).part
    with torch.inference_mode():
        first = targets(x[:1], y[:1])
        n_tokens, are_tokens = first.numel(), first.ndim > 1
        size = max(1, BATCH // n_tokens)
        for start in range(0, len(x), size):
            raw, labels = x[start : start + size], y[start : start + size]
            out, target = logits(model, prepare(raw), coded), targets(raw, labels)
            kept += [out] if keeps_logits else []
            answer = out.argmax(dim=-1)
            answers.append((answer == target).sum(dim=1) if are_tokens else answer)
            losses.append(part.loss(out, target, reduction="sum"))
        answer = torch.cat(answers)
        width = max(n_labels, out.shape[-1])
        confusion = None if are_tokens else torch.bincount(y * width + answer, minlength=n_labels * width)
        loss = float(torch.stack(losses).sum() / (len(x) * n_tokens))
    all_logits = torch.cat(kept) if keeps_logits else None
    if confusion is None:
        right, by_label = answer.cpu().numpy(), y.cpu().numpy()
        correct = np.bincount(by_label, right, n_labels).astype(np.int64)
        samples = np.bincount(by_label, minlength=n_labels) * n_tokens
        return Evaluation(right / n_tokens, correct, samples, loss=loss, logits=all_logits)
    hits, table = (answer == y).cpu().numpy(), confusion.view(n_labels, width).cpu().numpy()
    samples = np.asarray(table.sum(axis=1))
    return Evaluation(hits, table.diagonal(), samples, loss=loss, logits=all_logits, confusion=table)


def logits(model: Model, x: Tensor, coded: CodedAt | None = None) -> Tensor:
    """Compute the logits for prepared inputs x (n, ...), of the most confident if the model has alternatives."""
    first, *others = model
    if isinstance(first, Alternatives):
        return first.most_confident(logits([replica, *others], x, coded) for replica in first.replicas.values())
    out = first.weights(x, training=False)
    if coded:
        depth, codec = coded[0] - len(first.part.skeleton), coded[1]
        coded = (depth, codec) if depth else None  # once: a part without layers may follow
        out = out if depth else codec.alone(out)
    return logits(others, out, coded) if others else out.to(first.part.dtype)
