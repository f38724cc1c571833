"""Prices: MACs by kind against published figures and by hand."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sfl_sim.errors import ScenarioError
from sfl_sim.models.price import price, price_of
from sfl_sim.ops import KINDS

# One of every module of torchvision.models; its other sizes have the same layers.
BUILDERS = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnext50_32x4d",
    "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32",
]  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_every_family_of_torchvision_costs_what_torchvision_publishes(name):
    """The `GFLOPS` of its model pages, where one is a MAC, printed to three digits."""
    from torchvision.models import get_model, get_model_weights

    has_attention = name in ("swin_t", "swin_v2_t", "maxvit_t", "vit_b_32")
    with torch.device("cpu" if has_attention or name == "regnet_y_400mf" else "meta"):
        model = get_model(name, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {}))
    side = {"inception_v3": 299, "efficientnet_v2_s": 384, "swin_v2_t": 256}.get(name, 224)
    layer, _ = price_of(model.to("meta"), torch.zeros(1, 3, side, side, device="meta"))
    assert layer.macs / 1e9 == pytest.approx(next(iter(get_model_weights(name))).meta["_ops"], abs=6e-4)
    maps = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert has_attention or name in ("googlenet", "inception_v3") or layer.n_ops == len(maps)


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


def test_a_layer_that_gives_several_tensors_is_named():
    with pytest.raises(ScenarioError, match="'memory' gives a tuple"):
        price_of(nn.LSTM(4, 4), torch.ones(1, 4, 4), "memory")


@pytest.mark.parametrize(
    ("module", "kind", "by_hand"),
    [
        (nn.Conv2d(4, 8, 1), "pointwise", 100 * 8 * 4),
        (nn.Conv2d(4, 8, 3, groups=2, padding=1), "grouped", 100 * 8 * 2 * 9),
        (nn.Conv2d(4, 8, 1, groups=2), "grouped", 100 * 8 * 2),
        (nn.Conv2d(4, 24, 3, padding=1), "padded", 100 * 9 * (16 * 32 - 4 * 24)),
        (nn.Conv2d(4, 8, 1, groups=2), "padded", 100 * 2 * (16 * 16 - 2 * 4)),
        (nn.ConvTranspose2d(4, 32, 1), "padded", 100 * (16 * 32 - 4 * 32)),
        (nn.Conv2d(4, 4, 3, groups=4, padding=1), "padded", 0),
        (nn.Conv2d(4, 8, 3, padding=1), "moved", 100 * (4 + 8)),
        (nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6()), "moved", 100 * (4 + 8)),  # folded
        (nn.Sequential(nn.Conv2d(4, 8, 1), nn.Hardswish()), "moved", 100 * (4 + 8 + 8 + 8)),
    ],
)
def test_what_is_counted_apart_by_hand(module, kind, by_hand):
    layer, _ = price_of(module, torch.zeros(1, 4, 10, 10))
    assert {name: getattr(layer, name) for name in ("pointwise", "grouped", "moved", "padded")}[kind] == by_hand


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


class Of(nn.Module):
    """A layer that is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ACTIVATIONS = [
    nn.PReLU(), nn.Mish(), nn.Softplus(), nn.SELU(), nn.CELU(), nn.GLU(), nn.LogSigmoid(), nn.RMSNorm(4),
    nn.AvgPool1d(2), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1), nn.AdaptiveMaxPool1d(1),
]  # fmt: skip
COMMON = {type(layer).__name__: ((4, 4), layer) for layer in ACTIVATIONS} | {  # shape of a sample, and the layer
    "MaxPool3d": ((2, 4, 4, 4), nn.MaxPool3d(2)),
    "AvgPool3d": ((2, 4, 4, 4), nn.AvgPool3d(2)),
    "AdaptiveMaxPool1d": ((2, 8), nn.AdaptiveMaxPool1d(2)),
    "LPPool2d": ((2, 8, 8), nn.LPPool2d(2, 2)),
    "FractionalMaxPool2d": ((2, 8, 8), nn.FractionalMaxPool2d(2, output_size=3)),
    "ReflectionPad2d": ((2, 8, 8), nn.ReflectionPad2d(1)),
    "ReplicationPad3d": ((2, 4, 4, 4), nn.ReplicationPad3d(1)),
    "CircularPad1d": ((2, 8), nn.CircularPad1d(1)),
    "Upsample, nearest 1-d": ((2, 8), nn.Upsample(scale_factor=2)),
    "Upsample, bicubic": ((2, 8, 8), nn.Upsample(scale_factor=2, mode="bicubic")),
    "Upsample, trilinear": ((2, 4, 4, 4), nn.Upsample(scale_factor=2, mode="trilinear")),
    "LocalResponseNorm": ((4, 8, 8), nn.LocalResponseNorm(3)),
    "PixelUnshuffle": ((1, 8, 8), nn.PixelUnshuffle(2)),
    "PixelShuffle": ((4, 4, 4), nn.PixelShuffle(2)),
    "arithmetic": ((4, 4), Of(lambda x: 1 - (-x).exp() ** 2 + x.sum(-1, keepdim=True) + x.norm(dim=-1, keepdim=True))),
    "Fold of Unfold": ((2, 8, 8), nn.Sequential(nn.Unfold(2, stride=2), nn.Fold((8, 8), 2, stride=2))),
    "RReLU": ((8,), nn.RReLU()),
    "Softmin": ((8,), nn.Softmin(1)),
    "Threshold": ((8,), nn.Threshold(0.1, 0)),
    "AlphaDropout": ((8,), nn.AlphaDropout()),
    "max over time": ((4, 8), Of(lambda x: x.max(2)[0])),
    "median": ((4, 8), Of(lambda x: x.median(2)[0])),
    "std": ((4, 8), Of(lambda x: x.std(2))),
    "var_mean": ((4, 8), Of(lambda x: torch.var_mean(x, 2)[1])),
    "sort": ((4, 8), Of(lambda x: x.sort(2)[0])),
    "topk": ((4, 8), Of(lambda x: x.topk(2)[0])),
    "cumsum": ((4, 8), Of(lambda x: x.cumsum(2))),
    "logsumexp": ((4, 8), Of(lambda x: x.logsumexp(2))),
    "gather": ((4, 8), Of(lambda x: x.gather(2, torch.zeros(1, 4, 2, dtype=torch.int64)))),
    "scatter": ((4, 8), Of(lambda x: x.scatter(2, torch.zeros(1, 4, 1, dtype=torch.int64), 1.0))),
    "masked_fill": ((4, 8), Of(lambda x: x.masked_fill(x > 0, 0))),
    "triu": ((8, 8), Of(torch.triu)),
    "noise": ((8,), Of(lambda x: x + torch.randn_like(x))),
    "one-hot": ((8,), Of(lambda x: nn.functional.one_hot(x.long().clamp(0, 1), 3).float())),
    "grid_sample": (
        (2, 8, 8),
        Of(lambda x: nn.functional.grid_sample(x, torch.zeros(1, 4, 4, 2), align_corners=False)),
    ),
    "interpolate, area": ((2, 8, 8), Of(lambda x: nn.functional.interpolate(x, 4, mode="area"))),
    "unique places": ((8,), Of(lambda x: x.flip(1).roll(1).repeat(1, 2).tile(2))),
    "LayerNorm": ((4, 8), nn.LayerNorm(8)),
}


@pytest.mark.parametrize(("shape", "layer"), COMMON.values(), ids=COMMON)
def test_what_has_no_products_moves_data_and_costs_no_macs(shape, layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, out = price_of(layer, torch.zeros(1, *shape))
    assert (found.macs, found.n_ops, found.unpriced) == (0, 0, ())
    assert found.moved >= out.numel() or type(layer) is nn.AlphaDropout


BILINEAR = nn.Bilinear(6, 6, 5)
WITH_PRODUCTS = {  # shape of a sample, the layer, and MACs by hand
    "Bilinear": ((6,), Of(lambda x: BILINEAR(x, x)), 6 * 6 * 5),
    "cdist": ((4, 8), Of(lambda x: torch.cdist(x, torch.zeros(1, 3, 8))), 4 * 3 * 8),
    "fft": ((64,), Of(lambda x: torch.fft.fft(x.to(torch.complex64)).real), 2.5 * 64 * 6),
    "fft of real numbers": ((64,), Of(lambda x: torch.fft.rfft(x).abs()), 2.5 * 64 * 6 / 2),
    "fft in two dimensions": ((8, 8), Of(lambda x: torch.fft.fft2(x.to(torch.complex64)).real), 2.5 * 64 * 6),
    "einsum": ((4, 8), Of(lambda x: torch.einsum("nij,kj->nik", x, torch.zeros(3, 8))), 4 * 3 * 8),
}


@pytest.mark.parametrize(("shape", "layer", "by_hand"), WITH_PRODUCTS.values(), ids=WITH_PRODUCTS)
def test_products_in_any_form_are_counted(shape, layer, by_hand):
    assert price_of(layer, torch.zeros(1, *shape))[0].macs == by_hand


@pytest.mark.parametrize("transpose", ["", "Transpose"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_torch_counts_the_same_products(dims, transpose):
    layer, x = getattr(nn, f"Conv{transpose}{dims}d")(4, 6, 3), torch.zeros(1, 4, *[5] * dims)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert price_of(layer, x)[0].macs == counter.get_total_flops() / 2 > 0


class Tied(nn.Module):
    """Scores of all words by the table in which they are looked up."""

    def __init__(self):
        super().__init__()
        self.words, self.score = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        self.score.weight = self.words.weight

    def forward(self, x):
        return self.score(self.words(x))


@pytest.mark.parametrize(("module", "read"), [(nn.Embedding(100, 8), 0), (Tied(), 800)])
def test_a_call_reads_rows_of_a_table_of_embeddings_and_all_of_what_multiplies(module, read):
    (layer,) = price(nn.Sequential(module), (5,))
    assert (layer.parameters, layer.weights) == (800, read)


@pytest.mark.parametrize(
    ("layer", "read"),
    [
        (nn.Conv2d(16, 32, 3, padding=1, bias=False), 4 * 32 * 16 * 9),
        (nn.Conv2d(16, 32, 3, padding=1), 4 * 32 * 16 * 9 + 32),
        (nn.Conv2d(16, 32, 3, stride=2, bias=False), 32 * 16 * 9),
        (nn.Conv2d(16, 32, 3, dilation=2, bias=False), 32 * 16 * 9),
        (nn.Conv2d(16, 32, 3, groups=4, bias=False), 32 * 4 * 9),
        (nn.Conv2d(16, 32, 1, bias=False), 32 * 16),
        (nn.Conv2d(16, 32, 5, bias=False), 32 * 16 * 25),
        (nn.ConvTranspose2d(16, 32, 3, bias=False), 32 * 16 * 9),
    ],
    ids=str,
)
def test_a_convolution_that_winograd_computes_reads_four_elements_for_a_weight(layer, read):
    (priced,) = price(nn.Sequential(layer), (16, 8, 8))
    assert priced.weights == read
    assert priced.twice.weights == 2 * read
    bias = 0 if layer.bias is None else 32
    assert priced.spared_as_first.weights == read - bias  # no gradient of a first layer's input


def test_a_layer_may_tell_its_own_macs():
    class Sparse(nn.Module):
        """A product of which a device computes a tenth."""

        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(20, 10)

        def macs(self, x):
            return len(x) * 20

        def forward(self, x):
            return self.dense(x)

    layer, _ = price_of(nn.Sequential(Sparse(), nn.Linear(10, 3)), torch.zeros(1, 20))
    assert layer.macs_by_kind["dense"] == 20 + 30
    assert layer.n_ops == 2
    assert layer.spared_as_first.macs == 20, "the gradient at its input"
    frozen, _ = price_of(nn.Sequential(Sparse().requires_grad_(requires_grad=False)), torch.zeros(1, 20))
    assert (frozen.spared.macs, frozen.spared_as_first.macs) == (20, 40)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_first_recurrent_layer_needs_no_gradient_of_what_comes_in(device):
    """Of 4 gates, 5 times: products of 8 hidden numbers with 4 of a sample are spared, those with each other not.

    Where torch runs the steps one by one, it spares the gradient at the first hidden numbers, which are zeros, too.
    """
    module = Last(nn.LSTM(4, 8, batch_first=True)).to(device)
    layer, _ = price_of(module, torch.zeros(1, 5, 4, device=device))
    assert layer.macs == 5 * 4 * 8 * (4 + 8)
    assert layer.spared_as_first.macs == 5 * 4 * 8 * 4 + (device == "meta") * 4 * 8 * 8


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_recurrent_layer_is_called_for_each_time_step_of_each_layer_and_direction(device):
    def calls(module, *shape):
        layer = Of(lambda x: module(x)[0])
        layer.module = module
        return price_of(layer, torch.zeros(*shape, device=device))[0].n_ops

    assert calls(nn.LSTM(4, 8, batch_first=True, device=device), 1, 80, 4) == 80
    assert calls(nn.GRU(4, 8, num_layers=2, bidirectional=True, device=device), 10, 1, 4) == 10 * 2 * 2
    assert calls(nn.RNN(4, 8, device=device), 5, 4) == 5


def test_an_operation_of_another_library_is_named():
    with torch.library._scoped_library("mine", "DEF") as library:
        library.define("shifted(Tensor x) -> Tensor")
        library.impl("shifted", lambda x: x + 1, "CPU")
        layer, _ = price_of(Of(lambda x: torch.ops.mine.shifted(x)), torch.zeros(1, 3))
    assert (layer.macs, layer.unpriced) == (0, ("mine::shifted",))
