"""Weights lent to layers that all clients share: as if each client had modules for itself, backward pass included."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sfl_sim.errors import ScenarioError
from sfl_sim.models.averages import average
from sfl_sim.models.forward_settings import ForwardSettings, Graphs
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Joined
from sfl_sim.models.weights import Weights
from sfl_sim.models.zoo import network
from sfl_sim.ops import Value
from sfl_sim.training.optimisers import Foreign, Sgd
from sfl_sim.training.steps import Backward, Forward, Train

CPU = torch.device("cpu")
WIDTH = 6


class Recomputed(nn.Module):
    """A block that is computed again in the backward pass, from the weights that it then has."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.use_reentrant) if torch.is_grad_enabled() else self.block(x)


class Hooked(nn.Linear):
    """The gradient at its input is scaled by a weight that is read in the backward pass."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        out = super().forward(x)
        if out.requires_grad:
            out.register_hook(lambda gradient: gradient * self.weight.detach().mean() * (2 if self.training else 3))
        return out


class Later(torch.autograd.Function):
    """A product whose backward pass asks the module for its weight."""

    @staticmethod
    def forward(ctx, x, module, _weight):
        ctx.module = module
        ctx.save_for_backward(x)
        return x * module.weight

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.module.weight, None, (gradient * x).sum(0)


class ReadsLater(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 1)

    def forward(self, x):
        return Later.apply(x, self, self.weight)


class OwnNorm(nn.Module):
    """Norm by hand: the mean is a buffer that is changed in place or given a new value; it stands in a product, too."""

    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("mean", torch.ones(WIDTH))

    def forward(self, x):
        if self.training:
            mean = x.detach().mean(0)
            if self.in_place:
                self.mean.mul_(0.9).add_(0.1 * mean)
            else:
                self.mean = 0.9 * self.mean + 0.1 * mean
        return (x - self.mean) * self.mean


class Counter(nn.Module):
    """Its output grows with the steps that it has counted."""

    def __init__(self, in_place=True, persistent=True):
        super().__init__()
        self.in_place = in_place
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=persistent)

    def forward(self, x):
        if self.training and self.in_place:
            self.steps += 1
        elif self.training:
            self.steps = self.steps + 1
        return x * (1 + self.steps)


class Table(nn.Module):
    """A table that grows to the number of samples when more come than ever before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def forward(self, x):
        if len(x) > len(self.table):
            self.table = torch.arange(len(x)).float()
        return x + self.table[: len(x), None]


class Cached(nn.Module):
    """Keeps in evaluation what it makes of its weights, until it is trained again, as attention of LeViT does."""

    kept = None

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def train(self, mode=True):
        self.kept = None if mode else self.kept
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return x * self.weight.exp()
        if self.kept is None:
            self.kept = self.weight.exp()
        return x * self.kept


LAYERS = {
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "weights of norm 1": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "checkpoint": lambda: Recomputed(use_reentrant=False),
    "reentrant checkpoint": lambda: Recomputed(use_reentrant=True),
    "tensor hook": Hooked,
    "autograd function": ReadsLater,
    "buffer changed in place": lambda: OwnNorm(in_place=True),
    "buffer given a new value": lambda: OwnNorm(in_place=False),
    "counter": Counter,
    "counter given a new value": lambda: Counter(in_place=False),
    "counter that is not saved": lambda: Counter(persistent=False),
    "table that grows": Table,
    "cache of evaluation": Cached,
}


def model_of(kinds, seed=0):
    """Return a linear layer, the layers, two of which may be one of the network, and another linear layer."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), LAYERS[kind](), nn.ReLU()) for kind in kinds]
    return nn.Sequential(nn.Linear(4, WIDTH), *blocks, nn.Linear(WIDTH, 3))


def net_of(model):
    return network(model, (4,), 3, tokens=False)


@pytest.mark.parametrize("kind", LAYERS)
def test_every_client_trains_as_with_a_module_for_itself_to_the_bit(kind):
    """Two clients run forward before the first runs backward; then evaluation, and training again."""
    net_of(model_of([kind])).check_lending(last_bits=0)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=4), st.booleans())
def test_so_does_any_stack_of_layers_in_whichever_mode_it_is_given(kinds, training):
    net_of(model_of(kinds).train(training)).check_lending(last_bits=0)


@pytest.mark.parametrize("kind", ["checkpoint", "reentrant checkpoint", "tensor hook", "autograd function"])
def test_without_its_own_weights_in_the_backward_pass_a_layer_would_be_caught(kind, monkeypatch):
    monkeypatch.setattr(Part, "lend_again", lambda *_, **__: None)
    with pytest.raises(ScenarioError, match=r"gradient of '1\."):
        net_of(model_of([kind])).check_lending()


def loop(model, batches, optimiser_of):
    """Train a whole module as anybody would, with torch alone."""
    model.train()
    optimiser = optimiser_of(model.parameters())
    for x, y in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.state_dict()


@settings(max_examples=10)
@given(kinds=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3), cut=st.integers(1, 4))
def test_one_client_of_a_cut_network_does_what_a_plain_loop_does_to_the_bit(kinds, cut):
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
    assert_trained_as_in_a_loop(model_of(kinds), cut, Sgd(0.05, momentum=0.9, weight_decay=1e-3), sgd)


def assert_trained_as_in_a_loop(model, cut, optimiser, optimiser_of):
    net, generator = net_of(model), torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 5, 4, generator=generator), torch.randint(3, (3, 5), generator=generator)
    parts = net.split(min(cut, len(net) - 1), seed=0, device=CPU)
    torch.manual_seed(7)
    for batch in zip(x, y, strict=True):
        smashed = Value("smashed", samples=5, content=Forward().run(parts[0], Value("batch", content=batch)))
        Backward(optimiser).run(parts[0], Value("gradients", content=Train(optimiser).run(parts[1], smashed)))
    draws = torch.get_rng_state()
    torch.manual_seed(7)
    expected = loop(copy.deepcopy(model), zip(x, y, strict=True), optimiser_of)
    assert torch.equal(torch.get_rng_state(), draws)
    state = {name: tensor for part in parts for name, tensor in part.weights.named_tensors()}
    assert state.keys() == {name for name in expected if not name.endswith("num_batches_tracked")}  # no state of ours
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


class Partly(nn.Module):
    """A head that is kept for later, a layer behind `no_grad`, and one that every second batch leaves out."""

    def __init__(self):
        super().__init__()
        self.unused, self.still, self.at_times = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.kept = self.unused(x)
        with torch.no_grad():
            shift = self.still(x)
        self.steps += self.training
        return x + shift if self.steps % 2 else self.at_times(x) + shift


@pytest.mark.parametrize(
    ("optimiser", "optimiser_of"),
    [
        (Sgd(0.05, 0.9, weight_decay=0.1), partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)),
        (Sgd(0.05, weight_decay=0.1), partial(torch.optim.SGD, lr=0.05, weight_decay=0.1)),
        (Foreign(0.05, weight_decay=0.1, make=torch.optim.Adam), partial(torch.optim.Adam, lr=0.05, weight_decay=0.1)),
    ],
)
def test_parameters_without_a_gradient_stay_as_they_are_as_with_torch_s_optimisers(optimiser, optimiser_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), Partly(), nn.Linear(WIDTH, 3))
    net_of(model).check_lending(last_bits=0)
    for cut in (1, 2):
        assert_trained_as_in_a_loop(model, cut, optimiser, optimiser_of)


STATEFUL = ["checkpoint", "buffer given a new value", "counter", "counter that is not saved", "table that grows"]


def client_step(weights, x, between=None):
    """Train the first half of a network by one step, with the gradient of the sum of squares."""
    torch.manual_seed(5)
    activations = weights.forward(x)
    if between is not None:
        weights(between, training=False)
    weights.backward(2 * activations)
    Sgd(0.01).step(weights)


def state_of(weights):
    constants = zip(weights.part.frozen_names, weights.frozen, strict=True)
    return {name: tensor.clone() for name, tensor in (*constants, *weights.named_tensors())}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", STATEFUL)
def test_an_evaluation_between_a_forward_pass_and_its_backward_pass_changes_nothing(kind):
    net, x = net_of(model_of([kind])), torch.randn(5, 4)
    with_it, without = (net.split(2, seed=0, device=CPU)[0].weights for _ in range(2))
    client_step(with_it, x, between=x)
    client_step(without, x)
    assert equal(state_of(with_it), state_of(without))


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_forward_pass_that_is_computed_again_or_comes_from_a_checkpoint_counts_once(kind):
    """Two steps: the second begins, is stored and taken up again, with a graph and without."""
    net, x = net_of(model_of([kind])), torch.randn(2, 5, 4)
    weights = net.split(2, seed=0, device=CPU)[0].weights
    again = net.with_settings(ForwardSettings(graphs=Graphs(limit=0))).split(2, seed=0, device=CPU)[0].weights
    for held in (weights, again):
        client_step(held, x[0])
    torch.manual_seed(3)
    activations = weights.forward(x[1])
    resumed = Weights.restored(net.part(0, 2), weights.stored())
    torch.manual_seed(3)
    assert torch.equal(again.forward(x[1]), activations)
    resumed = Weights.restored(net.part(0, 2), copy.deepcopy(weights.stored()))
    for held in (weights, again, resumed):
        held.backward(activations)
        Sgd(0.01).step(held)
    assert equal(state_of(weights), state_of(again))
    assert equal(state_of(weights), state_of(resumed))


def counted(n_steps, kind="counter"):
    """Return a replica of a layer and a counter that have been trained for some steps."""
    replica = net_of(model_of([kind])).split(2, seed=0, device=CPU)[0]
    for _ in range(n_steps):
        client_step(replica.weights, torch.ones(2, 4))
    return replica


def steps(weights):
    return state_of(weights)["1.1.steps"].tolist()


def test_a_copy_counts_for_itself():
    replica = counted(2)
    before = replica.snapshot()
    client_step(replica.weights, torch.ones(2, 4))
    assert (steps(replica.weights), steps(before.weights)) == (3, 2)


def test_counters_are_averaged_to_the_nearest_whole_number_and_travel():
    replicas = [counted(n_steps) for n_steps in (1, 2, 4)]
    mean = replicas[0].averaged(replicas, [0.5, 0.25, 0.25])
    assert steps(mean.weights) == 2  # of .5 + .5 + 1
    assert mean.weights.frozen[-1].dtype == torch.long
    assert steps(mean.envelope().unpacked(mean.packed()).weights) == 2
    joined = Joined(mean.part, [mean]).snapshot()
    assert steps(joined.weights) == 2


def test_what_the_state_dict_leaves_out_is_averaged_as_little():
    replicas = [counted(n_steps, "counter that is not saved") for n_steps in (1, 3)]
    average(replicas[0].weights, [replica.weights for replica in replicas], [0.5, 0.5])
    assert steps(replicas[0].weights) == 1


def test_some_layers_of_weights_count_for_all_of_them():
    replica = counted(1)
    net = net_of(model_of(["counter"]))
    replica.weights.only(net.part(1, 2)).without_graph(torch.ones(2, WIDTH))
    assert steps(replica.weights) == 2


class Wrong(nn.Module):
    """A buffer that is averaged, and that gets another shape or is taken away."""

    def __init__(self, value):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.value = value

    def forward(self, x):
        self.mean = self.value
        return x


@pytest.mark.parametrize("value", [torch.zeros(2), None])
def test_a_buffer_that_cannot_be_averaged_any_more_is_refused(value):
    torch.manual_seed(0)
    net = net_of(nn.Sequential(nn.Linear(4, WIDTH), Wrong(value), nn.Linear(WIDTH, 3)))
    with pytest.raises(ScenarioError, match=r"'1\.mean'") as refused:
        net.check_lending()
    assert refused.value.key == "model.factory"


def test_the_mode_in_which_a_model_is_given_does_not_matter_nor_that_of_its_modules():
    """A fine-tuned layer whose own `train` keeps its norm in evaluation does so, and others are trained."""

    class Kept(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    torch.manual_seed(0)
    model = nn.Sequential(Kept(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.BatchNorm1d(4), nn.Linear(4, 3))
    means = []
    for given_in in (model.train(), copy.deepcopy(model).eval()):
        (whole,) = net_of(given_in).split(seed=0, device=CPU)
        client_step(whole.weights, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
        means.append(state_of(whole.weights))
    assert equal(*means)
    assert not means[0]["0.1.running_mean"].any()
    assert means[0]["1.running_mean"].any()


class Embedded(nn.Module):
    """Tokens of three kinds at positions of nine."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(3, 4), nn.Embedding(9, 4)

    def forward(self, x):
        return self.tokens(x) + self.positions.weight[: x.shape[1]]


def test_a_model_is_held_against_its_modules_with_tokens_that_it_knows():
    """Networks of transformers embed positions beside tokens, and more of them than they know tokens."""
    model = nn.Sequential(Embedded(), nn.Flatten(), nn.Linear(24, 3))
    network(model, (6,), 3, tokens=True).check_lending(last_bits=0)


class Recurrent(nn.Module):
    """Torch's recurrent layers hold their weights in lists, too."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.rows, self.last = nn.Linear(4, 4), kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.rows(self.first(x))[0][:, -1])


class Listed(nn.Module):
    """Its layers stand in a plain list, besides being attributes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(24, 3)
        self.steps = [self.first, nn.Flatten(), self.last]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return x


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, Listed])
def test_layers_and_weights_that_stand_in_a_list_too_are_no_state_of_their_own(kind):
    torch.manual_seed(0)
    net = network(Listed() if kind is Listed else Recurrent(kind), (6, 4), 3)
    assert len(net) == (2 if kind is Listed else 3)
    net.check_lending()
