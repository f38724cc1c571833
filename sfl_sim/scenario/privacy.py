"""Sections of a scenario about what the cut gives away: defences in training, and attacks that measure it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Count, NonNegative, Positive, PositiveShare, Section


class Noise(Section):
    """Noise on the tensors of a message, sample by sample. It is no proof of differential privacy."""

    clip: Positive | None = None
    """Largest Euclidean norm of a sample: longer ones are made so short before noise is added; null: all stay."""
    sigma: NonNegative = 0.0
    """Standard deviation of the normal noise on every element: in lengths of clip, or by itself without clip."""

    @model_validator(mode="after")
    def _does_something(self) -> Noise:
        if self.clip is None and not self.sigma:
            raise ScenarioError("needs clip or sigma, without which it does nothing", key="sigma", found=0.0)
        return self


class Privacy(Section):
    """Defences of what crosses the cut; none by default."""

    noise: Noise | None = None
    """Noise on what goes up to the server in a mini-batch, before its codec: a section; null: none."""
    gradient_noise: Noise | None = None
    """Noise on the gradients that come back, before their codec: a section; null: none."""
    nopeek: NonNegative = 0.0
    """Weight of NoPeek's penalty, the distance correlation between a mini-batch and its activations at the cut, in the
    loss of part-1; 0: none."""


class Leakage(Section):
    """Attacks on what crosses the cut, which measure what it gives away; they do not change training."""

    rounds: list[Count] = Field(default=[])
    """Rounds after which it is measured, besides the last one."""
    samples: Annotated[Count, Field(ge=10)] = 500
    """Number of training samples that are attacked, equally many of each client that is not auxiliary."""
    aux_share: PositiveShare = 0.1
    """Share of the training samples, those of some clients, that the attacker knows and learns from."""
    epochs: Count = 30
    """Passes of the attacker's decoder over the samples that it knows."""
    attacks: Annotated[list[Literal["inversion", "dependence", "labels"]], Field(min_length=1)] = Field(
        default=["inversion", "dependence", "labels"]
    )
    """Attacks: inversion by a trained decoder, dependence (distance correlation), labels from gradients."""
