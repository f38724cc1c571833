"""MergeSFL: the smashed data of all clients make up one mini-batch at the server.

Liao et al., "MergeSFL: Split Federated Learning with Feature Merging and Batch Size Regulation", ICDE 2024
(docs/methods/mergesfl.md). The released code fixes batch sizes, which an option changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Literal

import torch
from torch import Tensor

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Step, Value, Work, on, par
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Average, Backward, Renew, Train

ROUNDING = 1e-9
"""Added before a floor, so that a ratio that is whole but for rounding does not become one less."""


class MergeOptions(MethodOptions):
    """Options of MergeSFL."""

    batch_regulation: Literal["none", "time"] = "none"
    """Sizes of mini-batches: all equal, as in the released code; or smaller ones for slower clients, so that all need
    equally long for one, with learning rates in proportion (`time`), as the paper describes it."""
    steps: Literal["longest", "mean"] = "longest"
    """Number of steps of a round: as many as the client with most mini-batches has, and a client that has no more drops
    out; or as many as clients have on average, as in SMoFi's comparison."""


class MergeSFL(SplitMethod, regular=True, survives=True, tiered=True):
    """Server steps on the merged mini-batches of all clients; part-1 is averaged every round."""

    Options = MergeOptions
    options: MergeOptions
    examples = (MergeOptions(), MergeOptions(batch_regulation="time"), MergeOptions(steps="mean"))
    shares_server_model = True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.depends_on_time = self.options.batch_regulation == "time"
        self.batch_size = task.data.common("batch_size", task.method)
        if self.options.batch_regulation == "time" and task.network.needs_batches_of_two and self.data.rest == "keep":
            problem = "needs train.drop_last or full train.batches: one sample, left over, is too few for batch norm"
            raise ScenarioError(problem, key="method.batch_regulation", found="time")

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Steps that each merge a mini-batch of every client that has one; then w1 <- sum_c k_c w1_c."""
        yield on(SERVER, Renew(), self.part2)
        sizes = self.batch_sizes(clients)
        part1s = yield par({c: self.wire.fetch(self.part1, c) for c in clients})
        for step in self.todo(round, sizes):
            batches = {c: batch for c, batch in zip(clients, step, strict=True) if batch is not None and c in part1s}
            done = yield from self.step(batches, part1s, sizes, round)
            for lost in batches.keys() - done:
                del part1s[lost]
        copies = yield par({c: self.wire.deliver(part1, c, round) for c, part1 in part1s.items()})
        if self.options.batch_regulation == "none":
            yield from self.average(AGGREGATOR, self.part1, list(copies.values()), list(copies))
        elif copies:
            total = sum(sizes[c] for c in copies)
            yield on(AGGREGATOR, Average(), self.part1, list(copies.values()), [sizes[c] / total for c in copies])

    def batch_sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """b_c = b_max, or with `batch_regulation` floor(b_max * min_j t_j / t_c), with t in seconds per sample."""
        b_max = self.batch_size
        if self.options.batch_regulation == "none":
            return dict.fromkeys(clients, b_max)
        sample_s = {c: self.task.sample_s(c) for c in clients}
        fastest_s, smallest = min(sample_s.values()), 2 if self.task.network.needs_batches_of_two else 1
        return {c: max(smallest, int(b_max * fastest_s / t_c + ROUNDING)) for c, t_c in sample_s.items()}

    def todo(self, round: int, sizes: Mapping[int, int]) -> Iterator[tuple[Batch | None, ...]]:
        """The clients' mini-batches step by step; None for a client that has no more."""
        n_batches = [self.data.n_batches(c) for c in sizes]
        if self.options.steps == "mean":
            steps = self.data.mean_batches(list(sizes))
            return zip(*(self.data.steps(c, round, steps, size) for c, size in sizes.items()), strict=True)
        return islice(zip_longest(*(self.data.batches(c, round, size) for c, size in sizes.items())), max(n_batches))

    def step(
        self, batches: Mapping[int, Batch], part1s: Mapping[int, Replica], sizes: Mapping[int, int], round: int
    ) -> Flow:
        """One merged step: the server waits for all, and all wait for the server; gives the clients not lost."""
        smashed = yield par({c: self.forwards(c, part1s[c], batch, round) for c, batch in batches.items()})
        if not smashed:
            return set()
        merged = yield on(SERVER, TrainMerged(self.optimiser(round, SERVER)), self.part2, list(smashed.values()))
        own = {c: self.optimiser(round, c) for c in smashed}
        optimisers = {c: replace(own[c], lr=own[c].lr * (sizes[c] / self.batch_size)) for c in smashed}  # eta_c
        parts = dict(zip(smashed, dispatched(merged, [batches[c].samples for c in smashed]), strict=True))
        back = {c: self.wire.coded_gradient(part, smashed[c], self.part1.part, c, round) for c, part in parts.items()}
        done = yield par({c: self.backwards(c, part1s[c], gradient, optimisers[c]) for c, gradient in back.items()})
        return set(done)

    def forwards(self, c: int, part1: Replica, batch: Batch, round: int) -> Flow:
        """a_c = w1_c(x_c) goes to the server, with the labels."""
        smashed = yield on(c, self.forward, part1, batch)
        return (yield from self.wire.upload(smashed, part1.part, batch, c, round))

    def backwards(self, c: int, part1: Replica, gradients: Value, optimiser: Optimiser) -> Flow:
        """The client's rows of the gradients come back, and it steps."""
        gradients = yield from self.wire.receive(gradients, part1, c)
        yield on(c, Backward(optimiser), part1, gradients)


@dataclass(frozen=True)
class TrainMerged(Step):
    """`Train` on the smashed data of several clients as one mini-batch; gives the gradients of all, in a row."""

    optimiser: Optimiser
    name = "train"

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        """Computation for all samples in one call."""
        return Train(self.optimiser).work(part2, _merged(smashed))

    def out(self, part2: Replica, smashed: Sequence[Value]) -> Value:
        """The gradients of all samples."""
        return Train(self.optimiser).out(part2, _merged(smashed))

    def run(self, part2: Replica, smashed: Sequence[Value]) -> Tensor | None:
        """The gradient of the mean loss over all samples, evaluated before the step."""
        inputs, labels = zip(*(value.load() for value in smashed), strict=True)
        merged = _merged(smashed)
        merged.content = torch.cat(inputs), torch.cat(labels)
        return Train(self.optimiser).run(part2, merged)


def _merged(smashed: Sequence[Value]) -> Value:
    return Value("smashed", samples=sum(value.samples for value in smashed), step=smashed[0].step)


class Dispatched(Value):
    """Rows of G of one client, times sum_j b_j / b_c: the gradients of the mean loss over its own samples."""

    __slots__ = ("_rows", "_scale", "made_of")

    def __init__(self, merged: Value, first: int, samples: int) -> None:
        size_bytes = merged.size_bytes // merged.samples * samples
        super().__init__(merged.kind, size_bytes, samples, merged.step, merged.content)
        self.made_of = [merged]
        self._rows = slice(first, first + samples)
        self._scale = merged.samples / samples

    def load(self) -> Tensor | None:
        """The rows (n, ...), scaled; None if clients need no gradient, since all their layers are frozen."""
        rows: Tensor | None = self.made_of[0].load()
        return None if rows is None else rows[self._rows] * self._scale


def dispatched(merged: Value, samples: Sequence[int]) -> Iterator[Dispatched]:
    """Split merged gradients into the rows of each client, given how many samples each brought."""
    first = 0
    for n in samples:
        yield Dispatched(merged, first, n)
        first += n
