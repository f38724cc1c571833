"""SplitFrozen: clients only run the first layers, which are frozen; the server trains the others.

Ma et al., "SplitFrozen: Split Learning with Device-side Model Frozen for Fine-Tuning LLM on Heterogeneous
Resource-Constrained Devices", 2025 (docs/methods/splitfrozen.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, State, Value, expect, occur, on, par, send, wait
from sfl_sim.training.steps import Forward, Renew, Train


class FrozenOptions(MethodOptions):
    """`ahead`: messages of a client that may wait at the server. `send_once`: the server keeps the activations of
    every sample, and a client whose samples have all been sent computes and sends nothing any more.
    """

    ahead: Annotated[int, Field(ge=1)] = 4
    send_once: bool = False


@dataclass
class Visit:
    """Round of one client.

    Attributes:
        batches: its mini-batches.
        ready, served: what occurs when the message of each has come, and when it has been trained on.
        arrived: messages by mini-batch that have come and were not yet trained on.
        is_lost: whether the client has gone away.
    """

    batches: list[Batch]
    ready: list[Event] = field(init=False)
    served: list[Event] = field(init=False)
    arrived: dict[int, Value] = field(init=False, default_factory=dict)
    is_lost: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.ready, self.served = (
            [Event(f"mini-batch {b} of client {batch.maker} is {what}") for b, batch in enumerate(self.batches)]
            for what in ("at the server", "trained on")
        )

    def lose(self) -> Flow:
        """Let neither of the client's two flows wait for the other any more."""
        self.is_lost = True
        for event in (*self.ready, *self.served):
            if not event.occurred:
                yield occur(event)


class SplitFrozen(SplitMethod, survives=True):
    """Clients send activations of frozen layers ahead, and nothing comes down; the server trains in turn."""

    Options = FrozenOptions
    options: FrozenOptions
    trains_part1 = False
    uploads_model = False
    only_averages = False  # it averages nothing
    shares_server_model = True
    depends_on_time = True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if not self.part2.part.shapes:
            raise ScenarioError("trains part-2, which has no weights here", key="model.cut", found=task.cut)
        self.kept: dict[int, State] = {}
        """Activations at the server of each client whose first epoch has begun, with `send_once`."""
        self.sent: set[int] = set()
        """Clients all of whose samples are among them."""
        if self.options.send_once:
            self._check_epochs()

    def setup(self) -> Flow:
        """Send part-1 to every client, which keeps it: what is not frozen, and so has not been installed."""
        if self.part1.size_bytes:
            yield par(self.fetch(c) for c in range(len(self.data)))

    def fetch(self, c: int) -> Flow:
        """Send part-1 to client `c`."""
        yield send(self.part1, AGGREGATOR, c)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 by every job in turn; w1 stays as it is."""
        yield on(SERVER, Renew(), self.part2)
        visits = {c: Visit(list(self.data.batches(c, round))) for c in clients}
        yield expect(self.part2, {c: len(visit.batches) for c, visit in visits.items()})
        feeds = [self.feed(c, visit, round) for c, visit in visits.items()]
        yield par([*feeds, *(self.serve(c, visit, round) for c, visit in visits.items())])

    def feed(self, c: int, visit: Visit, round: int) -> Flow:
        """Send the activations of every mini-batch, at most `ahead` before the server has trained on them."""
        part1 = yield send(self.part1, c, c)
        try:
            for b in self.to_send(c, visit):
                if b >= self.options.ahead:
                    yield wait([visit.served[b - self.options.ahead]])
                if visit.is_lost:
                    return
                smashed = yield on(c, ForwardOnly(), part1, visit.batches[b])
                visit.arrived[b] = yield from self.wire.upload(smashed, part1.part, visit.batches[b], c, round)
                yield occur(visit.ready[b])
        except Lost:
            yield from visit.lose()

    def serve(self, c: int, visit: Visit, round: int) -> Flow:
        """Train part-2 on what has come of client `c`, until it is lost."""
        sent = self.to_send(c, visit)
        try:
            for b, batch in enumerate(visit.batches):
                if b not in sent:
                    yield on(SERVER, TrainKept(self.optimiser(round)), self.part2, batch, self.kept[c])
                    continue
                yield wait([visit.ready[b]])
                if visit.is_lost:
                    return
                yield from self.train(c, visit.arrived.pop(b), batch, round)
                yield occur(visit.served[b])
                if self.options.send_once and b == sent[-1]:
                    self.sent.add(c)
        except Lost:
            yield from visit.lose()

    def train(self, c: int, smashed: Value, batch: Batch, round: int) -> Flow:
        """Train part-2 on one message; it is kept with `send_once`."""
        if not self.options.send_once:
            yield on(SERVER, self.server_step(round), self.part2, smashed)
            return
        if not batch.step:  # perhaps once more, if the client was lost
            self.kept[c] = State("kept activations")
        yield on(SERVER, TrainAndKeep(self.optimiser(round)), self.part2, smashed, batch, self.kept[c])

    def to_send(self, c: int, visit: Visit) -> range:
        """Mini-batches that client `c` sends: all, or with `send_once` those of its first epoch."""
        n = len(visit.batches)
        if self.options.send_once:
            n = 0 if c in self.sent else n // self.data.local_epochs
        return range(n)

    @once_a_round
    def server_step(self, round: int) -> TrainAlone:
        """The server's step on the smashed data."""
        return TrainAlone(self.optimiser(round))

    def current(self, part1_of: int | None = None) -> list[Replica]:
        """Part-1, which is everybody's, and part-2."""
        return [self.part1, self.part2]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of part-2, and of what is kept of all clients."""
        part, n = self.part1.part, sum(self.data.samples(c) for c in range(len(self.data)))
        kept = n * part.out_numel * part.wire_dtype.itemsize if self.options.send_once else 0
        return self.part2.size_bytes + kept

    def _check_epochs(self) -> None:
        """Raise ScenarioError unless every epoch has all samples of a client, as they are."""
        images = self.data.images
        if self.data.rest != "keep" or (images and images.augment):
            problem = "needs every sample in every epoch: train.batches epochs without train.drop_last or data.augment"
            raise ScenarioError(problem, key="method.send_once", found=True)


class ForwardOnly(Forward):
    """Part-1 on a batch without a graph, as in evaluation: running statistics stay as they are."""

    def run(self, part1: Replica, batch: Value) -> tuple[Tensor, Tensor]:
        """Compute activations (n, ...); gives labels, too."""
        x, labels = batch.load()
        with torch.no_grad():
            return part1.weights(x, training=False), labels


class TrainAlone(Train):
    """`Train` whose gradient at the cut nobody needs."""

    gives_gradient = False


@dataclass(frozen=True)
class TrainAndKeep(TrainAlone):
    """`TrainAlone` on smashed data that the server keeps."""

    def run(self, part: Any, data: Value, *more: Any) -> None:
        """Train, and add the samples' numbers, activations and labels to the memory, the last of `more`."""
        batch, memory = more
        super().run(part, data)
        memory.content = [*(memory.content or []), (torch.from_numpy(batch.numbers), *data.load())]


@dataclass(frozen=True)
class TrainKept(TrainAlone):
    """`TrainAlone` on a mini-batch whose activations the server has kept."""

    def run(self, part: Any, data: Value, *more: Any) -> None:
        """Train on the activations of the mini-batch's samples."""
        (memory,) = more
        assert isinstance(data, Batch)
        if len(memory.content) > 1:
            memory.content = [tuple(map(torch.cat, zip(*memory.content, strict=True)))]
        ((numbers, activations, labels),) = memory.content
        order = numbers.argsort()
        places = order[torch.searchsorted(numbers, torch.from_numpy(data.numbers), sorter=order)].to(labels.device)
        kept = Value("smashed", samples=data.samples, step=data.step)
        kept.content = activations[places], labels[places]
        super().run(part, kept)
