"""Seconds of networks' first layers in six runtimes, to which costs are fitted and against which they are judged.

    python -m research.profiles.parts            the rows that profiles/measurements/parts.csv lacks, in hours

What is measured, what is left out of every fit, and how a fit is judged were written down before the first fit:

Parts: the first layer of a network, its first third, its first two thirds, and the whole, each exported by itself.
Networks and sides: `FITTED` and `LEFT_OUT`, mini-batches of 1 and 16 (of 1 alone at 224 pixels, with more than
`MOST_MACS` an image, and in ncnn, which takes no others).
Networks of 32 pixels are the program's own, others torchvision's. Runtimes left out of the fit for an unknown runtime
(`phones`): `STRANGERS`. Those that have costs of their own are fitted to `FITTED` in that runtime alone.

Rule: in every runtime, over all of `LEFT_OUT`,
- the share of the whole network's time that a part takes: the factor between the one predicted and the one measured, in
  the median at most 1.25, at worst 1.6, for each size of a mini-batch;
- networks against each other, at the same side and mini-batch: 1.2 and 2;
- networks with grouped convolutions (resnext, regnet; in groups of several channels) against all others: within 30 %.
Every part counts once. What is reached is printed whether or not it is what was wanted, with the worst by name.

Times are processor seconds of one thread, so other work on the machine hardly matters; all parts of a network, in all
runtimes, run in turn, and a row is the median over these sweeps. Outputs are held against torch's before.
"""

import csv
import gc
import statistics
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from research.profiles.fit_phones import HERE

ROWS = HERE / "measurements" / "parts.csv"
COLUMNS = ["runtime", "network", "side", "layers", "batch", "ms"]
FITTED = {
    32: ["lenet5", "cnn8", "resnet8", "resnet18", "vgg11_bn", "mobilenet_v2"],
    96: ["resnet18", "squeezenet1_1", "efficientnet_b0", "resnext50_32x4d", "densenet121"],
    224: ["mobilenet_v2", "resnext50_32x4d", "vgg11", "efficientnet_b0", "convnext_tiny"],
}
LEFT_OUT = {
    32: ["cnn_small", "resnet20", "mobilenet_v1", "vgg16_bn", "resnet50", "densenet121"],
    96: ["mnasnet1_0", "googlenet", "regnet_x_400mf", "mobilenet_v3_large", "shufflenet_v2_x1_0"],
    224: ["alexnet", "resnet34", "regnet_x_400mf", "mnasnet1_0", "vit_b_32"],
}
STRANGERS = ("mnn", "openvino")
RUNTIMES = ("torch", "onnxruntime", "openvino", "mnn", "ncnn", "litert")
BATCHES = {32: (1, 16), 96: (1, 16), 224: (1,)}
MOST_MACS = 8e8  # of an image, up to which a mini-batch has 16
SWEEPS, LEAST_S, MOST_S = 7, 0.003, 12.0


def network(name, side):
    """Make a network that can be cut: the program's own at 32 pixels, torchvision's at others."""
    from sfl_sim.models import zoo

    if side == 32:
        return zoo.network(name, (3, side, side), 10)
    from torchvision.models import get_model

    options = {"init_weights": False} if name == "googlenet" else {}
    build = partial(get_model, name, **options)
    build.__name__ = name
    return zoo.network(build, (3, side, side), 1000)


def ends(n_layers):
    """After how many layers parts end."""
    return sorted({1, max(1, n_layers // 3), max(1, 2 * n_layers // 3), n_layers})


def modules(net):
    """Make each part as a module in evaluation, by its number of layers."""
    from sfl_sim.features.devices.runtimes import _module

    n = len(net.layers)
    parts = {end: net.split(*([] if end == n else [end]), seed=1, device=torch.device("cpu"))[0] for end in ends(n)}
    return {end: _module(replica) for end, replica in parts.items()}


def once_s(run, times):
    """Processor time of a run."""
    started_s = time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - started_s) / times


def measured(parts, name, side, batch, runtimes):
    """Measure `parts` of a network; gives rows, and prints what a runtime cannot run."""
    from sfl_sim.features.devices import runtimes as devices

    runs = {}
    x = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
    with TemporaryDirectory() as folder:
        for end, module in parts.items():
            for runtime in runtimes:
                if runtime == "torch":
                    runs[runtime, end] = partial(_forward, module, x)
                    continue
                file = Path(folder, f"{runtime}_{end}.pt")
                if problem := devices._problem(runtime, module, x, file, 1):
                    print(f"{runtime}: {name}@{side} up to layer {end} is left out: {problem}", flush=True)
                else:
                    runs[runtime, end] = devices.loaded(runtime, x, file, 1)
        taken_s = {key: [] for key in runs}
        times = {
            key: max(1, int(LEAST_S / max(min(once_s(run, 1), once_s(run, 1)), 1e-6))) for key, run in runs.items()
        }
        started_s = time.process_time()
        for sweep in range(SWEEPS):
            if sweep > 2 and time.process_time() - started_s > MOST_S:
                break
            for key, run in runs.items():
                taken_s[key].append(once_s(run, times[key]))
    return [
        {"runtime": runtime, "network": name, "side": side, "layers": end, "batch": batch,
         "ms": f"{1000 * statistics.median(taken_s[runtime, end]):.5g}"}
        for runtime, end in runs
    ]  # fmt: skip


def _forward(module, x):
    with torch.inference_mode():
        return module(x)


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
    known = {(row["network"], row["side"], row["batch"], row["runtime"]) for row in found}
    most = max(len(names) for names in FITTED.values())
    wanted = [
        (nets[side][i], side) for i in range(most) for side in BATCHES for nets in (FITTED, LEFT_OUT) if nets[side][i:]
    ]
    for name, side in wanted:
        missing = {
            batch: [
                runtime for runtime in RUNTIMES
                if (name, str(side), str(batch), runtime) not in known and not (runtime == "ncnn" and batch > 1)
            ]
            for batch in BATCHES[side]
        }  # fmt: skip
        if not any(missing.values()):
            continue
        net = network(name, side)
        parts, macs = modules(net), sum(layer.macs for layer in net.layers)
        for batch, runtimes in missing.items():
            if batch > 1 and macs > MOST_MACS:
                continue
            started_s = time.time()
            found += measured(parts, name, side, batch, runtimes)
            gc.collect()
            _write(found)
            print(f"{name}@{side} x {batch}: {time.time() - started_s:.0f} s", flush=True)


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
    with ROWS.open("w", encoding="utf-8") as file:
        file.write("\n".join(header) + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
