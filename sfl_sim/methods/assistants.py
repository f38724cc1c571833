"""The flows of KoReA-SFL's assistants: who is asked, answers, or is passed over, in one round of one branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf

import numpy as np
import torch

from sfl_sim.methods.base import Task
from sfl_sim.methods.knowledge import Ask, Ints, asks
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, Value, occur, on, par, send, start, wait
from sfl_sim.training.knowledge_replay import Recall, Rows


@dataclass(eq=False)
class Share:
    """One assistant's share of a request.

    Attributes:
        first: its first row among those of the request.
        knowledge: its features, once they are there.
        instead: the shares that others were asked for, since it did not answer in time, or was lost; None if it did, or
            still may.
        settled: no more answers will come.
    """

    ask: Ask
    first: int = 0
    knowledge: Value | None = None
    instead: list[Share] | None = None
    settled: Event = field(init=False)

    def __post_init__(self) -> None:
        self.settled = Event(f"what assistant {self.ask.assistant} was asked for")

    @property
    def samples(self) -> int:
        """Rows that it is asked for."""
        return int(self.ask.counts.sum())

    @property
    def last(self) -> int:
        """The row after its own."""
        return self.first + self.samples

    @property
    def answers(self) -> list[Share]:
        """The shares with knowledge, once it is settled: itself, or those that came instead."""
        return [self] if self.instead is None else [answer for other in self.instead for answer in other.answers]

    def rows(self, first: int, last: int) -> Iterator[Rows]:
        """What its answers have of the request's rows `first` to `last` (excluded); a shortage is at its end."""
        begin = self.first
        for answer in self.answers:
            end = begin + answer.samples
            if first < end and begin < last:
                assert answer.knowledge
                yield Rows(answer.knowledge, max(first, begin) - begin, min(last, end) - begin)
            begin = end


@dataclass
class Service:
    """What the server knows of assistants, and what replay comes to.

    Attributes:
        patience_s: how long an assistant is waited for before others are asked for its share.
        least: samples for which a client is asked at all: two where batch norm cannot do with one.
        told: by client, that the server knows its label counts.
        owing: clients that were passed over, and whose answer is still to come.
        tally: of the round: samples `requested`, `assistants` asked, those that were `late`, and `bytes` of requests,
            models and features.
    """

    patience_s: float
    least: int
    told: list[Event] = field(default_factory=list)
    owing: set[int] = field(default_factory=set)
    tally: Counter[str] = field(default_factory=Counter)


class Replay:
    """A branch's request in one round. Its rows are spread over the mini-batches of every local epoch.

    Args:
        task: whose clients they are.
        request: (L,) samples of each label.
        candidates: clients in the order in which they are asked.
        n_batches: of a local epoch.
        draw: round and branch, for the draw of the assistants' samples.
        service: what all requests share.
    """

    def __init__(
        self, task: Task, request: Ints, candidates: Ints, n_batches: int, draw: tuple[int, int], service: Service
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.n_batches = n_batches
        self.draw = draw
        self.service = service
        self.tally = service.tally
        self._lay_out(self.ask(request))
        self.tally["requested"] += int(request.sum())

    def ask(self, missing: Ints) -> list[Share]:
        """The shares of the next candidates, who are none any more; a client is passed by that owes an answer."""
        service = self.service
        waiting = (int(c) for c in self.candidates if c not in service.owing and service.told[c].occurred)
        shares = [Share(ask) for ask in asks(missing, waiting, self.task.label_counts, service.least)]
        asked = [share.ask.assistant for share in shares]
        # Nobody is asked again without patience, and of a large fleet the list would take memory.
        again = service.patience_s < inf
        self.candidates = self.candidates[~np.isin(self.candidates, asked)] if again else self.candidates[:0]
        return shares

    def _lay_out(self, shares: list[Share]) -> None:
        """The rows of one share follow those of the one before, and every mini-batch gets equally many."""
        self.shares = shares
        for before, share in pairwise(shares):
            share.first = before.last
        self.rows_per_batch = ceil(shares[-1].last / self.n_batches) if shares else 0

    @property
    def answers(self) -> list[Share]:
        """Those that have come."""
        return [answer for share in self.shares for answer in share.answers]

    def again(self) -> None:
        """Ask those who have answered for the same samples once more."""
        self._lay_out([Share(answer.ask) for answer in self.answers])

    def close(self) -> None:
        """Drop what takes memory."""
        self.candidates = self.candidates[:0]
        for answer in self.answers:
            answer.knowledge = None

    def gather(self, part1: Replica) -> Flow:
        """Get all shares answered with the aggregator's `part1`, or give up on them."""
        yield par([self.collect(share, part1) for share in self.shares])

    def collect(self, share: Share, part1: Replica) -> Flow:
        """Wait for the answer, as long as patience and the assistant last; then turn to the next candidates."""
        over = Event(f"the answer of assistant {share.ask.assistant}")
        yield start(self.assist(share, part1, over))
        if not (yield wait([over], self.service.patience_s)):
            self.tally["late"] += 1
            self.service.owing.add(share.ask.assistant)
        if share.knowledge is None:
            share.instead = self.ask(share.ask.counts)
            yield par([self.collect(other, part1) for other in share.instead])
        yield occur(share.settled)

    def assist(self, share: Share, part1: Replica, over: Event) -> Flow:
        """Let an assistant answer, even if nobody waits for that any more, unless it is lost."""
        with suppress(Lost):
            yield from self.answer(share, part1)
        self.service.owing.discard(share.ask.assistant)
        yield occur(over)

    def answer(self, share: Share, part1: Replica) -> Flow:
        """An assistant gets the request, then part-1, and sends features."""
        assistant, counts = share.ask
        self.tally["assistants"] += 1
        request = torch.from_numpy(counts).int()
        yield from self.moved(Value("request", request.nbytes, content=request), SERVER, assistant)
        if share.instead is None:  # else the aggregator need not begin
            copy = yield from self.moved(part1, AGGREGATOR, assistant)
            batch = self.task.data.some(assistant, counts, "korea samples", *self.draw, assistant)
            knowledge = yield on(assistant, Recall(), copy, batch)
            knowledge = yield from self.moved(knowledge, assistant, SERVER)
            share.knowledge = knowledge if share.instead is None else None

    def give_up(self) -> Flow:
        """Let nobody wait for answers: there will be none."""
        for share in self.shares:
            share.instead = []
            yield occur(share.settled)

    def moved(self, payload: Value, src: int, dst: int) -> Flow:
        """Send it, and count its bytes once they have arrived."""
        arrived = yield send(payload, src, dst)
        self.tally["bytes"] += arrived.size_bytes
        return arrived

    def rows(self, step: int) -> Flow:
        """Wait for the rows that belong to the round's mini-batch `step`, and give them."""
        first = step % self.n_batches * self.rows_per_batch
        last = first + self.rows_per_batch
        shares = [share for share in self.shares if share.first < last and first < share.last]
        yield wait([share.settled for share in shares])
        return [rows for share in shares for rows in share.rows(first, last)]
