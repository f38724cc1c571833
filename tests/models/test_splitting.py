"""Networks with skip connections: all tensors that cross a cut are sent together, and training is as without a cut."""

import copy

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import sfl_sim
from sfl_sim.errors import ScenarioError
from sfl_sim.models.heads import auxiliary_network
from sfl_sim.models.zoo import network

LABELS = 3
SIZE = (1, 16, 16)
LR = 0.1


def convolutions(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """A U-Net as theses write it: what each level has found goes around all levels below."""

    def __init__(self, n_labels=LABELS):
        super().__init__()
        self.down1, self.down2, self.bottom = convolutions(1, 4), convolutions(4, 8), convolutions(8, 16)
        self.rise = nn.ConvTranspose2d(16, 8, 2, 2)
        self.up2, self.up1, self.head = convolutions(16, 8), convolutions(12, 4), nn.Conv2d(4, n_labels, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        x = self.bottom(functional.max_pool2d(two, 2))
        x = self.up2(torch.cat([self.rise(x), two], 1))
        return self.head(self.up1(torch.cat([functional.interpolate(x, scale_factor=2.0), one], 1)))


def of_digits(input_shape, n_labels):
    return UNet(n_labels)


class Level(nn.Module):
    """A level of a U-Net that holds the levels below; its first activation changes in place what goes around them."""

    def __init__(self, channels, below):
        super().__init__()
        inner = 2 * channels
        rising = nn.ConvTranspose2d(2 * inner if below else inner, channels, 2, 2)
        self.model = nn.Sequential(
            nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(channels, inner, 2, 2), nn.BatchNorm2d(inner),
            *([below] if below else []), nn.ReLU(inplace=True), rising,
        )  # fmt: skip

    def forward(self, x):
        return torch.cat([x, self.model(x)], 1)


class Nested(nn.Module):
    """A U-Net of levels within levels, as for pictures out of pictures and in MONAI."""

    def __init__(self):
        super().__init__()
        levels = Level(4, Level(8, None))
        self.model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), levels, nn.Conv2d(8, LABELS, 1))

    def forward(self, x):
        return self.model(x)


def made(module):
    return network(module, SIZE, LABELS, pixels=SIZE[1:])


def sizes(net):
    return {layer.name: list(layer.skips) for layer in net.layers if layer.skips}


def batches():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, *SIZE, generator=generator)
    return list(zip(x, torch.randint(LABELS, (3, 4, *SIZE[1:]), generator=generator), strict=True))


def trained_whole(module):
    module = copy.deepcopy(module).train().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(module.parameters(), LR)
    for x, y in batches():
        optimiser.zero_grad()
        functional.cross_entropy(module(x.contiguous(memory_format=torch.channels_last)), y).backward()
        optimiser.step()
    return module.state_dict()


def trained_in_parts(net, cut):
    front, back = (replica.weights for replica in net.split(cut, seed=0, device=torch.device("cpu")))
    for x, y in batches():
        sent = front.forward(x.contiguous(memory_format=torch.channels_last))
        assert tuple(sent.shape[1:]) == net.layers[cut - 1].out_shape
        outputs = back.forward(sent.detach().requires_grad_()).requires_grad_()
        # `outputs.grad` would have the strides of `outputs`, the loss's gradient has others: additions in another order
        (gradient,) = torch.autograd.grad(functional.cross_entropy(outputs, y), outputs)
        front.backward(back.backward(gradient))
        for weights in (front, back):
            weights.flat.add_(weights.grad, alpha=-LR)
            weights.grad.zero_()
    return {name.partition(".")[2]: tensor for part in (front, back) for name, tensor in part.named_tensors()}


@pytest.mark.parametrize(("kind", "n_cuts"), [(UNet, 6), (Nested, 5)])
def test_training_over_each_cut_equals_a_plain_loop_to_the_bit(kind, n_cuts):
    torch.manual_seed(0)
    module = kind()
    net, whole = made(module), trained_whole(module)
    net.check_lending()
    assert len(net) == n_cuts + 1
    for cut in range(1, len(net)):
        parts = trained_in_parts(net, cut)
        assert parts.keys() == {name for name in whole if "num_batches" not in name}
        assert all(torch.equal(tensor, whole[name]) for name, tensor in parts.items()), net.layers[cut - 1].name


def test_an_activation_in_place_changes_a_skip_connection_in_a_block_of_a_sequence_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Level(4, None), nn.Conv2d(8, LABELS, 1)).eval()
    x = torch.randn(2, *SIZE)
    front, back = (replica.weights for replica in made(module).split(1, seed=0, device=torch.device("cpu")))
    assert torch.allclose(back(front(x, training=False), training=False), module(x), rtol=0, atol=1e-6)


def test_all_that_crosses_is_sent_and_no_more():
    assert sizes(made(UNet())) == {
        "down2_0": [(4, 16, 16), (8, 8, 8)],  # before the pooling, whose output is no skip connection
        "bottom_0": [(4, 16, 16), (8, 8, 8), (16, 4, 4)],
        "rise": [(4, 16, 16), (16, 8, 8)],  # behind it, where one of two has gone
    }


def test_layers_of_a_network_cost_what_the_whole_costs_where_nothing_is_cut():
    net = made(UNet())

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = UNet()

        def forward(self, x):
            return self.net(x)

    one = network(nn.Sequential(Whole(), nn.Identity()), SIZE, LABELS, pixels=SIZE[1:])
    for amount in ("macs", "moved", "n_ops", "parameters"):
        assert sum(getattr(layer, amount) for layer in net.layers) == sum(
            getattr(layer, amount) for layer in one.layers
        )


def test_a_scenario_in_yaml_sends_the_bytes_of_every_skip_connection(tmp_path):
    (tmp_path / "unet.yaml").write_text(
        "data: {name: digit_masks, train_samples: 32, test_samples: 8}\n"
        f"model: {{factory: '{__name__}:of_digits', cut: down2_0}}\n"
        "clients: {count: 2}\n"
        "train: {rounds: 1, batch_size: 8}\n"
    )
    results = sfl_sim.run(tmp_path / "unet.yaml", out=tmp_path / "run", allow_code=True)
    (ops,) = map(pd.read_parquet, (tmp_path / "run").rglob("ops.parquet"))
    sent, numbers = ops.groupby("kind")["bytes"].max(), 4 * 8 * 16 + 8 * 4 * 8
    assert sent["smashed"] == 8 * (4 * numbers + 8 * 16), "float32, and a byte for the label of each pixel"
    assert sent["gradients"] == 8 * 4 * numbers
    layer = results.layers.set_index("name").loc["down2_0"]
    assert (layer["out_shape"], layer["activation_bytes"]) == ("4x8x16+8x4x8", 4 * numbers)
    assert results.rounds["mean_iou"].between(0, 1).all()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([convolutions(1, 4), convolutions(4, 8), convolutions(8, 16)])

    def forward(self, x):
        features = []
        for stage in self.stages:
            features.append(stage(functional.max_pool2d(features[-1], 2) if features else x))
        return features


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([convolutions(24, 8), convolutions(12, 4)])

    def forward(self, *features):
        *around, x = features
        for stage in self.stages:
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2.0), around.pop()], 1))
        return x


class OfTwo(nn.Module):
    """An encoder that gives the tensors of all its stages, and a decoder that takes them."""

    def __init__(self, with_samples=False):
        super().__init__()
        self.with_samples = with_samples
        self.encoder, self.decoder = Encoder(), Decoder()
        self.head = nn.Conv2d(5 if with_samples else 4, LABELS, 1)

    def forward(self, x):
        features = self.decoder(*self.encoder(x))
        return self.head(torch.cat([features, x], 1) if self.with_samples else features)


def test_an_encoder_may_give_several_tensors_to_a_decoder():
    assert sizes(made(OfTwo())) == {
        "encoder_stages_1_0": [(4, 16, 16), (8, 8, 8)],
        "encoder_stages_2_0": [(4, 16, 16), (8, 8, 8), (16, 4, 4)],
    }


def test_samples_never_cross_beside_what_is_made_of_them():
    net = made(OfTwo(with_samples=True))
    assert [layer.name for layer in net.layers][1:] == ["head"]
    assert not sizes(net)


class Labelled(UNet):
    def forward(self, x):
        return super().forward(x).mean((2, 3))


def test_heads_take_all_that_crosses_or_are_refused_with_the_layer():
    net = network(Labelled(), SIZE, LABELS)
    cut = net.cut_at("down2_0")
    for aux in ("exit", "linear", "twin"):
        assert auxiliary_network(net, cut, aux).layers[-1].out_shape == (LABELS,)
    with pytest.raises(ScenarioError, match="does not suit the features behind layer 2 of Labelled"):
        auxiliary_network(net, cut, 1)


def test_a_unet_of_a_library_is_cut_at_each_level():
    library = pytest.importorskip("segmentation_models_pytorch")
    module = library.Unet("resnet18", 3, None, decoder_channels=(16, 8, 4), in_channels=1, classes=LABELS)
    net = network(module, (1, 32, 32), LABELS, pixels=(32, 32))
    net.check_lending()
    assert sizes(net) == {
        "encoder_layer1": [(64, 16, 16), (64, 8, 8)],
        "encoder_layer2": [(64, 16, 16), (64, 8, 8), (128, 4, 4)],
    }
