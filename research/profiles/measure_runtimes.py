"""Latencies of torchvision's networks on one x86 core, with two runtimes: measurements/runtimes.csv.

    python -m research.profiles.measure_runtimes          # some five minutes; needs the packages onnx and onnxruntime

onnxruntime fuses norms and activations with the product before them, as runtimes on phones do; torch runs each
operation by itself. Times are the shortest of at least five in processor time, so other work on the machine hardly
matters.
"""

import io
import platform
import time
import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

TARGET = Path(__file__).parents[2] / "profiles" / "measurements" / "runtimes.csv"
NETWORKS = [
    "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5", "mnasnet1_0", "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0", "squeezenet1_0", "squeezenet1_1", "efficientnet_b0", "efficientnet_b2", "efficientnet_v2_s",
    "regnet_y_400mf", "regnet_x_400mf", "regnet_x_1_6gf", "regnet_y_3_2gf", "resnext50_32x4d", "resnet18", "resnet34",
    "resnet50", "wide_resnet50_2", "densenet121", "googlenet", "inception_v3", "alexnet", "vgg11", "vgg16", "vit_b_16",
    "vit_b_32", "convnext_tiny", "swin_t",
]  # fmt: skip
SIDES = {"inception_v3": 299, "efficientnet_b2": 288, "efficientnet_v2_s": 384}


def build(name):
    """Build a network of torchvision with random weights."""
    from torchvision.models import get_model

    return get_model(name, **({"init_weights": False} if name in ("googlenet", "inception_v3") else {})).eval()


def shortest_ms(run, at_least_s=3.0):
    """Return the shortest processor time of `run`, warm, of 5 to 60 runs."""
    run()
    taken, started_s = [], time.perf_counter()
    while len(taken) < 5 or (len(taken) < 60 and time.perf_counter() - started_s < at_least_s):
        begun_s = time.process_time()
        run()
        taken.append(time.process_time() - begun_s)
    return 1000 * min(taken)


def in_onnxruntime(network, x):
    """Return a function that runs the network on one thread of onnxruntime."""
    import onnxruntime

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter, which needs fewer packages
        torch.onnx.export(network, (x,), file, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


@torch.no_grad()
def main():
    """Measure, and write measurements/runtimes.csv."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which cannot be exported
    rows = []
    for name in NETWORKS:
        network, side = build(name), SIDES.get(name, 224)
        x = torch.randn(1, 3, side, side)
        for runtime, run in (("onnxruntime", in_onnxruntime(network, x)), ("torch", partial(network, x))):
            rows.append(f"{runtime},{name},{side},{shortest_ms(run):.4g}")
            print(rows[-1], flush=True)
    header = [
        "# what: latency of one image through networks of torchvision on one core of an x86 server",
        "# source: measured for this project by research/profiles/measure_runtimes.py, with onnxruntime"
        f" {version('onnxruntime')} and torch {version('torch')}, on {platform.platform()} (AMD EPYC, AVX-512)",
        "# unit: ms of processor time for one image, the shortest of 5 to 60 runs; side in pixels",
        f"# n: {len(NETWORKS)} networks with two runtimes",
        "# derived: nothing",
        "# licence: Apache-2.0, as the program",
        "# caution: no phone; a virtual machine that did other work, too; random weights, single images, warm",
    ]
    TARGET.write_text("\n".join([*header, "runtime,network,side,ms", *sorted(rows)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
