"""FSL-SAGE: auxiliary heads learn, from time to time, to give the gradients that the server would send.

Nair et al., "FSL-SAGE: Accelerating Federated Split Learning via Smashed Activation Gradient Estimation", ICML 2025
(docs/methods/fsl_sage.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.ahead import Ahead, Boxes, HeadOptions
from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.models.heads import Aux
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import KINDS, SERVER, Flow, State, Step, Value, Work, on, send
from sfl_sim.training.optimisers import Adam, Optimiser
from sfl_sim.training.steps import Backward, Forward, InputGradient, TrainAlone


class SageOptions(HeadOptions):
    """Options of FSL-SAGE."""

    aux: Aux = "linear"
    """Auxiliary head: one `linear` layer, that of an early `exit`, all layers behind the cut (`twin`), or an integer m:
    the first m of them and the last one."""
    upload_every: Annotated[int, Field(ge=1)] = 5
    """Number of mini-batches of which the first one goes up (q)."""
    align_every: Annotated[int, Field(ge=1)] = 10
    """Number of rounds of which the first one aligns the heads (l)."""
    align_epochs: Annotated[int, Field(ge=1)] = 100
    """Number of steps of Adam on all rows that are stored."""
    align_lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of these steps."""
    store: Annotated[int, Field(ge=1)] = 1000
    """Number of samples of each client whose latest activations the server keeps."""


class FslSage(Ahead, survives=True):
    """Clients learn from the gradients that heads estimate; the server fits the heads to its own gradients."""

    Options = SageOptions
    options: SageOptions
    tuned = ("align_every", (1, 2, 5, 10))
    examples = (SageOptions(align_every=2, align_epochs=2, upload_every=2),)
    neutral = None
    forward, goes_back = Forward(), Backward

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        task.data.check_one_length(task.method, "activations of several mini-batches are stored as one")
        self.head = self.new_head(task.cut)
        if self.part2.part.first:
            problem = "has nothing to estimate: what clients hold is frozen, and gets no gradient"
            raise ScenarioError(problem, key="method.name", found="fsl_sage")
        if self.head.part.work(1, passes=1).by_kind[KINDS.index("attention")]:
            problem = "aligns heads by their second derivative, which torch does not have of attention"
            raise ScenarioError(
                problem, key="method.aux", found=self.options.aux, allowed="linear, where it is no attention"
            )
        self.shares_server_model = False  # heads are aligned side by side
        self.heads: dict[int, Replica] = {}
        """a_c at the server, with the state of its optimiser, once it has been aligned."""
        self.received: dict[int, Replica] = {}
        """The copy that the client has got last."""
        self.stores: dict[int, State] = {}
        self.n_stored: dict[int, int] = {}
        """Activations and labels of each client at the server, and how many samples they are."""

    def is_sent(self, step: int) -> bool:
        """Say whether the mini-batch is the first of its q."""
        return step % self.options.upload_every == 0

    def aligns(self, round: int) -> bool:
        """Say whether heads are aligned in this round."""
        return (round - 1) % self.options.align_every == 0

    def n_jobs(self, n_batches: int, round: int) -> int:
        """Count the jobs at part-2: one for every upload, and one more for the gradients by which a head is aligned."""
        return super().n_jobs(n_batches, round) + self.aligns(round)

    def learn(self, c: int, model: Replica | Bundle, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train part-1 by estimated gradients; where heads are aligned, the first waits for the client's new head."""
        assert isinstance(model, Replica)
        for batch in batches:
            smashed = yield on(c, self.forward, model, batch)
            if self.is_sent(batch.step):
                yield from boxes.outbox.put(smashed)
            if batch.step == 0 and self.aligns(round):
                self.received[c] = yield from boxes.replies.take()
            gradient = yield on(c, InputGradient(), self.received.get(c, self.head), smashed)
            yield on(c, self.backward(round, c), model, gradient)

    def serve(self, c: int, part2: Replica, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train part-2 on what arrives, and store it; after the first, align the head if it is time."""
        store = self.stores.setdefault(c, State("store"))
        for batch in batches:
            if self.is_sent(batch.step):
                smashed = yield from boxes.inbox.take()
                yield on(SERVER, self.server_step(round), part2, smashed, store)
                self.n_stored[c] = min(self.n_stored.get(c, 0) + smashed.samples, self.options.store)
            if batch.step == 0 and self.aligns(round):
                head = yield from self.align(c, part2, SageStore(c, store, self.n_stored[c]))
                yield from boxes.replies.put((yield send(head, SERVER, c)))

    def align(self, c: int, part2: Replica, stored: SageStore) -> Flow:
        """Fit the head of client `c` to the gradients of the current part-2 on all that is stored; gives the head."""
        if c not in self.heads:
            self.heads[c] = yield send(self.head, SERVER, SERVER)
        target = yield on(SERVER, InputGradient(), part2, stored)
        align = SageAlign(Adam(self.options.align_lr), self.options.align_epochs)
        yield on(SERVER, align, self.heads[c], stored, target)
        return self.heads[c]

    @once_a_round
    def server_step(self, round: int) -> Step:
        return TrainAndStore(self.optimiser(round, SERVER), self.options.store)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of part-2, and for every client that of a head, and of the rows that may be stored."""
        part = self.part1.part
        rows = (min(self.options.store, self.data.samples(c)) for c in range(len(self.data)))
        row_bytes = part.out_numel * part.wire_dtype.itemsize + part.label_bytes
        return self.part2.size_bytes + len(self.data) * self.head.size_bytes + sum(rows) * row_bytes


class SageStore(Value):
    """All that a store holds of one client, as one mini-batch."""

    __slots__ = ("made_of",)

    def __init__(self, client: int, store: State, samples: int) -> None:
        super().__init__("smashed", samples=samples)
        self.maker = client
        self.made_of = [store]

    def load(self) -> Any:
        """Activations (n, ...) and labels (n, ...)."""
        return self.made_of[0].load()


@dataclass(frozen=True)
class TrainAndStore(TrainAlone):
    """`TrainAlone` on smashed data of which the server keeps the latest samples.

    Attributes:
        rows: most samples that it keeps.
    """

    rows: int

    def run(self, part: Any, data: Value, *more: Any) -> None:
        super().run(part, data)
        (store,) = more
        held = [store.content, data.load()] if store.content else [data.load()]
        store.content = tuple(torch.cat(each)[-self.rows :] for each in zip(*held, strict=True))


@dataclass(frozen=True)
class SageAlign(Step):
    """Fit a head's gradients at its input, of its own mean loss, to given ones: the sum of squared differences.

    This takes the second derivative of the head.
    """

    optimiser: Optimiser
    epochs: int
    name = "align"

    def work(self, head: Replica, stored: Value, target: Value) -> Work:
        """Count forward, gradient at the input, and the backward pass through both, in every epoch."""
        n = 2 * self.epochs
        work = head.part.work(stored.samples, passes=3).of_batch(n).called(n)
        return work._replace(updated=work.updated * self.epochs)

    def run(self, head: Replica, stored: Value, target: Value) -> None:
        (z, labels), goal = stored.load(), target.load()
        for _ in range(self.epochs):
            x = z.detach().requires_grad_()
            loss = head.part.loss(head.weights(x, training=True), labels)
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            differentiate((gradient - goal).square().sum())
            self.optimiser.step(head.weights)
