"""VGGs with batch norm (Simonyan & Zisserman 2015) of torchvision's layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from sfl_sim.models.layers import Shape, image, kaiming_fan_out, named


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
