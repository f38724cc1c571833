"""The models by name. A builder takes one sample's shape and the number of labels; its children are the layers.

Layer numbering follows METHODS.md CHOICE 18: a residual block is one layer, depthwise and pointwise convolutions are
separate layers, an activation, norm or pooling belongs to the convolution before it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import lru_cache

import torch
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Builder, Network

Shape = tuple[int, ...]


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _conv(in_channels: int, out_channels: int, *, pool: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.ReLU()]
    if pool > 1:
        layers.append(nn.MaxPool2d(pool))
    return nn.Sequential(*layers)


def _fc(in_features: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, out_features), nn.ReLU())


def cnn_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """Three convolutions and a classifier for small images (8x8 digits): 4 layers, no batch norm."""
    channels, height, width = shape
    return _named(
        conv1=_conv(channels, 16),
        conv2=_conv(16, 32, pool=2),
        conv3=_conv(32, 64, pool=2),
        fc=nn.Sequential(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), n_labels)),
    )


def lenet5(shape: Shape, n_labels: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 5 layers; 28x28 inputs are padded to 32x32."""
    channels, height, width = shape
    padding = 2 if height <= 28 else 0
    side = [(size + 2 * padding - 4) // 2 for size in (height, width)]
    features = 16 * math.prod((size - 4) // 2 for size in side)
    return _named(
        conv1=nn.Sequential(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        fc1=_fc(features, 120),
        fc2=_fc(120, 84),
        fc3=nn.Linear(84, n_labels),
    )


def cnn8(shape: Shape, n_labels: int) -> nn.Sequential:
    """HARMONY's 8-layer CNN, 5 convolutions and 3 fully connected layers (METHODS.md 12.1): 3,868,170 parameters."""
    channels, height, width = shape
    return _named(
        conv1=_conv(channels, 32),
        conv2=_conv(32, 64, pool=2),
        conv3=_conv(64, 128, pool=2),
        conv4=_conv(128, 256),
        conv5=_conv(256, 256, pool=2),
        fc1=_fc(256 * (height // 8) * (width // 8), 1024),
        fc2=_fc(1024, 512),
        fc3=nn.Linear(512, n_labels),
    )


def mobilenet_v1(shape: Shape, n_labels: int) -> nn.Sequential:
    """MobileNetV1 (Howard et al. 2017) as 26 layers: 13 depthwise and 13 pointwise convolutions.

    The stem belongs to the first layer and the classifier to the last, so that an even cut comes after a block, as
    Hydra's cuts 4 of 26 and 24 of 26 do (docs/decisions). The stem has stride 1 for images up to 64 pixels.
    """
    from torchvision.ops import Conv2dNormActivation  # torchvision takes a second to import

    widths = [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]
    halved = {1, 3, 5, 11}
    channels = 32
    stem = Conv2dNormActivation(shape[0], channels, 3, stride=1 if shape[1] <= 64 else 2)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for block, width in enumerate(widths):
        stride = 2 if block in halved else 1
        layers[f"dw{block + 1}"] = Conv2dNormActivation(channels, channels, 3, stride=stride, groups=channels)
        layers[f"pw{block + 1}"] = Conv2dNormActivation(channels, width, 1)
        channels = width
    layers["dw1"] = nn.Sequential(stem, layers["dw1"])
    layers["pw13"] = nn.Sequential(layers["pw13"], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, n_labels))
    return nn.Sequential(layers)


def resnet18(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-18 (He et al. 2016) as 12 layers: stem, pool, 8 basic blocks, pool, classifier.

    Images up to 64 pixels get the CIFAR stem: a 3x3 convolution of stride 1 and no pooling.
    """
    from torchvision.models import resnet

    net = resnet.ResNet(resnet.BasicBlock, [2, 2, 2, 2], num_classes=n_labels)
    small = shape[1] <= 64
    conv = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False) if small else net.conv1
    blocks = [block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage]
    return _named(
        stem=nn.Sequential(conv, net.bn1, net.relu),
        pool=nn.Identity() if small else net.maxpool,
        **{f"block{i}": block for i, block in enumerate(blocks, start=1)},
        avgpool=nn.Sequential(net.avgpool, nn.Flatten()),
        fc=net.fc,
    )


MODELS: dict[str, Builder] = {
    "cnn_small": cnn_small,
    "lenet5": lenet5,
    "cnn8": cnn8,
    "mobilenet_v1": mobilenet_v1,
    "resnet18": resnet18,
}


@lru_cache(maxsize=16)  # pricing traces the model, and all variants and seeds of a study want the same
def network(
    name: str,
    input_shape: Shape,
    n_labels: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = True,
) -> Network:
    """The model `name` for samples of `input_shape`; ScenarioError if there is none of that name."""
    if name not in MODELS:
        raise ScenarioError("no such model", key="model.name", found=name, allowed=MODELS)
    return Network(name, MODELS[name], input_shape, n_labels, dtype, channels_last)
