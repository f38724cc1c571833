"""ResNets (He et al. 2016) of torchvision's blocks, numbered as METHODS.md CHOICE 18 has it: a block is a layer."""

from __future__ import annotations

from torch import nn

from sfl_sim.models.layers import Shape, image, is_small, kaiming_fan_out, named, stem


def resnet18(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-18 (He et al. 2016) as 12 layers: stem, pool, 8 basic blocks, pool, classifier."""
    return _resnet("resnet18", shape, n_labels)


def resnet34(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-34 (He et al. 2016) as 20 layers: stem, pool, 16 basic blocks, pool, classifier."""
    return _resnet("resnet34", shape, n_labels)


def resnet50(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-50 (He et al. 2016) as 20 layers: stem, pool, 16 bottleneck blocks, pool, classifier."""
    return _resnet("resnet50", shape, n_labels)


def resnet101(shape: Shape, n_labels: int) -> nn.Sequential:
    """ResNet-101 (He et al. 2016) as 37 layers: stem, pool, 33 bottleneck blocks, pool, classifier."""
    return _resnet("resnet101", shape, n_labels)


def _resnet(name: str, shape: Shape, n_labels: int) -> nn.Sequential:
    """Images below 64 pixels get the CIFAR stem: a 3x3 convolution of stride 1 and no pooling."""
    from torchvision.models import get_model  # torchvision takes a second to import

    channels, _, _ = image(shape)
    net = get_model(name, num_classes=n_labels)
    conv = stem(net.conv1, channels, kaiming_fan_out, small=is_small(shape))
    blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
    return named(
        stem=nn.Sequential(conv, net.bn1, net.relu),
        pool=nn.Identity() if is_small(shape) else net.maxpool,
        **{f"block{i}": block for i, block in enumerate(blocks, start=1)},
        avgpool=nn.Sequential(net.avgpool, nn.Flatten()),
        fc=net.fc,
    )
