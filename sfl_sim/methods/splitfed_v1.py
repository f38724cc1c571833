"""SplitFedV1: a part-2 for every client, all of them averaged.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, Algorithm 1. The variants that
average the copies of part-2 more often are those of SMoFi's comparison (METHODS.md 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import MethodOptions
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, par, send


class V1Options(MethodOptions):
    """`server_agg_every`: average the copies of part-2 after every mini-batch step, local epoch or round."""

    server_agg_every: Literal["step", "epoch", "round"] = "round"


class SplitFedV1(SplitMethod):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    Options = V1Options
    options: V1Options

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Stretches of mini-batches, after each of which part-2 is averaged; part-1 is averaged after the last."""
        batches = {c: self.data.batches(c, round) for c in clients}
        lengths = {c: self.stretch(c) for c in clients}
        counts = {c: self.data.n_batches(c) // lengths[c] for c in clients}
        part1s: dict[int, Replica] = {}
        for number in range(max(counts.values())):
            active = [c for c in clients if number < counts[c]]
            part2s = yield par(
                self.client(c, part1s, islice(batches[c], lengths[c]), number == counts[c] - 1, round) for c in active
            )
            averages = [self.average(SERVER, self.part2, part2s, active)]
            if number == max(counts.values()) - 1:
                averages.append(self.average(AGGREGATOR, self.part1, [part1s[c] for c in clients], clients))
            yield par(averages)

    def client(self, c: int, part1s: dict[int, Replica], batches: Iterable[Batch], last: bool, round: int) -> Flow:
        """One stretch: part-1 comes before the first and goes after the last; part-2 is copied anew each time."""
        if c not in part1s:
            part1s[c] = yield send(self.part1, AGGREGATOR, c)
        part2 = yield send(self.part2, SERVER, SERVER)
        yield from self.batches(c, part1s[c], part2, batches, round)
        if last:
            part1s[c] = yield send(part1s[c], c, AGGREGATOR)
        return part2

    def stretch(self, c: int) -> int:
        """The client's mini-batches between two averages of part-2."""
        n_batches = self.data.n_batches(c)
        return {"step": 1, "epoch": n_batches // self.data.local_epochs, "round": n_batches}[
            self.options.server_agg_every
        ]
