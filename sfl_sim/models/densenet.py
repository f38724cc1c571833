"""DenseNets (Huang et al. 2017) of torchvision's layers.

A cut can come after every dense layer, which takes all features of its block so far and returns them together with its
own new ones, so that the concatenation crosses a cut. A transition between blocks is a layer, too.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from sfl_sim.models.layers import Shape, image, is_small, stem


class Grow(nn.Module):
    """Concatenation of the input's channels and the channels that `layer` computes from them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, C + growth, H, W)."""
        return torch.cat([x, self.layer(x)], dim=1)


def densenet121(shape: Shape, n_labels: int) -> nn.Sequential:
    """DenseNet-121 (Huang et al. 2017) as 64 layers: stem, 58 dense layers and 3 transitions, norm, classifier."""
    return _densenet("densenet121", shape, n_labels)


def densenet161(shape: Shape, n_labels: int) -> nn.Sequential:
    """DenseNet-161 (Huang et al. 2017) as 84 layers: stem, 78 dense layers and 3 transitions, norm, classifier."""
    return _densenet("densenet161", shape, n_labels)


def densenet169(shape: Shape, n_labels: int) -> nn.Sequential:
    """DenseNet-169 (Huang et al. 2017) as 88 layers: stem, 82 dense layers and 3 transitions, norm, classifier."""
    return _densenet("densenet169", shape, n_labels)


def _densenet(name: str, shape: Shape, n_labels: int) -> nn.Sequential:
    """Build a DenseNet; images below 64 pixels get the CIFAR stem: a 3x3 convolution of stride 1 and no pooling."""
    from torchvision.models import get_model  # torchvision takes a second to import

    channels, _, _ = image(shape, at_least=8)
    net = get_model(name, num_classes=n_labels)
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
