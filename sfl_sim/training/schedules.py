"""Schedules of the learning rate by round, as `torch.optim.lr_scheduler` has them by step."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.optim import lr_scheduler

SCHEDULES: dict[str, type[lr_scheduler.LRScheduler]] = {
    "step": lr_scheduler.StepLR,
    "multi_step": lr_scheduler.MultiStepLR,
    "constant": lr_scheduler.ConstantLR,
    "linear": lr_scheduler.LinearLR,
    "exponential": lr_scheduler.ExponentialLR,
    "polynomial": lr_scheduler.PolynomialLR,
    "cosine": lr_scheduler.CosineAnnealingLR,
    "cosine_restarts": lr_scheduler.CosineAnnealingWarmRestarts,
}
"""torch's schedulers that need no metric, by name; their options are torch's arguments."""
LENGTHS = ("T_max", "total_iters")
"""Arguments that say over how many rounds a schedule goes: all of them, unless they are given."""
DEFAULTS = {"constant": {"factor": 1.0}}
"""Options by schedule that are not torch's: its constant rate is a third of the rate."""


@dataclass(frozen=True)
class Schedule:
    """Learning rate of each round, from the one that a node begins with.

    Attributes:
        rates: gives the rates of so many rounds after the warm-up, from the rate at its end.
        rounds: number of rounds.
        warmup_rounds: rounds in which the rate first grows in equal steps to its full size.
    """

    rates: Callable[[float, int], tuple[float, ...]]
    rounds: int
    warmup_rounds: int = 0

    def __call__(self, lr: float, round: int) -> float:
        """Give the rate of a round, from 1, for a node that begins with `lr`; after the last round, that of the last.

        >>> halved = Schedule(torch_rates("step", {"step_size": 2, "gamma": 0.5}), rounds=4, warmup_rounds=1)
        >>> [halved(0.4, round) for round in (1, 2, 3, 4)]
        [0.2, 0.4, 0.4, 0.2]
        """
        if round <= self.warmup_rounds:
            return lr * round / (self.warmup_rounds + 1)
        rates = self.rates(lr, max(1, self.rounds - self.warmup_rounds))
        return rates[min(round - self.warmup_rounds, len(rates)) - 1]


def torch_rates(name: str, options: Mapping[str, Any]) -> Callable[[float, int], tuple[float, ...]]:
    """Return the rates of torch's scheduler of a name; TypeError or ValueError comes from options that it refuses."""
    make, options = SCHEDULES[name], {**DEFAULTS.get(name, {}), **options}
    arguments = inspect.signature(make).parameters

    @cache  # without a limit: clients ask in turn, each with a rate of its own
    def rates(lr: float, rounds: int) -> tuple[float, ...]:
        optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
        lengths = {length: rounds for length in LENGTHS if length in arguments and length not in options}
        scheduler = make(optimiser, **lengths, **options)
        by_round = []
        for _ in range(rounds):
            by_round.append(float(optimiser.param_groups[0]["lr"]))
            optimiser.step()
            scheduler.step()
        return tuple(by_round)

    return rates


def own_rates(factor: Callable[[int], float]) -> Callable[[float, int], tuple[float, ...]]:
    """Return the rates of a user's own function, which gives the factor on the rate of each round, from 1."""
    return cache(lambda lr, rounds: tuple(lr * float(factor(round)) for round in range(1, rounds + 1)))
