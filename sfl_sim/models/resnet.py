"""ResNets (He et al. 2016) of torchvision's blocks, each of which is a layer (docs/methods/hydra.md#choices)."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

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
