"""U-shaped split learning: labels stay at the client, which holds the first and the last layers.

Vepakomma et al., "Split Learning for Health: Distributed Deep Learning without Sharing Raw Patient Data", 2018
(docs/methods/u_shaped.md).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.methods.split import SplitStep, in_turn, part1_of
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, expect, on, par, send
from sfl_sim.training.alternatives import Model
from sfl_sim.training.codecs import Delta
from sfl_sim.training.defences import Noisy
from sfl_sim.training.steps import Forward, LossAtLabels, Relay, RelayBack, Renew


class UShapedOptions(MethodOptions):
    """Options of U-shaped split learning."""

    tail: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Number of the network's last layers that clients hold; 0: they compute the loss of the server's answers; null: 1,
    unless the cut leaves no other to the server."""
    server: Literal["copies", "shared"] = "copies"
    """The server's part: a copy for every client, averaged every round; or one that all train in turn, which waits for
    a client between its two visits with a mini-batch."""


class UShaped(SplitStep, regular=True, survives=True):
    """Clients hold the first and the last layers, and the server those between, which sees no label."""

    Options = UShapedOptions
    options: UShapedOptions
    examples = (UShapedOptions(), UShapedOptions(server="shared"), UShapedOptions(tail=0))
    neutral = UShapedOptions()
    sends_labels, only_averages = False, True
    forward = Forward(labelled=False)

    def __init__(self, task: Task, options: UShapedOptions | None = None) -> None:
        super().__init__(task, options)
        tail = self.options.tail
        if tail is None:
            tail = int(task.cut < len(task.network) - 1)
        end = len(task.network) - tail
        if task.cut >= end:
            problem = "leaves no layer to the server, since clients hold the last ones, too"
            raise ScenarioError(problem, key="model.cut", found=task.cut, allowed=f"1 to {end - 1}")
        if isinstance(self.wire.up, Delta):
            raise ScenarioError("sends labels along, which here stay at the client", key="wire.up", found="delta")
        if isinstance(self.wire.down, Noisy):
            problem = "would clip and cover the activations that come down, too"
            raise ScenarioError(problem, key="privacy.gradient_noise", found=task.method)
        self.n_last = tail
        self.part1, self.part2, *self.part3 = task.split(task.cut, *([end] if tail else []))
        for part in self.part3:
            task.at_clients(part)
        self.client_model: Replica | Bundle = Bundle([self.part1, *self.part3]) if tail else self.part1

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, bool]:
        """Return what follows from whether clients take turns at the server."""
        assert isinstance(options, UShapedOptions)
        return in_turn(options.server == "shared")

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Clients side by side; w1, w3 <- sum_c k_c w_c, and w2 likewise, or by every mini-batch in turn."""
        shared = self.shares_server_model
        if shared:
            yield on(SERVER, Renew(), self.part2)
            yield expect(self.part2, {c: 2 * self.data.n_batches(c) for c in clients}, turn=2)
        trained = yield par({c: self.client(c, round) for c in clients})
        if not shared:
            yield from self.average(SERVER, self.part2, {c: part2 for c, (_, part2) in trained.items()})
        yield from self.average(AGGREGATOR, self.client_model, {c: model for c, (model, _) in trained.items()})

    def client(self, c: int, round: int) -> Flow:
        """Download w1 and w3, train them with w2 or a copy, upload them."""
        model = yield from self.wire.fetch(self.client_model, c)
        part2 = self.part2 if self.shares_server_model else (yield send(self.part2, SERVER, SERVER))
        for batch in self.data.batches(c, round):
            yield from self.visits(c, model, part2, batch, round)
        return (yield from self.wire.deliver(model, c, round)), part2

    def visits(self, c: int, model: Replica | Bundle, part2: Replica, batch: Batch, round: int) -> Flow:
        """Train on one mini-batch, which comes to the server twice: with activations, and with their gradient."""
        part1 = part1_of(model)
        smashed = yield on(c, self.forward, part1, batch)
        smashed = yield from self.wire.upload(smashed, part1.part, batch, c, round)
        passed = yield on(SERVER, Relay(labelled=False), part2, smashed)
        passed = yield send(self.wire.coded_down(passed, [part2.part], c, round, batch.step), SERVER, c)
        gradient = yield on(c, LossAtLabels(self.optimiser(round, c), part2.part), model, passed, batch)
        # the last id: the gradient that comes back down in this step has draws of its own
        gradient = self.wire.returned(gradient, passed, part2.part, self.wire.down, c, round, batch.step, 1)
        gradient = yield send(gradient, c, SERVER)
        gradient = yield on(SERVER, self.relay_back(round), part2, gradient)
        gradient = yield from self.wire.download(gradient, smashed, part1, c, round)
        yield on(c, self.backward(round, c), part1, gradient)

    @once_a_round
    def relay_back(self, round: int) -> RelayBack:
        """The server's step from the gradient that a client sends."""
        return RelayBack(self.optimiser(round, SERVER))

    def model(self) -> Model:
        return [self.part1, self.part2, *self.part3]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return self.part2.size_bytes * (1 if self.shares_server_model else len(clients))
