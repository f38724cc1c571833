"""MobileNets: depthwise convolutions between pointwise ones."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from sfl_sim.models.layers import Shape, image, is_small, kaiming_fan_out, named, stem


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
    first = _conv(in_channels, channels, 3, stride=1 if is_small(shape) else 2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for block, width in enumerate(widths):
        stride = 2 if block in halved else 1
        layers[f"dw{block + 1}"] = _conv(channels, channels, 3, stride=stride, groups=channels)
        layers[f"pw{block + 1}"] = _conv(channels, width, 1)
        channels = width
    layers["dw1"] = nn.Sequential(first, layers["dw1"])
    layers["pw13"] = nn.Sequential(layers["pw13"], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, n_labels))
    return nn.Sequential(layers)


def _conv(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
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
