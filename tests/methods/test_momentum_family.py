"""The momentum family and its hosts against one plain loop on unsplit networks (docs/methods)."""

import pytest
import torch
from small_world import distance, simulate, task, tensors, unsplit
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS

EXACT = 1e-10


def plain(work, rounds, gradient=None, server=None, equal_steps=False, nesterov=False, keep_velocity=False):
    """Federated averaging with torch.optim, written without the simulator.

    Args:
        gradient: changes the gradients of a network, given the round's initial weights, before every step.
        server: the new weights, from the old ones, the average, the learning rate and a dict to remember things in.
        equal_steps: all clients take the mean number of steps.
        keep_velocity: momentum buffers are averaged and handed out, too.
    """
    weights, memory, velocity = unsplit(work).state_dict(), {}, None
    clients = range(len(work.data))
    for number in range(1, rounds + 1):
        usual, found, speeds = work.optimiser(number), [], []
        mean_steps = int(sum(work.data.n_batches(c) for c in clients) / len(clients) + 0.5)
        for c in clients:
            net = unsplit(work)
            net.load_state_dict(weights)
            decay = 0.0 if gradient and gradient.takes_decay else work.weight_decay
            sgd = torch.optim.SGD(net.parameters(), usual.lr, work.momentum, weight_decay=decay, nesterov=nesterov)
            for p, buffer in zip(net.parameters(), velocity or [], strict=False):
                sgd.state[p]["momentum_buffer"] = buffer.clone()
            steps = mean_steps if equal_steps else work.data.n_batches(c)
            for batch in work.data.steps(c, number, steps):
                x, y = batch.load()
                sgd.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                if gradient:
                    gradient(net, weights)
                sgd.step()
            found.append(net.state_dict())
            speeds.append([sgd.state[p].get("momentum_buffer") for p in net.parameters()])
        shares = work.shares(clients)
        mean = {key: sum(k * own[key] for k, own in zip(shares, found, strict=True)) for key in weights}
        if keep_velocity:
            velocity = [sum(k * v for k, v in zip(shares, own, strict=True)) for own in zip(*speeds, strict=True)]
        weights = server(weights, mean, usual.lr, memory) if server else mean
    return weights


class Prox:
    """The proximal gradient."""

    takes_decay = False

    def __init__(self, mu):
        self.mu = mu

    def __call__(self, net, start):
        for name, p in net.named_parameters():
            p.grad += self.mu * (p.detach() - start[name])


class Clip:
    """Co-clipping by torch's own, of groups of layers."""

    takes_decay = True

    def __init__(self, max_norm, decay, *groups):
        self.max_norm, self.decay, self.groups = max_norm, decay, groups

    def __call__(self, net, start):
        for p in net.parameters():
            p.grad += self.decay * p.detach()
        for layers in self.groups:
            parameters = [p for i in layers for p in net[i].parameters()]
            norm = torch.cat([p.grad.flatten() for p in parameters]).norm()
            for p in parameters:
                p.grad *= min(1.0, self.max_norm / float(norm))


def momentum(beta, server_lr, is_slow=False):
    """FedAvgM's step towards the average, or SlowMo's, in units of the learning rate."""

    def server(weights, mean, lr, memory):
        unit = lr if is_slow else 1.0
        for key in weights:
            memory[key] = beta * memory.get(key, 0) + (weights[key] - mean[key]) / unit
        return {key: weights[key] - server_lr * unit * memory[key] for key in weights}

    return server


def uneven(**settings):
    return task([4, 13, 8], momentum=0.9, weight_decay=1e-2, lr_decay=0.5, local_epochs=2, **settings)


PARTS = (0,), (1, 2)


@pytest.mark.parametrize(
    ("name", "options", "twin"),
    [
        ("fedprox", {"mu": 0.7}, {"gradient": Prox(0.7)}),
        ("fednar", {"max_norm": 0.3}, {"gradient": Clip(0.3, 1e-2, *PARTS)}),
        ("fedavgm", {"server_momentum": 0.5, "server_lr": 0.8}, {"server": momentum(0.5, 0.8)}),
        ("fedavgm", {"host": "fedprox", "mu": 0.7}, {"server": momentum(0.5, 1.0), "gradient": Prox(0.7)}),
        ("slowmo", {"slow_momentum": 0.6, "slow_lr": 0.9},
         {"server": momentum(0.6, 0.9, is_slow=True), "equal_steps": True}),
        ("slowmo", {"host": "fednar", "max_norm": 0.3},
         {"server": momentum(0.6, 1.0, is_slow=True), "equal_steps": True, "gradient": Clip(0.3, 1e-2, *PARTS)}),
        ("fednag", {}, {"nesterov": True, "keep_velocity": True, "equal_steps": True}),
        ("fednag", {"host": "fedprox", "mu": 0.7},
         {"nesterov": True, "keep_velocity": True, "equal_steps": True, "gradient": Prox(0.7)}),
        ("smofi", {"fusion": False, "host": "fednar", "max_norm": 0.3, "server_momentum": 0.4},
         {"server": momentum(0.4, 1.0), "gradient": Clip(0.3, 1e-2, *PARTS)}),
    ],
)  # fmt: skip
def test_training_is_what_a_plain_loop_does(name, options, twin):
    work = uneven()
    method, *_ = simulate(name, work, rounds=3, options=options)
    expected = plain(work, 3, **twin)
    assert all((value - expected[key]).abs().max() < EXACT for key, value in tensors(method).items())


@pytest.mark.parametrize("name", ["fedprox", "fednar", "fedavgm", "slowmo"])
def test_i12_with_neutral_options_they_are_v1(name):
    work = task([8, 8, 8], momentum=0.9, weight_decay=1e-2)
    method, *_ = simulate(name, work, options=METHODS[name].neutral.model_dump(exclude_unset=True))
    assert distance(method, simulate("splitfed_v1", work)[0]) < EXACT


def test_slowmo_at_a_constant_rate_is_fedavgm():
    work = task([8, 8, 8], momentum=0.9)
    slowmo = simulate("slowmo", work, 3, options={"slow_momentum": 0.5})[0]
    assert distance(slowmo, simulate("fedavgm", work, 3, options={"server_momentum": 0.5})[0]) < EXACT


def test_a_round_with_a_rate_of_zero_leaves_slowmo_where_it_is():
    """As the last round of a cosine has it."""
    work = task([8, 8, 8], lr_schedule=lambda lr, round: lr * (round < 3))
    before, after = (simulate("slowmo", work, rounds)[0] for rounds in (2, 3))
    assert distance(before, after) < EXACT


def test_velocity_travels_with_part1():
    """docs/methods/v1_variants.md#fednag: 2 * P1 * bp more for each client and round; parameters only."""
    work = task([8, 8], device=None, momentum=0.9)
    ops = {name: simulate(name, work, 1)[2] for name in ("fednag", "splitfed_v1")}
    part1 = work.split(work.cut)[0].part
    more = ops["fednag"]["bytes"].sum() - ops["splitfed_v1"]["bytes"].sum()
    assert more == 2 * 2 * part1.n_parameters * 8


def test_velocity_is_averaged_like_parameters():
    work = task([8, 8], device=None, momentum=0.9)
    fednag, v1 = (
        rows[rows["kind"] == b"average"]["macs"]
        for name in ("fednag", "splitfed_v1")
        for rows in [simulate(name, work, 1)[2]]
    )
    assert fednag.tolist() == (2 * v1).tolist()


@pytest.mark.parametrize(
    ("name", "settings", "options", "key"),
    [
        ("fednag", {}, {}, "train.momentum"),
        ("fednag", {"optimizer": "adam"}, {}, "train.optimizer"),
        ("fednar", {"optimizer": "adamw"}, {}, "train.optimizer"),
        ("smofi", {"optimizer": "adamw"}, {"host": "fednar"}, "train.optimizer"),
    ],
)
def test_what_does_not_go_together_is_refused(name, settings, options, key):
    with pytest.raises(ScenarioError) as refused:
        METHODS[name](task(**settings), METHODS[name].Options(**options))
    assert refused.value.key == key
