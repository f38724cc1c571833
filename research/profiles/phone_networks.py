"""Networks of osmr/imgclsmob (pytorchcv) that were measured on phones in two runtimes, described with torchvision.

    python -m research.profiles.phone_networks qed_phone_latency.csv

writes measurements/phone_runtimes.csv from a table with the columns device, framework, model, cores and mean_ms.

MACs are those of the networks that were measured. Norms and activations have none and may differ.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torchvision import models
from torchvision.models.regnet import BlockParams, RegNet
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from sfl_sim.models.zoo import MODELS


class Cropped(Bottleneck):
    """Bottleneck block whose middle convolution has a window of one or three pixels and no padding."""

    def __init__(self, inplanes: int, planes: int, kernel: int, stride: int) -> None:
        shortcut = None
        if stride != 1 or inplanes != 4 * planes:
            shortcut = nn.Conv2d(inplanes, 4 * planes, 1, stride, bias=False)
        super().__init__(inplanes, planes, stride, shortcut)
        self.conv2 = nn.Conv2d(planes, planes, kernel, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what comes out to as much of the shortcut as is left without padding."""
        y = self.conv3(self.conv2(self.conv1(x)))
        identity = x if self.downsample is None else self.downsample(x)
        return y + identity[..., : y.shape[-2], : y.shape[-1]]


def bagnet9() -> nn.Module:
    """BagNet-9: a ResNet-50 of 1x1 convolutions with three of 3x3."""
    width, layers = 64, [nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 3)]
    for stage, (blocks, wide) in enumerate([(3, 1), (4, 1), (6, 0), (3, 0)]):
        for block in range(blocks):
            kernel, stride = 3 if block < wide else 1, 2 if block == 0 and stage < 3 else 1
            layers.append(Cropped(width, 64 * 2**stage, kernel, stride))
            width = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def mobilenet_v2() -> nn.Module:
    """MobileNet-V2 whose first block expands its 32 channels to 32."""
    net = models.mobilenet_v2()
    net.features[1].conv.insert(0, nn.Conv2d(32, 32, 1, bias=False))
    return net


def regnetx002() -> nn.Module:
    """RegNetX-200MF."""
    return RegNet(BlockParams.from_init_params(depth=13, w_0=24, w_a=36.44, w_m=2.49, group_width=8))


def half_resnet18() -> nn.Module:
    """ResNet-18 of half the width, but for the last block's 512 channels."""
    net = ResNet(BasicBlock, [2, 2, 2, 1])
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            n_in, n_out = (
                channels if channels == 3 else channels // 2 for channels in (module.in_channels, module.out_channels)
            )
            module.__init__(n_in, n_out, module.kernel_size, module.stride, module.padding, bias=False)  # type: ignore[misc]
        elif isinstance(module, nn.BatchNorm2d):
            module.__init__(module.num_features // 2)  # type: ignore[misc]
    net.layer4.append(BasicBlock(256, 512, downsample=nn.Conv2d(256, 512, 1, bias=False)))
    return net


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "bagnet9": bagnet9,
    "densenet121": models.densenet121,
    "mobilenet_w1": partial(MODELS["mobilenet_v1"], (3, 224, 224), 1000),
    "mobilenetv2_w1": mobilenet_v2,
    "mobilenetv3_small_w1": models.mobilenet_v3_small,
    "regnetx002": regnetx002,
    "resnet10": partial(ResNet, BasicBlock, [1, 1, 1, 1]),
    "resnet14": partial(ResNet, BasicBlock, [2, 2, 1, 1]),
    "resnet18_wd2": half_resnet18,
    "squeezenet_v1_1": models.squeezenet1_1,
}
"""Builders by name in osmr/imgclsmob; all take images of 224 pixels."""
ANCHOR = "mobilenetv2_w1"
HEADER = {
    "what": "how many times as long as MobileNet-V2 networks took on phones, in two runtimes",
    "source": "qed-usc/mobile-ml-benchmark @40ba833a9ca5, dataset/{tflite,torch}_cnn_e2e.csv: 10 of its 102 networks on"
    " 4 of its 7 phones, float, CPU; the networks are those of osmr/imgclsmob (research/profiles/phone_networks.py)",
    "unit": "time of a forward pass of one image over that of mobilenetv2_w1: the median over sets of cores",
    "derived": "by research/profiles/phone_networks.py",
    "licence": "facts, stated with their source; the source is MIT",
    "caution": "a ratio differs between sets of cores of one phone by 3 % (half of the distance of the quartiles)",
}


def main(measured: Path) -> None:
    """Write measurements/phone_runtimes.csv."""
    table = pd.read_csv(measured)
    wide = table.pivot_table("mean_ms", ["framework", "device", "cores"], "model")
    relative = wide.div(wide[ANCHOR], axis="index").groupby(["framework", "device"]).median()
    rows = (
        relative.stack().dropna().round(3).rename_axis(["runtime", "phone", "network"]).rename("relative").reset_index()
    )
    header = "".join(f"# {key}: {text}\n" for key, text in HEADER.items())
    out = Path(__file__).parents[2] / "profiles" / "measurements" / "phone_runtimes.csv"
    out.write_text(header + rows.to_csv(index=False), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
