"""SplitFedV1: a part-2 for every client, all of them averaged.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, Algorithm 1. The variants that
average the copies of part-2 more often are those of SMoFi's comparison (METHODS.md 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Visit:
    """One client's round: its mini-batches, cut into stretches between two averages of part-2."""

    def __init__(self, part1: Replica, batches: Iterator[Batch], n_batches: int, length: int) -> None:
        self.part1 = part1
        self.batches = batches
        self.length = length
        self.stretches = n_batches // length


class SplitFedV1(SplitMethod):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    Options = V1Options
    options: V1Options

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 <- sum_c k_c w2_c after every stretch, w1 <- sum_c k_c w1_c after the last."""
        visits = {c: self.visit(c, round) for c in clients}
        yield from self.stretches(visits, 0, round)
        yield from self.average(AGGREGATOR, self.part1, [visits[c].part1 for c in clients], clients)

    def visit(self, c: int, round: int) -> Visit:
        """The client's mini-batches, and how many lie between two averages."""
        n_batches = self.data.n_batches(c)
        lengths = {"step": 1, "epoch": n_batches // self.data.local_epochs, "round": n_batches}
        return Visit(self.part1, self.data.batches(c, round), n_batches, lengths[self.options.server_agg_every])

    def stretches(self, visits: dict[int, Visit], number: int, round: int) -> Flow:
        """Stretch `number` and all after it; who is done uploads part-1 while the others go on."""
        while True:
            active = [c for c, visit in visits.items() if number < visit.stretches]
            done = [c for c in active if visits[c].stretches == number + 1]
            last = done == active
            part2s = yield par(self.stretch(c, visits[c], number == 0, last, round) for c in active)
            yield from self.average(SERVER, self.part2, part2s, active)
            number += 1
            if done and not last:
                yield par([self.stretches(visits, number, round), *(self.upload(c, visits[c]) for c in done)])
            if done:
                return

    def stretch(self, c: int, visit: Visit, first: bool, last: bool, round: int) -> Flow:
        """Part-1 comes before the first stretch and goes after the last of all; part-2 is copied anew each time."""
        if first:
            visit.part1 = yield send(self.part1, AGGREGATOR, c)
        part2 = yield send(self.part2, SERVER, SERVER)
        yield from self.batches(c, visit.part1, part2, islice(visit.batches, visit.length), round)
        if last:
            yield from self.upload(c, visit)
        return part2

    def upload(self, c: int, visit: Visit) -> Flow:
        """Part-1 goes to the aggregator."""
        visit.part1 = yield send(visit.part1, c, AGGREGATOR)
