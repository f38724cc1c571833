"""LocFedMix-SL: the server also trains on mixed activations of two clients, and clients learn to keep what they saw.

Oh et al., "LocFedMix-SL: Localize, Federate, and Mix for Improved Scalability, Convergence, and Latency in Split
Learning", WWW 2022 (docs/methods/locfedmix.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import Pooled, TrainMerged, merged, rows_of
from sfl_sim.methods.split import part1_of
from sfl_sim.models.layers import Shape, named
from sfl_sim.models.network import Network
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import SERVER, Flow, Lost, Step, Value, Work, on, start
from sfl_sim.rng import stream
from sfl_sim.scenario.fields import Unless
from sfl_sim.training.optimisers import Adam, Optimiser

WIDTH = 16
"""Channels of the decoder."""


class MixOptions(MethodOptions):
    """Options of LocFedMix-SL."""

    alpha: Annotated[float, Field(gt=0), Unless("partners", 0)] = 1.0
    """Both parameters of the Beta distribution of which the share of a client in a mixture is drawn."""
    partners: Annotated[int, Field(ge=0)] = 1
    """Number of other clients with whom each client is mixed in a step; 0: none."""
    recon_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the loss of the client's decoder in what trains part-1 (rho); 0: there is no decoder."""
    decoder_lr: Annotated[float, Field(gt=0), Unless("recon_weight", 0)] = 1e-3
    """Learning rate of the decoder, by Adam."""


class LocFedMix(Pooled, survives=True):
    """Pooled steps with mixed activations at the server, and a decoder at each client."""

    Options = MixOptions
    options: MixOptions
    examples = (MixOptions(), MixOptions(partners=2, recon_weight=0.0))
    neutral = MixOptions(partners=0, recon_weight=0.0)
    only_averages = False

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if task.network.tokens:
            raise ScenarioError("draws images again, and has none", key="method.name", found=task.method)
        if self.options.recon_weight:
            decoder = decoder_network(task.network, task.cut).split(seed=task.seed, device=task.device)
            self.client_model = Bundle([self.part1, *decoder])
        self.n_steps = 0
        """Number of steps begun, which names the draws of mixtures."""
        self.interrupted: set[int] = set()
        """Clients that went away while they drew their last samples again."""

    def forwards(self, c: int, model: Replica | Bundle, batch: Batch, round: int) -> Flow:
        """a_c goes to the server; meanwhile the client draws its samples again."""
        smashed = yield on(c, self.forward, part1_of(model), batch)
        self.interrupted.discard(c)
        if isinstance(model, Bundle):
            yield start(self.reconstruction(c, model, smashed, batch))
        return (yield from self.wire.upload(smashed, self.part1.part, batch, c, round))

    def reconstruction(self, c: int, model: Bundle, smashed: Value, batch: Batch) -> Flow:
        """Compute the decoder's loss and its gradients, for which the client's next step waits at its device."""
        try:
            yield on(c, Reconstruct(), model, smashed, batch)
        except Lost:
            self.interrupted.add(c)

    def backwards(
        self, c: int, model: Replica | Bundle, smashed: Value, part: Value | None, step: Step, round: int
    ) -> Flow:
        """The client's gradient comes back, and it steps; who went away meanwhile lacks the decoder's, and is lost."""
        if c in self.interrupted:
            raise Lost(c)
        yield from super().backwards(c, model, smashed, part, step, round)

    def step_of(self, smashed: Mapping[int, Value], round: int) -> Step:
        """One on all activations and mixtures of them; gradients are those of the clients' own losses."""
        self.n_steps += 1
        draws = self.task.seed, "mix", self.n_steps
        pairs = mixtures(len(smashed), self.options.partners, self.options.alpha, draws)
        return TrainMixed(self.optimiser(round, SERVER), tuple(self.task.shares(list(smashed))), tuple(pairs))

    def client_step(self, c: int, sizes: Mapping[int, int], round: int) -> Step:
        """The client's step from the gradient at the cut and that of its decoder, if there is one."""
        if not self.options.recon_weight:
            return super().client_step(c, sizes, round)
        return StepBoth(self.optimiser(round, c), Adam(self.options.decoder_lr), self.options.recon_weight)


def decoder_network(net: Network, cut: int) -> Network:
    """Make the decoder of what layer `cut` of `net` puts out: to a normalised sample."""
    features = net.layers[cut - 1].out_shape

    def build(shape: Shape, n_labels: int) -> nn.Sequential:
        sample = net.input_shape
        if len(shape) == 3 == len(sample):
            return named(
                fit=nn.Upsample(sample[1:], mode="bilinear"),
                inner=nn.Sequential(nn.Conv2d(shape[0], WIDTH, 3, padding=1), nn.ReLU()),
                outer=nn.Conv2d(WIDTH, sample[0], 3, padding=1),
            )
        return named(
            flatten=nn.Flatten(), fc=nn.Linear(math.prod(shape), math.prod(sample)), sample=nn.Unflatten(1, sample)
        )

    return Network("decoder", build, features, net.n_labels, dtype=net.dtype, channels_last=net.channels_last,
                   tokens=False, weightless=net.weightless).with_settings(net.forward_settings)  # fmt: skip


class MixedPair(NamedTuple):
    """A mixture: numbers of two clients, and the share of the first."""

    one: int
    other: int
    share: float


def mixtures(n_clients: int, partners: int, alpha: float, draws: tuple[int, str, int]) -> list[MixedPair]:
    """Draw for each client as many others, without repetition, and its share in each mixture from Beta(alpha, alpha).

    >>> [(pair.one, pair.other) for pair in mixtures(2, 1, alpha=1.0, draws=(0, "mix", 1))]
    [(0, 1), (1, 0)]
    """
    rng, pairs = stream(*draws), list[MixedPair]()
    for c in range(n_clients):
        others = [j for j in range(n_clients) if j != c]
        chosen = rng.permutation(others)[:partners].astype(int).tolist()
        pairs += [MixedPair(c, other, float(rng.beta(alpha, alpha))) for other in chosen]
    return pairs


@dataclass(frozen=True)
class TrainMixed(TrainMerged):
    """A step of part-2 on the smashed data of several clients, and on mixtures; gives the gradients of all, in a row.

    The loss is sum_c k_c (CE_c + the mean over its mixtures of CE). Rows of the result are, times sum_j b_j / b_c, the
    gradient of CE_c alone: mixtures do not reach clients.

    Attributes:
        shares: k_c.
        pairs: the mixtures, each of the first rows that both clients have.
    """

    shares: tuple[float, ...]
    pairs: tuple[MixedPair, ...]

    def work(self, part2: Replica, smashed: Sequence[Value]) -> Work:
        mixed = sum(min(smashed[pair.one].samples, smashed[pair.other].samples) for pair in self.pairs)
        return part2.part.work(merged(smashed).samples + mixed, passes=3)

    def run(self, part2: Replica, smashed: Sequence[Value]) -> Tensor | None:
        """Gradients (n, ...), evaluated before the step."""
        sizes, loss_of = [value.samples for value in smashed], part2.part.loss
        z, labels = rows_of(smashed)
        theirs = list(zip(torch.split(z, sizes), torch.split(labels, sizes), strict=True))
        z = z.detach().requires_grad_(not part2.part.first)
        mixed, targets = [], []
        for pair in self.pairs:
            (z_one, y_one), (z_other, y_other) = theirs[pair.one], theirs[pair.other]
            rows = min(len(z_one), len(z_other))
            mixed.append(torch.lerp(z_other[:rows], z_one[:rows], pair.share))
            targets.append((y_one[:rows], y_other[:rows]))
        answers = part2.weights(torch.cat([z, *mixed]), training=True)
        out = torch.split(answers, [*sizes, *map(len, mixed)])
        n_mixtures = Counter(pair.one for pair in self.pairs)
        losses = [k * loss_of(scores, y) for k, scores, (_, y) in zip(self.shares, out, theirs, strict=False)]
        losses += [
            self.shares[pair.one] / n_mixtures[pair.one]
            * (pair.share * loss_of(scores, y_one) + (1 - pair.share) * loss_of(scores, y_other))
            for pair, scores, (y_one, y_other) in zip(self.pairs, out[len(sizes) :], targets, strict=True)
        ]  # fmt: skip
        differentiate(torch.stack(losses).sum())
        self.optimiser.step(part2.weights)
        if z.grad is None:
            return None
        parts = zip(torch.split(z.grad, sizes), self.shares, strict=True)
        return torch.cat([part * (len(part) / len(z) / share) for part, share in parts])


class Reconstruct(Step):
    """The decoder's loss, the mean squared difference of its output and a sample; gradients wait for `StepBoth`."""

    name = "reconstruct"

    def work(self, model: Bundle, smashed: Value, batch: Value) -> Work:
        return model.members[1].part.work(batch.samples, 3, gradient=True)

    def run(self, model: Bundle, smashed: Value, batch: Value) -> None:
        """Accumulate the decoder's gradient, and leave the one at the cut in `pending`."""
        (x, _), z = batch.load(), smashed.load()[0].detach().requires_grad_()
        image = model.replicas[1].weights(z, training=True)
        differentiate(mse_loss(image.to(x.dtype), x))  # torch 2.11 mixes no types in a loss
        model.pending = z.grad


@dataclass(frozen=True)
class StepBoth(Step):
    """Part-1's backward pass from the server's gradient and `weight` times the decoder's, and a step of both."""

    optimiser: Optimiser
    of_decoder: Optimiser
    weight: float
    name = "backward"

    def work(self, model: Bundle, gradients: Value) -> Work:
        """Backward pass of part-1: that of the decoder is done."""
        return model.members[0].part.work(gradients.samples, passes=2)

    def run(self, model: Bundle, gradients: Value) -> None:
        """Step with gradients at the weights before the step."""
        part1, decoder = model.replicas
        pending, model.pending, gradient = model.pending, None, gradients.load()
        if gradient is not None:  # else all of part-1 is frozen
            part1.weights.backward(gradient + self.weight * pending)
        self.optimiser.step(part1.weights)
        self.of_decoder.step(decoder.weights)
