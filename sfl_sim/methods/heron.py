"""HERON-SFL: CSE-FSL whose clients train by forward passes alone (zeroth order).

Kou et al., "Lean Clients, Full Accuracy: Hybrid Zeroth- and First-Order Split Federated Learning", 2026
(docs/methods/heron.md).
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.methods.ahead import Ahead, UploadOptions
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.models.replica import Bundle
from sfl_sim.ops import Step
from sfl_sim.training.zeroth import Directions, Dist, LossForward, ShiftedStep


class HeronOptions(UploadOptions):
    """Options of HERON-SFL: those of CSE-FSL, and of the clients' steps."""

    directions: Annotated[int, Field(ge=1)] = 1
    """Number of random directions of a step, each of which takes a forward pass (P)."""
    mu: Annotated[float, Field(gt=0)] = 1e-3
    """Length of a shift along a direction."""
    dist: Dist = "sphere"
    """Distribution of directions: uniform on a sphere, normal (`gauss`), or +1 and -1 (`sign`)."""
    estimator: Literal["one_sided", "central"] = "one_sided"
    """A slope is taken from one shift and the loss without it, or from shifts to both sides."""


class Heron(Ahead, survives=True):
    """Clients learn from their head's loss at shifted weights, without a backward pass."""

    Options = HeronOptions
    options: HeronOptions
    examples = (HeronOptions(), HeronOptions(directions=2, estimator="central", upload_every=2, upload="first"))
    neutral = None
    keeps_graphs = False
    forward = LossForward()

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.head = self.new_head(task.cut)
        self.client_model = Bundle([self.part1, self.head])
        n = self.part1.part.n_parameters + self.head.part.n_parameters
        mu = self.options.mu / math.sqrt(n)  # directions are sqrt(n) long
        self.directions = Directions(self.options.dist, self.options.directions, mu, task.seed)

    def local_step(self, c: int, batch: Batch, round: int) -> Step:
        directions = self.directions.of(c, round, batch.step)
        return ShiftedStep(self.optimiser(round, c), directions, self.options.estimator == "central")
