"""Small networks for small images, layer by layer."""

import math

from torch import nn

from sfl_sim.models.layers import Shape, image, named


def _conv(in_channels: int, out_channels: int, *, stride: int = 1, pool: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1), nn.ReLU()]
    if pool > 1:
        layers.append(nn.MaxPool2d(pool))
    return nn.Sequential(*layers)


def _fc(in_features: int, out_features: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, out_features), nn.ReLU())


def mlp(shape: Shape, n_labels: int) -> nn.Sequential:
    """Two hidden layers of 64 and 32 units, for rows of a table: 3 layers."""
    return named(fc1=_fc(math.prod(shape), 64), fc2=_fc(64, 32), fc3=nn.Linear(32, n_labels))


def fcn_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """Fully convolutional network that scores every pixel of small images of even height and width: 5 layers."""
    channels, height, width = image(shape, at_least=4)
    if height % 2 or width % 2:
        raise ValueError(f"needs images of even height and width, not {height}x{width}")
    return named(
        conv1=_conv(channels, 16),
        conv2=_conv(16, 32, pool=2),
        conv3=_conv(32, 64),
        up=nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU()),
        scores=nn.Conv2d(32, n_labels, 1),
    )


def cnn_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """Three convolutions and a classifier for small images (8x8 digits): 4 layers, no batch norm."""
    channels, height, width = image(shape, at_least=4)
    return named(
        conv1=_conv(channels, 16),
        conv2=_conv(16, 32, pool=2),
        conv3=_conv(32, 64, pool=2),
        fc=nn.Sequential(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), n_labels)),
    )


def cnn_patches(shape: Shape, n_labels: int) -> nn.Sequential:
    """Two convolutions without overlap and two linear layers, on the image averaged to 16x16: for studies on a CPU."""
    channels, _, _ = image(shape, at_least=4)
    return named(
        conv1=nn.Sequential(nn.AdaptiveAvgPool2d(16), nn.Conv2d(channels, 24, 4, stride=4), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(24, 48, 2, stride=2), nn.ReLU()),
        fc1=_fc(48 * 2 * 2, 48),
        fc2=nn.Linear(48, n_labels),
    )


def cnn_patches_bn(shape: Shape, n_labels: int) -> nn.Sequential:
    """`cnn_patches` with batch norm after each convolution."""
    net = cnn_patches(shape, n_labels)
    for convolution, width in zip(net, (24, 48), strict=False):
        assert isinstance(convolution, nn.Sequential)
        convolution.insert(len(convolution) - 1, nn.BatchNorm2d(width))
    return net


def lenet5(shape: Shape, n_labels: int) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling: 5 layers; 28x28 inputs are padded to 32x32."""
    channels, height, width = image(shape, at_least=12)
    padding = 2 if height <= 28 else 0
    side = [(size + 2 * padding - 4) // 2 for size in (height, width)]
    features = 16 * math.prod((size - 4) // 2 for size in side)
    return named(
        conv1=nn.Sequential(nn.Conv2d(channels, 6, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)),
        conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        fc1=_fc(features, 120),
        fc2=_fc(120, 84),
        fc3=nn.Linear(84, n_labels),
    )


def cnn7(shape: Shape, n_labels: int) -> nn.Sequential:
    """Four convolutions and three linear layers, on the image averaged to 16x16: for studies of exits on a CPU.

    As in HARMONY's models, the first three convolutions are less than a tenth of the parameters. Strides instead of
    pooling halve the time of a pass.
    """
    channels, _, _ = image(shape, at_least=4)
    return named(
        conv1=nn.Sequential(nn.AdaptiveAvgPool2d(16), *_conv(channels, 16, stride=2)),
        conv2=_conv(16, 16),
        conv3=_conv(16, 32, stride=2),
        conv4=_conv(32, 32),
        fc1=_fc(32 * 4 * 4, 128),
        fc2=_fc(128, 64),
        fc3=nn.Linear(64, n_labels),
    )


def cnn8(shape: Shape, n_labels: int) -> nn.Sequential:
    """HARMONY's 8-layer CNN, 5 convolutions and 3 fully connected layers: 3,868,170 parameters for 28x28 grey images.

    The sizes are reconstructed from the paper's Table 1 (docs/methods/harmony.md#models).
    """
    channels, height, width = image(shape, at_least=8)
    return named(
        conv1=_conv(channels, 32),
        conv2=_conv(32, 64, pool=2),
        conv3=_conv(64, 128, pool=2),
        conv4=_conv(128, 256),
        conv5=_conv(256, 256, pool=2),
        fc1=_fc(256 * (height // 8) * (width // 8), 1024),
        fc2=_fc(1024, 512),
        fc3=nn.Linear(512, n_labels),
    )
