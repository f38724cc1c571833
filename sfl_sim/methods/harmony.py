"""HARMONY: personalised early exits for clients that are cut at different depths, and labels that stay at home.

Youn et al., "HARMONY: Bridging the Personalization-Generalization Gap by Mitigating Representation Skew in
Heterogeneous Split Federated Learning", 2026 (METHODS.md section 12). Clients learn front ends that adapt to them
within a few steps (FOMAML), the server a trunk that takes features of any depth and is aligned by contrast, and no
label crosses the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.exits import Exits, Trained
from sfl_sim.methods.multiexit import JointLossOptions, fine_tune
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, on, send
from sfl_sim.rng import stream
from sfl_sim.training.alignment import Align, Embed, Route
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.exit_steps import Adapt, ExitForward
from sfl_sim.training.harmony_steps import Assess, Outer, Upload, View, Wire
from sfl_sim.training.optimisers import Sgd


class HarmonyOptions(JointLossOptions):
    """`inner_steps`, `inner_lr`: of the adaptation (M, alpha), within a mini-batch and after the last round.

    `cross_batch`: a view is of one batch, by weights that were adapted to another. `stochastic_exit`: the view for the
    alignment ends at a depth drawn up to the client's own, else there. `csa_weight`, `csa_margin`, `csa_l2norm`: of the
    contrastive alignment, 0 for none and no such view; `quantise`: features, and what comes back for them, travel as
    float16.
    `head`: the last layer is at the clients, who get embeddings, or at the server, which sends answers (CHOICE 32).
    """

    inner_steps: Annotated[int, Field(ge=0)] = 5
    inner_lr: Annotated[float, Field(gt=0)] = 0.05
    cross_batch: bool = True
    stochastic_exit: bool = True
    csa_weight: Annotated[float, Field(ge=0)] = 1.0
    csa_margin: Annotated[float, Field(ge=0)] = 1.0
    csa_l2norm: bool = False
    quantise: bool = True
    head: Literal["embedding", "logits"] = "embedding"


class Harmony(Exits, survives=True):
    """A round trip more with every mini-batch than SplitFedV1, and an adaptation of the front end in each."""

    Options = HarmonyOptions
    options: HarmonyOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.wire = Wire(self.options.quantise)
        self.prefixes = {depth: task.network.part(0, depth) for depth in self.depths}
        """The layers before each exit, to which a view may be cut short."""
        self.trunk = Bundle(self.theta)

    @property
    def cuts_of_theta(self) -> Sequence[int]:
        """Before the last layer."""
        return [len(self.task.network) - 1]

    @property
    def keeps_classifier(self) -> bool:
        """So that the server never needs a label."""
        return self.options.head == "embedding"

    def client(self, c: int, round: int) -> Flow:
        """Download phi, h and the classifier, train them with a copy of theta, upload them."""
        model = yield from self.download(c)
        theta = yield send(self.trunk, SERVER, SERVER)
        routes = self.routes(c, round)
        batches = zip(self.data.batches(c, round), self.data.others(c, round), routes, strict=True)
        for first, second, route in batches:
            yield from self.minibatch(c, model, theta, (first, second), route, round)
        model = yield send(model, c, AGGREGATOR)
        entered = range(min(route.first for route in routes), len(self.theta))
        return Trained(model, {place: theta.members[place] for place in entered})

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """All of theta for every client: what it draws may enter anywhere."""
        return len(clients) * self.trunk.size_bytes

    def routes(self, c: int, round: int) -> list[Route]:
        """Where the features of each of a client's mini-batches enter the server's model."""
        own, n, trunk = self.rank(self.task.cuts[c]), self.data.n_batches(c), len(self.theta) - (not self.classifier)
        if not self.options.csa_weight:
            return [Route(own, None, trunk)] * n
        if not self.options.stochastic_exit:
            return [Route(own, own, trunk)] * n
        drawn = stream(self.task.seed, "exit depths", round, c).integers(own + 1, size=n)
        return [Route(own, int(rank), trunk) for rank in drawn]

    def minibatch(
        self, c: int, model: Bundle, theta: Bundle, batches: tuple[Batch, Batch], route: Route, round: int
    ) -> Flow:
        """One local step (METHODS.md 12.2): the task is that of the first batch, whose view is z++."""
        options, optimiser = self.options, self.optimiser(round)
        first, second = batches
        task_share = 1 - options.gamma_loss
        adapted = yield from self.adapted(c, model, second if options.cross_batch else first)
        own = yield on(c, ExitForward(options.gamma_loss), adapted, first)
        other, prefix = None, None
        if route.other is not None:
            prefix = self.prefixes[self.depths[route.other]]
            elsewhere = yield from self.adapted(c, model, first if options.cross_batch else second)
            other = yield on(c, View(prefix), elsewhere, second)
        features = yield on(c, Upload(self.wire, prefix), model, own, other)
        features = yield send(features, c, SERVER)
        answer = yield on(SERVER, Embed(route, self.wire), theta, features)
        answer = yield send(answer, SERVER, c)
        gradient = yield on(c, Assess(optimiser, task_share), model, answer, own)
        gradient = yield send(gradient, c, SERVER)
        align = Align(optimiser, route, options.csa_weight, options.csa_margin, options.csa_l2norm)
        gradient = yield on(SERVER, align, theta, gradient)
        gradient = yield send(gradient, SERVER, c)
        yield on(c, Outer(optimiser), model, adapted, gradient)

    def adapted(self, c: int, model: Bundle, batch: Batch) -> Flow:
        """A copy of front end and exit after the inner loop on a batch."""
        copy = yield send(Bundle(model.members[:2]), c, c)
        yield on(c, Adapt(Sgd(self.options.inner_lr), self.options.inner_steps, keeps_statistics=True), copy, batch)
        return copy

    def personalise(self, c: int, model: Bundle) -> Flow:
        """The adaptation once more, on mini-batches of the client's samples (CHOICE 38)."""
        yield from fine_tune(self, c, model, self.options.inner_steps, self.options.inner_lr)

    def is_personal(self, c: int) -> bool:
        """If there is an adaptation at all."""
        return self.options.inner_steps > 0
