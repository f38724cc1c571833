"""SplitFedV1: a part-2 for every client, all of them averaged.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, Algorithm 1. The variants that
average the copies of part-2 more often are those of SMoFi's comparison (METHODS.md 5.3).

Every client may have a cut of its own. Layers that no client holds are averaged at the server, all others at the
aggregator: from the clients that hold them and, for the other clients, from the server. Aggregator and server exchange
models for free, and the server never sees what a client trained. So the result is that of FedAvg whatever the cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitStep
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, par, send


class V1Options(MethodOptions):
    """`server_agg_every`: average the copies of part-2 after every mini-batch step, local epoch or round."""

    server_agg_every: Literal["step", "epoch", "round"] = "round"


class Visit:
    """One client's round: its mini-batches, cut into stretches between two averages of part-2, and its two parts."""

    part1: Replica
    part2: Replica

    def __init__(self, batches: Iterator[Batch], n_batches: int, length: int) -> None:
        self.batches = batches
        self.length = length
        self.stretches = n_batches // length


class SplitFedV1(SplitStep, regular=True):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    Options = V1Options
    options: V1Options

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.cuts = sorted(set(task.cuts))
        if len(self.cuts) > 1 and self.options.server_agg_every != "round":
            raise ScenarioError(
                "needs the same cut for all clients: what only some of them hold is averaged when the round ends",
                key="method.server_agg_every", found=self.options.server_agg_every, allowed=["round"],
            )  # fmt: skip
        self.pieces = task.split(*self.cuts)
        """The global model, cut wherever some client cuts it; with one cut, part-1 and part-2."""
        self.parts = {cut: (self.joined(0, i), self.joined(i, len(self.pieces))) for i, cut in enumerate(self.cuts, 1)}
        """Part-1 and part-2 of the global model by cut."""

    def joined(self, start: int, stop: int) -> Replica | Joined:
        """Pieces `start` to `stop` (excluded) of the global model, to be copied as one."""
        if stop - start == 1:
            return self.pieces[start]
        network = self.task.network
        bounds = [0, *self.cuts, len(network)]
        return Joined(network.part(bounds[start], bounds[stop]), self.pieces[start:stop])

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 <- sum_c k_c w2_c after every stretch, w1 <- sum_c k_c w1_c after the last."""
        visits = {c: self.visit(c, round) for c in clients}
        yield from self.stretches(visits, 0, round)
        for piece, end in zip(self.pieces, self.cuts, strict=False):  # all pieces but the last, which is the server's
            copies = [visit.part1 if self.task.cuts[c] >= end else visit.part2 for c, visit in visits.items()]
            yield from self.average(AGGREGATOR, piece, copies, clients)

    def visit(self, c: int, round: int) -> Visit:
        """The client's mini-batches, and how many lie between two averages."""
        n_batches = self.data.n_batches(c)
        lengths = {"step": 1, "epoch": n_batches // self.data.local_epochs, "round": n_batches}
        return Visit(self.data.batches(c, round), n_batches, lengths[self.options.server_agg_every])

    def stretches(self, visits: dict[int, Visit], number: int, round: int) -> Flow:
        """Stretch `number` and all after it; who is done uploads part-1 while the others go on."""
        while True:
            active = [c for c, visit in visits.items() if number < visit.stretches]
            done = [c for c in active if visits[c].stretches == number + 1]
            last = done == active
            yield par(self.stretch(c, visits[c], number == 0, last, round) for c in active)
            yield from self.average(SERVER, self.pieces[-1], [visits[c].part2 for c in active], active)
            number += 1
            if done and not last:
                yield par([self.stretches(visits, number, round), *(self.upload(c, visits[c]) for c in done)])
            if done:
                return

    def stretch(self, c: int, visit: Visit, first: bool, last: bool, round: int) -> Flow:
        """Part-1 comes before the first stretch and goes after the last of all; part-2 is copied anew each time."""
        part1, part2 = self.parts[self.task.cuts[c]]
        if first:
            visit.part1 = yield send(part1, AGGREGATOR, c)
        visit.part2 = yield send(part2, SERVER, SERVER)
        yield from self.batches(c, visit.part1, visit.part2, islice(visit.batches, visit.length), round)
        if last:
            yield from self.upload(c, visit)

    def upload(self, c: int, visit: Visit) -> Flow:
        """Part-1 goes to the aggregator."""
        visit.part1 = yield send(visit.part1, c, AGGREGATOR)

    def model(self) -> list[Replica]:
        """The pieces."""
        return self.pieces

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """A part-2 for every client."""
        return sum(self.parts[self.task.cuts[c]][1].size_bytes for c in clients)
