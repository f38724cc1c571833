"""Bounded graphs: whoever may not hold its activations computes them again, and nobody can tell from the numbers."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from small_world import N_LABELS, fleet, simulate, task, tensors
from torch import nn

from sfl_sim.models.forward_settings import ForwardSettings, Graphs
from sfl_sim.models.network import Network
from sfl_sim.models.weights import Weights
from sfl_sim.ops import Value
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Backward, Forward, Train

CPU = torch.device("cpu")


def moody_net(shape, n_labels):
    """Batch norm, whose statistics move with every forward, and dropout, which draws at every forward."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten()),
        nn.Linear(4 * shape[1] * shape[2], n_labels),
    )


def trained(order, limit):
    """Three clients of unequal speed and a momentum; the model, the graphs, and where the random draws stand."""
    work = task([12, 9, 7], build=moody_net, cut=1, momentum=0.9)
    graphs = Graphs(limit)
    work = replace(work, network=work.network.with_settings(ForwardSettings(graphs=graphs)))
    torch.manual_seed(0)
    method, *_ = simulate("splitfed_v2", work, order=order, world=fleet(3, [1e6, 3e5, 2e6]), workers=1)
    return tensors(method), graphs, torch.get_rng_state()


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_recomputed_forward_passes_leave_the_same_bits(order):
    usual, unbounded, drawn = trained(order, None)
    assert unbounded.peak == 3
    for limit in (1, 2):
        found, graphs, drawn_too = trained(order, limit)
        assert graphs.peak == limit
        assert all(torch.equal(found[name], usual[name]) for name in usual)
        assert torch.equal(drawn_too, drawn)


class Spy(nn.Module):
    """A layer that knows whether its activations are still in memory."""

    def forward(self, x):
        out = x * x  # whose backward needs x
        Spy.seen = weakref.ref(x)
        return out


def spied(limit):
    def build(shape, n_labels):
        return nn.Sequential(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 4), Spy(), nn.Linear(4, 4)), nn.Linear(4, n_labels)
        )

    net = Network("spied", build, (1, 2, 2), N_LABELS).with_settings(ForwardSettings(graphs=Graphs(limit)))
    batch = Value("batch", samples=2, content=(torch.rand(2, 1, 2, 2), torch.tensor([0, 1])))
    return net.split(1, seed=0, device=CPU), batch


def test_beyond_the_limit_no_activations_stay_in_memory():
    (part1, _), batch = spied(limit=1)
    others = [part1.snapshot(), part1.snapshot()]
    held = []
    for client in others:
        Forward().run(client, batch)
        held.append(Spy.seen() is not None)
    assert held == [True, False]


def test_a_client_that_is_lost_takes_its_graph_along_and_leaves_its_place():
    (part1, _), batch = spied(limit=1)
    for _ in range(2):  # the second pair comes when the first is gone
        lost = [part1.snapshot(), part1.snapshot()]
        for client in lost:
            Forward().run(client, batch)
        weights = [weakref.ref(client.weights) for client in lost]
        del lost, client
        gc.collect()
        assert [ref() for ref in weights] == [None, None]
    heir = part1.snapshot()
    Forward().run(heir, batch)
    assert Spy.seen() is not None
    assert part1.part.forward_settings.graphs.peak == 1


def test_weights_that_are_stored_and_restored_hold_their_place():
    (part1, _), batch = spied(limit=1)
    holder, other = part1.snapshot(), part1.snapshot()
    for client in (holder, other):
        Forward().run(client, batch)
    kept = [client.weights.stored() for client in (holder, other)]
    (again, _), _ = spied(limit=1)
    graphs = again.part.forward_settings.graphs
    restored = [Weights.restored(again.part, told) for told in kept]
    assert [weights in graphs for weights in restored] == [True, False]
    restored[0].backward(torch.zeros(2, 4))
    assert restored[0] not in graphs


class Centred(nn.Module):
    def forward(self, x):
        return x.sub_(0.5)


@pytest.mark.parametrize("limit", [None, 0])
def test_a_layer_that_changes_its_input_in_place_changes_no_data_and_can_run_again(limit):
    def build(shape, n_labels):
        return nn.Sequential(nn.Sequential(Centred(), nn.Flatten(), nn.Linear(4, 4)), nn.Linear(4, n_labels))

    net = Network("centred", build, (1, 2, 2), N_LABELS).with_settings(ForwardSettings(graphs=Graphs(limit)))
    part1, _ = net.split(1, seed=0, device=CPU)
    x = torch.rand(2, 1, 2, 2)
    before = x.clone()
    activations = part1.weights.forward(x)
    assert torch.equal(part1.weights.passed[1], activations)
    part1.weights.backward(torch.ones(2, 4))
    assert torch.equal(part1.weights(x, training=False), activations)
    assert torch.equal(x, before)
    gradient = dict(zip(part1.part.names, part1.part.views(part1.weights.grad), strict=True))["0.2.weight"]
    torch.testing.assert_close(gradient, (before - 0.5).flatten(1).sum(0).expand(4, 4))


@pytest.mark.parametrize("limit", [None, 0])
def test_weights_that_change_between_forward_and_backward_are_caught(limit):
    (part1, part2), batch = spied(limit)
    smashed = Value("smashed", samples=2, content=Forward().run(part1, batch))
    gradients = Value("gradients", content=Train(Sgd(0.1)).run(part2, smashed))
    with torch.no_grad():
        part1.weights.flat.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Backward(Sgd(0.1)).run(part1, gradients)
