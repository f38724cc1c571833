"""Convolutional networks of torchvision's layers: ResNets, VGGs, MobileNets and DenseNets.

A residual block is a layer (docs/methods/hydra.md#choices), and so is every dense layer of a DenseNet, which takes all
features of its block so far and returns them together with its own new ones, so that the concatenation crosses a cut.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from sfl_sim.models.layers import Shape, image, is_small, kaiming_fan_out, named, stem


def resnet8(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-8 for CIFAR (He et al. 2016, section 4.2) as 6 layers: stem, 3 basic blocks, pool, classifier."""
    return _cifar_resnet(1, shape, n_labels)


def resnet20(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-20 for CIFAR (He et al. 2016, section 4.2) as 12 layers: stem, 9 basic blocks, pool, classifier."""
    return _cifar_resnet(3, shape, n_labels)


def resnet_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-8 for CIFAR whose stem halves the image: 6 layers, a quarter of the MACs, for studies on a CPU."""
    return _cifar_resnet(1, shape, n_labels, stem_stride=2)


def resnet18(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-18 (He et al. 2016) as 12 layers: stem, pool, 8 basic blocks, pool, classifier."""
    return _resnet("resnet18", shape, n_labels)


def resnet18_7x7(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-18 with the 7x7 stem and the pooling for images of every size, as 12 layers."""
    return _resnet("resnet18", shape, n_labels, small=False)


def resnet34(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-34 (He et al. 2016) as 20 layers: stem, pool, 16 basic blocks, pool, classifier."""
    return _resnet("resnet34", shape, n_labels)


def resnet50(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-50 (He et al. 2016) as 20 layers: stem, pool, 16 bottleneck blocks, pool, classifier."""
    return _resnet("resnet50", shape, n_labels)


def resnet101(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-101 (He et al. 2016) as 37 layers: stem, pool, 33 bottleneck blocks, pool, classifier."""
    return _resnet("resnet101", shape, n_labels)


def _resnet(name: str, shape: Shape, n_labels: int, small: bool | None = None) -> nn.Sequential:
    """Build a ResNet.

    If `small`, by default for images below 64 pixels, it has the CIFAR stem: a 3x3 convolution of stride 1, no pooling.
    """
    from torchvision.models import get_model  # torchvision takes a second to import

    channels, _, _ = image(shape)
    small = is_small(shape) if small is None else small
    net = get_model(name, num_classes=n_labels)
    conv = stem(net.conv1, channels, kaiming_fan_out, small=small)
    blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
    return named(
        stem=nn.Sequential(conv, net.bn1, net.relu),
        pool=nn.Identity() if small else net.maxpool,
        **{f"block{i}": block for i, block in enumerate(blocks, start=1)},
        avgpool=nn.Sequential(net.avgpool, nn.Flatten()),
        fc=net.fc,
    )


def _cifar_resnet(n: int, shape: Shape, n_labels: int, stem_stride: int = 1) -> nn.Sequential:
    """Build a ResNet of 6n+2 layers of weights: a 3x3 stem, then n blocks each of 16, 32 and 64 channels.

    If channels double, the shortcut is torchvision's, a 1x1 convolution with batch norm; He et al. pad with zeros
    (their option A), which saves 2,752 parameters.
    """
    from torchvision.models.resnet import BasicBlock, conv1x1, conv3x3

    def block(before: int, width: int) -> BasicBlock:
        if width == before:
            return BasicBlock(before, width)
        shortcut = nn.Sequential(conv1x1(before, width, stride=2), nn.BatchNorm2d(width))
        return BasicBlock(before, width, stride=2, downsample=shortcut)

    channels, _, _ = image(shape)
    widths = [16] * (n + 1) + [32] * n + [64] * n  # of the stem and of every block
    net = named(
        stem=nn.Sequential(conv3x3(channels, 16, stride=stem_stride), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
        **{f"block{i}": block(*pair) for i, pair in enumerate(pairwise(widths), start=1)},
        avgpool=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        fc=nn.Linear(64, n_labels),
    )
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            kaiming_fan_out(module.weight)
    return net


def vgg11_bn(shape: Shape, n_labels: int) -> nn.Sequential:
    """VGG-11 with batch norm (Simonyan & Zisserman 2015): 8 convolutions, 3 linear layers (1 below 224 pixels)."""
    return _vgg("A", shape, n_labels)


def vgg16_bn(shape: Shape, n_labels: int) -> nn.Sequential:
    """VGG-16 with batch norm (Simonyan & Zisserman 2015): 13 convolutions, 3 linear layers (1 below 224 pixels)."""
    return _vgg("D", shape, n_labels)


def _vgg(column: str, shape: Shape, n_labels: int) -> nn.Sequential:
    """Build the network in this column of the paper's Table 1; norm, activation and pooling belong to a convolution.

    From 224 pixels the classifier is the paper's, on 7x7 features and without dropout. Smaller images have fewer
    features and get what is usual for CIFAR: average pooling and a single linear layer. Below 32 pixels, too small for
    five halvings, poolings round up. Weights are initialised as torchvision's.
    """
    from torchvision.models import vgg  # torchvision takes a second to import

    channels, height, width = image(shape)
    features = vgg.make_layers(vgg.cfgs[column], batch_norm=True)
    if channels != 3:
        features[0] = nn.Conv2d(channels, 64, 3, padding=1)
    if min(height, width) < 32:
        for module in features:
            if isinstance(module, nn.MaxPool2d):
                module.ceil_mode = True
    if min(height, width) < 224:
        pool, classifier = nn.AdaptiveAvgPool2d(1), [nn.Linear(512, n_labels)]
        for module in (*features, *classifier):
            _initialise(module)
    else:
        net = vgg.VGG(features, num_classes=n_labels, dropout=0.0)
        pool, classifier = net.avgpool, net.classifier
    return named(
        **_groups("conv", nn.Conv2d, [*features, pool, nn.Flatten()]),
        **_groups("fc", nn.Linear, classifier),
    )


def _initialise(module: nn.Module) -> None:
    """Initialise a layer as torchvision's VGG does, which cannot be built without its large classifier."""
    if isinstance(module, nn.Conv2d):
        kaiming_fan_out(module.weight)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, 0.01)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _groups(name: str, first: type[nn.Module], modules: Iterable[nn.Module]) -> dict[str, nn.Sequential]:
    """Group `modules` into runs that start at each module of type `first`, numbered from 1."""
    groups: list[list[nn.Module]] = []
    for module in modules:
        if isinstance(module, first):
            groups.append([])
        groups[-1].append(module)
    return {f"{name}{i}": nn.Sequential(*group) for i, group in enumerate(groups, start=1)}


def mobilenet_v1(shape: Shape, n_labels: int) -> nn.Sequential:
    """MobileNetV1 (Howard et al. 2017) as 26 layers: 13 depthwise and 13 pointwise convolutions.

    The stem belongs to the first layer and the classifier to the last, so that an even cut comes after a block, as
    Hydra's cuts 4 of 26 and 24 of 26 do (docs/methods/hydra.md#choices). The stem has stride 1 for images below 64
    pixels.
    """
    widths = [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]
    halved = {1, 3, 5, 11}
    in_channels, _, _ = image(shape)
    channels = 32
    first = _normed_conv(in_channels, channels, 3, stride=1 if is_small(shape) else 2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for block, width in enumerate(widths):
        stride = 2 if block in halved else 1
        layers[f"dw{block + 1}"] = _normed_conv(channels, channels, 3, stride=stride, groups=channels)
        layers[f"pw{block + 1}"] = _normed_conv(channels, width, 1)
        channels = width
    layers["dw1"] = nn.Sequential(first, layers["dw1"])
    layers["pw13"] = nn.Sequential(layers["pw13"], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, n_labels))
    return nn.Sequential(layers)


def _normed_conv(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Make a convolution with batch norm and ReLU: torchvision's Conv2dNormActivation without its second of import."""
    conv = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def mobilenet_v2(shape: Shape, n_labels: int) -> nn.Sequential:
    """MobileNetV2 (Sandler et al. 2018) as 20 layers: stem, 17 inverted residual blocks, convolution, classifier.

    It is torchvision's without dropout. For images below 64 pixels the stem and the first 24-channel block have
    stride 1, as is usual for CIFAR.
    """
    from torchvision.models import get_model  # torchvision takes a second to import

    in_channels, _, _ = image(shape)
    net = get_model("mobilenet_v2", num_classes=n_labels, dropout=0.0)
    first, *blocks, conv = net.features
    first[0] = stem(first[0], in_channels, kaiming_fan_out, small=is_small(shape))
    if is_small(shape):
        blocks[1].conv[1][0].stride = (1, 1)
    return named(
        stem=first,
        **{f"block{i}": block for i, block in enumerate(blocks, start=1)},
        conv=nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        fc=net.classifier[1],
    )


class Grow(nn.Module):
    """Concatenation of the input's channels and the channels that `layer` computes from them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, C + growth, H, W)."""
        return torch.cat([x, self.layer(x)], dim=1)


def densenet121(shape: Shape, n_labels: int) -> nn.Sequential:
    """DenseNet-121 (Huang et al. 2017) as 64 layers: stem, 58 dense layers and 3 transitions, norm, classifier.

    Images below 64 pixels get the CIFAR stem: a 3x3 convolution of stride 1 and no pooling.
    """
    from torchvision.models import get_model  # torchvision takes a second to import

    channels, _, _ = image(shape, at_least=8)
    net = get_model("densenet121", num_classes=n_labels)
    features = dict(net.features.named_children())
    conv = stem(features["conv0"], channels, nn.init.kaiming_normal_, small=is_small(shape))
    pool = nn.Identity() if is_small(shape) else features["pool0"]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(conv, features["norm0"], features["relu0"], pool)
    for block in range(1, 5):
        for number, layer in enumerate(features[f"denseblock{block}"].values(), start=1):
            layers[f"dense{block}_{number}"] = Grow(layer)
        if block < 4:
            layers[f"transition{block}"] = features[f"transition{block}"]
    layers["norm"] = nn.Sequential(features["norm5"], nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["fc"] = net.classifier
    return nn.Sequential(layers)
