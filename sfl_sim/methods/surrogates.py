"""What methods share whose server trains a copy of part-2, a surrogate, for every client: SplitFedV1 and its kin.

Every client may have a cut of its own. Layers that no client holds are averaged at the server, all others at the
aggregator: from the clients that hold them and, for the other clients, from the server. Aggregator and server exchange
models for free, and the server never sees what a client trained. So the result is that of FedAvg whatever the cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Literal

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitStep
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Lost, on, par, send
from sfl_sim.rng import stream
from sfl_sim.training.steps import Average

Every = Literal["step", "epoch", "round"]


@dataclass
class Visit:
    """One client's round: its cut, its mini-batches, and its two parts once it has them.

    Attributes:
        row: its place among the round's clients.
        n_batches, length: in all, and between two averages of part-2.
    """

    row: int
    cut: int
    batches: Iterator[Batch]
    n_batches: int
    length: int
    part1: Replica = field(init=False)
    part2: Replica = field(init=False)

    @property
    def stretches(self) -> int:
        """How many averages of part-2 it takes part in."""
        return self.n_batches // self.length


class Surrogates(SplitStep):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    average_every: Every = "round"
    """How often the copies of part-2 are averaged and made anew: after every mini-batch, local epoch or round."""
    cut_may_change = True
    has_velocity = False
    """Whether the momentum buffers are averaged and handed out with the weights."""

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.cuts = sorted({*task.cuts, *task.round_cuts})
        self.pieces = [Replica(piece.part, piece.content, self.has_velocity) for piece in task.split(*self.cuts)]
        """The global model, cut wherever a client ever cuts it; with one cut, part-1 and part-2."""
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
        """w2 <- sum_c k_c w2_c after every stretch, w1 <- sum_c k_c w1_c after the last: of all who are not lost."""
        visits = self.visits(round, clients)
        yield from self.stretches(visits, 0, round)
        deepest = max((visit.cut for visit in visits.values()), default=0)
        for piece, end in zip(self.pieces, self.cuts, strict=False):  # all pieces but the last, which is the server's
            if end <= deepest:
                copies = [visit.part1 if visit.cut >= end else visit.part2 for visit in visits.values()]
                yield on(AGGREGATOR, self.merge(round), piece, copies, self.task.shares(list(visits)))

    def merge(self, round: int) -> Average:
        """The step by which the copies of a round become the global model."""
        return Average()

    def visits(self, round: int, clients: Sequence[int]) -> dict[int, Visit]:
        """What every client does in a round; who is lost is taken out."""
        found, drawn = {}, self.drawn_cut(round)
        for row, (c, n_batches) in enumerate(zip(clients, self.n_batches(clients), strict=True)):
            cut = drawn or self.task.cuts[c]
            epoch = n_batches // self.data.local_epochs
            length = {"step": 1, "epoch": epoch, "round": n_batches}[self.average_every]
            found[c] = Visit(row, cut, self.data.steps(c, round, n_batches), n_batches, length)
        return found

    def n_batches(self, clients: Sequence[int]) -> list[int]:
        """How many mini-batches each client runs: as many as it has."""
        return [self.data.n_batches(c) for c in clients]

    def drawn_cut(self, round: int) -> int | None:
        """Where all clients' model is cut in a round, if that is drawn."""
        cuts = self.task.round_cuts
        return int(stream(self.task.seed, "cut", round).choice(cuts)) if cuts else None

    def stretches(self, visits: dict[int, Visit], number: int, round: int) -> Flow:
        """Stretch `number` and all after it; who is done uploads part-1 while the others go on."""
        while active := [c for c, visit in visits.items() if number < visit.stretches]:
            last = all(visits[c].stretches == number + 1 for c in active)
            flows = [self.stretch(c, visits[c], number == 0, last, round) for c in active]
            flows = [self.unless_lost(c, visits, flow) for c, flow in zip(active, flows, strict=True)]
            yield par([*flows, *self.beside(visits, round)])
            active = [c for c in active if c in visits]
            yield from self.merge_part2([visits[c] for c in active], active, round)
            number += 1
            done = [c for c in active if visits[c].stretches == number]
            if done and not last:
                uploads = (self.unless_lost(c, visits, self.upload(c, visits[c])) for c in done)
                yield par([self.stretches(visits, number, round), *uploads])
            if done:
                return

    def unless_lost(self, c: int, visits: dict[int, Visit], flow: Flow) -> Flow:
        """One of the flows of client `c`, which counts no more from the moment on at which any of them is lost."""
        try:
            yield from flow
        except Lost:
            if c in visits:
                yield from self.leave(c, visits.pop(c))

    def leave(self, c: int, visit: Visit) -> Flow:
        """What the loss of client `c` means to those who wait for it: nothing, as nobody does."""
        yield from ()

    def beside(self, visits: dict[int, Visit], round: int) -> list[Flow]:
        """What the server does during a stretch beside serving the clients' mini-batches: nothing."""
        return []

    def merge_part2(self, visits: Sequence[Visit], clients: Sequence[int], round: int) -> Flow:
        """All layers that no client holds."""
        deepest = max((visit.cut for visit in visits), default=inf)
        for piece, start in zip(self.pieces, [0, *self.cuts], strict=True):
            if start >= deepest:
                copies = [visit.part2 for visit in visits]
                yield on(SERVER, self.merge(round), piece, copies, self.task.shares(clients))

    def stretch(self, c: int, visit: Visit, first: bool, last: bool, round: int) -> Flow:
        """Part-1 comes before the first stretch and goes after the last of all; part-2 is copied anew each time."""
        part1, part2 = self.parts[visit.cut]
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
        """A part-2 for every client, as large as it may be."""
        return sum(self.parts[min(self.task.round_cuts or [self.task.cuts[c]])][1].size_bytes for c in clients)
