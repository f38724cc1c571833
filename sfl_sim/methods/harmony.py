"""HARMONY: personalised early exits for clients that are cut at different depths, and labels that stay at home.

Youn et al., "HARMONY: Bridging the Personalization-Generalization Gap by Mitigating Representation Skew in
Heterogeneous Split Federated Learning", 2026 (docs/methods/harmony.md). Clients learn front ends that adapt to them
within a few steps (first-order meta-learning, FOMAML), the server a trunk that takes features of any depth and is
aligned by contrast, and no label crosses the wire.

Names are the paper's: w = (phi, h) before the inner loop, w_p and w_pp for w+ and w++ after it, z_p and z_pp for the
features z+ and z++ of both, d for the client's depth, k for the drawn depth K, theta for the server's model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.exit_method import ExitMethod, ExitOptions, TrainedExits
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, through
from sfl_sim.ops import SERVER, Flow, Step, Value, Work, on, send
from sfl_sim.rng import stream
from sfl_sim.scenario.fields import Unless
from sfl_sim.training.codecs import Delta, Fp16
from sfl_sim.training.exit_steps import Adapt, ExitForward, backward, exit_work
from sfl_sim.training.optimisers import Optimiser, Sgd
from sfl_sim.training.steps import LossAtLabels, gradient_at

EPSILON = 1e-12
"""Inside the distance of two embeddings, whose gradient is infinite at 0."""


class HarmonyOptions(ExitOptions):
    """Options of HARMONY."""

    inner_steps: Annotated[int, Field(ge=0)] = 5
    """Number of steps of the adaptation, within a mini-batch and after the last round (M)."""
    inner_lr: Annotated[float, Field(gt=0), Unless("inner_steps", 0)] = 0.05
    """Learning rate of the adaptation (alpha)."""
    cross_batch: Annotated[bool, Unless("inner_steps", 0)] = True
    """Make each view of one batch by weights that were adapted to the other; else to the same."""
    stochastic_exit: Annotated[bool, Unless("csa_weight", 0)] = True
    """Let the view for the alignment end at a depth drawn up to the client's own (K); else at its own."""
    csa_weight: Annotated[float, Field(ge=0)] = 20.0
    """Weight of the contrastive alignment; 0: there is none, nor a view for it."""
    csa_margin: Annotated[float, Field(ge=0), Unless("csa_weight", 0)] = 1.0
    """Margin of the alignment."""
    csa_l2norm: Annotated[bool, Unless("csa_weight", 0)] = True
    """Divide embeddings by their norm for the alignment, without which they collapse."""
    quantise: bool = True
    """Send features and embeddings as float16."""
    head: Literal["embedding", "logits"] = "embedding"
    """Place of the last layer: at the clients, which get embeddings, or at the server, which sends answers (logits)."""


class Harmony(ExitMethod, survives=True):
    """A round trip more with every mini-batch than SplitFedV1, and an adaptation of the front end in each."""

    Options = HarmonyOptions
    options: HarmonyOptions
    examples = (HarmonyOptions(inner_steps=1), HarmonyOptions(inner_steps=1, quantise=False, head="logits"))
    neutral = HarmonyOptions(gamma_loss=0.0, inner_steps=0, csa_weight=0.0, quantise=False)
    sends_labels = False

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, bool]:
        """Return whether features travel as float16."""
        return {"has_codec": isinstance(options, HarmonyOptions) and options.quantise}

    def __init__(self, task: Task, options: HarmonyOptions | None = None) -> None:
        options = options or HarmonyOptions()
        super().__init__(task, options, head=options.head)
        self.layers_to = [task.network.part(0, depth) for depth in self.depths]
        """The layers up to each depth, to which a view may be cut short."""
        self.whole_theta = Bundle(self.theta)
        if isinstance(self.wire.up, Delta):
            problem = "compares activations at one depth, and views end at several"
            raise ScenarioError(problem, key="wire.up", found="delta")
        if self.wire.defends:
            raise ScenarioError("has messages of its own, which no defence covers", key="privacy", found="harmony")
        if options.quantise:
            if self.wire.up or self.wire.down:
                problem = "features travel as float16 already; set method.quantise: false for another codec"
                raise ScenarioError(problem, key="wire.up" if self.wire.up else "wire.down")
            self.wire = replace(self.wire, up=Fp16(), down=Fp16())

    def client(self, c: int, round: int) -> Flow:
        """Download phi, h and the classifier, train them with a copy of theta, upload them."""
        w = yield from self.download(c)
        theta = yield send(self.whole_theta, SERVER, SERVER)
        routes = self.routes(c, round)
        batches = zip(self.data.batches(c, round), self.data.others(c, round), routes, strict=True)
        for b1, b2, route in batches:
            yield from self.minibatch(c, w, theta, (b1, b2), route, round)
        w = yield from self.wire.deliver(w, c, round)
        entered = range(min(route.first for route in routes), len(self.theta))
        return TrainedExits(w, {number: theta.members[number] for number in entered})

    def minibatch(
        self, c: int, w: Bundle, theta: Bundle, batches: tuple[Batch, Batch], route: Route, round: int
    ) -> Flow:
        """One local step: two views go up, an embedding comes down, and each side's gradient goes to the other."""
        options, optimiser = self.options, self.optimiser(round, c)
        b1, b2 = batches
        w_pp = yield from self.adapted(c, w, b2 if options.cross_batch else b1)
        z_pp = yield on(c, ExitForward(options.gamma_loss), w_pp, b1)
        layers_to_k, z_p = None, None
        if route.k is not None:
            layers_to_k = self.layers_to[route.k]
            w_p = yield from self.adapted(c, w, b1 if options.cross_batch else b2)
            z_p = yield on(c, View(layers_to_k), w_p, b2)
        phi, trunk, ids = w.members[0].part, theta.members[-1].part, (c, round, b1.step)
        views = yield on(c, Upload(layers_to_k), w, z_pp, z_p)
        views = yield send(self.wire.coded_up(views, [phi, *([layers_to_k] if layers_to_k else [])], *ids), c, SERVER)
        embedding = yield on(SERVER, Embed(route), theta, views)
        embedding = yield send(self.wire.coded_down(embedding, [trunk], *ids), SERVER, c)
        gradient = yield on(c, LossAtLabels(optimiser, trunk, 2, self.server_share), w, embedding, z_pp)
        gradient = yield send(self.wire.returned(gradient, embedding, trunk, None), c, SERVER)
        align = HarmonyAlign(
            self.optimiser(round, SERVER), route, options.csa_weight, options.csa_margin, options.csa_l2norm
        )
        gradient = yield on(SERVER, align, theta, gradient)
        gradient = yield send(self.wire.returned(gradient, views, phi, None), SERVER, c)
        yield on(c, Outer(optimiser), w, w_pp, gradient)

    def adapted(self, c: int, w: Bundle, batch: Batch) -> Flow:
        """Adapt(w, batch): a copy of phi and h after M SGD steps on a mini-batch."""
        copy = yield send(Bundle(w.members[:2]), c, c)
        yield on(c, Adapt(Sgd(self.options.inner_lr), self.options.inner_steps, keeps_statistics=True), copy, batch)
        return copy

    def routes(self, c: int, round: int) -> list[Route]:
        """Draw K for each of a client's mini-batches: any depth up to the client's own, each equally likely."""
        d, n, trunk = self.entry(c), self.data.n_batches(c), len(self.theta) - (not self.classifier)
        if not self.options.csa_weight:
            return [Route(d, None, trunk)] * n
        if not self.options.stochastic_exit:
            return [Route(d, d, trunk)] * n
        drawn = stream(self.task.seed, "exit depths", round, c).integers(d + 1, size=n)
        return [Route(d, int(k), trunk) for k in drawn]

    def deploy(self, c: int) -> Flow:
        """Download w and adapt it once more, with M mini-batches of the client's own samples."""
        w = yield from self.download(c)
        if self.options.inner_steps:
            yield from self.fine_tune(c, w, self.options.inner_steps, self.options.inner_lr)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Bytes of all of theta for every client: the features of a drawn depth may enter anywhere."""
        return len(clients) * self.whole_theta.size_bytes


@dataclass(frozen=True)
class Route:
    """The pieces of theta that the two views enter.

    Attributes:
        d: the first piece that z++ runs through.
        k: that of z+; None if there is none.
        trunk: how many pieces there are before the classifier, if the server has it.
    """

    d: int
    k: int | None
    trunk: int

    @property
    def first(self) -> int:
        """The first piece that either runs through."""
        return self.d if self.k is None else min(self.d, self.k)

    def work(self, theta: Bundle, samples: int, passes: int) -> Work:
        """The work of z++ through all that follows, and of z+, at which no gradient is needed, through the trunk."""
        pieces = [piece.part for piece in theta.members]
        works, gradient = [part.work(samples, passes) for part in pieces[self.d :]], False
        for part in [] if self.k is None else pieces[self.k : self.trunk]:
            works.append(part.work(samples, passes, gradient))
            gradient |= part.n_parameters > 0
        return Work.total(works)


@dataclass(frozen=True)
class View(Step):
    """z+: phi+ up to layer K, in training mode, with neither gradient nor exit."""

    layers_to_k: Part
    name = "view"

    def work(self, w_p: Bundle, batch: Value) -> Work:
        return self.layers_to_k.work(batch.samples, passes=1)

    def out(self, w_p: Bundle, batch: Value) -> Value:
        """Activations that stay at the client."""
        return Value("view", samples=batch.samples, step=batch.step)

    def run(self, w_p: Bundle, batch: Value) -> tuple[Tensor, Tensor]:
        """Activations (n, ...) and labels (n,)."""
        x, labels = batch.load()
        return w_p.replicas[0].weights.only(self.layers_to_k).without_graph(x), labels


@dataclass(frozen=True)
class Upload(Step):
    """A mini-batch's message to the server: z++ and z+, and of each pair of samples whether their labels are equal.

    Attributes:
        layers_to_k: what gave z+; None if there is none, and nothing but z++ is sent.
    """

    layers_to_k: Part | None
    name = "upload"

    def out(self, w: Bundle, z_pp: Value, z_p: Value | None) -> Value:
        """4n (A_d + A_K) bytes, a bit for each pair, and a byte for K."""
        part, n = w.members[0].part, z_pp.samples
        size_bytes = n * part.out_numel * part.wire_dtype.itemsize
        if self.layers_to_k:
            size_bytes += n * self.layers_to_k.out_numel * part.wire_dtype.itemsize + ceil(n / 8) + 1
        return Value("features", size_bytes, n, z_pp.step)

    def run(self, w: Bundle, z_pp: Value, z_p: Value | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """z++ (n, ...), z+ (n, ...) and the bits I (n,): all but the labels."""
        features, labels = z_pp.load()
        if z_p is None:
            return features, None, None
        other, other_labels = z_p.load()
        return features, other, labels == other_labels


@dataclass(frozen=True)
class Embed(Step):
    """The forward pass of both views; gives the embeddings z_S++, or the server's answers to them."""

    route: Route
    name = "embed"

    def work(self, theta: Bundle, views: Value) -> Work:
        return self.route.work(theta, views.samples, passes=1)

    def out(self, theta: Bundle, views: Value) -> Value:
        """4n d_S bytes, for an embedding of d_S elements, or an answer of as many as there are labels."""
        part = theta.members[-1].part
        size_bytes = views.samples * part.out_numel * part.wire_dtype.itemsize
        return Value("embedding", size_bytes, views.samples, views.step)

    def run(self, theta: Bundle, views: Value) -> Tensor:
        """Embeddings (n, d_S), or answers (n, L); the graphs wait in theta for `HarmonyAlign`."""
        z_pp, z_p, same = views.load()
        trunk, last = theta.replicas[: self.route.trunk], theta.replicas[self.route.trunk :]
        zs_p = None if z_p is None else through(trunk[self.route.k :], z_p, training=True)
        z_pp = z_pp.detach().requires_grad_()
        zs_pp = through(trunk[self.route.d :], z_pp, training=True)
        answer = through(last, zs_pp, training=True)
        theta.pending = z_pp, zs_pp, answer, zs_p, same
        return answer.detach()


@dataclass(frozen=True)
class HarmonyAlign(Step):
    """The server's backward pass and step, with the gradient of contrastive alignment (Eq. 7) in the trunk alone.

    Attributes:
        weight, margin, l2norm: of the alignment; see `contrast`.
    """

    optimiser: Optimiser
    route: Route
    weight: float
    margin: float
    l2norm: bool
    name = "align"

    def work(self, theta: Bundle, gradients: Value) -> Work:
        return self.route.work(theta, gradients.samples, passes=2)

    def out(self, theta: Bundle, gradients: Value) -> Value:
        """4n A_d bytes; none if the client's layers are frozen."""
        return gradient_at(theta.members[self.route.d].part, gradients)

    def run(self, theta: Bundle, gradients: Value) -> Tensor | None:
        """The gradient of the task at z++ (n, A_d). Pieces that nothing ran through take no step."""
        (z_pp, zs_pp, answer, zs_p, same), theta.pending = theta.pending, None
        torch.autograd.backward(answer, gradients.load(), retain_graph=zs_p is not None)
        gradient: Tensor | None = z_pp.grad
        if zs_p is not None:
            assert gradient is not None
            gradient = gradient.clone()  # to which the alignment's would be added
            dtype = theta.members[0].part.dtype
            loss = contrast(zs_p.to(dtype), zs_pp.to(dtype), same, self.margin, self.l2norm)
            differentiate(self.weight * loss)
        for replica in theta.replicas[self.route.first :]:
            self.optimiser.step(replica.weights)
        return gradient


@dataclass(frozen=True)
class Outer(Step):
    """First-order meta-learning (FOMAML, Finn et al. 2017): the gradient at w++ is applied to w.

    Running statistics of batch norm become those that the forward pass of z++ left.
    """

    optimiser: Optimiser
    name = "backward"

    def work(self, w: Bundle, w_pp: Bundle, gradients: Value) -> Work:
        return exit_work(w_pp, gradients.samples, passes=2)

    def run(self, w: Bundle, w_pp: Bundle, gradients: Value) -> None:
        """Step with no derivative through the adaptation."""
        backward(w_pp, gradients)
        for replica, adapted in zip(w.replicas[:2], w_pp.replicas[:2], strict=True):
            replica.weights.keep_statistics()
            replica.weights.grad.copy_(adapted.weights.grad)
            replica.weights.put(adapted.weights.state)
            self.optimiser.step(replica.weights)


def contrast(one: Tensor, other: Tensor, same: Tensor, margin: float, l2norm: bool = False) -> Tensor:
    """Contrastive semantic alignment (Eq. 7; Motiian et al., ICCV 2017): the mean over pairs of embeddings (n, ...).

    D^2 / 2 where `same` (n,), else max(0, margin - D)^2 / 2, where D is the distance of a pair. With `l2norm`,
    embeddings are divided by their norm first.
    """
    one, other = one.flatten(1), other.flatten(1)
    if l2norm:
        one, other = normalize(one), normalize(other)
    squared = (one - other).square().sum(dim=1)
    apart = (margin - (squared + EPSILON).sqrt()).clamp(min=0).square()
    return torch.where(same, squared, apart).mean() / 2
