"""SplitFrozen: clients only run the first layers, which are frozen; the server trains the others.

Ma et al., "SplitFrozen: Split Learning with Device-side Model Frozen for Fine-Tuning LLM on Heterogeneous
Resource-Constrained Devices", 2025 (docs/methods/splitfrozen.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.ahead import Mailbox, closing
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, On, State, Value, expect, on, par, send
from sfl_sim.training.steps import ForwardOnly, Renew, TrainAlone


class FrozenOptions(MethodOptions):
    """Options of SplitFrozen."""

    ahead: Annotated[int, Field(ge=1)] = 4
    """Number of messages of a client that may wait at the server."""
    send_once: bool = False
    """Let the server keep the activations of every sample, so that a client whose samples have all been sent computes
    and sends nothing any more."""


class SplitFrozen(SplitMethod, survives=True):
    """Clients send activations of frozen layers ahead, and nothing comes down; the server trains in turn."""

    Options = FrozenOptions
    options: FrozenOptions
    examples = (FrozenOptions(), FrozenOptions(send_once=True))
    neutral = None
    trains_part1 = False
    sends_gradients = False
    uploads_model = False
    only_averages = False  # it averages nothing
    shares_server_model = True
    ignores: Mapping[str, str] = {"train.agg_weights": "nothing is averaged"}
    follows_order = True
    depends_on_time = True
    trains = TrainAlone

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
        yield expect(self.part2, {c: self.data.n_batches(c) for c in clients})
        yield par({c: self.client(c, round) for c in clients})

    def client(self, c: int, round: int) -> Flow:
        """Let the client send its mini-batches, or with `send_once` those of its first epoch, and the server train."""
        mailbox, batches = Mailbox(c, self.options.ahead), list(self.data.batches(c, round))
        n_sent = len(batches)
        if self.options.send_once:
            n_sent = 0 if c in self.sent else n_sent // self.data.passes(c)
        feed = self.feed(c, mailbox, batches[:n_sent], round)
        serve = self.serve(c, mailbox, batches[:n_sent], batches[n_sent:], round)
        yield par(closing(flow, mailbox) for flow in (feed, serve))

    def feed(self, c: int, mailbox: Mailbox, batches: Sequence[Batch], round: int) -> Flow:
        """Send the activations of every mini-batch, at most `ahead` before the server has trained on them."""
        part1 = yield send(self.part1, c, c)
        for batch in batches:
            yield from mailbox.room()
            smashed = yield on(c, ForwardOnly(), part1, batch)
            smashed = yield from self.wire.upload(smashed, part1.part, batch, c, round)
            yield from mailbox.put(smashed)

    def serve(self, c: int, mailbox: Mailbox, sent: Sequence[Batch], kept: Sequence[Batch], round: int) -> Flow:
        """Train part-2 on what comes of client `c`, then on the mini-batches of which it has kept the activations."""
        for batch in sent:
            smashed = yield from mailbox.take()
            yield self.job(c, smashed, batch, round)
        if self.options.send_once:
            self.sent.add(c)
        for batch in kept:
            yield on(SERVER, TrainKept(self.optimiser(round, SERVER)), self.part2, batch, self.kept[c])

    def job(self, c: int, smashed: Value, batch: Batch, round: int) -> On:
        """The server's step on one message; it is kept with `send_once`."""
        if not self.options.send_once:
            return on(SERVER, self.server_step(round), self.part2, smashed)
        if not batch.step:  # perhaps once more, if the client was lost
            self.kept[c] = State("kept activations")
        return on(SERVER, TrainAndKeep(self.optimiser(round, SERVER)), self.part2, smashed, batch, self.kept[c])

    def current(self) -> list[Replica]:
        return [self.part1, self.part2]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        part, n = self.part1.part, sum(self.data.samples(c) for c in range(len(self.data)))
        kept = n * part.out_numel * part.wire_dtype.itemsize if self.options.send_once else 0
        return self.part2.size_bytes + kept

    def _check_epochs(self) -> None:
        """Raise ScenarioError unless every epoch has all samples of a client, as they are."""
        images = self.data.images
        if self.data.rest != "keep" or (images and images.augment):
            problem = "needs every sample in every epoch: train.batches epochs without train.drop_last or data.augment"
            raise ScenarioError(problem, key="method.send_once", found=True)
        self.data.check_one_length("splitfrozen with send_once", "activations are kept in other mini-batches")


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
        (memory,) = more
        assert isinstance(data, Batch)
        if len(memory.content) > 1:
            memory.content = [tuple(map(torch.cat, zip(*memory.content, strict=True)))]
        ((numbers, activations, labels),) = memory.content
        order = numbers.argsort()
        rows = order[torch.searchsorted(numbers, torch.from_numpy(data.numbers), sorter=order)].to(labels.device)
        kept = Value("smashed", samples=data.samples, step=data.step)
        kept.content = activations[rows], labels[rows]
        super().run(part, kept)
