"""Plain modules as sequences: with equal outputs at every cut, whole blocks, and one line where it cannot be."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models

from sfl_sim.errors import ScenarioError
from sfl_sim.models.libraries import LibraryModel
from sfl_sim.models.traced import CuttingPlan
from sfl_sim.models.zoo import network


def layers_of(module, shape):
    return CuttingPlan.of(module, shape).applied_to(module)


class Chain(nn.Module):
    """Layers in a list, functions between them, and a dropout that is a function."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(64, 3)

    def forward(self, x):
        for conv in self.convs:
            x = functional.relu(self.norm(conv(x)) if conv is self.convs[1] else conv(x))
        x = x.view(x.size(0), -1)
        return self.fc(functional.dropout(x, 0.5, training=self.training))


class Residual(nn.Module):
    """A block whose skip connection goes around two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.outer, self.last = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        return self.last(x + self.outer(self.inner(x).relu()))


class Everywhere(nn.Module):
    """A skip connection from the first layer to the end."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        first = self.a(x)
        return first + self.c(self.b(first)) + x


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.b(self.a(x)).relu())


class Recurrent(nn.Module):
    """Takes what is its own of an LSTM's tuple."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.fc(output[:, -1])


def forward_of(run):
    """A module with two linear layers and this forward."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return run(self, x)

    return Module()


def equal_at_every_cut(module, shape):
    module.eval()
    layers, x = layers_of(module, shape), torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    wanted = module(x)
    for cut in range(1, len(layers)):
        assert torch.equal(layers[cut:](layers[:cut](x)), wanted)
    return layers


def test_a_chain_is_cut_between_its_layers():
    module = Chain()
    layers = equal_at_every_cut(module, (1, 4, 4))
    assert list(layers._modules) == ["convs_0", "convs_1", "fc"]
    assert {id(weight) for weight in layers.parameters()} == {id(weight) for weight in module.parameters()}


def test_a_function_that_drops_follows_the_mode():
    layers, x = layers_of(Chain(), (1, 4, 4)), torch.ones(2, 1, 4, 4)
    layers.train()
    assert not torch.equal(layers(x), layers(x))
    layers.eval()
    assert torch.equal(layers(x), layers(x))


def test_a_skip_connection_is_never_cut():
    layers = equal_at_every_cut(Residual(), (4,))
    assert [sum(1 for _ in layer.parameters()) for layer in layers] == [2, 4, 2]


def test_an_lstm_that_takes_its_output_is_a_layer():
    layers = equal_at_every_cut(Recurrent(), (5, 4))
    assert list(layers._modules) == ["lstm", "fc"]


@pytest.mark.parametrize(
    "name",
    ["alexnet", "resnet18", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "squeezenet1_1",
     "shufflenet_v2_x0_5", "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5", "convnext_tiny"],
)  # fmt: skip
def test_classifiers_of_torchvision_give_the_same(name):
    torch.manual_seed(0)
    side = 224 if name == "alexnet" else 64
    module = models.get_model(name, num_classes=3).eval()
    layers, x = layers_of(module, (3, side, side)), torch.randn(1, 3, side, side)
    with torch.inference_mode():
        assert torch.equal(layers(x), module(x))
    assert len(layers) > 7
    assert {id(weight) for weight in layers.parameters()} == {id(weight) for weight in module.parameters()}


def test_a_vision_transformer_is_cut_within_its_blocks():
    module = models.VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=3)
    block = "encoder_layers_encoder_layer"
    expected = ["conv_proj", "class_token", "encoder_dropout", *(f"{block}_{i}_{part}" for i in (0, 1) for part in
                ("self_attention", "mlp")), "heads_head"]  # fmt: skip
    assert list(equal_at_every_cut(module, (3, 32, 32))._modules) == expected


class Optional(nn.Module):
    """Two linear layers, whose forward each kind gives other inputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class Masked(Optional):
    def forward(self, x, mask=None):
        return self.b(self.a(x) if mask is None else self.a(x) * mask)


class Scaled(Optional):
    def forward(self, x, *, scale=2.0):
        return self.b(self.a(x) * scale)


class Flagged(Optional):
    def forward(self, x, features=False, **options):
        x = self.a(x).relu()
        return (self.b(x), x) if features else self.b(x)


class TwoInputs(Optional):
    def forward(self, x, y, scale=1.0):
        return self.b(self.a(x) + y) * scale


class Starred(Optional):
    def forward(self, *inputs):
        return self.b(self.a(torch.cat(inputs, 1)).relu())


@pytest.mark.parametrize("kind", [Masked, Scaled, Flagged, Starred])
def test_inputs_that_need_not_be_given_keep_their_defaults(kind):
    layers = equal_at_every_cut(kind(), (4,))
    assert list(layers._modules) == ["a", "b"]


class Viewing(nn.Module):
    """A view, which wants images channels first, behind a convolution with batch norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.norm(self.conv(x)).relu().view(x.size(0), -1))


def test_layouts_that_are_tried_print_nothing(capfd):
    net = network(Viewing(), (1, 4, 4), 3)
    assert not net.channels_last
    assert capfd.readouterr() == ("", "")


class Lazy(nn.Module):
    """Layers that learn their shapes from samples, with a skip connection."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.LazyConv2d(8, 3, padding=1), nn.LazyBatchNorm2d(), nn.LazyLinear(3)

    def forward(self, x):
        x = self.conv(x)
        return self.out((x + self.norm(x)).flatten(1))


@pytest.mark.parametrize("model", [Lazy, Lazy(), nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.LazyLinear(3))])
def test_lazy_layers_have_the_shapes_of_the_samples(model):
    net = network(model, (1, 4, 4), 3)
    assert [layer.parameters for layer in net.layers] in ([8 * 9 + 8 + 16, 8 * 16 * 3 + 3], [0, 16 * 8 + 8, 8 * 3 + 3])
    first, second = (
        [part.weights.flat for part in net.split(1, seed=seed, device=torch.device("cpu"))] for seed in (0, 1)
    )
    assert not torch.equal(torch.cat(first), torch.cat(second))


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (Everywhere(), "can be cut nowhere"),
        (forward_of(lambda self, x: self.b(self.a(x)) if x.sum() > 0 else x), "where Python decides"),
        (forward_of(lambda self, x: (self.a(x), self.b(x))), "gives a tuple and not one tensor"),
        (forward_of(lambda self, x: self.b(self.a(x)) if self.training else self.b(x)), "else in training"),
        (forward_of(lambda self, x: self.b(self.a(x[:, :2]))), "samples of shape 4 in training: "),
        (TwoInputs(), "takes 2 inputs"),
    ],
)
def test_what_cannot_be_a_sequence_is_one_line(module, problem):
    with pytest.raises(ScenarioError, match=problem) as refused:
        layers_of(module, (4,))
    assert refused.value.key == "model.factory"


def test_a_layer_that_is_used_twice_is_refused():
    with pytest.raises(ScenarioError, match="the same weights"):
        network(Twice(), (4,), 4, tokens=False)


def test_a_plain_module_is_a_network_and_is_left_as_it_was():
    module = Chain().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    net = network(module, (1, 4, 4), 3)
    assert [layer.name for layer in net.layers] == ["convs_0", "convs_1", "fc"]
    assert net.layers[0].macs == 4 * 4 * 9 * 4
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


FORMS = {
    "plain": lambda weights: weights,
    "DataParallel": lambda weights: {f"module.{name}": tensor for name, tensor in weights.items()},
    "compiled": lambda weights: {f"module._orig_mod.{name}": tensor for name, tensor in weights.items()},
    "averaged": lambda weights: FORMS["DataParallel"](weights) | {"n_averaged": torch.tensor(3)},
    "a checkpoint": lambda weights: {"model_state_dict": weights, "loss": 0.5},
    "within two": lambda weights: {"model": {"state_dict": weights}, "epoch": 3},
    "by a name of its own": lambda weights: {"net": weights, "optimizer": {"state": {}}, "epoch": 3},
    "Lightning": lambda weights: {
        "state_dict": {f"net.{name}": tensor for name, tensor in weights.items()} | {"loss.weight": torch.ones(7)},
        "hyper_parameters": {},
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_a_library_takes_weights_of_a_file(form, tmp_path):
    torch.manual_seed(1)
    stored = models.squeezenet1_1(num_classes=7).state_dict()
    torch.save(FORMS[form](stored), tmp_path / "weights.pth")
    made = LibraryModel("torchvision:squeezenet1_1", str(tmp_path / "weights.pth"))((3, 64, 64), 3)
    found = made.state_dict()
    assert torch.equal(found["features.0.weight"], stored["features.0.weight"])
    assert found["classifier.1.weight"].shape[0] == 3


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("torchvision:resnet19", None, "model.name: .*did you mean 'resnet1"),
        ("torchvision:resnet18", {"x": torch.ones(1)}, "found 'x 1'; allowed: conv1.weight 64x3x7x7, bn1.weight 64,"),
        ("torchvision:resnet18", {"a.conv1.weight": torch.ones(1), "b.conv1.weight": torch.ones(1)}, "found 'a.conv1"),
        ("torchvision:resnet18", {"state_dict": {}}, "found 'none'; allowed: conv1.weight 64x3x7x7"),
        ("torchvision:resnet18", [1], "model.path: .*no state dict .found 'list'"),
        ("torchvision:resnet18", {"optimizer": {"lr": 1}, "epoch": 3}, "no state dict .found 'optimizer, epoch'"),
        ("torchvision:resnet18", nn.Linear(2, 2), "model.path: holds more than tensors"),
        ("torchvision:resnet18", "text", "model.path: cannot be read"),
        (
            "torchvision:resnet18",
            "version https://git-lfs.github.com/spec/v1\noid",
            "model.path: is a pointer of Git LFS",
        ),
    ],
)
def test_a_model_of_a_library_that_cannot_be_made_is_one_line(name, content, problem, tmp_path):
    path = tmp_path / "weights.pth"
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ScenarioError, match=problem):
        LibraryModel(name, str(path) if content else None)((3, 32, 32), 3)


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ScenarioError, match=r"model.name: .*pip install timm"):
        LibraryModel("timm:resnet18")((3, 32, 32), 3)
