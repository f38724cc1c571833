"""MergeSFL: the smashed data of all clients make up one mini-batch at the server.

Liao et al., "MergeSFL: Split Federated Learning with Feature Merging and Batch Size Regulation", ICDE 2024
(docs/methods/mergesfl.md). The released code fixes batch sizes, which an option changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import Pooled, in_step
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, Flow, Step, on
from sfl_sim.training.steps import Average, Backward

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


class MergeSFL(Pooled, regular=True, survives=True, tiered=True):
    """Server steps on the merged mini-batches of all clients; part-1 is averaged every round."""

    Options = MergeOptions
    options: MergeOptions
    examples = (MergeOptions(), MergeOptions(batch_regulation="time"), MergeOptions(steps="mean"))

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, Any]:
        """Return what follows from sizes of mini-batches that follow from speeds."""
        if not isinstance(options, MergeOptions) or options.batch_regulation == "none":
            return {}
        return {"depends_on_time": True, "ignores": {"train.agg_weights": "models count by sizes of mini-batches"}}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.options.batch_regulation == "time" and task.network.needs_batches_of_two and self.data.rest == "keep":
            problem = "needs train.drop_last or full train.batches: one sample, left over, is too few for batch norm"
            raise ScenarioError(problem, key="method.batch_regulation", found="time")

    def batch_sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """b_c = b_max, or with `batch_regulation` floor(b_max * min_j t_j / t_c), with t in seconds per sample."""
        b_max = self.batch_size
        if self.options.batch_regulation == "none":
            return dict.fromkeys(clients, b_max)
        sample_s = {c: self.task.sample_s(c) for c in clients}
        fastest_s, least = min(sample_s.values()), self.task.network.least_batch
        return {c: max(least, int(b_max * fastest_s / t_c + ROUNDING)) for c, t_c in sample_s.items()}

    def todo(self, round: int, sizes: Mapping[int, int]) -> Iterator[tuple[Batch | None, ...]]:
        if self.options.steps == "mean":
            steps = self.data.mean_batches(list(sizes))
            return zip(*(self.data.steps(c, round, steps, size) for c, size in sizes.items()), strict=True)
        return in_step(self.data, round, sizes, max(self.data.n_batches(c) for c in sizes))

    def client_step(self, c: int, sizes: Mapping[int, int], round: int) -> Step:
        """The client's step with eta_c = eta b_c / b_max."""
        usual = self.optimiser(round, c)
        return Backward(replace(usual, lr=usual.lr * (sizes[c] / self.batch_size)))

    def merge(self, copies: Mapping[int, Replica | Bundle], sizes: Mapping[int, int]) -> Flow:
        """w1 <- sum_c k_c w1_c, with k_c by samples, or by the sizes of mini-batches if these are regulated."""
        if self.options.batch_regulation == "none":
            yield from super().merge(copies, sizes)
        elif copies:
            total = sum(sizes[c] for c in copies)
            yield on(AGGREGATOR, Average(), self.part1, list(copies.values()), [sizes[c] / total for c in copies])
