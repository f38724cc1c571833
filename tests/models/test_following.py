"""Forwards that are followed: what tracing does not see by itself is kept, or refused with the layer and why."""

import collections
import contextlib
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sfl_sim.errors import ScenarioError
from sfl_sim.models.faithful import difference
from sfl_sim.models.traced import CuttingPlan


def layers_of(module, shape):
    return CuttingPlan.of(module, shape).applied_to(module)


def net(run, **parts):
    """A module with three linear layers of width 4, these parts and this forward."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fc = (nn.Linear(4, 4) for _ in range(3))
            for name, part in parts.items():
                self.register_buffer(name, part) if isinstance(part, torch.Tensor) else setattr(self, name, part)

        def forward(self, x):
            return run(self, x)

    torch.manual_seed(0)
    return Own()


def moved(module, shape=(4,), steps=1):
    """Train the layers of a module on a batch; gives the names of what has changed."""
    layers, x = layers_of(module, shape).train(), torch.randn(8, *shape, generator=torch.Generator().manual_seed(1))
    before = {name: tensor.clone() for name, tensor in layers.state_dict().items()}
    optimiser = torch.optim.SGD(layers.parameters(), 0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        layers(x).square().sum().backward()
        optimiser.step()
    after = layers.state_dict()
    return {name.partition(".")[2] for name in after if not torch.equal(before[name], after[name])}


def without_gradients(self, x):
    with torch.no_grad():
        x = self.b(self.a(x).relu())
    return self.fc(x)


def keeping(self, x):
    h = self.a(x).relu()
    out = self.fc(h)
    self.projected = self.b(h)
    return out


def averaging(self, x):
    h = self.a(x)
    self.centre.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return self.fc(self.b(h - self.centre).relu())


def test_what_is_computed_without_gradients_is_not_trained():
    assert moved(net(without_gradients)) == {"fc.weight", "fc.bias"}


def test_the_output_is_what_is_returned_and_not_what_is_kept():
    assert moved(net(keeping)) == {"a.weight", "a.bias", "fc.weight", "fc.bias"}


def test_what_no_layer_uses_is_held_by_the_last_one():
    module = net(lambda self, x: self.fc(self.a(x).relu()), unused=nn.Linear(4, 2))
    layers = layers_of(module, (4,))
    assert {name.partition(".")[2] for name in layers.state_dict()} == module.state_dict().keys()
    assert [sum(1 for _ in layer.parameters()) for layer in layers] == [2, 6]


def test_an_average_that_is_kept_in_place_decays_and_adds_up():
    module = net(averaging, centre=torch.ones(4))
    with torch.no_grad():
        module.a.weight.zero_()
        module.a.bias.zero_()
    layers = layers_of(module, (4,)).train()
    for _ in range(2):
        layers(torch.ones(2, 4))
    assert torch.allclose(layers.state_dict()["a.centre"], torch.full((4,), 0.9**2))


def test_a_counter_may_be_added_to_as_python_writes_it():
    def counting(self, x):
        self.steps += 1
        return self.fc(self.a(x).relu())

    layers = layers_of(net(counting, steps=torch.tensor(0)), (4,)).train()
    for _ in range(3):
        layers(torch.ones(2, 4))
    assert layers.state_dict()["a.steps"] == 3


@pytest.mark.parametrize("training", [True, False])
def test_a_dropout_stays_in_the_mode_that_it_is_given(training):
    layers = layers_of(net(lambda self, x: self.fc(self.a(functional.dropout(x, 0.5, training=training)).tanh())), (4,))
    x = torch.ones(20, 4)
    for mode in (True, False):
        layers.train(mode)
        assert torch.equal(layers(x), layers(x)) is not training


def test_what_a_mode_decides_follows_the_mode():
    def run(self, x):
        q = self.a(x)
        return self.fc(functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0))

    layers = layers_of(net(run), (6, 4))
    x = torch.ones(2, 6, 4)
    assert not torch.equal(layers.train()(x), layers(x))
    assert torch.equal(layers.eval()(x), layers(x))


def test_a_norm_that_its_module_keeps_in_evaluation_learns_no_statistics():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.fc = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x):
            return self.fc(self.norm(self.a(x)).relu())

    assert not any("running" in name for name in moved(Frozen()))


def test_hooks_of_the_whole_act():
    module = net(lambda self, x: self.fc(self.a(x).relu()))
    module.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    assert "a.weight" not in moved(module)


def test_positions_are_made_where_they_are_needed():
    def run(self, x):
        places = torch.arange(x.shape[1])
        x = self.a(x) + self.table(places)
        return self.fc(self.b(x).relu() + self.scale[: x.shape[1], None] * places[:, None])

    module = net(run, table=nn.Embedding(8, 4), scale=torch.ones(8))
    layers = layers_of(module, (6, 4))
    assert list(layers._modules) == ["a", "table", "b", "fc"]
    x = torch.randn(5, 6, 4)
    assert torch.equal(layers(x), module(x))


class Block(nn.Module):
    """Takes a mask and angles beside its input, as blocks of transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, mask, angles):
        return x + (self.inner(x).relu() * mask[..., None]) * angles


class Angles(nn.Module):
    """Asks its input for type and device alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.linspace(0.5, 1, 4), persistent=False)

    def forward(self, x, places):
        return (places[:, None] * self.rates).cos().to(x.dtype)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.angles, self.head = nn.Embedding(16, 4), Angles(), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, tokens, mask=None):
        n, length = tokens.shape
        if mask is None:
            mask = torch.ones(n, length, device=tokens.device)
        x = self.table(tokens)
        angles = self.angles(x, torch.arange(length, device=x.device))
        if torch.all(mask == 1) and (n != 1 or length > 0):
            mask = torch.where(mask == 1, mask * 2, torch.finfo(x.dtype).min)
        for block in self.blocks:
            x = block(x, mask, angles)
        return {"logits": self.head(x[:, -1])}


def test_blocks_are_cut_apart_whose_masks_and_angles_no_samples_change():
    torch.manual_seed(0)
    module = Decoder()
    layers = layers_of(module, (6,))
    assert list(layers._modules) == ["table", "blocks_0_inner", "blocks_1_inner", "blocks_2_inner", "head"]
    tokens = torch.randint(0, 16, (5, 6))
    assert torch.equal(layers(tokens), module(tokens)["logits"])
    assert not any("angles" in name for name in layers.state_dict())


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda self, x: self.fc(self.a(x) if torch.rand(()).item() < 0.5 else x), "where Python decides"),
        (lambda self, x: self.fc(self.a(x)[: len(x) if len(x) > 2 else 1]), "how many samples"),
        (lambda self, x: setattr(self, "seen", self.a(x).detach()) or self.fc(self.seen), "output with shape"),
        (lambda self, x: setattr(self, "steps", self.steps + 1) or self.fc(self.a(x) * self.steps), "'steps'"),
        (lambda self, x: self.plain.add_(1) is None or self.fc(self.a(x) - self.plain), "no buffer"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(run, problem):
    module = net(run, seen=torch.ones(4))
    module.__dict__.update(steps=0, plain=torch.zeros(4))
    with pytest.raises(ScenarioError, match=problem) as refused:
        layers_of(module, (4,))
    assert refused.value.key == "model.factory"


def test_whether_there_is_one_sample_may_decide_if_it_changes_nothing():
    alike = net(lambda self, x: self.fc(self.a(x).relu() if x.shape[0] > 1 else self.a(x).clamp(min=0)))
    assert list(layers_of(alike, (4,))._modules) == ["a", "fc"]
    unlike = net(lambda self, x: self.fc(self.a(x).relu() if x.shape[0] > 1 else self.a(x)))
    with pytest.raises(ScenarioError, match="a single sample"):
        layers_of(unlike, (4,))


def test_what_is_cut_otherwise_than_it_is_trained_stays_whole():
    """A block asks whether gradients are on, which no trace sees, but a few steps do."""

    class Asking(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x) if torch.is_grad_enabled() else 2 * self.a(x))

    module = net(lambda self, x: self.fc(self.block(self.a(x)).relu()), block=Asking())
    layers = layers_of(module, (4,))
    assert list(layers._modules) == ["a", "block", "fc"]
    with pytest.raises(ScenarioError, match="the output differs"):
        layers_of(Asking(), (4,))


def test_a_list_that_a_forward_changes_is_followed():
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.ways = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, streams):
            for i, way in enumerate(self.ways):
                streams[i] = way(streams[i])
            return streams

    module = net(lambda self, x: self.fc(sum(self.streams([self.a(x), self.b(x)])).relu()), streams=Streams())
    assert len(layers_of(module, (4,))) == 2
    module = net(lambda self, x: self.fc(sum(self.streams([self.a(x)] * 2))), streams=Streams())
    assert difference(module, layers_of(module, (4,)), torch.randn(3, 4), last_bits=0) is None


class OnGraph(nn.Module):
    """Sums over neighbours, who stand in an integer buffer of the whole."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, edges):
        sums = torch.zeros_like(x).index_add_(1, edges[1], x[:, edges[0]])
        return self.linear(sums)


def test_an_integer_buffer_that_stays_may_be_used_in_all_layers():
    def run(self, x):
        for conv in self.convs:
            x = conv(x, self.edges).relu()
        return self.fc(x)

    module = net(run, edges=torch.tensor([[0, 1, 2], [1, 2, 0]]), convs=nn.ModuleList(OnGraph() for _ in range(3)))
    layers = layers_of(module, (3, 4))
    assert list(layers._modules) == ["convs_0_linear", "convs_1_linear", "convs_2_linear", "fc"]
    assert difference(module, layers, torch.randn(3, 3, 4), last_bits=0) is None
    assert {name.partition(".")[2] for name in layers.state_dict()} == module.state_dict().keys()


def test_items_that_nobody_takes_may_be_fewer_next_time():
    """A block drops layers at random, and gives what each has made: models of transformers do so."""

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.ways = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

        def forward(self, x):
            made = [x]
            for way in self.ways:
                if not self.training or torch.rand(()) > 0.5:
                    made.append(way(made[-1]))
            return made[-1], tuple(made)

    module = net(lambda self, x: self.fc(self.block(self.a(x))[0]), block=Dropping())
    layers = layers_of(module, (4,))
    assert list(layers._modules) == ["a", "block_ways", "fc"]
    assert difference(module, layers, torch.randn(3, 4), last_bits=0) is None


def test_no_cut_lies_before_what_changes_its_input_in_place():
    """Behind a cut it would be a leaf, which autograd lets nobody change."""

    module = net(lambda self, x: self.fc(functional.relu(self.b(self.a(x).view(-1, 4).add_(1)), inplace=True)))
    layers = layers_of(module, (4,))
    assert list(layers._modules) == ["a", "b", "fc"]
    assert difference(module, layers, torch.randn(3, 4), last_bits=0) is None
    x = torch.randn(3, 4)
    for layer in layers:
        x = layer(x.detach().requires_grad_())


def test_what_goes_around_all_layers_is_named_with_the_layer():
    module = net(lambda self, x: self.fc(self.b(self.a(x))) * x.sum(1, keepdim=True))
    with pytest.raises(ScenarioError, match="as the samples are needed again behind 'fc'"):
        layers_of(module, (4,))


def sampling(self, x):
    """As a variational autoencoder does."""
    mean = self.a(x)
    if self.training:
        mean = mean + torch.randn_like(mean) * self.b(x).exp()
    return self.fc(mean.relu())


def with_a_second_head(self, x):
    scores = self.fc(self.a(x).relu())
    return Scores(scores, self.b(x)) if self.training else scores


def moving(self, x):
    x = self.a(x)
    if self.training:
        with torch.no_grad():
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
            self.steps += 1
    return self.fc(self.b(x - self.seen).relu())


def noisy(self, x):
    if self.training:
        x = x + torch.normal(0.0, 0.1, size=x.shape)
    return self.fc(self.b(self.a(x)).relu())


def joined_and_parted(self, x):
    both = self.a(torch.cat([x, x.flip(1)]))
    n_samples = x.shape[0]
    return self.fc(self.b(both[:n_samples] - both[n_samples:]))


Scores = collections.namedtuple("Scores", "logits others")


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (sampling, ["a", "fc"]),
        (with_a_second_head, None),
        (moving, ["a", "b", "fc"]),
        (noisy, ["a", "b", "fc"]),
        (joined_and_parted, ["a", "b", "fc"]),
    ],
)
def test_what_one_mode_alone_does_is_done_in_that_mode_alone(run, names):
    module = net(run, seen=torch.zeros(4), steps=torch.tensor(0))
    if names is None:
        with pytest.raises(ScenarioError, match="samples are needed again at 'b'"):
            layers_of(module, (4,))
        return
    layers = layers_of(module, (4,))
    assert list(layers._modules) == names
    assert difference(module, layers, torch.randn(3, 4), last_bits=0) is None


def test_a_head_of_training_alone_is_trained_by_nothing():
    """As the auxiliary heads of GoogLeNet, whose scores nobody asks for."""

    def run(self, x):
        x = self.a(x).relu()
        others = self.b(x) if self.training else None
        scores = self.fc(x)
        return Scores(scores, others) if self.training else scores

    module = net(run)
    assert len(layers_of(module, (4,))) == 2
    assert moved(module) == {"a.weight", "a.bias", "fc.weight", "fc.bias"}


def test_layers_meet_where_both_modes_give_the_same_shape():
    """As a network that drops patches in training alone."""

    def run(self, x):
        x = self.a(x)
        x = x[:, :2] if self.training else x
        return self.fc(self.b(x).mean(1))

    assert list(layers_of(net(run), (5, 4))._modules) == ["a", "fc"]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.3 * gradient


def swish(x):
    return x * torch.sigmoid(x)


with warnings.catch_warnings(action="ignore"):  # that torch will leave scripts behind
    scripted = torch.jit.script(swish)


def spread(self, x):
    places = torch.arange(4).expand(x.size(0), -1)
    return self.fc(torch.zeros(x.size(0), 4).scatter_add(1, places, self.a(x)))


@pytest.mark.parametrize(
    "run",
    [lambda self, x: self.fc(Reversed.apply(self.a(x))), lambda self, x: self.fc(scripted(self.a(x))), spread],
)
def test_functions_of_others_and_numbers_of_samples_are_followed(run):
    module = net(run)
    layers = layers_of(module, (4,))
    assert list(layers._modules) == ["a", "fc"]
    assert difference(module, layers, torch.randn(3, 4), last_bits=0) is None


@pytest.mark.filterwarnings("ignore:None of the inputs:UserWarning", "ignore:.*jit:FutureWarning")
@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda self, x: self.fc(checkpoint(self.a, x, use_reentrant=False)), "uses torch\\.utils|no module registers"),
        (lambda self, x: self.fc(checkpoint(self.a, x, use_reentrant=True)), "hands a Linear to a function"),
        (lambda self, x: self.fc(torch.func.grad(lambda y: self.a(y).sum())(x)), "uses torch\\._functorch"),
        (lambda self, x: self.fc(torch.from_dlpack(torch.to_dlpack(self.a(x).detach()))), "uses torch\\.to_dlpack"),
        (lambda self, x: self.fc(torch.func.jvp(torch.sin, (x,), (x,))[1]), "uses torch\\._functorch"),
        (lambda self, x: self.fc(self.listed[0](x)), "ModuleList instead of a list"),
    ],
)  # fmt: skip
def test_what_would_read_memory_that_is_not_there_is_refused(run, problem):
    """Once each of these ended the process."""
    module = net(run)
    module.listed = [nn.Linear(4, 4)]
    with pytest.raises(ScenarioError, match=problem):
        layers_of(module, (4,))


def test_a_layer_that_fails_with_what_is_followed_is_named():
    module = net(lambda self, x: self.fc(x if type(x) is torch.Tensor else x[:, :2]))
    with pytest.raises(ScenarioError, match="calls 'fc', a Linear, which fails with RuntimeError"):
        layers_of(module, (4,))


class Step(nn.Module):
    """One of the ways in which networks go on."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.many = nn.BatchNorm1d(4), nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])

    def forward(self, x):
        if self.kind == "chain":
            return self.b(self.a(x).relu())
        if self.kind == "residual":
            return x + self.b(self.norm(self.a(x)).relu())
        if self.kind == "branches":
            return torch.cat([self.a(x)[:, :2], self.b(x).chunk(2, 1)[0]], 1)
        if self.kind == "drops":
            return self.b(functional.dropout(self.a(x), 0.3, self.training))
        if self.kind == "list":
            for layer in self.many:
                x = layer(x)
            return x.view(len(x), -1)
        with torch.no_grad() if self.kind == "frozen" else contextlib.nullcontext():
            x = self.a(x)
        return self.b(x).mul_(0.5)


class Steps(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.steps, self.fc = nn.Sequential(*map(Step, kinds)), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.steps(x))


KINDS = st.sampled_from(["chain", "residual", "branches", "drops", "list", "frozen", "in place"])


@settings(max_examples=15)  # a second each
@given(kinds=st.lists(KINDS, min_size=1, max_size=4), mode=st.booleans())
def test_what_is_cut_is_trained_as_the_whole_to_the_bit(kinds, mode):
    torch.manual_seed(0)
    module = Steps(kinds).train(mode)
    layers = layers_of(module, (4,))
    assert len(layers) > 1
    assert difference(module, layers, torch.randn(3, 4), last_bits=0) is None
    assert module.training is mode
