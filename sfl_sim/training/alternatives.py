"""Part of a model with several replicas: for each sample, the most confident one answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfl_sim.models.replica import Replica


@dataclass(frozen=True)
class Alternatives:
    """Replicas of one part by name; each is run, followed by all later parts.

    The confidence of an answer is its largest logit (docs/methods/splitfed.md#splitfedv3, #multi-head).
    """

    replicas: Mapping[str, Replica]

    @classmethod
    def of_clients(cls, replicas: Mapping[int, Replica], initial: Replica) -> Alternatives:
        """Make alternatives of the clients' replicas; of the initial one as long as there is none."""
        named = {f"client{c}": replicas[c] for c in sorted(replicas)}
        return cls(named or {"initial": initial})

    def snapshot(self) -> Alternatives:
        """Copy all replicas."""
        return Alternatives({name: replica.snapshot() for name, replica in self.replicas.items()})

    def most_confident(self, answers: Iterable[Tensor]) -> Tensor:
        """Choose from the replicas' logits (n, L) those of the most confident replica for each sample; ties: the first.

        Of logits (n, T, V) it chooses for each token. Holds one answer at a time beside the best so far.
        """
        answers = iter(answers)
        best = next(answers)
        confidence = _confidence(best)
        for answer in answers:
            other = _confidence(answer)
            best = torch.where((other > confidence)[..., None], answer, best)
            confidence = torch.maximum(other, confidence)
        return best


def _confidence(logits: Tensor) -> Tensor:
    largest = logits.amax(dim=-1)
    return largest.masked_fill(largest.isnan(), -math.inf)  # a replica that has diverged


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
