"""Stacked replicas against the same steps one by one, in float64."""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import batch_norm_net
from torch import nn

from sfl_sim.models.network import Network
from sfl_sim.ops import Value
from sfl_sim.training import stacked
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Backward, Forward, Renew, Train

CPU = torch.device("cpu")
EXACT = 1e-10
SHAPE, LABELS = (2, 8, 8), 3
SMASHED = (4, 8, 8)
"""Shape of the output of the first layer of `batch_norm_net`."""
SGD = Sgd(lr=0.1, momentum=0.9, weight_decay=1e-2)


class Residual(nn.Sequential):
    """Layers with a shortcut."""

    def forward(self, x):
        return x + super().forward(x)


def every_kind_of_layer(shape, n_labels):
    """Convolutions that are dense, grouped, depthwise, strided, dilated; norms; poolings; a shortcut."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
        Residual(nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 1, groups=3)),
        nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(6, 8, 3, dilation=2, padding=2, stride=2), nn.GELU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()),
        nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, n_labels)),
    )


def attention(shape, n_labels):
    """A sequence of rows through a transformer block."""
    block = nn.TransformerEncoderLayer(shape[2], 2, 6, dropout=0.0, batch_first=True)
    rows = nn.Sequential(nn.Flatten(1, 2), nn.Linear(shape[2], shape[2]))
    return nn.Sequential(rows, block, nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], n_labels))


@cache
def network(build, channels_last=True):
    return Network("tried", build, SHAPE, LABELS, torch.float64, channels_last)


def pair(build=batch_norm_net, n=3, part=0, channels_last=True):
    """Make the same n replicas of a part twice, each with its own numbers."""
    origin = network(build, channels_last).split(1, seed=0, device=CPU)[part]
    one, other = [], []
    for seed in range(n):
        replica = origin.snapshot()
        flat = replica.weights.flat
        flat += 0.1 * torch.randn(flat.shape, dtype=flat.dtype, generator=torch.Generator().manual_seed(seed))
        one.append(replica)
        other.append(replica.snapshot())
    return one, other


def batches(n=3, size=4, seed=0, shape=SHAPE):
    """A mini-batch for each replica."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, size, *shape, dtype=torch.float64, generator=draw)
    y = torch.randint(0, LABELS, (n, size), generator=draw)
    return [Value("batch", content=content, samples=size) for content in zip(x, y, strict=True)]


def assert_equal(one, other):
    """Parameters, batch-norm statistics and momentum."""
    for a, b in zip(one, other, strict=True):
        for (name, tensor), (_, expected) in zip(a.weights.named_tensors(), b.weights.named_tensors(), strict=True):
            assert (tensor - expected).abs().max() < EXACT, name
        if b.weights.momentum is not None:
            assert (a.weights.momentum - b.weights.momentum).abs().max() < EXACT


def run(step, replicas, values, groups):
    """A step on every replica, in groups; a group of one as with the eager executor. Gives the contents."""
    contents = {}
    for group in groups:
        if len(group) == 1:
            found = [step.run(replicas[group[0]], values[group[0]])]
        else:
            found = step.run_many([replicas[i] for i in group], [(values[i],) for i in group])
        contents |= dict(zip(group, found, strict=True))
    return [contents[i] for i in range(len(replicas))]


def each(n=3):
    """Groups of one."""
    return [[i] for i in range(n)]


def together(n=3):
    """One group."""
    return [list(range(n))]


def forward_and_backward(replicas, values, forward_groups, backward_groups, sgd=SGD):
    """A step that makes the activations smaller."""
    smashed = run(Forward(), replicas, values, forward_groups)
    gradients = [Value("gradients", content=activations) for activations, _ in smashed]
    run(Backward(sgd), replicas, gradients, backward_groups)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("build", [every_kind_of_layer, attention])
def test_forward_and_backward_do_for_many_what_they_do_for_one(build, channels_last):
    one, other = pair(build, channels_last=channels_last)
    assert stacked.refusal(one[0], batches()[0].load()[0]) is None
    for number in range(2):
        forward_and_backward(one, batches(seed=number), together(), together())
        forward_and_backward(other, batches(seed=number), each(), each())
    assert_equal(one, other)


@pytest.mark.parametrize("build", [every_kind_of_layer, attention])
def test_replicas_train_together_and_give_the_gradients_that_they_give_alone(build):
    one, other = pair(build, part=1)
    smashed = network(build).layers[0].out_shape
    for number in range(2):
        values = batches(seed=number, shape=smashed)
        found, expected = run(Train(SGD), one, values, together()), run(Train(SGD), other, values, each())
        assert all((a - b).abs().max() < EXACT for a, b in zip(found, expected, strict=True))
    assert_equal(one, other)


def flattening(shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), n_labels))


def test_a_first_part_without_anything_to_train_is_stacked_too():
    """Nobody sends it a gradient."""
    replicas, values = pair(flattening)[0], batches()
    assert stacked.refusal(replicas[0], values[0].load()[0]) is None
    smashed = run(Forward(), replicas, values, together())
    assert all(torch.equal(z, value.load()[0].flatten(1)) for (z, _), value in zip(smashed, values, strict=True))
    run(Backward(SGD), replicas, [Value("gradients")] * 3, together())


@st.composite
def groups(draw, n):
    """Draw groups of any size and order of all n replicas."""
    order = draw(st.permutations(range(n)))
    bounds = sorted({0, n, *draw(st.lists(st.integers(1, n - 1), max_size=2))})
    return [order[start:stop] for start, stop in pairwise(bounds)]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(groups(4), groups(4)), min_size=1, max_size=3), st.sampled_from([None, 3]))
def test_forward_and_backward_may_run_in_different_groups(steps, limit):
    """Forward passes then run again, as beyond a limit of graphs, but batch-norm statistics do not move again."""
    one, other = pair(n=4)
    one[0].part.forward_settings.graphs.limit = limit or math.inf
    for number, (forward_groups, backward_groups) in enumerate(steps):
        values = batches(4, seed=number)
        forward_and_backward(one, values, forward_groups, backward_groups)
        forward_and_backward(other, values, each(4), each(4))
    assert_equal(one, other)


@dataclass(frozen=True)
class Unfused(Sgd):
    """An optimiser whose changes autograd notices; it does not notice those of torch's fused SGD."""

    def step(self, weights):
        with torch.no_grad():
            weights.flat.sub_(weights.grad, alpha=self.lr)
            weights.grad.zero_()


@pytest.mark.parametrize("sgd", [SGD, Unfused(0.1)])
def test_a_row_that_goes_on_alone_keeps_its_momentum_and_leaves_graphs_of_other_rows_as_they_are(sgd):
    one, other = pair(every_kind_of_layer, part=1)
    smashed = network(every_kind_of_layer).layers[0].out_shape
    for replicas, first in ((one, together()), (other, each())):
        forward_and_backward(replicas, batches(seed=1, shape=smashed), first, first, sgd)
        forward_and_backward(replicas, batches(seed=2, shape=smashed), each(), each(), sgd)
    assert_equal(one, other)


def test_an_unchanged_group_copies_nothing():
    replicas, _ = pair(part=1)
    run(Train(SGD), replicas, batches(shape=SMASHED), together())
    memory = [replica.weights.flat.data_ptr() for replica in replicas]
    run(Train(SGD), replicas, batches(shape=SMASHED), together())
    assert [replica.weights.flat.data_ptr() for replica in replicas] == memory


def test_momentum_follows_its_replica():
    """Momentum moves into a group with others that have none, out of it, and not beyond a renewal."""
    one, other = pair(part=1)
    for replicas, pairs, all_of_them in ((one, together(2), together()), (other, each(2), each())):
        run(Train(SGD), replicas[:2], batches(2, shape=SMASHED), pairs)
        run(Train(SGD), replicas, batches(seed=1, shape=SMASHED), all_of_them)
        Renew().run(replicas[0])
        run(Train(SGD), replicas, batches(seed=2, shape=SMASHED), all_of_them)
        run(Train(SGD), replicas[1:], batches(2, seed=3, shape=SMASHED), pairs)
    assert_equal(one, other)


@dataclass(frozen=True)
class Clipped(Sgd):
    """An optimiser that looks at the whole replica."""

    def step(self, weights):
        weights.grad.div_(weights.grad.norm())
        Sgd.step(self, weights)


def test_an_optimiser_of_another_kind_steps_on_every_replica_by_itself():
    one, other = pair(part=1)
    for number in range(2):
        run(Train(Clipped(0.1, 0.9)), one, batches(seed=number, shape=SMASHED), together())
        run(Train(Clipped(0.1, 0.9)), other, batches(seed=number, shape=SMASHED), each())
    assert_equal(one, other)


class Doubled(torch.autograd.Function):
    """A user's own function, which says nothing about vmap."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Doubling(nn.Module):
    def forward(self, x):
        return Doubled.apply(x) if self.training else x


@pytest.mark.parametrize(("layer", "reason"), [(Doubling(), "vmap"), (nn.Dropout(), "random")])
def test_layers_that_cannot_be_stacked_are_refused_with_the_reason_and_nothing_changes(layer, reason):
    def build(shape, n_labels):
        return nn.Sequential(
            nn.Sequential(*batch_norm_net(shape, n_labels)[0], layer), nn.Flatten(), nn.Linear(256, n_labels)
        )

    (replica, *_), (expected, *_) = pair(build)
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert reason in stacked.refusal(replica, batches()[0].load()[0])
    assert torch.rand(1) == drawn
    assert_equal([replica], [expected])
