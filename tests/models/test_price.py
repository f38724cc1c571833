"""Prices: MACs by kind against published figures and by hand."""

import warnings

import pytest
import torch
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.price import price, price_of
from sfl_sim.ops import KINDS


@pytest.mark.parametrize(
    "name",
    ["squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x1_0", "efficientnet_b0", "mnasnet1_0", "alexnet"],
)
def test_whole_torchvision_networks_cost_what_torchvision_publishes(name):
    """The `GFLOPS` of torchvision's model pages, where one is a MAC."""
    from torchvision.models import get_model, get_model_weights

    with torch.device("meta"):
        model = get_model(name)
    layer, _ = price_of(model, torch.zeros(1, 3, 224, 224, device="meta"))
    published = next(iter(get_model_weights(name))).meta["_ops"]
    assert layer.macs / 1e9 == pytest.approx(published, abs=6e-4)  # printed to three digits
    assert layer.n_ops == sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules())


class Scores(nn.Module):
    """Attention without projections of its own."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x[:, :3], x[:, :3, :2])


@pytest.mark.parametrize(
    ("module", "shape", "kind", "by_hand"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (3, 10, 10), "conv", 100 * 8 * 3 * 9),
        (nn.Conv2d(4, 8, 3, groups=2, padding=1), (4, 10, 10), "conv", 100 * 8 * 2 * 9),
        (nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 10, 10), "depthwise", 100 * 8 * 9),
        (nn.Conv2d(1, 8, 3, padding=1), (1, 10, 10), "conv", 100 * 8 * 9),
        (nn.Linear(6, 5), (7, 6), "dense", 7 * 6 * 5),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8), "attention", 5 * 4 * 8 * 8 + 2 * 5 * 5 * 8),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8), "dense", 2 * 5 * 8 * 16),
        (Scores(), (5, 4), "attention", 5 * 3 * 4 + 5 * 3 * 2),
    ],
)
def test_a_kind_of_product_by_hand(module, shape, kind, by_hand):
    macs = price_of(module, torch.zeros(1, *shape))[0].macs_by_kind
    assert macs[kind] == by_hand
    assert tuple(macs) == KINDS


def test_layers_add_up_to_the_whole_and_count_what_runs_macs():
    activation = nn.ReLU()  # used twice, as people do
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), activation),
        activation,
        nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
    )
    layers = price(model, (3, 8, 8))
    assert [(layer.name, layer.n_ops, layer.out_shape) for layer in layers] == [
        ("0", 1, (6, 6, 6)),
        ("1", 0, (6, 6, 6)),
        ("2", 2, (4,)),
    ]
    whole, _ = price_of(model, torch.zeros(1, 3, 8, 8))
    assert whole.macs_by_kind == {kind: sum(layer.macs_by_kind[kind] for layer in layers) for kind in KINDS}
    assert sum(layer.macs for layer in layers) == whole.macs == 36 * 6 * 27 + 16 * 6 * 9 + 24
    assert whole.n_ops == 3


def test_tokens_are_priced_as_integers():
    (embedding, fc) = price(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)), (7,))
    assert (embedding.macs, embedding.out_shape) == (0, (7, 4))
    assert fc.macs == 7 * 4 * 2


class Elementwise(nn.Module):
    def forward(self, x):
        return 1 - (-x).exp() ** 2 + x.sum(-1, keepdim=True) + x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize(
    "module",
    [
        nn.PReLU(), nn.Mish(), nn.Softplus(), nn.SELU(), nn.CELU(), nn.GLU(), nn.LogSigmoid(), nn.RMSNorm(4),
        nn.AvgPool1d(2), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.AdaptiveMaxPool1d(1), nn.Dropout1d(),
        Elementwise(),
    ],
    ids=lambda module: type(module).__name__,
)  # fmt: skip
def test_operations_without_products_are_free(module):
    layer, _ = price_of(module, torch.ones(1, 4, 4))
    assert (layer.macs, layer.n_ops) == (0, 0)


def test_a_layer_that_gives_several_tensors_is_named():
    with pytest.raises(ScenarioError, match="layer 'memory' gives a tuple: wrap it in a module that gives one tensor"):
        price_of(nn.LSTM(4, 4), torch.ones(1, 4, 4), "memory")


def test_moving_pixels_is_free():
    assert price_of(nn.PixelShuffle(2), torch.ones(1, 4, 4, 4))[0].macs == 0


@pytest.mark.parametrize(
    ("module", "kind", "by_hand"),
    [
        (nn.Conv2d(4, 8, 1), "pointwise", 100 * 8 * 4),
        (nn.Conv2d(4, 8, 3, groups=2, padding=1), "grouped", 100 * 8 * 2 * 9),
        (nn.Conv2d(4, 8, 1, groups=2), "grouped", 100 * 8 * 2),
        (nn.Conv2d(4, 8, 3, padding=1), "moved", 100 * (4 + 8)),
        (nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6()), "moved", 100 * (4 + 8)),  # folded
        (nn.Sequential(nn.Conv2d(4, 8, 1), nn.Hardswish()), "moved", 100 * (4 + 8 + 8 + 8)),
    ],
)
def test_what_is_counted_apart_by_hand(module, kind, by_hand):
    layer, _ = price_of(module, torch.zeros(1, 4, 10, 10))
    assert {name: getattr(layer, name) for name in ("pointwise", "grouped", "moved")}[kind] == by_hand


class Last(nn.Module):
    """Output of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_cost_their_products_in_every_step(layer, gates, device):
    module = Last(layer(8, 16, batch_first=True)).to(device)
    assert price_of(module, torch.zeros(1, 5, 8, device=device))[0].macs == 5 * gates * 16 * (8 + 16)


# One of every module of torchvision.models; its other sizes have the same layers.
BUILDERS = [
    "convnext_tiny", "densenet121", "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mobilenet_v2",
    "regnet_y_400mf", "resnext50_32x4d", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32",
]  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_every_family_of_torchvision_has_a_price(name):
    from torchvision.models import get_model, get_model_weights

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with torch.device("cpu" if name in ("regnet_y_400mf", "swin_t", "swin_v2_t", "maxvit_t", "vit_b_32") else "meta"):
        model = get_model(name, **options)
    side = {"inception_v3": 299, "efficientnet_v2_s": 384, "swin_v2_t": 256}.get(name, 224)
    layer, _ = price_of(model.to("meta"), torch.zeros(1, 3, side, side, device="meta"))
    assert layer.macs / 1e9 == pytest.approx(next(iter(get_model_weights(name))).meta["_ops"], abs=6e-4)


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "mobilenet_v3_small", "resnext50_32x4d", "squeezenet1_1"])
def test_fvcore_counts_the_same_macs(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fvcore scripts and traces with torch.jit, which torch has deprecated
        from fvcore.nn import FlopCountAnalysis
        from torchvision.models import get_model

        model = get_model(name, **({"init_weights": False} if name == "googlenet" else {})).eval()
        x = torch.zeros(1, 3, 96, 96)
        analysis = FlopCountAnalysis(model, x).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        theirs = analysis.by_operator()
    assert price_of(model, x)[0].macs == theirs["conv"] + theirs["linear"]
