"""The flows of KoReA-SFL's assistants: who is asked, answers, or is passed over, in one round of one branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil

import torch

from sfl_sim.methods.base import Task
from sfl_sim.methods.knowledge import Ask, Ints, asks
from sfl_sim.models.replay import Recall, Rows
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Value, occur, on, par, send, start, wait


@dataclass(eq=False)
class Share:
    """One assistant's share of a request.

    Attributes:
        first: its first row among those of the request.
        knowledge: its features, once they are there.
        answers: itself, or the shares that came instead because it did not answer in time.
        settled: no more answers will come.
    """

    ask: Ask
    first: int = 0
    knowledge: Value | None = None
    answers: list[Share] = field(default_factory=list)
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

    def rows(self, first: int, last: int) -> Iterator[Rows]:
        """What its answers have of the request's rows `first` to `last` (excluded); a shortage is at its end."""
        begin = self.first
        for answer in self.answers:
            end = begin + answer.samples
            if first < end and begin < last:
                assert answer.knowledge
                yield Rows(answer.knowledge, max(first, begin) - begin, min(last, end) - begin)
            begin = end


class Replay:
    """A branch's request in one round. Its rows are spread over the mini-batches of every local epoch.

    Args:
        request: (L,) samples of each label.
        candidates: clients in the order in which they are asked.
        n_batches: of a local epoch.
        patience_s: how long an assistant is waited for before others are asked for its share.
        draw: round and branch, for the draw of the assistants' samples.
        tally: takes in samples `requested`, assistants that were `late`, and `bytes` of requests, models and features.
    """

    def __init__(
        self,
        task: Task,
        request: Ints,
        candidates: Iterator[int],
        *,
        n_batches: int,
        patience_s: float,
        draw: tuple[int, int],
        tally: Counter[str],
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.n_batches = n_batches
        self.patience_s = patience_s
        self.draw = draw
        self.tally = tally
        self._lay_out(self.ask(request))
        tally["requested"] += int(request.sum())

    def ask(self, missing: Ints) -> list[Share]:
        """The next candidates' shares; batch norm may need two samples of each."""
        least = 2 if self.task.network.needs_batches_of_two else 1
        return [Share(ask) for ask in asks(missing, self.candidates, self.task.label_counts, least)]

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
        """Drop the features."""
        for answer in self.answers:
            answer.knowledge = None

    def gather(self, part1: Replica) -> Flow:
        """Get all shares answered with the aggregator's `part1`, or give up on them."""
        yield par([self.collect(share, part1) for share in self.shares])

    def collect(self, share: Share, part1: Replica) -> Flow:
        """Wait for the answer as long as patience lasts; then turn to the next candidates."""
        answered = Event(f"the answer of assistant {share.ask.assistant}")
        yield start(self.assist(share, part1, answered))
        if (yield wait([answered], self.patience_s)):
            share.answers = [share]
        else:
            self.tally["late"] += 1
            others = self.ask(share.ask.counts)
            yield par([self.collect(other, part1) for other in others])
            share.answers = [answer for other in others for answer in other.answers]
        yield occur(share.settled)

    def assist(self, share: Share, part1: Replica, answered: Event) -> Flow:
        """An assistant gets the request and part-1, and sends features. It does not learn if nobody waits any more."""
        assistant, counts = share.ask
        request = torch.from_numpy(counts).int()
        yield from self.moved(Value("request", request.nbytes, content=request), SERVER, assistant)
        copy = yield from self.moved(part1, AGGREGATOR, assistant)
        batch = self.task.data.some(assistant, counts, "korea samples", *self.draw, assistant)
        knowledge = yield on(assistant, Recall(), copy, batch)
        share.knowledge = yield from self.moved(knowledge, assistant, SERVER)
        yield occur(answered)

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
