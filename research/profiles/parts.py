"""Seconds of networks' first layers in six runtimes, to which costs are fitted and against which they are judged.

    python -m research.profiles.parts            measures what profiles/measurements/parts.csv lacks

What is measured, what is left out of every fit, and how a fit is judged were written down before the first fit:

Parts: a network's first third of layers, its first two thirds, and the whole, each exported by itself.
Networks and sides: `FITTED` and `LEFT_OUT`; those of 32 pixels are the program's own, others torchvision's.
Mini-batches of 1, and in torch, onnxruntime and MNN of 16, at up to 96 pixels and `MOST_MACS` an image. LiteRT's, whose
export is slow, are of up to 96 pixels.
Runtimes left out of the fit for an unknown runtime (`phones`): `STRANGERS`. Those that have costs of their own are
fitted to `FITTED` in that runtime alone.

Rule: in every runtime, over all of `LEFT_OUT`,
- the share of the whole network's time that a part takes: the factor between the one predicted and the one measured, in
  the median at most 1.25, at worst 1.6, for each size of a mini-batch;
- networks against each other, at the same side and mini-batch: 1.2 and 2;
- networks with grouped convolutions (resnext, regnet; in groups of several channels) against all others: within 30 %.
Every part counts once. What is reached is printed whether or not it is what was wanted, with the worst by name.

Times are processor seconds of one thread, so other work on the machine hardly matters; all parts of a network, in all
runtimes, run in turn, and a row is the median over these sweeps. Outputs are held against torch's before (1e-2 of the
largest number: MNN rounds more than others).
"""

import csv
import gc
import itertools
import os
import statistics
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from research.profiles.fit_phones import HERE

ROWS = HERE / "measurements" / "parts.csv"
COLUMNS = ["runtime", "network", "side", "layers", "batch", "ms"]
FITTED = {
    32: ["resnet18", "mobilenet_v2", "cnn8", "vgg11_bn", "resnet8", "lenet5"],
    96: ["resnext50_32x4d", "squeezenet1_1", "efficientnet_b0", "resnet18"],
    224: ["mobilenet_v2", "resnext50_32x4d", "vgg11"],
}
LEFT_OUT = {
    32: ["vgg16_bn", "mobilenet_v1", "cnn_small", "resnet20", "resnet50", "densenet121"],
    96: ["regnet_x_400mf", "mobilenet_v3_large", "mnasnet1_0", "googlenet"],
    224: ["resnet34", "regnet_x_400mf", "alexnet"],
}
STRANGERS = ("mnn", "openvino")
RUNTIMES = ("torch", "onnxruntime", "openvino", "mnn", "ncnn", "litert")
ALSO_16 = ("torch", "onnxruntime", "mnn")
MOST_MACS = 6e8
SWEEPS, LEAST_S, MOST_S, SAME = 7, 0.003, 10.0, 1e-2


def network(name, side):
    """Make a network as a sequence of layers: the program's own at 32 pixels, torchvision's at others."""
    if side == 32:
        from sfl_sim.features.devices.runtimes import _module
        from sfl_sim.models.zoo import network

        net = network(name, (3, side, side), 10)
        return _module(net.split(seed=1, device=torch.device("cpu"))[0])
    from torchvision.models import get_model

    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    torch.manual_seed(1)
    layers, x = [], torch.zeros(1, 3, side, side)
    for layer in _flat(get_model(name, **options).eval()):
        if isinstance(layer, nn.Linear) and x.dim() == 4:
            for shaping in ([nn.AdaptiveAvgPool2d(1)] if x[0].numel() != layer.in_features else []), [nn.Flatten()]:
                layers += shaping
                for each in shaping:
                    x = each(x)
        layers.append(layer)
        with torch.no_grad():
            x = layer(x)
    module = nn.Sequential(*layers, *([nn.Flatten()] if x.dim() == 4 else [])).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _flat(module):
    for child in module.children():
        if isinstance(child, nn.Sequential):
            yield from _flat(child)
        elif child is not None:
            yield child


def ends(n_layers):
    """After how many layers parts end."""
    return sorted({max(1, n_layers // 3), max(1, 2 * n_layers // 3), n_layers})


def once_s(run, times=1):
    """Processor time of a run."""
    started_s = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - started_s) / times


def passes(module, x, runtimes, folder):
    """Make the forward passes of a part with a mini-batch, by runtime; prints what a runtime cannot run."""
    from sfl_sim.features.devices import runtimes as devices

    found = {"torch": partial(_forward, module, x)}
    expected = found["torch"]().numpy()
    for runtime in runtimes:
        if runtime == "torch":
            continue
        file = folder / f"{'onnx' if runtime in ('onnxruntime', 'openvino') else runtime}.pt"
        try:
            with devices._quiet():
                if not file.exists() and file.stem == "onnx":
                    axes = {"dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}} if x.shape[-1] <= 96 else {}
                    names = {"input_names": ["x"], "output_names": ["y"], **axes}
                    torch.onnx.export(module, (x,), str(file), dynamo=False, **names)
                elif not file.exists():
                    devices.RUNTIMES[runtime].export(module, x, file)
            run = devices.loaded(runtime, x, file, 1)
            seen = run().reshape(expected.shape)
            apart = float(np.abs(seen - expected).max() / np.abs(expected).max())
            if not apart < SAME:
                raise ValueError(f"its output differs by {apart:.2g}")
            found[runtime] = run
        except Exception as error:
            print(f"{runtime}: {folder.name} x {len(x)} is left out: {str(error)[:200]}", flush=True)
    return found


def _forward(module, x):
    with torch.inference_mode():
        return module(x)


def measured(module, name, side, batch, runtimes, folder):
    """Measure the parts of a network, all in turn; gives rows."""
    x = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    runs = {}
    for end in ends(len(module)):
        (home := folder / f"{name}_{side}_{end}").mkdir(exist_ok=True)
        runs |= {(runtime, end): run for runtime, run in passes(module[:end].eval(), x, runtimes, home).items()}
    times = {key: 1 + int(LEAST_S / min(once_s(run), once_s(run))) for key, run in runs.items()}
    taken_s = {key: [] for key in runs}
    started_s = time.process_time()
    for sweep in range(SWEEPS):
        if sweep > 2 and time.process_time() - started_s > MOST_S:
            break
        for key, run in runs.items():
            taken_s[key].append(once_s(run, times[key]))
    place = {"network": name, "side": side, "batch": batch}
    return [
        place | {"runtime": runtime, "layers": end, "ms": f"{1000 * statistics.median(seconds):.5g}"}
        for (runtime, end), seconds in taken_s.items()
    ]


def rows():
    """Read the rows that there are."""
    if not ROWS.exists():
        return []
    with ROWS.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def main():
    """Measure what is not yet there."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which cannot be exported
    found = rows()
    known = {(row["network"], int(row["side"])) for row in found}
    turns = itertools.zip_longest(*(nets[side] for side in FITTED for nets in (FITTED, LEFT_OUT)))
    sides = [side for side in FITTED for _ in range(2)]
    for name, side in ((name, side) for names in turns for name, side in zip(names, sides, strict=True) if name):
        if (name, side) in known:
            continue
        started_s, module = time.time(), network(name, side)
        with TemporaryDirectory() as folder:
            alone = [runtime for runtime in RUNTIMES if runtime != "litert" or side <= 96]
            found += measured(module, name, side, 1, alone, Path(folder))
            if side <= 96 and _macs(module, side) <= MOST_MACS:
                found += measured(module, name, side, 16, ALSO_16, Path(folder))
        gc.collect()
        _write(found)
        print(f"{name}@{side}: {time.time() - started_s:.0f} s, {time.process_time():.0f} in all", flush=True)


def _macs(module, side):
    from sfl_sim.models.price import price_of

    return price_of(module, torch.zeros(1, 3, side, side))[0].macs


def _write(found):
    packages = {"onnxruntime": "onnxruntime", "openvino": "openvino", "mnn": "MNN", "ncnn": "ncnn",
                "litert": "ai-edge-litert", "torch": "torch"}  # fmt: skip
    versions = ", ".join(f"{name} {version(packages[name])}" for name in sorted({row["runtime"] for row in found}))
    header = [
        "# what: latency of the first layers of networks in runtimes of devices, on one core of an x86 server",
        f"# source: measured for this project by research/profiles/parts.py, with {versions}, on Intel Xeon at 2.8 GHz"
        " (Ice Lake, AVX-512)",
        "# unit: ms of processor time for a mini-batch through the first `layers` layers, median of sweeps in turn",
        f"# n: {len(found)} parts",
        "# derived: nothing",
        "# licence: Apache-2.0, as the program",
        "# caution: no phone; a virtual machine that did other work, too; random weights, warm",
    ]
    with ROWS.with_suffix(".part").open("w", encoding="utf-8") as file:
        file.write("\n".join(header) + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    os.replace(ROWS.with_suffix(".part"), ROWS)


if __name__ == "__main__":
    main()
