"""Assistants of KoReA-SFL: clients that compute features for other clients' training.

The server asks several clients for each request of a branch, each for a share of the samples. It waits for an answer
until its patience ends or the assistant is lost. Then it asks other clients for the same samples
(docs/methods/korea.md#timing). A mini-batch of the branch waits only for the shares that its rows come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.methods.base import Task
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, Op, Step, Value, occur, on, par, send, start, wait
from sfl_sim.training.steps import Forward

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Share:
    """The samples that one assistant is asked for.

    Attributes:
        assistant: the client that is asked.
        counts: (L,) samples of each label.
        first: index of its first row among the rows of the request.
        knowledge: the features and labels that it has sent; None before they arrive.
        instead: the shares that other clients were asked for, because it was late or lost; None if it has answered, or
            still can.
        settled: occurs when no more answers will come.
    """

    assistant: int
    counts: Ints
    first: int = 0
    knowledge: Value | None = None
    instead: list[Share] | None = None
    settled: Event = field(init=False)

    def __post_init__(self) -> None:
        self.settled = Event(f"what assistant {self.assistant} was asked for")

    @property
    def samples(self) -> int:
        """Number of rows, one for each sample."""
        return int(self.counts.sum())

    @property
    def last(self) -> int:
        """Index of the first row after it."""
        return self.first + self.samples

    @property
    def answers(self) -> list[Share]:
        """List the shares that were answered: itself, or those of other clients instead. It must be settled."""
        return [self] if self.instead is None else [answer for other in self.instead for answer in other.answers]

    def rows(self, first: int, last: int) -> Iterator[Rows]:
        """Give the answered rows among the request's rows `first` to `last` (excluded).

        If fewer rows were answered than asked for, those at the end of the share are missing.
        """
        begin = self.first
        for answer in self.answers:
            end = begin + answer.samples
            if first < end and begin < last:
                assert answer.knowledge
                yield Rows(answer.knowledge, max(first, begin) - begin, min(last, end) - begin)
            begin = end


def divide(request: Ints, candidates: Iterable[int], held: Ints, least: int = 1) -> Iterator[Share]:
    """Divide a request among clients (step 4): each gets as many of the missing samples as it holds.

    Args:
        request: (L,) samples of each label.
        candidates: clients in the order in which they are asked, until no sample is missing.
        held: (C, L) samples of each label that each client holds.
        least: a client is asked for at least so many samples, or not at all.
    """
    missing = request.copy()
    for assistant in candidates:
        if not missing.any():
            return
        counts = np.minimum(held[assistant], missing)
        if counts.sum() >= least:
            missing -= counts
            yield Share(assistant, counts)


@dataclass
class Assistants:
    """What the server knows of all clients as assistants.

    Attributes:
        patience_s: how long the server waits for an answer before it asks other clients.
        least: a client is asked for at least so many samples, or not at all: two where batch norm needs two.
        registered: (C) events: the label counts of this client have arrived.
        owing: clients that were late and have not answered yet.
        tally: counts of the round: samples `requested` and `collected`, `assistants` asked, those that were `late`, and
            `bytes` of requests, models and features.
    """

    patience_s: float
    least: int
    registered: list[Event] = field(default_factory=list)
    owing: set[int] = field(default_factory=set)
    tally: Counter[str] = field(default_factory=Counter)

    def register(self, tellings: Sequence[Flow]) -> Flow:
        """Let every client send its label counts, and wait for them as long as patience lasts.

        A client whose counts come later can assist from then on.
        """

        def tell(telling: Flow, arrival: Event) -> Flow:
            yield from telling
            yield occur(arrival)

        for c, telling in enumerate(tellings):
            arrival = Event(f"the label counts of client {c}")
            self.registered.append(arrival)
            yield start(tell(telling, arrival))
        yield wait(self.registered, self.patience_s)


class Request:
    """A branch's request in one round. Its rows are used in every local epoch.

    With n rows and B mini-batches, each mini-batch takes the next ceil(n / B) rows, until no row is left.

    Args:
        counts: (L,) samples of each label.
        candidates: clients in the order in which they are asked.
        draw: round and branch, which name the random draw of the assistants' samples.
        assistants: shared by all requests.

    Attributes:
        steps: mini-batches of the current local epoch; to be set before each epoch.
    """

    def __init__(
        self, task: Task, counts: Ints, candidates: Ints, draw: tuple[int, int], assistants: Assistants
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.steps = range(0)
        self.draw = draw
        self.assistants = assistants
        self.tally = assistants.tally
        self._lay_out(self.ask(counts))
        self.tally["requested"] += int(counts.sum())

    def ask(self, missing: Ints) -> list[Share]:
        """Make shares for the next candidates. Each is asked only once; one that owes an answer is skipped."""
        assistants = self.assistants
        free = (int(c) for c in self.candidates if c not in assistants.owing and assistants.registered[c].occurred)
        shares = list(divide(missing, free, self.task.label_counts, assistants.least))
        # With endless patience no other client is asked later, and the list of a large fleet would take memory.
        asks_again, asked = assistants.patience_s < inf, [share.assistant for share in shares]
        self.candidates = self.candidates[~np.isin(self.candidates, asked)] if asks_again else self.candidates[:0]
        return shares

    def _lay_out(self, shares: list[Share]) -> None:
        """Number the rows of shares consecutively."""
        self.shares = shares
        for before, share in pairwise(shares):
            share.first = before.last

    @property
    def answers(self) -> list[Share]:
        """List the shares that were answered."""
        return [answer for share in self.shares for answer in share.answers]

    def gather(self, part1: Replica) -> Flow:
        """Ask for all shares. The assistants compute with `part1`, which the aggregator sends them."""
        yield par([self._collect(share, part1) for share in self.shares])

    def gather_again(self, part1: Replica, c: int) -> Flow:
        """Ask the same assistants for the same samples again. Client `c` has trained `part1` since then."""
        self._lay_out([Share(answer.assistant, answer.counts) for answer in self.answers])
        try:
            part1 = yield from self._counted(send(part1, c, AGGREGATOR))
        except Lost:
            for share in self.shares:  # let no flow wait for answers that will not come
                share.instead = []
                yield occur(share.settled)
            raise
        yield from self.gather(part1)

    def _collect(self, share: Share, part1: Replica) -> Flow:
        """Wait for the answer to a share. If the assistant is late or lost, ask the next candidates."""
        over = Event(f"the answer of assistant {share.assistant}")
        yield start(self._assist(share, part1, over))
        if not (yield wait([over], self.assistants.patience_s)):
            self.tally["late"] += 1
            self.assistants.owing.add(share.assistant)
        if share.knowledge is None:
            share.instead = self.ask(share.counts)
            yield par([self._collect(other, part1) for other in share.instead])
        yield occur(share.settled)

    def _assist(self, share: Share, part1: Replica, over: Event) -> Flow:
        """Let an assistant answer, even if nobody waits for the answer any more; it may be lost meanwhile."""
        with suppress(Lost):
            yield from self._answer(share, part1)
        self.assistants.owing.discard(share.assistant)
        yield occur(over)

    def _answer(self, share: Share, part1: Replica) -> Flow:
        """Send an assistant the request and part-1. It sends features and labels back."""
        assistant, counts = share.assistant, share.counts
        self.tally["assistants"] += 1
        request = torch.from_numpy(counts).int()
        yield from self._counted(send(Value("request", request.nbytes, content=request), SERVER, assistant))
        if share.instead is None:  # else the aggregator need not begin
            copy = yield from self._counted(send(part1, AGGREGATOR, assistant))
            batch = self.task.data.some(assistant, counts, "korea samples", *self.draw, assistant)
            knowledge = yield on(assistant, Recall(), copy, batch)
            ids = assistant, *self.draw, self.steps.start  # its own messages have three, and so other draws
            coded = self.task.wire.coded_up(knowledge, [copy.part], *ids)
            knowledge = yield from self._counted(send(coded, assistant, SERVER))
            share.knowledge = knowledge if share.instead is None else None

    def _counted(self, sending: Op) -> Flow:
        """Send a payload, and count its bytes once they have arrived."""
        arrived = yield sending
        self.tally["bytes"] += arrived.size_bytes
        return arrived

    def rows(self, step: int) -> Flow:
        """Give the rows of the round's mini-batch `step`, after waiting for their shares."""
        n_rows = ceil(self.shares[-1].last / len(self.steps))
        first = self.steps.index(step) * n_rows
        last = first + n_rows
        shares = [share for share in self.shares if share.first < last and first < share.last]
        yield wait([share.settled for share in shares])
        return [rows for share in shares for rows in share.rows(first, last)]

    def close(self) -> None:
        """Count the samples that were answered, and free memory."""
        self.candidates = self.candidates[:0]
        for answer in self.answers:
            self.tally["collected"] += answer.samples
            answer.knowledge = None


class Recall(Step):
    """Forward pass of an assistant, in training mode but without gradient and update."""

    name = "recall"
    passes = 1

    def out(self, part1: Replica, batch: Value) -> Value:
        return Value("knowledge", Forward().out(part1, batch).size_bytes, batch.samples)

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, Tensor]:
        """Compute activations (n, ...) and labels (n,). Running statistics move in a copy, which is dropped."""
        x, labels = batch.load()
        return part1.weights.without_graph(x), labels


class Rows(Value):
    """Rows `first` to `last` (excluded) of knowledge."""

    __slots__ = ("_rows", "made_of")

    def __init__(self, knowledge: Value, first: int, last: int) -> None:
        size_bytes = knowledge.size_bytes // knowledge.samples * (last - first)
        super().__init__(knowledge.kind, size_bytes, last - first, knowledge.step, knowledge.content)
        self.made_of = [knowledge]
        self._rows = slice(first, last)

    def load(self) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) and labels (n,)."""
        activations, labels = self.made_of[0].load()
        return activations[self._rows], labels[self._rows]
