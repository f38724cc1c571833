"""MergeSFL: the smashed data of all clients make up one mini-batch at the server.

Liao et al., "MergeSFL: Split Federated Learning with Feature Merging and Batch Size Regulation", ICDE 2024 (METHODS.md
section 6). The released code fixes batch sizes and lets everybody take part; both can be had otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from scipy.special import rel_entr  # type: ignore[import-untyped]

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Value, on, par, send
from sfl_sim.rng import stream
from sfl_sim.training.merged import TrainMerged, dispatched
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Average, Backward, Renew

ROUNDING = 1e-9
"""So that the floor of a ratio that is whole is not one less."""


class MergeOptions(MethodOptions):
    """The first two as from the paper's description, which the released code leaves out (METHODS.md CHOICE 15).

    `batch_regulation`: time gives slower clients smaller batches, so that all need equally long for one, and a learning
    rate in proportion. `clients_by_kl`: of a round's clients only this share takes part, chosen so that their merged
    labels are distributed as everybody's. `steps`: a round takes as many as the longest client has mini-batches, and
    who has run out of them drops out; or as many as all have on average, for everybody (as in SMoFi's comparison).
    """

    batch_regulation: Literal["none", "time"] = "none"
    clients_by_kl: Annotated[float, Field(gt=0, le=1)] | None = None
    steps: Literal["longest", "mean"] = "longest"


class MergeSFL(SplitMethod, regular=True, survives=True):
    """One server step for the merged mini-batches of all clients; part-1 is averaged every round."""

    Options = MergeOptions
    options: MergeOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.times_chosen: Counter[int] = Counter()
        if self.options.batch_regulation == "time" and task.network.needs_batches_of_two and not self.data.drop_last:
            problem = "needs train.drop_last: the rest of a regulated batch may be one sample, too few for batch norm"
            raise ScenarioError(problem, key="method.batch_regulation", found="time")

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """So many steps that each merges a mini-batch of every client that has one; w1 <- sum_c k_c w1_c."""
        yield on(SERVER, Renew(), self.part2)
        sizes = self.batch_sizes(clients)
        part1s = yield par({c: self.download(c) for c in clients})
        for step in self.todo(round, sizes):
            batches = {c: batch for c, batch in zip(clients, step, strict=True) if batch is not None and c in part1s}
            done = yield from self.step(batches, part1s, sizes, round)
            for lost in batches.keys() - done:
                del part1s[lost]
        copies = yield par({c: self.upload(c, part1) for c, part1 in part1s.items()})
        if self.options.batch_regulation == "none":
            yield from self.average(AGGREGATOR, self.part1, list(copies.values()), list(copies))
        elif copies:
            total = sum(sizes[c] for c in copies)
            yield on(AGGREGATOR, Average(), self.part1, list(copies.values()), [sizes[c] / total for c in copies])

    def download(self, c: int) -> Flow:
        """Part-1 comes from the aggregator."""
        return (yield send(self.part1, AGGREGATOR, c))

    def upload(self, c: int, part1: Replica) -> Flow:
        """Part-1 goes to the aggregator."""
        return (yield send(part1, c, AGGREGATOR))

    def step(
        self, batches: Mapping[int, Batch], part1s: Mapping[int, Replica], sizes: Mapping[int, int], round: int
    ) -> Flow:
        """The server waits for all, and all wait for the server; gives those of them who are not lost."""
        smashed = yield par({c: self.forwards(c, part1s[c], batch) for c, batch in batches.items()})
        if not smashed:
            return set()
        merged = yield on(SERVER, TrainMerged(self.part2_optimiser(round)), self.part2, list(smashed.values()))
        usual = self.part1_optimiser(round)
        own = {c: replace(usual, lr=usual.lr * (sizes[c] / self.data.batch_size)) for c in smashed}
        parts = dict(zip(smashed, dispatched(merged, [batches[c].samples for c in smashed]), strict=True))
        done = yield par({c: self.backwards(c, part1s[c], part, own[c]) for c, part in parts.items()})
        return set(done)

    def forwards(self, c: int, part1: Replica, batch: Batch) -> Flow:
        """The client's smashed data go to the server."""
        smashed = yield on(c, self.forward, part1, batch)
        return (yield send(smashed, c, SERVER))

    def backwards(self, c: int, part1: Replica, gradients: Value, optimiser: Optimiser) -> Flow:
        """The client's part of the gradients comes back."""
        gradients = yield send(gradients, SERVER, c)
        yield on(c, Backward(optimiser), part1, gradients)

    def todo(self, round: int, sizes: Mapping[int, int]) -> Iterator[tuple[Batch | None, ...]]:
        """Of every step the clients' mini-batches, None for who has run out of them."""
        n_batches = [self.data.n_batches(c) for c in sizes]
        if self.options.steps == "mean":
            steps = self.data.mean_batches(list(sizes))
            return zip(*(self.data.steps(c, round, steps, size) for c, size in sizes.items()), strict=True)
        return islice(zip_longest(*(self.data.batches(c, round, size) for c, size in sizes.items())), max(n_batches))

    def batch_sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """b_c: all alike, or floor(b_max * (fastest client's seconds per sample) / (the client's own))."""
        largest = self.data.batch_size
        if self.options.batch_regulation == "none":
            return dict.fromkeys(clients, largest)
        sample_s = {c: self.task.sample_s(c) for c in clients}
        fastest_s, smallest = min(sample_s.values()), 2 if self.task.network.needs_batches_of_two else 1
        return {c: max(smallest, int(largest * fastest_s / seconds + ROUNDING)) for c, seconds in sample_s.items()}

    def setup(self) -> Flow:
        """The choice of clients goes by what all of them tell."""
        if self.options.clients_by_kl is not None:
            yield from self.tell_labels()

    def choose(self, round: int, clients: Sequence[int]) -> Sequence[int]:
        """All; or, with `clients_by_kl`, one after another: first who was chosen least often so far (ties by lot), then
        always whoever brings KL(labels of the merged batch || everybody's labels) lowest (ties: least often, then id).
        """
        if self.options.clients_by_kl is None:
            return clients
        ids, sizes = np.array(clients), self.batch_sizes(clients)
        counts = self.task.label_counts[ids]
        brings = counts / counts.sum(axis=1, keepdims=True) * np.array([[sizes[c]] for c in clients])
        everybody = self.task.label_counts.sum(axis=0) / self.task.label_counts.sum()
        times = np.array([self.times_chosen[c] for c in clients])
        luck = stream(self.task.seed, "mergesfl first client", round).permutation(len(ids))
        chosen = [int(np.lexsort((luck, times))[0])]
        for _ in range(1, max(1, int(self.options.clients_by_kl * len(ids) + 0.5))):
            merged = brings[chosen].sum(axis=0) + brings
            divergence = rel_entr(merged / merged.sum(axis=1, keepdims=True), everybody).sum(axis=1).round(12)
            divergence[chosen] = np.inf
            chosen.append(int(np.lexsort((ids, times, divergence))[0]))
        self.times_chosen.update(ids[chosen].tolist())
        return [clients[i] for i in sorted(chosen)]
