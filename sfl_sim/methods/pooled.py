"""Pooled server steps: all clients send the activations of a mini-batch, and the server trains on all of them at once.

Methods differ in the server's step, and in the gradients that come back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

import torch
from torch import Tensor

from sfl_sim.data.batches import Batch, ClientData
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitStep, TwoParts, part1_of
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Step, Value, Work, on, par
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import Renew, Train, gradient_at


class Pooled(SplitStep, TwoParts):
    """Steps in which the server trains on what all clients have sent; part-1 is averaged every round.

    Attributes:
        client_model: what a client downloads, trains and uploads: part-1, or a bundle that begins with it.
    """

    shares_server_model = True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.client_model: Replica | Bundle = self.part1
        self.batch_size = task.data.common("batch_size", task.method)
        task.data.check_one_length(task.method, "mini-batches of several clients become one")

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Steps that each take a mini-batch of every client that has one; then w1 <- sum_c k_c w1_c."""
        yield on(SERVER, Renew(), self.part2)
        sizes = self.batch_sizes(clients)
        models = yield par({c: self.wire.fetch(self.client_model, c) for c in clients})
        for step in self.todo(round, sizes):
            batches = {c: batch for c, batch in zip(clients, step, strict=True) if batch is not None and c in models}
            done = yield from self.step(batches, models, sizes, round)
            for lost in batches.keys() - done:
                del models[lost]
        copies = yield par({c: self.wire.deliver(model, c, round) for c, model in models.items()})
        yield from self.merge(copies, sizes)

    def batch_sizes(self, clients: Sequence[int]) -> dict[int, int]:
        """The samples of each client's mini-batches: by default all equal."""
        return dict.fromkeys(clients, self.batch_size)

    def todo(self, round: int, sizes: Mapping[int, int]) -> Iterator[tuple[Batch | None, ...]]:
        """The clients' mini-batches step by step; None for a client that has no more."""
        return in_step(self.data, round, sizes, max(self.data.n_batches(c, size) for c, size in sizes.items()))

    def step(
        self,
        batches: Mapping[int, Batch],
        models: Mapping[int, Replica | Bundle],
        sizes: Mapping[int, int],
        round: int,
    ) -> Flow:
        """One step: the server waits for all, and all wait for the server; gives the clients that are not lost."""
        smashed = yield par({c: self.forwards(c, models[c], batch, round) for c, batch in batches.items()})
        if not smashed:
            return set()
        parts = yield from self.train(smashed, round)
        steps = {c: self.client_step(c, sizes, round) for c in smashed}
        back = {c: self.backwards(c, models[c], one, parts.get(c), steps[c], round) for c, one in smashed.items()}
        return set((yield par(back)))

    def forwards(self, c: int, model: Replica | Bundle, batch: Batch, round: int) -> Flow:
        """a_c = w1_c(x_c) goes to the server, with the labels."""
        smashed = yield on(c, self.forward, part1_of(model), batch)
        return (yield from self.wire.upload(smashed, self.part1.part, batch, c, round))

    def train(self, smashed: Mapping[int, Value], round: int) -> Flow:
        """Train part-2 on what has come; gives the gradient at the cut of each client, where that is known now."""
        step = self.step_of(smashed, round)
        return dispatched((yield on(SERVER, step, self.part2, list(smashed.values()))), smashed)

    def step_of(self, smashed: Mapping[int, Value], round: int) -> Step:
        """The server's step on what has come: by default one mini-batch, with the gradients of all rows."""
        return TrainMerged(self.optimiser(round, SERVER))

    def backwards(
        self, c: int, model: Replica | Bundle, smashed: Value, part: Value | None, step: Step, round: int
    ) -> Flow:
        """The client's gradient comes back, and it steps."""
        part = yield from self.gradient(smashed, part)
        coded = self.wire.coded_gradient(part, smashed, self.part1.part, c, round)
        gradient = yield from self.wire.receive(coded, part1_of(model), c)
        yield on(c, step, model, gradient)

    def gradient(self, smashed: Value, part: Value | None) -> Flow:
        """Give the gradient that goes to a client: by default the one that is known."""
        yield from ()
        return part

    def client_step(self, c: int, sizes: Mapping[int, int], round: int) -> Step:
        """The client's step from the gradient at the cut."""
        return self.backward(round, c)

    def merge(self, copies: Mapping[int, Replica | Bundle], sizes: Mapping[int, int]) -> Flow:
        """Average what clients have trained."""
        yield from self.average(AGGREGATOR, self.client_model, copies)


def in_step(data: ClientData, round: int, sizes: Mapping[int, int], steps: int) -> Iterator[tuple[Batch | None, ...]]:
    """Yield the clients' mini-batches of these sizes, for so many steps; None for a client that has no more."""
    return islice(zip_longest(*(data.batches(c, round, size) for c, size in sizes.items())), steps)


@dataclass(frozen=True)
class TrainMerged(Step):
    """`Train` on the smashed data of several clients as one mini-batch; gives the gradients of all, in a row."""

    optimiser: Optimiser
    name = "train"

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        return part2.part.work(merged(smashed).samples, passes=3)

    def out(self, part2: Replica, smashed: Sequence[Value]) -> Value:
        return gradient_at(part2.part, merged(smashed))

    def run(self, part2: Replica, smashed: Sequence[Value]) -> Tensor | None:
        """The gradient of the mean loss over all samples, evaluated before the step."""
        whole = merged(smashed)
        whole.content = rows_of(smashed)
        return Train(self.optimiser).run(part2, whole)


def merged(smashed: Sequence[Value]) -> Value:
    """Give the mini-batch that the smashed data of several clients make up, without its content."""
    return Value("smashed", samples=sum(value.samples for value in smashed), step=smashed[0].step)


def rows_of(smashed: Sequence[Value]) -> tuple[Tensor, Tensor]:
    """Give the activations (n, ...) and labels (n, ...) of several clients, one after another."""
    inputs, labels = zip(*(value.load() for value in smashed), strict=True)
    return torch.cat(inputs), torch.cat(labels)


class Dispatched(Value):
    """Rows of G of one client, times sum_j b_j / b_c: the gradients of the mean loss over its own samples."""

    __slots__ = ("_rows", "_scale", "made_of")

    def __init__(self, whole: Value, first: int, samples: int) -> None:
        size_bytes = whole.size_bytes // whole.samples * samples
        super().__init__(whole.kind, size_bytes, samples, whole.step, whole.content)
        self.made_of = [whole]
        self._rows = slice(first, first + samples)
        self._scale = whole.samples / samples

    def load(self) -> Tensor | None:
        """The rows (n, ...), scaled; None if clients need no gradient, since all their layers are frozen."""
        rows: Tensor | None = self.made_of[0].load()
        return None if rows is None else rows[self._rows] * self._scale


def dispatched(whole: Value, smashed: Mapping[int, Value]) -> dict[int, Dispatched]:
    """Split gradients of the merged mini-batch into the rows of each client."""
    parts, first = {}, 0
    for c, value in smashed.items():
        parts[c] = Dispatched(whole, first, value.samples)
        first += value.samples
    return parts
