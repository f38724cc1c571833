"""Clients that run ahead: a client, its uplink and the server's jobs for it are flows side by side.

Nobody waits for anybody unless a flow of a method says so: activations go up while the client computes on, and the
model leaves behind them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.mailbox import Mailbox, closing
from sfl_sim.methods.split import SharedServer, SplitMethod
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Lost, expect, on, par, send
from sfl_sim.training.steps import Renew


class Boxes(NamedTuple):
    """Mailboxes of a client's visit: what is to go up, what has come up, and what has come down."""

    outbox: Mailbox
    inbox: Mailbox
    replies: Mailbox


class Ahead(SharedServer, SplitMethod):
    """A round of three flows for each client, between which messages wait in mailboxes."""

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.client_model = self.part1
        shared = self.serves_in_order(self.options)
        self.shares_server_model = self.depends_on_time = self.follows_order = shared
        self.forgets_lost = not shared

    def is_sent(self, step: int) -> bool:
        """Say whether the activations of a round's mini-batch go up: by default those of all."""
        return True

    def n_jobs(self, n_batches: int, round: int) -> int:
        """Count the jobs at part-2 of a client with so many mini-batches: one for every upload."""
        return sum(map(self.is_sent, range(n_batches)))

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Visits of all clients side by side; then what they have trained is merged."""
        n_batches = self.begin(clients)
        if self.follows_order:
            yield on(SERVER, Renew(), self.part2)
            yield expect(self.part2, {c: self.n_jobs(n, round) for c, n in n_batches.items()})
        yield from self.merge((yield par({c: self.visit(c, round) for c in clients})))

    def merge(self, trained: Mapping[int, tuple[Replica | Bundle, Replica]]) -> Flow:
        """Average the clients' models, and part-2 if each has a copy: what is given of each client is both."""
        if not self.follows_order:
            yield from self.average(SERVER, self.part2, [part2 for _, part2 in trained.values()], list(trained))
        yield from self.average(AGGREGATOR, self.client_model, [model for model, _ in trained.values()], list(trained))

    def visit(self, c: int, round: int) -> Flow:
        """Run a client and the server's jobs for it side by side; gives what both have trained."""
        part2 = self.part2 if self.follows_order else (yield send(self.part2, SERVER, SERVER))
        boxes, batches = Boxes(Mailbox(c), Mailbox(c), Mailbox(c)), list(self.data.batches(c, round))
        flows = self.work(c, boxes, batches, round), self.serve(c, part2, boxes, batches, round)
        try:
            model, _ = yield par(closing(flow, *boxes) for flow in flows)
        except Lost:
            del self.copies[c]
            raise
        return model, part2

    def work(self, c: int, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Download the client's model, train it while activations go up, and upload it behind them."""
        self.copies[c] = model = yield from self.wire.fetch(self.client_model, c)
        flows = self.learn(c, model, boxes, batches, round), self.upload(c, boxes, batches, round)
        yield par(closing(flow, *boxes) for flow in flows)
        self.copies[c] = model = yield from self.wire.deliver(model, c, round)
        return model

    @abstractmethod
    def learn(self, c: int, model: Replica | Bundle, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train the client's model, and put what is to go up into the `outbox`."""

    def upload(self, c: int, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Send activations, one message after the other, while the client goes on."""
        for batch in batches:
            if self.is_sent(batch.step):
                smashed = yield from boxes.outbox.take()
                smashed = yield from self.wire.upload(smashed, self.part1.part, batch, c, round)
                yield from boxes.inbox.put(smashed)

    @abstractmethod
    def serve(self, c: int, part2: Replica, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Run the server's jobs on what comes to the `inbox`."""

    def current(self) -> list[Replica]:
        """The average of current part-1s, and part-2, if there is one."""
        return [self.part1_now(), self.part2] if self.follows_order else super().current()

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of part-2, for every client unless they share it."""
        return self.part2.size_bytes * (1 if self.follows_order else len(clients))
