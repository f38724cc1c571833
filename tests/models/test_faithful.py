"""Whether layers are trained as the module that they come from: what differs is said by its name."""

import copy

import pytest
import torch
from torch import nn

from sfl_sim.models.faithful import Alone, answer_of, difference

BATCH = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Module(nn.Module):
    """Two linear layers, a norm and dropout; subclasses do something besides."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.drop, self.b = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(self.drop(self.norm(self.a(x))))

    @property
    def layers(self):
        return nn.Sequential(self.a, self.norm, self.drop, self.b)


def test_a_module_and_its_layers_are_trained_alike_to_the_bit():
    module = Module()
    assert difference(module, module.layers, BATCH, last_bits=0) is None
    assert difference(module, nn.Sequential(module), BATCH, last_bits=0) is None


def test_nothing_of_the_module_and_of_the_random_state_has_changed_afterwards():
    module = Module().eval()
    before, draws = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    difference(module, module.layers, BATCH)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert not module.training
    assert module.a.weight.grad is None


class Scaled(Module):
    def forward(self, x):
        return 2 * super().forward(x)


class Behind(Module):
    def forward(self, x):
        with torch.no_grad():
            x = self.norm(self.a(x))
        return self.b(self.drop(x))


class Decaying(Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(6))

    def forward(self, x):
        x = self.norm(self.a(x))
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.b(self.drop(x))

    @property
    def layers(self):
        layers = super().layers
        layers.register_buffer("mean", self.mean)
        return layers


class Drawing(Module):
    def forward(self, x):
        torch.rand(())
        return super().forward(x)


class InEvaluation(Module):
    def forward(self, x):
        return super().forward(x if self.training else 2 * x)


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (Scaled(), "the output"),
        (Behind(), "the gradient of 'norm.bias'"),
        (Decaying(), "'mean'"),
        (Drawing(), "the output"),  # dropout draws other numbers
        (InEvaluation(), "the output"),
    ],
)
def test_what_the_layers_leave_out_is_named(module, what):
    assert difference(module, module.layers, BATCH).startswith(f"{what} ")
    assert difference(module, nn.Sequential(module), BATCH, last_bits=0) is None


def test_the_number_of_draws_counts_where_nothing_else_shows_it():
    module = Drawing()
    module.drop = nn.Identity()
    assert difference(module, module.layers, BATCH).startswith("the number of draws from 'torch' ")


def test_rounding_is_no_difference_unless_bits_are_asked_for():
    class Reordered(Module):
        def forward(self, x):
            return super().forward(x * 3.0 / 3.0)

    module = Reordered()
    assert difference(module, module.layers, BATCH) is None
    assert "differs" in difference(module, module.layers, BATCH, last_bits=0)


class Shifted(Module):
    """Rounds to a sixteenth in float32, and to 1e-10 in float64."""

    share = 1.0

    def forward(self, x):
        return super().forward((self.share * x + 1e6) - 1e6)


def test_what_vanishes_in_float64_is_rounding_that_has_grown():
    module = Shifted()
    assert difference(module, module.layers, BATCH) is None
    assert "differs by" in difference(module, module.layers, BATCH, last_bits=0)
    module.share = 1 + 1e-4  # which float32 would not tell from rounding
    assert difference(module, module.layers, BATCH).startswith("the output differs by ")


def test_steps_are_no_longer_than_a_tenth_so_that_large_gradients_do_not_end_in_nan():
    module = Module()
    module.b.weight.data *= 1e6
    before = module.norm.bias.detach().clone()
    learner = Alone(copy.deepcopy(module), {name: name for name, _ in module.named_parameters()})
    learner.forward(BATCH, training=True)
    learner.backward(torch.ones(4, 3))
    learner.step()
    pairs = zip(learner.module.parameters(), module.parameters(), strict=True)
    apart = max(float((after - begun).detach().abs().max()) for after, begun in pairs)
    assert apart == pytest.approx(0.1, rel=1e-6)
    assert not torch.equal(learner.module.norm.bias, before)


class Counting(Module):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        return super().forward(x)


class Averaging(Module):
    """A plain tensor that is changed in place."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, x):
        self.mean.lerp_(x.mean(0), 0.1)
        return super().forward(x - self.mean)


class Remembering(Module):
    def __init__(self):
        super().__init__()
        self.losses = []

    def forward(self, x):
        self.losses.append(len(self.losses))
        return super().forward(x)


class OwnDraws(Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return super().forward(x + torch.randn(x.shape, generator=self.generator))


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [(Counting, "steps"), (Averaging, "mean"), (Remembering, "losses"), (OwnDraws, "generator")],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_state_in_an_attribute_is_refused_by_its_name_with_the_remedy(kind, attribute, depth):
    module = nn.Sequential(kind()) if depth else kind()
    layer = "layer '0'" if depth else "it"
    problem = difference(module, module, BATCH)
    assert problem.startswith(f"{layer} reads its attribute {attribute!r}, ")
    assert f"self.register_buffer({attribute!r}, " in problem


class Keeping(Module):
    """The activations are kept for whoever asks, and the module never reads them."""

    def forward(self, x):
        self.activations = self.a(x)
        return super().forward(x)


class Caching(Module):
    """A table is made when it is first needed, and then it stays."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(x.shape[1])
        return super().forward(x + self.table)


class Choosing(Module):
    """Its forward is one of its methods."""

    def __init__(self):
        super().__init__()
        self.forward = self.fast

    def fast(self, x):
        return Module.forward(self, x)


@pytest.mark.parametrize("kind", [Keeping, Caching, Choosing])
def test_what_is_never_read_again_or_stays_as_it_is_may_be_kept_in_an_attribute(kind):
    module = kind()
    assert difference(module, nn.Sequential(module), BATCH, last_bits=0) is None


def test_a_module_that_fails_is_said_to_fail_before_any_cut():
    class Failing(Module):
        def forward(self, x):
            raise OSError("no")

    assert difference(Failing(), Module(), BATCH) == "fails in training before it is cut: OSError: no"


def test_an_answer_is_the_only_tensor_or_the_logits():
    logits = torch.ones(2)
    named = type("Named", (), {"logits": logits})()
    alone = (logits, (logits,), [logits], (logits, None), {"out": logits}, {"out": logits, "aux": None})
    assert all(answer_of(outputs) is logits for outputs in (*alone, {"logits": logits, "loss": logits}, named))
    with pytest.raises(TypeError, match="tuple"):
        answer_of((logits, logits))
