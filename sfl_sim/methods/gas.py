"""GAS: asynchronous clients, and activations that the server draws from what it has seen, so that labels are balanced.

Yang and Liu, "GAS: Generative Activation-Aided Asynchronous Split Federated Learning", AAAI 2025 (docs/methods/gas.md).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.asynchronous import Asynchronous, ClientUpdate
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import merged, rows_of
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, On, State, Step, Value, Work, on, read, send, start
from sfl_sim.rng import torch_seed
from sfl_sim.training.codecs.integers import exact
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Average, InputGradient, Renew, TrainAlone

NEVER = 1e-12
"""Added to label shares before their logarithm."""
LEAST_VARIANCE = 1e-5
"""Added to variances whenever they are updated, and when activations are drawn."""


class GasOptions(MethodOptions):
    """Options of GAS."""

    assume_start: Annotated[int, Field(ge=0)] = 1
    """Number of the server's steps before every label has been seen, in runs that do not train; others know it."""


class Gas(Asynchronous, survives=True):
    """Clients train asynchronously with one part-2, which learns from a buffer of activations that is filled up."""

    Options = GasOptions
    options: GasOptions
    neutral = None
    needs_labels = "activations are drawn label by label"
    gradients_by_row = False  # they know the client's labels beforehand

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if task.network.every_token:
            problem = f"needs one label for each sample (data.targets: last): {self.needs_labels}"
            raise ScenarioError(problem, key="method.name", found="gas")
        self.batch_size = task.data.common("batch_size", task.method)
        self.buffer: list[Value] = []
        """Smashed data on which part-2 has not been trained yet."""
        self.statistics = State("statistics")
        self.n_steps = 0
        """Number of the server's steps."""
        self.n_wanted = 0
        """Number of mini-batches that make a step: as many as clients train at a time."""

    def setup(self) -> Flow:
        yield from self.tell_labels()

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Wait for as many updates as clients train at a time; w1 <- sum_c k_c w1_c."""
        self.begin(round)
        self.n_wanted = len(clients)
        yield start(self.renew())
        updates: list[ClientUpdate] = []
        while len(updates) < len(clients):
            updates.append((yield from self.next_update(len(clients))))
        yield from self.take(updates)

    def renew(self) -> Flow:
        """Let part-2 begin the round with a new optimiser, once it is free; clients begin meanwhile."""
        yield on(SERVER, Renew(), self.parts[1])

    def take(self, updates: Sequence[ClientUpdate]) -> Flow:
        """Make the next version of part-1."""
        part1 = yield send(self.parts[0], AGGREGATOR, AGGREGATOR)
        yield self.merge(0, part1, updates)
        self.parts = [part1, self.parts[1]]
        self.version += 1

    def merge(self, i: int, part: Replica, updates: Sequence[ClientUpdate]) -> On:
        shares = self.task.shares([update.client for update in updates])
        return on(AGGREGATOR, Average(), part, [update.copies[i] for update in updates], shares)

    def train_both(self, c: int, batches: Iterable[Batch], round: int) -> Flow:
        """Train part-1 with gradients of the current part-2, which takes no step; activations join the buffer."""
        part1 = yield from self.wire.fetch(self.parts[0], c)
        for batch in batches:
            visit = self.visits[c]
            smashed = yield on(c, self.forward, part1, batch)
            smashed = yield from self.wire.upload(smashed, part1.part, batch, c, visit)
            gradient = yield on(SERVER, PriorGradient(self.prior[c]), self.parts[1], smashed)
            self.buffer.append(smashed)
            if len(self.buffer) >= self.n_wanted:
                whole, self.buffer = self.buffer, []
                yield start(self.train(whole))
            gradient = yield from self.wire.download(gradient, smashed, part1, c, visit)
            yield on(c, self.backward(round, c), part1, gradient)
        return [(yield from self.wire.deliver(part1, c, self.visits[c]))]

    def train(self, whole: Sequence[Value]) -> Flow:
        """One step of part-2 on a full buffer, and once every label has been seen, on activations drawn for it."""
        self.n_steps += 1
        number, n_labels = self.n_steps, self.task.network.n_labels
        seen = yield on(SERVER, Observe(n_labels, weight=float(number)), self.statistics, whole)
        every_label = yield read(seen)
        draws = number > self.options.assume_start if every_label is None else bool(every_label)
        size = (self.batch_size, n_labels) if draws else None
        step = TrainFilled(self.optimiser(self.round_number, SERVER), size, (self.task.seed, "gas", number))
        yield on(SERVER, step, self.parts[1], whole, self.statistics)

    @cached_property
    def prior(self) -> list[tuple[float, ...]]:
        """The logarithms of each client's label shares."""
        counts = self.task.label_counts
        shares = counts / counts.sum(axis=1, keepdims=True)
        return [tuple(row) for row in np.log(shares + NEVER).tolist()]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of part-2, of a full buffer, and of the statistics."""
        part, n_labels = self.parts[0].part, self.task.network.n_labels
        rows = len(clients) * self.batch_size + 2 * n_labels
        return self.parts[1].size_bytes + rows * part.out_numel * part.wire_dtype.itemsize

    def figures(self) -> Mapping[str, float]:
        """Staleness of the round's updates, none of which is discarded."""
        return {key: value for key, value in super().figures().items() if key != "updates_discarded"}


@dataclass(frozen=True)
class PriorGradient(InputGradient):
    """The gradient of the mean loss of answers to which the client's log shares of labels are added."""

    prior: tuple[float, ...]

    def outputs(self, answers: Tensor) -> Tensor:
        return answers + torch.tensor(self.prior, dtype=answers.dtype, device=answers.device)


@dataclass(frozen=True)
class Observe(Step):
    """Take activations into the running mean and variance of each label; gives 1 if every label has been seen, else 0.

    Attributes:
        weight: of a row.
    """

    n_labels: int
    weight: float
    name = "observe"

    def run(self, statistics: State, smashed: Sequence[Value]) -> Tensor:
        """Merge with what is there: weights (L,), means and variances (L, A)."""
        z, labels = rows_of(smashed)
        z = z.flatten(1).to(exact(z.dtype))  # sums of bfloat16 stand still after some hundred steps
        new = moments(z, one_hot(labels, self.n_labels).to(z.dtype), self.weight)
        statistics.content = new if statistics.content is None else merged_moments(statistics.content, new)
        seen: Tensor = (statistics.content[0] > 0).all().to(z.dtype)
        return seen


Moments = tuple[Tensor, Tensor, Tensor]
"""Of each label: weights (L,), means (L, A) and variances (L, A); 0 for a label that has not been seen."""


def moments(z: Tensor, is_label: Tensor, weight: float) -> Moments:
    """Return the moments of rows z (n, A), each with a `weight`, by label: `is_label` is (n, L), 1 or 0."""
    counts = is_label.sum(dim=0)
    of_label = is_label / counts.clamp(min=1)
    means = of_label.T @ z
    variances = of_label.T @ (z - is_label @ means).square()
    return weight * counts, means, variances + LEAST_VARIANCE * (counts > 0).unsqueeze(1)


def merged_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of both together, by label."""
    total = one[0] + other[0]
    share = (one[0] / total.clamp(min=1e-30)).unsqueeze(1)
    mean = share * one[1] + (1 - share) * other[1]
    spread = [variance + (mean - its_mean).square() for _, its_mean, variance in (one, other)]
    return total, mean, share * spread[0] + (1 - share) * spread[1]


@dataclass(frozen=True)
class TrainFilled(Step):
    """A step of part-2 on a buffer; where `size` is given, each label has the same number of rows.

    Of a label, the first rows are kept, and drawn ones are added from its statistics.

    Attributes:
        size: rows of each label, and number of labels; None: the buffer as it is.
        draws: seed, name and number of the random draw.
    """

    optimiser: Optimiser
    size: tuple[int, int] | None
    draws: tuple[int, str, int]
    name = "train"

    def work(self, part2: Replica, smashed: Sequence[Value], statistics: State) -> Work:
        rows = self.size[0] * self.size[1] if self.size else merged(smashed).samples
        return part2.part.work(rows, 3, gradient=False)

    def run(self, part2: Replica, smashed: Sequence[Value], statistics: State) -> None:
        z, labels = rows_of(smashed)
        if self.size:
            z, labels = self.filled(z, labels, statistics.content, *self.size)
        whole = Value("smashed", samples=len(labels))
        whole.content = z, labels
        TrainAlone(self.optimiser).run(part2, whole)

    def filled(self, z: Tensor, labels: Tensor, moments: Moments, rows: int, n_labels: int) -> tuple[Tensor, Tensor]:
        """Give as many rows of each label, first those that are there."""
        generator = torch.Generator().manual_seed(torch_seed(*self.draws))
        _, means, variances = moments
        noise = torch.randn(n_labels, rows, means.shape[1], generator=generator, dtype=means.dtype).to(z.device)
        drawn = (means.unsqueeze(1) + noise * (variances + LEAST_VARIANCE).sqrt().unsqueeze(1)).to(z.dtype)
        is_label = one_hot(labels, n_labels)
        row = (is_label.cumsum(dim=0) * is_label).sum(dim=1) - 1  # of a row among those of its label
        row = torch.where(row < rows, labels * rows + row, n_labels * rows)
        filled = torch.cat([drawn.flatten(0, 1), drawn[0, :1]]).index_copy(0, row, z.flatten(1))[:-1]
        return filled.view(-1, *z.shape[1:]), torch.arange(n_labels, device=labels.device).repeat_interleave(rows)
