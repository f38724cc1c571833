"""Multi-exit, SplitGP and HARMONY against a twin: their pages of docs/methods as plain loops over torch.nn."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_world import task, tensors, unsplit
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from sfl_sim.methods import METHODS
from sfl_sim.models.heads import exit_network
from sfl_sim.rng import stream
from sfl_sim.testing import simulate

EXACT = 1e-10
SAMPLES = [9, 5, 7, 4, 6]
DEPTHS = [2, 4, 1, 2, 4]
ROUNDS = [[0, 1, 2, 3], [4, 2, 0], [3, 0], [1, 3]]
"""Participants by round: some rounds without the deepest front end or the shallowest; clients that come and go."""


def deep_mlp(shape, n_labels):
    """Six layers without batch norm."""
    inputs = int(np.prod(shape))
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(inputs, 9), nn.Tanh()),
        *(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in [(9, 8), (8, 7), (7, 8), (8, 5)]),
        nn.Linear(5, n_labels),
    )


def deep_batch_norm_net(shape, n_labels):
    """Six layers with batch norm on both sides of every cut, and feature maps as embeddings."""
    widths = [shape[0], 3, 4, 2, 3, 4]
    return nn.Sequential(
        *(nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ELU()) for a, b in pairwise(widths)),
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 4, n_labels)),
    )


def state(module):
    """Collect the averaged tensors of a module: parameters, and running statistics of batch norm."""
    return {name: values for name, values in module.state_dict().items() if values.is_floating_point()}


def mix(into, modules, shares):
    """`into` becomes the weighted sum of the modules."""
    sums = dict.fromkeys(state(into), 0.0)
    for module, share in zip(modules, shares, strict=True):
        for name, values in state(module).items():
            sums[name] = sums[name] + share * values
    for name, values in state(into).items():
        values.copy_(sums[name])


def copy_buffers(into, module):
    """The running statistics of one module for another."""
    for mine, other in zip(into.buffers(), module.buffers(), strict=True):
        mine.copy_(other)


def float16(x):
    """Round x as on the wire; gradients pass unchanged."""
    return x + (x.detach().clamp(-65504, 65504).half().double() - x.detach())


def alignment(one, other, same, margin, l2norm):
    """CSA, Eq. (7): a number for each pair."""
    one, other = one.flatten(1), other.flatten(1)
    if l2norm:
        one, other = normalize(one), normalize(other)
    distance = ((one - other).square().sum(1) + 1e-12).sqrt()
    return torch.where(same, distance.square() / 2, (margin - distance).clamp(min=0).square() / 2)


class Twin:
    """The global model: `front` is the deepest client's, `theta` all layers that some client lacks."""

    def __init__(self, work, gamma_loss=0.5, lambda_pers=0.0, ft_steps=0, ft_lr=None):
        self.work, self.gamma, self.lambda_pers = work, gamma_loss, lambda_pers
        self.ft_steps, self.ft_lr = ft_steps, ft_lr
        net = unsplit(work)
        self.depths = sorted(set(work.cuts))
        self.front, self.theta = deepcopy(net[: self.depths[-1]]), deepcopy(net[self.depths[0] :])
        self.heads = {depth: self.new_head(depth) for depth in self.depths}
        self.own = {}

    def new_head(self, depth):
        network = exit_network(self.work.network, depth)
        _, head = network.split(depth, seed=self.work.seed, device=self.work.device)
        module = network.build(network.input_shape, network.n_labels).double()[depth:]
        module.load_state_dict(dict(head.weights.named_tensors()))
        return module

    def began(self, c):
        """Mix the model that a client downloads with its own."""
        depth = self.work.cuts[c]
        parts = deepcopy(self.front[:depth]), deepcopy(self.heads[depth])
        if c in self.own:
            for part, own in zip(parts, self.own[c], strict=True):
                mix(part, [deepcopy(part), own], [1 - self.lambda_pers, self.lambda_pers])
        return parts

    def round(self, number, clients):
        sizes = [SAMPLES[c] for c in clients]
        k = {c: size / sum(sizes) for c, size in zip(clients, sizes, strict=True)}
        trained = {c: self.train(c, number) for c in clients}
        for c, (phi, h, *_) in trained.items():
            self.own[c] = phi, h
        for b, block in enumerate(self.front):
            self.average(block, {c: phi[b] for c, (phi, *_) in trained.items() if b < len(phi)}, k)
        for depth, head in self.heads.items():
            self.average(head, {c: h for c, (_, h, *_) in trained.items() if self.work.cuts[c] == depth}, k)
        for b, block in enumerate(self.theta):
            self.average(block, {c: theta[b] for c, (*_, theta) in trained.items()}, k)

    @staticmethod
    def average(into, copies, k):
        """Weighted among those who have it; of nobody's copies nothing comes."""
        if copies:
            total = sum(k[c] for c in copies)
            mix(into, list(copies.values()), [k[c] / total for c in copies])

    def train(self, c, number):
        """A client's round: phi, h, theta."""
        (phi, h), theta = self.began(c), deepcopy(self.theta)
        depth, lr = self.work.cuts[c], self.work.lr * self.work.lr_decay ** (number - 1)
        sgd = torch.optim.SGD(
            [*phi.parameters(), *h.parameters(), *theta.parameters()],
            lr,
            momentum=self.work.momentum,
            weight_decay=self.work.weight_decay,
        )
        for batch in self.work.data.batches(c, number):
            x, y = batch.load()
            sgd.zero_grad()
            z = phi(x)
            at_server = cross_entropy(theta[depth - self.depths[0] :](z), y)
            (self.gamma * cross_entropy(h(z), y) + (1 - self.gamma) * at_server).backward()
            sgd.step()
        return phi, h, theta

    def finished(self, c):
        """The client's model in use."""
        phi, h = self.began(c)
        self.descend(phi, h, self.work.data.steps(c, 0, self.ft_steps), self.ft_lr)
        return phi, h

    @staticmethod
    def descend(phi, h, batches, lr):
        """Plain SGD of the exit's loss."""
        for batch in batches:
            x, y = batch.load()
            parameters = [*phi.parameters(), *h.parameters()]
            gradients = torch.autograd.grad(cross_entropy(h(phi(x)), y), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= lr * gradient


class HarmonyTwin(Twin):
    def __init__(self, work, inner_steps=5, inner_lr=0.05, cross_batch=True, stochastic_exit=True, csa_weight=20.0,
                 csa_margin=1.0, csa_l2norm=True, quantise=True, head="embedding", **options):  # fmt: skip
        super().__init__(work, ft_steps=inner_steps, ft_lr=inner_lr, **options)
        self.cross_batch, self.stochastic_exit, self.quantise, self.head = cross_batch, stochastic_exit, quantise, head
        self.csa_weight, self.csa_margin, self.csa_l2norm = csa_weight, csa_margin, csa_l2norm

    def adapted(self, phi, h, batch):
        """Adapt(w; B), with the running statistics as they were."""
        phi_adapted, h_adapted = deepcopy(phi), deepcopy(h)
        self.descend(phi_adapted, h_adapted, [batch] * self.ft_steps, self.ft_lr)
        copy_buffers(phi_adapted, phi)
        return phi_adapted, h_adapted

    def train(self, c, number):
        (phi, h), theta = self.began(c), deepcopy(self.theta)
        trunk, theta_head = theta[:-1], theta[-1]
        parameters = [*phi.parameters(), *h.parameters(), *theta.parameters()]
        work, lr = self.work, self.work.lr * self.work.lr_decay ** (number - 1)
        sgd = torch.optim.SGD(parameters, lr, momentum=work.momentum, weight_decay=work.weight_decay)
        k_min, depth = self.depths[0], work.cuts[c]
        sent = float16 if self.quantise else lambda z: z
        draws = stream(work.seed, "exit depths", number, c).integers(
            self.depths.index(depth) + 1, size=work.data.n_batches(c)
        )
        batches = zip(work.data.batches(c, number), work.data.others(c, number), draws, strict=True)
        for b1, b2, rank in batches:
            (x1, y1), (x2, y2) = b1.load(), b2.load()
            on1, on2 = self.adapted(phi, h, b1), self.adapted(phi, h, b2)
            (phi_plus, _), (phi_plus2, h_plus2) = (on1, on2) if self.cross_batch else (on2, on1)
            exit_depth = self.depths[rank] if self.stochastic_exit else depth
            at = [*phi_plus2.parameters(), *h_plus2.parameters(), *theta.parameters()]
            gradients = [None] * len(at)

            if self.csa_weight:
                with torch.no_grad():
                    z_plus = sent(phi_plus[:exit_depth](x2))
                embedding_plus = trunk[exit_depth - k_min :](z_plus)
            z = phi_plus2(x1)
            embedding = trunk[depth - k_min :](sent(z))
            if self.csa_weight:
                pairs = alignment(embedding_plus, embedding, y1 == y2, self.csa_margin, self.csa_l2norm)
                of_trunk = torch.autograd.grad(
                    self.csa_weight * pairs.mean(), list(trunk.parameters()), retain_graph=True, allow_unused=True
                )
                begin = len(at) - len(list(theta.parameters()))
                gradients[begin : begin + len(of_trunk)] = of_trunk
            answer = theta_head(sent(embedding)) if self.head == "embedding" else sent(theta_head(embedding))
            loss = self.gamma * cross_entropy(h_plus2(z), y1) + (1 - self.gamma) * cross_entropy(answer, y1)
            of_loss = torch.autograd.grad(loss, at, allow_unused=True)
            copy_buffers(phi, phi_plus2)

            for parameter, *summands in zip(parameters, gradients, of_loss, strict=True):
                found = [summand for summand in summands if summand is not None]
                parameter.grad = sum(found) if found else None
            sgd.step()
        return phi, h, theta


def differences(found, expected):
    """List the largest difference of each tensor that differs, by name."""
    assert found.keys() == expected.keys()
    gaps = {name: float((values - expected[name]).abs().max()) for name, values in found.items()}
    return {name: gap for name, gap in gaps.items() if not gap < EXACT}


def of(states):
    """The tensors of parts of a deployed model, by name."""
    replicas = [replica for some in states for replica in some.members]
    return {name: values for replica in replicas for name, values in replica.weights.named_tensors()}


def check(name, options, build, depths, twin_of):
    settings = {"momentum": 0.5, "weight_decay": 1e-2, "lr": 0.1, "lr_decay": 0.8, "local_epochs": 2}
    work = task(SAMPLES, build=build, cuts=depths, **settings)
    method, clock, _ = simulate(METHODS[name](work, METHODS[name].Options(**options)), ROUNDS)
    clock.run(method.finish(), len(ROUNDS))
    twin = twin_of(work, **options)
    for number, clients in enumerate(ROUNDS, 1):
        twin.round(number, clients)
    k_min, k_max = twin.depths[0], twin.depths[-1]
    wrong = {"model": differences(tensors(method), state(twin.front) | state(twin.theta[k_max - k_min :]))}
    for c in range(len(SAMPLES)):
        phi, h = twin.finished(c)
        deployed = method.deployed(c)
        wrong |= {
            f"phi of {c}": differences(of(deployed.front), state(phi)),
            f"h of {c}": differences(of([deployed.head]), state(h)),
            f"theta of {c}": differences(of(deployed.back), state(twin.theta[depths[c] - k_min :])),
        }
    assert {what: gaps for what, gaps in wrong.items() if gaps} == {}


def written(value):
    """A setting in the name of a test."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {choice}" for key, choice in value.items()) or "defaults"
    return str(value) if isinstance(value, list) else value.__name__


MLP, BATCH_NORM = deep_mlp, deep_batch_norm_net


@pytest.mark.parametrize(
    ("build", "depths", "options"),
    [
        (MLP, DEPTHS, {}),
        (BATCH_NORM, DEPTHS, {"gamma_loss": 0.2}),
        (BATCH_NORM, [3] * 5, {"gamma_loss": 0.8}),
    ],
    ids=written,
)
def test_multiexit_learns_what_plain_loops_learn(build, depths, options):
    check("multiexit", options, build, depths, Twin)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (MLP, {"lambda_pers": 0.2}),
        (BATCH_NORM, {"lambda_pers": 0.9, "ft_steps": 5, "ft_lr": 0.07}),
        (MLP, {"lambda_pers": 1.0, "ft_steps": 1, "ft_lr": 0.2}),
    ],
    ids=written,
)
def test_splitgp_learns_what_plain_loops_learn(build, options):
    check("splitgp", options, build, DEPTHS, Twin)


@pytest.mark.parametrize(
    ("build", "depths", "options"),
    [
        (MLP, DEPTHS, {}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 2, "inner_lr": 0.2, "gamma_loss": 0.3}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 1, "csa_weight": 3.0, "csa_margin": 2.5}),
        (MLP, DEPTHS, {"inner_steps": 1, "head": "logits", "csa_weight": 3.0, "csa_margin": 2.5, "csa_l2norm": False}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 2, "head": "logits", "quantise": False}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 2, "cross_batch": False}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 2, "stochastic_exit": False, "csa_weight": 1.0, "csa_l2norm": False}),
        (MLP, DEPTHS, {"inner_steps": 1, "stochastic_exit": False, "quantise": False}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 2, "csa_weight": 0.0}),
        (BATCH_NORM, DEPTHS, {"inner_steps": 0, "csa_margin": 0.3}),
        (MLP, DEPTHS, {"inner_steps": 0, "csa_weight": 0.0, "quantise": False, "head": "logits"}),
        (BATCH_NORM, [3] * 5, {"inner_steps": 1}),
        (MLP, [2, 5, 1, 2, 5], {"inner_steps": 1}),
        (BATCH_NORM, [2, 5, 1, 2, 5], {"inner_steps": 1, "head": "logits"}),
    ],
    ids=written,
)
def test_harmony_learns_what_plain_loops_learn(build, depths, options):
    """The last two have clients that hold every layer but the classifier: what they send is an embedding already."""
    check("harmony", options, build, depths, HarmonyTwin)
