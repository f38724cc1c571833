"""Part of a model with several replicas: for each sample, the most confident one answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sfl_sim.models.replica import Replica

Confidence = Literal["logit", "softmax"]


@dataclass(frozen=True)
class Alternatives:
    """Replicas of one part by name; each is run, followed by all later parts.

    Source: docs/methods/splitfed_v3.md#algorithm and docs/methods/multihead.md#algorithm.

    Attributes:
        confidence: measure of an answer: its largest logit, or its largest probability.
    """

    replicas: Mapping[str, Replica]
    confidence: Confidence = "logit"

    def snapshot(self) -> Alternatives:
        """Copy all replicas."""
        return Alternatives({name: replica.snapshot() for name, replica in self.replicas.items()}, self.confidence)

    def most_confident(self, answers: Iterable[Tensor]) -> Tensor:
        """Choose from the replicas' logits (n, L) those of the most confident replica for each sample; ties: the first.

        Of logits (n, T, V) it chooses for each token. Holds one answer at a time beside the best so far.
        """
        answers = iter(answers)
        best = next(answers)
        sureness = self._sureness(best)
        for answer in answers:
            other = self._sureness(answer)
            best = torch.where((other > sureness)[..., None], answer, best)
            sureness = torch.maximum(other, sureness)
        return best

    def _sureness(self, logits: Tensor) -> Tensor:
        if self.confidence == "softmax":
            logits = logits.log_softmax(dim=-1)  # the same order, and sure answers do not all round to 1
        sureness = logits.amax(dim=-1)
        return sureness.masked_fill(sureness.isnan(), -math.inf)  # a replica that has diverged


Model = Sequence[Replica | Alternatives]
"""Parts that are applied one after another."""


def replicas_by_name(model: Model) -> dict[str, Replica]:
    """List all replicas of a model by name: part1, part2, ..., and part1.client3 for alternatives."""
    replicas: dict[str, Replica] = {}
    for number, part in enumerate(model, start=1):
        if isinstance(part, Alternatives):
            replicas |= {f"part{number}.{name}": replica for name, replica in part.replicas.items()}
        else:
            replicas[f"part{number}"] = part
    return replicas
