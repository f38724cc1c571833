"""Evaluation of the global model: in eval mode, in large batches, without use of random streams."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.goals import Goal
from sfl_sim.models.losses import counted
from sfl_sim.training.alternatives import Alternatives, Model, replicas_by_name
from sfl_sim.training.codecs import Codec

BATCH = 1000


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        goal: what was predicted.
        loss: mean loss.
        hits: (N,), True for test samples that were answered correctly; of token targets the share of the tokens.
        correct, samples: (L,), number of correct answers and of test samples by label; of token targets those of
            tokens, by the samples' labels. All three are empty where answers are not right or wrong.
        confidence: (N,) what the answer to each test sample has of all probability; None of other goals.
        margins: (N,) by how much the second of two labels is preferred to the first; None of other numbers of labels.
        outputs, targets: (N, ...), if they were wanted, or nothing else measures the goal.
        confusion: (L, S), numbers of samples or pixels by true label (row) and answer (column); None of other goals. S
            is L, or larger where answers are tokens of a vocabulary that begins with the labels.
    """

    goal: Goal
    loss: float
    hits: NDArray[np.bool_] | NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    correct: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    samples: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    confidence: NDArray[np.float64] | None = None
    margins: NDArray[np.float64] | None = None
    outputs: Tensor | None = None
    targets: Tensor | None = None
    confusion: NDArray[np.int64] | None = None

    @property
    def perplexity(self) -> float | None:
        """exp of the mean cross-entropy of tokens; None for other goals, and where it is larger than any number."""
        return math.exp(self.loss) if self.goal is Goal.TOKENS and not self.loss > 700 else None

    @property
    def accuracy(self) -> float | None:
        """Share of correct answers; None where answers are not right or wrong."""
        return float(self.correct.sum() / self.samples.sum()) if len(self.samples) else None

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
    keeps_outputs: bool = False,
    coded: CodedAt | None = None,
    targets: Callable[[Tensor, Tensor], Tensor] = lambda x, y: y,
    goal: Goal = Goal.LABEL,
) -> Evaluation:
    """Evaluate the parts of `model`, one after another, on test samples x (N, ...) with labels, or what `goal` has, y.

    Nothing is changed: no gradient, no batch-norm update, no random number. A GPU is awaited once, at the end.

    Args:
        n_labels: number of labels, of a sample or a pixel; not used of other goals.
        prepare: makes samples the input of the model.
        targets: makes samples and their y what the model has to predict, as `goal` describes it.
    """
    keeps_outputs |= goal in (Goal.LABEL_SET, Goal.NUMBERS)
    size = max(1, BATCH // targets(x[:1], y[:1]).numel()) if goal is Goal.TOKENS else BATCH
    sums, counts, answers, kept, sure, margins = [], [], [], [], [], []
    table = torch.zeros(n_labels**2, dtype=torch.int64, device=x.device)
    with torch.inference_mode():
        for out, target, total in _batches(model, x, y, size, prepare, coded, targets):
            is_counted = counted(target)
            sums.append(total)
            counts.append(is_counted.view(len(target), -1).sum(dim=1))
            kept += [(out, target)] if keeps_outputs else []
            if goal is Goal.LABEL:
                answers.append(out.argmax(dim=1))
                sure.append(out.double().softmax(dim=1).amax(dim=1))
                margins.append(out[:, 1] - out[:, 0] if out.shape[1] == 2 else out[:0, 0])
            elif goal is Goal.TOKENS:
                answers.append((out.argmax(dim=-1) == target).sum(dim=1))
            elif goal is Goal.PIXELS:
                pairs = target[is_counted].long() * n_labels + out.argmax(dim=1)[is_counted]
                table += torch.bincount(pairs, minlength=n_labels**2)
        n_counted = torch.cat(counts).cpu().numpy()
        loss = float(torch.stack(sums).sum() / int(n_counted.sum()))
    outputs, wanted = (torch.cat(parts) for parts in zip(*kept, strict=True)) if kept else (None, None)
    if goal is Goal.TOKENS:
        right, labels = torch.cat(answers).cpu().numpy(), y.cpu().numpy()
        correct, samples = (np.bincount(labels, n, n_labels).astype(np.int64) for n in (right, n_counted))
        hits = right / np.maximum(n_counted, 1)
        return Evaluation(goal, loss, hits, correct, samples, outputs=outputs, targets=wanted)
    if goal is Goal.LABEL:
        answer, width = torch.cat(answers), max(n_labels, out.shape[-1])
        table = torch.bincount(y * width + answer, minlength=n_labels * width)
        confusion = table.view(n_labels, width).cpu().numpy()
        hits, samples = (answer == y).cpu().numpy(), np.asarray(confusion.sum(axis=1))
        confidence, margin = (torch.cat(parts).double().cpu().numpy() for parts in (sure, margins))
        return Evaluation(
            goal, loss, hits, confusion.diagonal(), samples, confidence, margin if width == 2 else None,
            outputs=outputs, targets=wanted, confusion=confusion,
        )  # fmt: skip
    pixels = table.view(n_labels, n_labels).cpu().numpy() if goal is Goal.PIXELS else None
    return Evaluation(goal, loss, outputs=outputs, targets=wanted, confusion=pixels)


def losses_of(
    model: Model,
    x: Tensor,
    y: Tensor,
    prepare: Callable[[Tensor], Tensor],
    targets: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return the losses (N,) of samples x (N, ...) with targets y (N, ...).

    A loss that is not a number is 0: that of a sample with nothing to predict, and of weights that have diverged.
    """
    part, losses = next(iter(replicas_by_name(model).values())).part, []
    with torch.inference_mode():
        for out, target, _ in _batches(model, x, y, BATCH, prepare, None, targets):
            losses += [part.loss(out[i : i + 1], target[i : i + 1]) for i in range(len(out))]  # vmap does not take all
    return torch.stack(losses).nan_to_num(0.0)


def _batches(
    model: Model,
    x: Tensor,
    y: Tensor,
    size: int,
    prepare: Callable[[Tensor], Tensor],
    coded: CodedAt | None,
    targets: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield outputs, targets and the sum of the loss of so many test samples at a time."""
    part = next(iter(replicas_by_name(model).values())).part
    for start in range(0, len(x), size):
        raw, given = x[start : start + size], y[start : start + size]
        out, target = logits(model, prepare(raw), coded), targets(raw, given)
        yield out, target, part.loss(out, target, reduction="sum")


def logits(model: Model, x: Tensor, coded: CodedAt | None = None) -> Tensor:
    """Compute the logits for prepared inputs x (n, ...), of the most confident if the model has alternatives."""
    first, *others = model
    if isinstance(first, Alternatives):
        return first.most_confident(logits([replica, *others], x, coded) for replica in first.replicas.values())
    out = first.weights(x, training=False)
    if coded:
        depth, codec = coded[0] - len(first.part.skeleton), coded[1]
        coded = (depth, codec) if depth else None  # once: a part without layers may follow
        out = out if depth else codec.decode_each_alone(out)
    return logits(others, out, coded) if others else out.to(first.part.dtype)
