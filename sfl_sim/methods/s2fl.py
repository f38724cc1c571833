"""S2FL: clients in groups whose labels are balanced; each group's activations train a copy of part-2 as one mini-batch.

Yan et al., "Have Your Cake and Eat It Too: Toward Efficient and Accurate Split Federated Learning", 2023
(docs/methods/s2fl.md).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import Pooled, TrainMerged, dispatched
from sfl_sim.ops import SERVER, Flow, Value, on, par, send
from sfl_sim.training.steps import Average

SWEEPS = 100
"""Most exchanges of two clients when groups are made."""


class S2Options(MethodOptions):
    """Options of S2FL."""

    groups: Annotated[int, Field(ge=1)] = 2
    """Number of groups of clients."""


class S2FL(Pooled, survives=True):
    """Part-2 is the average, after every step, of copies that groups of clients have trained."""

    Options = S2Options
    options: S2Options
    examples = (S2Options(), S2Options(groups=1))
    neutral = None  # copies are new in every step, so that momentum has no effect on them
    needs_labels = "groups balance labels"
    ignores: Mapping[str, str] = {"train.server.momentum": "copies of part-2 are new in every step"}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if task.network.needs_batches_of_two and self.data.rest == "keep":
            problem = "needs train.drop_last or full train.batches: one sample, left over, is too few for batch norm"
            raise ScenarioError(problem, key="method.name", found="s2fl")
        self.shares_server_model = self.options.groups == 1
        self.group_of: dict[int, int] = {}

    def setup(self) -> Flow:
        yield from self.tell_labels()

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        groups = balanced(self.task.label_counts[list(clients)], self.options.groups)
        self.group_of = {clients[k]: number for number, group in enumerate(groups) for k in group}
        yield from super().round(round, clients)

    def batch_sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """Sizes in proportion to the clients' samples, with the mean of `train.batch_size`."""
        total = sum(self.data.samples(c) for c in clients)
        least, rows = self.task.network.least_batch, self.batch_size * len(clients)
        return {c: max(least, rows * self.data.samples(c) // total) for c in clients}

    def train(self, smashed: Mapping[int, Value], round: int) -> Flow:
        """One step of each group's copy; w2 <- the mean of the copies."""
        members: dict[int, dict[int, Value]] = {}
        for c, value in smashed.items():
            members.setdefault(self.group_of[c], {})[c] = value
        trained = yield par([self.group(group, round) for group in members.values()])
        copies = [copy for copy, _ in trained]
        yield on(SERVER, Average(), self.part2, copies, [1 / len(copies)] * len(copies))
        return {c: part for _, parts in trained for c, part in parts.items()}

    def group(self, smashed: Mapping[int, Value], round: int) -> Flow:
        """Train a copy of part-2 on one group's activations; gives the copy, and each client's gradient."""
        copy = yield send(self.part2, SERVER, SERVER)
        step = TrainMerged(self.optimiser(round, SERVER))
        return copy, dispatched((yield on(SERVER, step, copy, list(smashed.values()))), smashed)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of a part-2 for each group, and of their average."""
        return self.part2.size_bytes * (1 + min(self.options.groups, len(clients)))


def balanced(counts: NDArray[np.int64], n_groups: int) -> list[list[int]]:
    """Divide clients with label `counts` (K, L) into groups of equal size, or sizes that differ by one.

    They begin in the given order; the exchange of two clients that makes `imbalance` smallest is made as long as one
    makes it smaller, at most `SWEEPS` times. Gives each group's rows of `counts`.

    >>> balanced(np.array([[10, 0], [8, 2], [0, 10], [2, 8]]), 2)
    [[3, 1], [2, 0]]
    """
    rows = np.array_split(np.arange(len(counts)), min(n_groups, len(counts)))
    groups = [group.tolist() for group in rows]
    for _ in range(SWEEPS):
        sums = np.stack([counts[group].sum(axis=0) for group in groups])
        apart = imbalance(sums)
        best, swap = apart.mean() - 1e-12, None
        for a, b in combinations(range(len(groups)), 2):
            moved = counts[groups[b]] - counts[groups[a]][:, None]  # into a, by (i, j)
            after = np.broadcast_to(apart, (*moved.shape[:2], len(groups))).copy()
            after[..., a], after[..., b] = imbalance(sums[a] + moved), imbalance(sums[b] - moved)
            means = after.mean(axis=-1)
            i, j = np.unravel_index(means.argmin(), means.shape)
            if means[i, j] < best:
                best, swap = means[i, j], (a, i, b, j)
        if swap is None:
            break
        a, i, b, j = swap
        groups[a][i], groups[b][j] = groups[b][j], groups[a][i]
    return groups


def imbalance(sums: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the distance (...) between the label shares of groups that have `sums` (..., L) and equal shares.

    >>> imbalance(np.array([[18, 2], [2, 18]])).round(4).tolist()
    [0.5657, 0.5657]
    """
    shares = sums / np.maximum(sums.sum(axis=-1, keepdims=True), 1)
    distances: NDArray[np.float64] = np.linalg.norm(shares - 1 / sums.shape[-1], axis=-1)
    return distances
