"""Latencies of ncnn's benchmark (measurements/ncnn.csv), and its networks, described with torchvision.

They are those of benchmark/*.param of Tencent/ncnn @a4d2ea1d4422.

Differences between ncnn's and torchvision's networks are made here, so that MACs are ncnn's. Norms and activations have
no MACs and may differ.
"""

from functools import partial
from pathlib import Path

import pandas as pd
from torch import nn
from torchvision import models
from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

from sfl_sim.models.zoo import MODELS
from sfl_sim.system.profiles import read_table

HERE = Path(__file__).parents[2] / "profiles"
REFERENCE = "mobilenet_v2"  # the network of devices/ai_benchmark.csv


def measurements() -> pd.DataFrame:
    """Read latencies in ms by machine (device_class, device, num_threads, core_set) and network, NaN if unknown."""
    table = pd.DataFrame(read_table(HERE / "measurements" / "ncnn.csv", [REFERENCE], "measurements").columns)
    return table.set_index(["device_class", "device", "num_threads", "core_set"]).apply(pd.to_numeric)


def clients(latency_ms: pd.DataFrame) -> pd.DataFrame:
    """Select machines that could be clients: phones, edge boards and laptops."""
    return latency_ms.drop(index="server_or_desktop", level="device_class")


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 with a padded last convolution."""
    net = models.squeezenet1_1()
    net.classifier[1].padding = (1, 1)
    return net


def mobilenet_v3() -> nn.Module:
    """MobileNetV3 Large as in the first version of its paper: two blocks of width 672 follow the last 3x3 block."""
    block = partial(InvertedResidualConfig, dilation=1, width_mult=1)
    blocks = [
        block(16, 3, 16, 16, False, "RE", 1), block(16, 3, 64, 24, False, "RE", 2),
        block(24, 3, 72, 24, False, "RE", 1), block(24, 5, 72, 40, True, "RE", 2),
        block(40, 5, 120, 40, True, "RE", 1), block(40, 5, 120, 40, True, "RE", 1),
        block(40, 3, 240, 80, False, "HS", 2), block(80, 3, 200, 80, False, "HS", 1),
        block(80, 3, 184, 80, False, "HS", 1), block(80, 3, 184, 80, False, "HS", 1),
        block(80, 3, 480, 112, True, "HS", 1), block(112, 3, 672, 112, True, "HS", 1),
        block(112, 5, 672, 160, True, "HS", 1), block(160, 5, 672, 160, True, "HS", 2),
        block(160, 5, 960, 160, True, "HS", 1),
    ]  # fmt: skip
    return MobileNetV3(blocks, last_channel=1280)


def googlenet() -> nn.Module:
    """GoogLeNet with the paper's 5x5 convolutions, which torchvision has as 3x3."""
    net = models.googlenet(aux_logits=False, transform_input=False, init_weights=False)
    for name, inception in net.named_children():
        if name.startswith("inception"):
            conv = inception.branch3[1].conv
            inception.branch3[1].conv = nn.Conv2d(conv.in_channels, conv.out_channels, 5, padding=2)
    return net


def resnet18() -> nn.Module:
    """ResNet-18 with a projection in the first block, too."""
    net = models.resnet18()
    net.layer1[0].downsample = nn.Conv2d(64, 64, 1)
    return net


def resnet50() -> nn.Module:
    """ResNet-50 with the paper's strides: in a block's first convolution instead of torchvision's second."""
    net = models.resnet50()
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return net


def alexnet() -> nn.Module:
    """AlexNet as in Caffe, in two groups."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.Conv2d(384, 384, 3, padding=1, groups=2),
        nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(9216, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000),
    )  # fmt: skip


NETWORKS = {
    "squeezenet": (squeezenet, 227),
    "mobilenet": (partial(MODELS["mobilenet_v1"], (3, 224, 224), 1000), 224),
    "mobilenet_v2": (models.mobilenet_v2, 224),
    "mobilenet_v3": (mobilenet_v3, 224),
    "shufflenet_v2": (models.shufflenet_v2_x1_0, 224),
    "mnasnet": (models.mnasnet1_0, 224),
    "efficientnet_b0": (models.efficientnet_b0, 224),
    "googlenet": (googlenet, 224),
    "resnet18": (resnet18, 224),
    "resnet50": (resnet50, 224),
    "alexnet": (alexnet, 227),
    "vgg16": (models.vgg16, 224),
    "vision_transformer": (partial(models.vit_b_32, image_size=384), 384),
}
"""Builders, and the side of the square input in benchncnn.cpp, by name."""
