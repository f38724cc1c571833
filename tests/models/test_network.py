"""Networks: prices of layers, possible cuts, and equal results with every cut."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from sfl_sim.build.network import unpriced
from sfl_sim.errors import ScenarioError
from sfl_sim.models.averages import average
from sfl_sim.models.network import Network, client_cuts, cuts_at
from sfl_sim.models.replica import Joined
from sfl_sim.models.zoo import MODELS, network
from sfl_sim.ops import Value
from sfl_sim.rng import torch_seed
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Backward, Forward, Train, gradient_at

CPU = torch.device("cpu")
INPUTS = {"cnn_small": (1, 8, 8), "cnn_patches": (3, 32, 32), "cnn_patches_bn": (3, 32, 32), "lenet5": (1, 28, 28),
          "cnn8": (1, 28, 28), "mobilenet_v1": (3, 32, 32), "resnet18": (3, 32, 32)}  # fmt: skip


def batch_for(net, samples=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *net.input_shape, generator=generator, dtype=net.dtype)
    y = torch.randint(net.n_labels, (samples,), generator=generator)
    x = x.contiguous(memory_format=torch.channels_last)
    return Value("batch", samples=samples, step=0, content=(x, y))


def flattening(shape, n_labels):
    """Layers of which the first has no parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, n_labels))


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)


class Power(nn.Module):
    def forward(self, x):
        return x.abs()


def of_spectra(shape, n_labels):
    """Layers of which the third gives complex numbers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Spectrum(), Power(), nn.Linear(8, n_labels))


def test_complex_numbers_may_be_within_a_part_and_neither_at_its_end_nor_in_the_answer():
    net = network(of_spectra, (1, 8, 8), 10)
    for cut in (2, 4):
        net.split(cut, seed=0, device=CPU)
    with pytest.raises(ScenarioError) as refused:
        net.split(3, seed=0, device=None)
    assert refused.value.key == "model.cut"
    answers = network(lambda shape, n: nn.Sequential(nn.Flatten(), nn.Linear(64, n), Spectrum()), (1, 8, 8), 10)
    with pytest.raises(ScenarioError) as refused:
        answers.split(1, seed=0, device=None)
    assert refused.value.key == "model"


@pytest.mark.parametrize("name", ["cnn_small", "cnn_patches", "cnn_patches_bn", "lenet5", "mobilenet_v1", flattening])
def test_a_split_step_is_the_unsplit_step_for_every_cut_to_the_bit(name):
    """Identity I1 (docs/methods/README.md#identities) for three steps with momentum, weight decay and batch norm."""
    net = network(name, INPUTS.get(name, (1, 8, 8)), 10)
    sgd = Sgd(0.05, momentum=0.9, weight_decay=5e-4)
    batches = [batch_for(net, seed=seed) for seed in range(3)]
    (whole,) = net.split(seed=0, device=CPU)
    for batch in batches:
        Train(sgd).run(whole, batch)
    expected = dict(whole.weights.named_tensors())
    for cut in range(1, len(net), 1 if len(net) < 10 else 7):
        part1, part2 = net.split(cut, seed=0, device=CPU)
        for batch in batches:
            smashed = Value("smashed", samples=4, content=Forward().run(part1, batch))
            Backward(sgd).run(part1, Value("gradients", content=Train(sgd).run(part2, smashed)))
        found = dict(part1.weights.named_tensors()) | dict(part2.weights.named_tensors())
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["lenet5", "mobilenet_v1"])
def test_training_does_what_a_plain_torch_loop_does(name):
    """The flat vectors, shared layers and fused step against nn.Module and torch.optim, to the bit."""
    net = network(name, INPUTS[name], 10)
    (whole,) = net.split(seed=3, device=CPU)
    plain = MODELS[name](INPUTS[name], 10)
    plain.load_state_dict(
        {key: tensor.clone() for key, tensor in whole.weights.named_tensors()}, strict=False
    )  # num_batches_tracked is no state of ours
    plain = plain.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for seed in range(3):
        batch = batch_for(net, seed=seed)
        Train(Sgd(0.05, 0.9, weight_decay=5e-4)).run(whole, batch)
        x, y = batch.load()
        optimiser.zero_grad()
        cross_entropy(plain(x), y).backward()
        optimiser.step()
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in whole.weights.named_tensors())


def test_resnet18_cut_after_stem_and_two_blocks_has_the_published_part_1():
    """Published sizes: 65,536 activations per sample and 149,824 parameters (docs/methods/timing.md#per-mini-batch)."""
    part1, _ = network("resnet18", (3, 32, 32), 10).split(4, seed=0, device=None)
    assert part1.part.out_numel == 65_536
    assert part1.part.n_parameters == 149_824


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_parts_add_up_to_the_whole(name):
    net = network(name, INPUTS[name], 10)
    (whole,) = net.split(seed=0, device=None)
    for cut in range(1, len(net)):
        part1, part2 = net.split(cut, seed=0, device=None)
        assert part1.part.macs + part2.part.macs == net.macs
        assert part1.size_bytes + part2.size_bytes == whole.size_bytes
        assert part1.part.out_numel == part2.part.in_numel


def test_between_two_equal_cuts_lies_a_part_that_returns_its_input():
    net = network("cnn_small", (1, 8, 8), 10, torch.float64)
    before, empty, after = net.split(2, 2, seed=0, device=torch.device("cpu"))
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    between = before.weights(x, training=False)
    assert torch.equal(empty.weights(between, training=False), between)
    assert (empty.size_bytes, empty.part.macs, empty.part.out_numel) == (0, 0, after.part.in_numel)
    assert empty.part.dtype == torch.float64


def test_cuts_do_not_go_back():
    with pytest.raises(ValueError, match="out of order"):
        network("cnn_small", (1, 8, 8), 10).split(3, 1, seed=0, device=None)


def test_an_unknown_model_suggests_the_nearest_name():
    with pytest.raises(ScenarioError) as refused:
        network("mobilenetv1", (3, 32, 32), 10)
    assert refused.value.nearest == "mobilenet_v1"


def test_an_operation_without_a_price_is_told_and_not_refused():
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.solve(torch.eye(3).expand(len(x), 3, 3), x.transpose(1, 2)).transpose(1, 2)

    def build(shape, n_labels):
        return nn.Sequential(nn.Linear(4, n_labels), Odd())

    warning = unpriced(Network("odd", build, (2, 4), 3))
    assert (warning.key, "_linalg_solve_ex" in warning.problem) == ("model", True)
    assert unpriced(network("cnn_small", (1, 8, 8), 10)) is None


def test_a_snapshot_is_safe_from_later_training_and_starts_with_a_fresh_optimiser():
    net = network("cnn_small", (1, 8, 8), 10)
    (whole,) = net.split(seed=0, device=CPU)
    Train(Sgd(0.1, 0.9)).run(whole, batch_for(net))
    copy = whole.snapshot()
    before = copy.weights.flat.clone()
    Train(Sgd(0.1, 0.9)).run(whole, batch_for(net))
    assert torch.equal(copy.weights.flat, before)
    assert not torch.equal(whole.weights.flat, before)
    assert copy.weights.momentum is None


def test_the_weighted_average_covers_parameters_and_batch_norm_statistics():
    net = network("mobilenet_v1", (3, 32, 32), 10)
    replicas = [net.split(seed=seed, device=CPU)[0] for seed in range(3)]
    for seed, replica in enumerate(replicas):
        replica.weights(batch_for(net, seed=seed).load()[0], training=True)
    into = net.split(seed=9, device=CPU)[0].weights
    shares = [0.5, 0.3, 0.2]
    average(into, [replica.weights for replica in replicas], shares)
    for tensors in zip(into.named_tensors(), *(r.weights.named_tensors() for r in replicas), strict=True):
        (_, found), *parts = tensors
        expected = sum(share * tensor for share, (_, tensor) in zip(shares, parts, strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


class Causal(nn.Module):
    """Self-attention of one's own, with a mask, a table of indices and angles that two such layers may share."""

    def __init__(self, angles):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril())
        self.register_buffer("order", torch.randperm(8))
        self.register_buffer("angles", angles)

    def forward(self, x):
        x = self.project(x.squeeze(1))[..., self.order] + self.angles
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


def causal(shape, n_labels):
    angles = torch.linspace(0, 1, 8)
    return nn.Sequential(Causal(angles), Causal(angles), nn.Sequential(nn.Flatten(), nn.Linear(64, n_labels)))


def test_masks_and_tables_of_ones_own_layers_are_what_they_were_and_are_neither_sent_nor_averaged():
    net = network(causal, (1, 8, 8), 3)
    parts = net.split(1, seed=0, device=CPU)
    torch.manual_seed(torch_seed(0, "initial weights"))
    plain = causal((1, 8, 8), 3)
    x = torch.randn(2, 1, 8, 8)
    copies = [part.snapshot() for part in parts]
    for copy in copies:
        average(copy.weights, [copy.weights, copy.weights], [0.5, 0.5])
    joined = Joined(net.part(0, 3), copies).snapshot()
    assert torch.equal(joined.weights(x, training=False), plain(x))
    (part1, _) = parts
    assert part1.size_bytes == 4 * (8 * 8 + 8 + 8)  # the projection, and the angles, which are floating
    assert (part1.part.n_frozen, part1.part.n_buffers) == (0, 8)
    names = [name for name, _ in part1.weights.named_tensors()]
    assert names == ["0.project.weight", "0.project.bias", "0.mask", "0.order", "0.angles"]


def test_a_network_is_priced_with_one_thread():
    """To start another takes longer than the one sample that is computed."""
    seen = []

    class Look(nn.Flatten):
        def forward(self, x):
            seen.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        Network("looking", lambda shape, n_labels: nn.Sequential(Look(), nn.Linear(64, n_labels)), (1, 8, 8), 10)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_a_backward_needs_its_forward():
    net = network("cnn_small", (1, 8, 8), 10)
    part1, _ = net.split(2, seed=0, device=CPU)
    with pytest.raises(AssertionError, match="backward without a forward"):
        Backward(Sgd(0.1)).run(part1, Value("gradients"))


MOBILENET = network("mobilenet_v1", (3, 32, 32), 10)
RESNET = network("resnet18", (3, 32, 32), 10)
SMALL = network("cnn_small", (1, 8, 8), 10)
RNG = np.random.default_rng(0)


def test_relative_depths_are_the_cuts_that_hydra_calls_shallow_middle_and_deep():
    """Cuts after 4, 15 and 23 of MobileNet's 26 layers (docs/methods/hydra.md#choices)."""
    assert [MOBILENET.cut_at(depth) for depth in (0.15, 0.58, 0.88)] == [4, 15, 23]


def test_a_name_is_the_layer_before_the_cut():
    assert [RESNET.cut_at(layer.name) for layer in RESNET.layers[:-1]] == list(range(1, len(RESNET)))


@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(0, 10))
def test_every_relative_depth_leaves_layers_on_both_sides_and_is_the_nearest_that_does(depth, above):
    cut = RESNET.cut_at(depth, above=above)
    assert above < cut < len(RESNET)
    nearest = min(abs(other - depth * len(RESNET)) for other in range(above + 1, len(RESNET)))
    assert abs(cut - depth * len(RESNET)) == pytest.approx(nearest)


def test_random_cuts_are_drawn_for_each_client_from_all_values_alike():
    cuts = client_cuts(SMALL, "random", ["conv1", 2, 3], [1.0] * 3000, RNG)
    assert sorted(set(cuts)) == [1, 2, 3]
    assert np.bincount(cuts)[1:] == pytest.approx(1000, abs=130)  # five standard deviations
    few = [client_cuts(SMALL, "random", [1, 2, 3], [1.0] * 2, np.random.default_rng(seed)) for seed in (1, 1)]
    assert few[0] == few[1]


@pytest.mark.parametrize("cut", [4, 0, "fc", "covn2"])
def test_a_wrong_cut_is_one_line_that_lists_the_layers(cut):
    with pytest.raises(ScenarioError) as refused:
        SMALL.cut_at(cut)
    error = refused.value
    assert (error.key, error.found, error.allowed) == ("model.cut", cut, "1 conv1, 2 conv2, 3 conv3")
    assert ("'conv2'?" in error.problem) == (cut == "covn2")


def test_a_second_cut_comes_after_the_first_and_its_errors_name_its_key():
    assert SMALL.cut_at("conv3", key="method.head", above=2) == 3
    with pytest.raises(ScenarioError) as refused:
        SMALL.cut_at(1, key="method.head", above=1)
    assert (refused.value.key, refused.value.allowed) == ("method.head", "2 conv2, 3 conv3")
    with pytest.raises(ScenarioError, match="after layer 3"):
        SMALL.cut_at(0.9, above=3)


def test_cuts_by_client_are_those_of_the_clients_in_any_notation():
    assert client_cuts(SMALL, "client", [3, "conv1", 0.5], [1.0, 2.0, 3.0], RNG) == [3, 1, 2]


def test_the_slowest_group_takes_the_first_value():
    rates = [5e9, 1e9, 4e9, 2e9, 3e9, 6e9]
    assert client_cuts(SMALL, "device_speed", [1, 2, 3], rates, RNG) == [3, 1, 2, 1, 2, 3]


@given(rates=st.lists(st.sampled_from([1e9, 2e9, 3e9, 4e9]), min_size=3, max_size=20), groups=st.integers(1, 3))
def test_groups_by_speed_are_of_equal_size_and_no_client_is_in_a_faster_group_than_a_faster_one(rates, groups):
    cuts = client_cuts(SMALL, "device_speed", [1, 2, 3][:groups], rates, RNG)
    sizes = [cuts.count(cut) for cut in range(1, groups + 1)]
    assert max(sizes) - min(sizes) <= 1
    assert all(cuts[a] <= cuts[b] for a in range(len(rates)) for b in range(len(rates)) if rates[a] < rates[b])


def test_the_cuts_of_rounds_are_taken_in_any_notation_and_a_wrong_one_is_named():
    assert cuts_at(RESNET, [3, "block5", 0.5, 3]) == [3, 7, 6, 3]


@pytest.mark.parametrize(
    ("by", "values", "key", "found"),
    [
        ("client", [1, 2], "model.cut.values", 2),
        ("device_speed", [1] * 4, "model.cut.values", 4),
        ("client", [1, 4, 3], "model.cut.values.1", 4),
        ("client", [1, "covn2", 3], "model.cut.values.1", "covn2"),
    ],
)
def test_wrong_values_are_named(by, values, key, found):
    with pytest.raises(ScenarioError) as refused:
        client_cuts(SMALL, by, values, [1.0, 2.0, 3.0], RNG)
    assert (refused.value.key, refused.value.found) == (key, found)


def frozen_until_the_head(shape, n_labels):
    """Layers as in transfer learning: 64 x 64 frozen, then a head."""
    body = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
    return nn.Sequential(*body.requires_grad_(requires_grad=False), nn.Linear(64, n_labels))


def test_below_the_first_layer_that_learns_there_is_no_backward_pass_and_no_gradient():
    net = network(frozen_until_the_head, (1, 8, 8), 10)
    body, head = net.part(0, 2), net.part(2, 3)
    assert [body.work(5, passes).macs for passes in (1, 2, 3)] == [5 * 64 * 64, 0, 5 * 64 * 64]
    assert head.work(5, 3).macs == 2 * 5 * 64 * 10, "of what is frozen nobody needs a gradient"
    assert gradient_at(head, Value("smashed", samples=5)).size_bytes == 0
    assert net.frozen_bytes(net.layers) == 4 * (64 * 64 + 64)


def frozen_between(shape, n_labels):
    """Layers of which the second is frozen."""
    frozen = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()).requires_grad_(requires_grad=False)
    return nn.Sequential(nn.Conv2d(1, 4, 3), frozen, nn.Flatten(), nn.Linear(64, n_labels))


def residual(shape, n_labels):
    """Layers of which the first multiplies samples by two matrices, and what one of them gives by a third."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1))
            self.beside = nn.Conv2d(1, 4, 1)

        def forward(self, x):
            return self.inner(x) + self.beside(x)

    return nn.Sequential(Residual(), nn.Flatten(), nn.Linear(256, n_labels))


COUNTED = dict.fromkeys(["mlp", "cnn_small", flattening, frozen_until_the_head, frozen_between, residual], (1, 8, 8))
COUNTED |= {"lenet5": (1, 28, 28), "resnet18": (3, 8, 8), "vgg11_bn": (3, 32, 32), "char_transformer": (6,)}


@pytest.mark.parametrize("name", COUNTED)
def test_a_training_step_is_charged_the_products_that_torch_runs(name):
    """torch.utils.flop_counter's own count of all matrix products and convolutions, at every cut, of both parts.

    So the first layer that learns, which computes no gradient at its input, costs two forward passes, not three. On
    tokens the embedding comes first, which has no products, and nothing is spared.
    """
    net, n = network(name, COUNTED[name], 10), 3
    x = torch.zeros(n, *net.input_shape, dtype=torch.int64 if net.tokens else net.dtype)
    y = torch.zeros(n, *(net.input_shape if net.every_token else ()), dtype=torch.int64)
    for cut in range(1, min(len(net), 5)):
        part1, part2 = net.split(cut, seed=0, device=CPU)
        value, charged, counted = Value("batch", samples=n, content=(x, y)), [], []
        for step, part in ((Forward(), part1), (Train(Sgd(0.1)), part2), (Backward(Sgd(0.1)), part1)):
            charged.append(step.work(part, value).macs)
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # fused ones are not counted
                value = Value("result", samples=n, content=step.run(part, value))
            counted.append(counter.get_total_flops() / 2)
        assert charged == counted


def test_a_frozen_layer_above_one_that_learns_takes_the_gradient_at_its_input_alone():
    def build(shape, n_labels):
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 6).requires_grad_(requires_grad=False), nn.Linear(6, 3))

    net = network(build, (4,), 3, tokens=False)
    assert [net.part(i, i + 1).work(1, 2).macs for i in range(3)] == [4 * 8, 8 * 6, 2 * 6 * 3]
    assert gradient_at(net.part(1, 3), Value("smashed", samples=5)).size_bytes == 5 * 8 * 4


class Detaching(nn.Linear):
    """A layer that learns from what comes, and sends nothing back."""

    def forward(self, x):
        return super().forward(x.detach())


class Still(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize(("layer", "n_still"), [(Detaching, 2), (Still, 3), (nn.Linear, 0)])
def test_layers_that_no_gradient_reaches_are_frozen_and_their_client_gets_none(layer, n_still):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), layer(6, 6), nn.Linear(6, 3))
    net = network(model, (4,), 3, tokens=False)
    assert [layer.parameters for layer in net.layers][:n_still] == [0] * n_still
    assert all(layer.parameters for layer in net.layers[n_still:] if layer.name != "1")
    front, back = net.split(2, seed=0, device=CPU)
    assert (gradient_at(back.part, Value("smashed", samples=5)).size_bytes == 0) == bool(n_still)
    before = [dict(part.named_tensors()) for part in (front.weights.copy(), back.weights.copy())]
    sgd, batch = (
        Sgd(0.1, weight_decay=0.1),
        Value("batch", samples=2, content=(torch.randn(2, 4), torch.tensor([0, 1]))),
    )
    smashed = Value("smashed", samples=2, content=Forward().run(front, batch))
    Backward(sgd).run(front, Value("gradients", content=Train(sgd).run(back, smashed)))
    stayed = [torch.equal(tensor, before[0][name]) for name, tensor in front.weights.named_tensors()]
    assert set(stayed) == {bool(n_still)}
    assert not torch.equal(dict(back.weights.named_tensors())["3.weight"], before[1]["3.weight"])


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.random, random.random])
def test_a_network_that_draws_is_known_whatever_it_draws_from(draw):
    class Drawing(nn.Module):
        def forward(self, x):
            draw()
            return x

    def draws(*layers):
        return Network("n", lambda shape, n: nn.Sequential(nn.Flatten(), *layers, nn.Linear(4, n)), (1, 2, 2), 2).draws

    assert draws(Drawing())
    assert not draws()
