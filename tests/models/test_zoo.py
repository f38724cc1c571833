"""The models by name: published sizes, cuts that change nothing, clear refusals; and models of a user's own."""

import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy
from torchvision.models import get_model
from torchvision.ops import Conv2dNormActivation

from sfl_sim.errors import ScenarioError
from sfl_sim.models.lora import Lora
from sfl_sim.models.price import price
from sfl_sim.models.transformer import patch_size
from sfl_sim.models.zoo import MODELS, as_builder, network
from sfl_sim.training.optimisers import Sgd

CPU = torch.device("cpu")
IMAGENET = (3, 224, 224)


@pytest.mark.parametrize(
    ("name", "giga_macs", "parameters"),
    [
        ("mobilenet_v1", 0.569, 4_231_976),  # Howard et al. 2017: 569 M, 4.2 M
        ("mobilenet_v2", 0.3, 3_504_872),  # Sandler et al. 2018, Table 4: 300 M MAdds, 3.4 M parameters
        ("resnet18", 1.814, 11_689_512),  # torchvision's model pages, to the end
        ("resnet50", 4.089, 25_557_032),  # (He et al.: 3.8e9 with the stride in the 1x1)
        ("vgg11_bn", 7.61, 132_868_840),
        ("vgg16_bn", 15.47, 138_365_992),
        ("densenet121", 2.834, 7_978_856),
        ("vit_s16", 4.6, 22_050_664),  # Touvron et al. 2021, DeiT-S: 22 M parameters; Liu et al. 2021, Table 1: 4.6 G
    ],
)
def test_macs_and_parameters_are_the_published_ones(name, giga_macs, parameters):
    with torch.device("meta"):
        model = MODELS[name](IMAGENET, 1000)
    layers = price(model.to_empty(device="cpu"), IMAGENET)  # prices do not depend on weights
    assert sum(layer.macs for layer in layers) == pytest.approx(giga_macs * 1e9, rel=0.02)
    assert sum(layer.parameters for layer in layers) == parameters


def test_a_resnet20_of_cifar_has_the_published_size():
    """He et al. 2016: 40.8 M, 0.27 M; 2,752 less with their shortcuts."""
    net = network("resnet20", (3, 32, 32), 10)
    assert (net.macs, sum(layer.parameters for layer in net.layers)) == (40_813_184, 272_474)


def test_the_macs_of_lenet5_by_hand():
    by_hand = [28 * 28 * 6 * 25, 10 * 10 * 16 * 6 * 25, 400 * 120, 120 * 84, 84 * 10]
    assert [layer.macs for layer in network("lenet5", (1, 28, 28), 10).layers] == by_hand


def test_the_macs_of_resnet8_by_hand():
    """Two 3x3 convolutions a block; where channels double, sides halve and the shortcut is a 1x1 convolution."""
    block = 2 * 32 * 32 * 16 * 16 * 9
    halving = 16 * 16 * 32 * (16 + 32) * 9 + 16 * 16 * 32 * 16
    by_hand = [32 * 32 * 16 * 3 * 9, block, halving, halving, 0, 64 * 10]
    assert [layer.macs for layer in network("resnet8", (3, 32, 32), 10).layers] == by_hand


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("cnn_small", 4), ("cnn_patches", 4), ("cnn8", 8), ("resnet_small", 6), ("resnet8", 6), ("resnet20", 12),
        ("resnet18", 12), ("resnet34", 20), ("resnet50", 20), ("resnet101", 37),
        ("mobilenet_v1", 26), ("mobilenet_v2", 20), ("vgg11_bn", 11), ("vgg16_bn", 16), ("densenet121", 64),
        ("vit_s16", 14),
    ],
)  # fmt: skip
def test_layers_are_counted_as_the_docstrings_count_them(name, layers):
    with torch.device("meta"):
        assert len(MODELS[name](IMAGENET, 1000)) == layers


SAMPLES = {
    "cnn8": (1, 8, 8),
    "mobilenet_v2": (1, 16, 16),
    "resnet_small": (1, 16, 16),
    "resnet8": (1, 16, 16),
    "resnet18": (1, 16, 16),
    "vgg11_bn": (3, 32, 32),
    "densenet121": (1, 16, 16),
    "vit_s16": (1, 8, 8),
    "char_transformer": (12,),
}
"""A small sample for one model of every family, as test_network.py has for the oldest: siblings share their lines."""


def samples_for(net, n=2):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(net.n_labels, (n,), generator=generator)
    if len(net.input_shape) == 1:
        return torch.randint(net.n_labels, (n, *net.input_shape), generator=generator), labels
    x = torch.randn(n, *net.input_shape, generator=generator)
    return x.contiguous(memory_format=torch.channels_last), labels


def train_step(parts, x, y):
    """One split step over any number of parts: activations and gradients pass between them as detached tensors."""
    calls = []
    for part in parts:
        taken = x.detach().requires_grad_(not part.part.first)
        x = part.weights(taken, training=True)
        calls.append((taken, x))
    logits = x.detach().requires_grad_()
    cross_entropy(logits, y).backward()
    gradient = logits.grad
    for part, (taken, given) in zip(reversed(parts), reversed(calls), strict=True):
        given.backward(gradient)
        gradient = taken.grad
        Sgd(1e-3, momentum=0.9).step(part.weights)


def answers(parts, x):
    with torch.inference_mode():
        for part in parts:
            x = part.weights(x, training=False)
    return x


def tensors(parts):
    return {name: tensor for part in parts for name, tensor in part.weights.named_tensors()}


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_in_many_places_at_once_a_model_learns_and_answers_the_same_to_the_bit(name):
    net = network(name, SAMPLES[name], 10)
    x, y = samples_for(net)
    whole = net.split(seed=0, device=CPU)
    parts = net.split(*range(1, len(net), 1 + len(net) // 8), seed=0, device=CPU)
    for _ in range(2):  # the head of vit_s16 starts at zero, so that its blocks learn from the second step on
        train_step(whole, x, y)
        train_step(parts, x, y)
    expected, found = tensors(whole), tensors(parts)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert torch.equal(answers(parts, x), answers(whole, x))


@pytest.mark.parametrize("name", SAMPLES)
def test_layers_with_lent_weights_do_what_the_plain_module_does(name):
    net = network(name, SAMPLES[name], 10)
    x, _ = samples_for(net)
    whole = net.split(seed=0, device=CPU)
    plain = MODELS[name](SAMPLES[name], 10)
    plain.load_state_dict({key: tensor.clone() for key, tensor in tensors(whole).items()}, strict=False)
    plain = plain.to(memory_format=torch.channels_last)
    random_state = torch.get_rng_state()
    assert torch.equal(whole[0].weights(x, training=True), plain.train()(x))
    assert torch.equal(torch.get_rng_state(), random_state), "something draws random numbers while it runs"
    with torch.inference_mode():
        assert torch.equal(whole[0].weights(x, training=False), plain.eval()(x))


def test_tokens_stay_integers_and_cost_their_length():
    net = network("char_transformer", (80,), 65)
    part1, part2 = net.split(1, seed=0, device=None)
    assert (part1.part.in_numel, part1.part.out_numel, part2.part.out_numel) == (80, 80 * 128, 65)
    assert net.layers[0].macs == 0
    block = 80 * 4 * 128 * 128 + 2 * 80 * 80 * 128  # projections; scores and their sums
    assert net.layers[1].macs_by_kind["attention"] == block
    assert net.layers[1].macs_by_kind["dense"] == 2 * 80 * 128 * 512


@pytest.mark.parametrize(("side", "size"), [(224, 16), (112, 16), (96, 8), (64, 8), (32, 4), (28, 4), (8, 1), (13, 1)])
def test_a_vision_transformer_sees_at_least_49_patches_of_a_small_image(side, size):
    assert patch_size((3, side, side)) == size


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("lenet5", (1, 8, 8), "12x12"),
        ("densenet121", (3, 4, 4), "8x8"),
        ("vit_s16", (3, 99, 99), "even number"),
        ("vit_s16", (3, 32, 28), "square"),
        ("resnet18", (80,), "channels, height, width"),
        ("char_transformer", (1, 8, 8), "sequences"),
    ],
)
def test_a_model_says_which_samples_it_does_not_take(name, shape, reason):
    with pytest.raises(ScenarioError, match=f"'{name}' .* {'x'.join(map(str, shape))}: .*{reason}") as refused:
        network(name, shape, 10)
    assert refused.value.key == "model"


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11_bn", "densenet121", "mobilenet_v2"])
def test_a_seed_gives_torchvisions_own_model(name):
    """Weights and arithmetic: 3 channels and 224 pixels need no other stem."""
    without_dropout = {"dropout": 0.0} if name in ("vgg11_bn", "mobilenet_v2") else {}
    torch.manual_seed(3)
    expected = get_model(name, num_classes=10, **without_dropout).eval()
    torch.manual_seed(3)
    found = MODELS[name](IMAGENET, 10).eval()
    x = torch.randn(1, *IMAGENET)
    with torch.inference_mode():
        assert torch.equal(found(x), expected(x))


def test_a_pointwise_layer_of_mobilenet_v1_is_torchvisions():
    torch.manual_seed(3)
    found = MODELS["mobilenet_v1"]((3, 32, 32), 10)[1]
    torch.manual_seed(3)
    Conv2dNormActivation(3, 32, 3), Conv2dNormActivation(32, 32, 3, groups=32)  # they draw before it
    expected = Conv2dNormActivation(32, 64, 1)
    x = torch.randn(2, 32, 4, 4)
    assert torch.equal(found(x), expected(x))


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "densenet121", "mobilenet_v2", "vit_s16"])
@pytest.mark.parametrize("side", [32, 64])
def test_a_replaced_stem_starts_as_torchvision_starts_its_own(name, side):
    torch.manual_seed(0)
    stem = MODELS[name]((1, side, side), 10)[0]
    conv = next(module for module in stem.modules() if isinstance(module, nn.Conv2d))
    fan_in, fan_out = conv.weight[0].numel(), conv.weight[:, 0].numel()
    variance = {"densenet121": 2 / fan_in, "vit_s16": 1 / fan_in}.get(name, 2 / fan_out)
    assert conv.weight.std().item() == pytest.approx(variance**0.5, rel=0.15)
    assert conv.bias is None or not conv.bias.any()


def test_a_small_vgg_starts_as_torchvisions_does_in_every_layer():
    torch.manual_seed(0)
    model = MODELS["vgg11_bn"]((3, 32, 32), 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for conv in convolutions:
        assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.05)
        assert not conv.bias.any()
    assert model.fc1[0].weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not model.fc1[0].bias.any()


def test_a_cifar_resnet_starts_as_torchvisions_do_in_every_layer():
    torch.manual_seed(0)
    model = MODELS["resnet20"]((3, 32, 32), 10)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 19 + 2
    for conv in convolutions:
        assert conv.weight.std().item() == pytest.approx((2 / conv.weight[:, 0].numel()) ** 0.5, rel=0.15)


@pytest.mark.parametrize("side", [8, 16, 28, 32])
def test_a_vgg_leaves_one_pixel_of_a_small_image(side):
    """KoReA trains VGG-16 on FEMNIST, 28x28."""
    with torch.device("meta"):
        model = MODELS["vgg16_bn"]((1, side, side), 10).eval()
        features = nn.Sequential(*model[:13])
        features[-1] = features[-1][:-2]  # without average pooling and flattening
        assert features(torch.empty(1, 1, side, side)).shape == (1, 512, 1, 1)


def test_cnn_small_is_what_its_docstring_says():
    model = MODELS["cnn_small"]((1, 8, 8), 10)
    w1, b1, w2, b2, w3, b3, w4, b4 = model.parameters()
    x = torch.randn(2, 1, 8, 8)
    h = F.relu(F.conv2d(x, w1, b1, padding=1))
    h = F.max_pool2d(F.relu(F.conv2d(h, w2, b2, padding=1)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w3, b3, padding=1)), 2)
    torch.testing.assert_close(model(x), F.linear(h.flatten(1), w4, b4))


def test_cnn8_is_harmonys():
    """Pooling comes after the second, third and fifth convolution (docs/methods/harmony.md#models)."""
    model = MODELS["cnn8"]((1, 28, 28), 10)
    weights = list(model.parameters())
    x = h = torch.randn(2, 1, 28, 28)
    for number, (weight, bias) in enumerate(zip(weights[0:10:2], weights[1:10:2], strict=True), start=1):
        h = F.relu(F.conv2d(h, weight, bias, padding=1))
        if number in (2, 3, 5):
            h = F.max_pool2d(h, 2)
    h = h.flatten(1)
    for weight, bias in zip(weights[10::2], weights[11::2], strict=True):
        h = F.linear(h if h.shape[1] == 2304 else F.relu(h), weight, bias)
    torch.testing.assert_close(model(x), h)


def test_char_transformer_adds_positions_and_reads_the_last_character():
    model = MODELS["char_transformer"]((12,), 10).eval()
    tokens = torch.randint(10, (2, 12), generator=torch.Generator().manual_seed(0))
    x = model.embedding.embedding.weight[tokens] * 128**0.5 + model.embedding.position.weight[torch.arange(12)]
    for number in range(1, 7):
        x = getattr(model, f"block{number}")(x)
    torch.testing.assert_close(model(tokens), model.head[1](x[:, 11]))


def own_model(input_shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Linear(5, n_labels))


def test_a_factory_of_a_users_own_is_built_for_the_data():
    net = network(own_model, (1, 2, 2), 3)
    assert [layer.macs for layer in net.layers] == [0, 20, 15]
    assert net.name == "own_model"
    assert len(net.split(2, seed=0, device=CPU)) == 2


def test_a_users_own_sequential_keeps_its_weights_and_is_never_trained():
    own = own_model((1, 2, 2), 3)
    before = {key: tensor.clone() for key, tensor in own.state_dict().items()}
    net = network(own, (1, 2, 2), 3)
    (first,), (second,) = (net.split(seed=seed, device=CPU) for seed in (1, 2))
    assert all(torch.equal(tensor, before[key]) for key, tensor in tensors([first]).items())
    train_step([first], torch.ones(1, 1, 2, 2), torch.tensor([0]))
    for untouched in (own.state_dict(), tensors([second])):
        assert all(torch.equal(tensor, before[key]) for key, tensor in untouched.items())


class Viewed(nn.Module):
    """A layer of a kind that many networks have, and that cannot take images that lie channels last."""

    def forward(self, x):
        return x.view(x.shape[0], -1)


@pytest.mark.parametrize(("flatten", "is_last"), [(Viewed, False), (nn.Flatten, True)])
def test_images_lie_channels_first_where_a_layer_wants_a_view(flatten, is_last):
    def build(shape, n_labels):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), flatten(), nn.Linear(128, n_labels))

    net = network(build, (1, 8, 8), 3)
    net.functional()
    assert net.channels_last == is_last


class Odd(nn.Module):
    """A layer with weights that are tied by a second name, or complex, or with a number that is no buffer."""

    def __init__(self, oddity):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        if oddity == "tied":
            self.other.weight = self.one.weight
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.cfloat)) if oddity == "complex" else 1
        self.scale = torch.ones(4) if oddity == "plain" else 1

    def forward(self, x):
        return (self.other(self.one(x)) * self.scale * self.turn).real


def odd(oddity):
    def make(shape, n_labels):
        return nn.Sequential(nn.Flatten(), Odd(oddity), nn.Linear(4, n_labels))

    return make


def frozen(shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, n_labels)).requires_grad_(False)


def test_a_tensor_that_is_no_buffer_has_its_numbers_in_every_part():
    net = network(odd("plain"), (1, 2, 2), 3)
    net.check_lending(last_bits=0)
    assert net.part(1, 2).skeleton[0].scale.tolist() == [1, 1, 1, 1]


class Hidden(nn.Linear):
    """A layer with a tensor that only a function of its own knows."""

    def __init__(self):
        super().__init__(4, 3)
        numbers = torch.ones(4)
        self.scaled = lambda x: x * numbers

    def forward(self, x):
        return super().forward(self.scaled(x))


def test_layers_with_tensors_that_nobody_else_finds_are_found_by_a_pass():
    with pytest.raises(ScenarioError, match=r"register_buffer: .*meta") as refused:
        network(lambda: nn.Sequential(nn.Flatten(), Hidden()), (1, 2, 2), 3).functional()
    assert (refused.value.key, refused.value.found) == ("model.factory", "<lambda>")


def test_frozen_weights_with_adapters_and_layers_used_twice_can_be_trained():
    linear = nn.Linear(4, 4)
    network(frozen, (1, 2, 2), 3, lora=Lora(targets=("1",)))
    network(odd("usual"), (1, 2, 2), 3)
    network(nn.Sequential(nn.Flatten(), nn.Sequential(linear, nn.ReLU(), linear), nn.Linear(4, 3)), (1, 2, 2), 3)


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def knows_no_label(shape, n_labels):
    return {10: nn.Sequential(nn.Linear(4, 10))}[n_labels]


def giving_up(shape, n_labels):
    sys.exit()


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


LINEAR = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("model", "found", "word"),
    [
        ({}, {}, "no model"),
        (7, 7, "no model"),
        (lambda one: nn.Sequential(), None, "no model"),
        (nn.Linear(4, 3), "Linear", "cut nowhere"),
        (lambda shape, n_labels: nn.Linear(4, 3), "Linear", "cut nowhere"),
        (Doubled(nn.Linear(4, 3)), "Doubled", "cut nowhere"),
        (nn.Sequential(LINEAR, nn.ReLU(), LINEAR, nn.Linear(4, 3)), None, "the same weights"),
        (odd("tied"), None, "the same weights"),
        (odd("complex"), None, "complex weights"),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, momentum=None)), None, "without a momentum"),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.SyncBatchNorm(2), nn.Flatten()), "SyncBatchNorm", "processes"),
        (nn.Sequential(nn.Linear(4, 4)), (1, 1, 4), "for each label"),
        (frozen, None, "all are frozen"),
        (lambda shape, n_labels: nn.Sequential(), None, "no weights"),
        (lambda shape, n_labels: nn.Sequential(nn.Flatten()), None, "no weights"),
        (giving_up, "giving_up", "SystemExit"),
        (knows_no_label, "knows_no_label", "KeyError: 3"),
        (lambda shape, n_labels: nn.Sequential(nn.Linear(4, n_labels), Pair()), None, "'1' gives a tuple"),
    ],
)
def test_what_cannot_be_trained_in_parts_is_refused_in_one_line(model, found, word):
    with pytest.raises(ScenarioError, match=word) as refused:
        network(model, (1, 1, 4), 3)
    assert refused.value.key == ("model" if "tuple" in word else "model.factory")
    assert found is None or refused.value.found == found


class WithDefaults(nn.Module):
    """A class whose arguments have defaults: widths, and not what the data are."""

    def __init__(self, n_in=4, n_out=3):
        super().__init__()
        self.a, self.b = nn.Linear(n_in, 8), nn.Linear(8, n_out)

    def forward(self, x):
        return self.b(self.a(x).relu())


def with_default_shape(input_shape=(4,), n_labels=3):
    return WithDefaults(*input_shape, n_labels)


@pytest.mark.parametrize(("factory", "n_labels"), [(WithDefaults, 3), (with_default_shape, 5)])
def test_arguments_with_defaults_keep_them_unless_they_are_the_shape(factory, n_labels):
    net = network(factory, (4,), n_labels, tokens=False)
    assert [layer.parameters for layer in net.layers] == [4 * 8 + 8, 8 * n_labels + n_labels]


def test_a_factory_may_read_the_numbers_of_its_weights():
    def scaled(shape, n_labels):
        linear = nn.Linear(4, n_labels)
        linear.weight.data /= linear.weight.abs().max().item()
        return nn.Sequential(nn.Flatten(), linear)

    part1, part2 = network(scaled, (1, 2, 2), 3).split(1, seed=0, device=CPU)
    assert answers([part1, part2], torch.ones(2, 1, 2, 2)).shape == (2, 3)


@pytest.mark.parametrize("is_object", [True, False])
def test_an_activation_in_place_may_come_first_after_a_cut(is_object):
    def make(shape=None, n_labels=None, inplace=True):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 3))

    own, x, y = make(), torch.randn(2, 1, 2, 2), torch.tensor([0, 1])
    learned = []
    for model in (own if is_object else make, make(inplace=False)):
        parts = network(model, (1, 2, 2), 3).split(2, seed=0, device=CPU)
        train_step(parts, x, y)
        learned.append(tensors(parts))
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
    assert own[2].inplace, "the user's own object stays as it is"


def test_a_subclass_of_sequential_that_only_builds_itself_can_be_cut():
    class ClientResources(nn.Sequential):
        def __init__(self, input_shape, n_labels):
            super().__init__(nn.Flatten(), nn.Linear(4, n_labels))

    assert [layer.name for layer in network(ClientResources, (1, 2, 2), 3).layers] == ["0", "1"]
    assert as_builder(ClientResources)((1, 2, 2), 3)[1].out_features == 3


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 10, 2)

    def forward(self, x):
        return self.b(self.a(x).relu()).squeeze()


def test_a_squeeze_that_takes_a_single_sample_away_is_named():
    with pytest.raises(ScenarioError, match="loses the dimension of samples"):
        network(Squeezed(), (1, 4, 4), 10)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_are_computed_before_a_forward_cannot_be_copied():
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    model(torch.ones(1, 4))
    with pytest.raises(ScenarioError, match="parametrizations"):
        network(model, (4,), 2)
