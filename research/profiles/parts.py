"""Seconds of networks' first layers in six runtimes, to which costs are fitted and against which they are judged.

    python -m research.profiles.parts                            judges the shipped costs by what was measured
    python -m research.profiles.parts --measure resnet18@32 ...  measures these, if they are not there yet

What is measured, what is left out of every fit, and how a fit is judged were written down before the first fit:

Parts: a network's first third of layers, its first two thirds, and the whole, each exported by itself.
Networks and sides: `FITTED` and `LEFT_OUT`; those of 32 pixels are the program's own, others torchvision's.
Mini-batches of 1, and in torch, onnxruntime and MNN of 16, at up to 96 pixels and `MOST_MACS` an image. OpenVINO
and LiteRT run `IN_ALL` alone: this machine is shared.
Runtimes left out of the fit for an unknown runtime (`phones`): `STRANGERS`. Those that have costs of their own are
fitted to `FITTED` in that runtime alone.

Of these lists, networks that the table has have been measured so far; shipped costs are fitted to those of `FITTED`.

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

import argparse
import csv
import gc
import itertools
import os
import statistics
import time
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.pairs import publish
from research.profiles.fit_phones import PARTS, STRANGERS
from research.profiles.ncnn_networks import HERE
from sfl_sim.system.cost import read_cost

RESULTS = Path(__file__).parent / "results"
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
RUNTIMES = ("torch", "onnxruntime", "openvino", "mnn", "ncnn", "litert")
ALSO_16 = ("torch", "onnxruntime", "mnn")
OFTEN = ("torch", "onnxruntime", "mnn", "ncnn")
IN_ALL = ("resnet18@32", "vgg16_bn@32", "resnext50_32x4d@96", "regnet_x_400mf@96")
MOST_MACS = 6e8
SWEEPS, LEAST_S, MOST_S, SAME = 5, 0.003, 5.0, 1e-2


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


@cache
def works():
    """Count the work of all that was measured, by network, side, layers and size of the mini-batch."""
    from sfl_sim.models.part import sample_work, work_of
    from sfl_sim.models.price import price

    found, layers = {}, {}
    for row in rows():
        name, side, end, batch = row["network"], *(int(row[what]) for what in ("side", "layers", "batch"))
        if (name, side) not in layers:
            layers[name, side] = price(network(name, side), (3, side, side))
        found[name, side, end, batch] = work_of(sample_work(layers[name, side][:end]), batch, passes=1)
    return found


def told(seconds):
    """Set predictions beside measurements: `seconds` gives the time of a work in a runtime, up to its own factor.

    Columns: those of rows, left_out, whole (True for a network that is not cut), predicted, and logarithms of factors
    by which the share of a part (share) and the whole (of_whole, up to a factor of the runtime) are wrong.
    """
    found, work = pd.DataFrame(rows()), works()
    found = found.astype({"side": int, "layers": int, "batch": int, "ms": float})
    place = list(zip(found["network"], found["side"], found["layers"], found["batch"], strict=True))
    found["predicted"] = [seconds(runtime, work[at]) for runtime, at in zip(found["runtime"], place, strict=True)]
    found["left_out"] = [name in LEFT_OUT[side] for name, side, _, _ in place]
    one = ["runtime", "network", "side", "batch"]
    found["whole"] = found["layers"] == found.groupby(["network", "side"])["layers"].transform("max")
    found = found[found.groupby(one)["whole"].transform("any")]
    error = np.log(found["predicted"] / found["ms"])
    of_whole = error.where(found["whole"]).groupby([found[what] for what in one]).transform("max")
    return found.assign(share=(error - of_whole).where(~found["whole"]), of_whole=of_whole)


def judged(found):
    """Judge predictions of left-out networks, by runtime and size of the mini-batch, with the worst by name."""
    for (runtime, batch), rows in found[found["left_out"]].groupby(["runtime", "batch"]):
        shares = rows[~rows["whole"]]
        size = np.exp(shares["share"].abs())
        worst = shares.loc[size.idxmax()]
        whole = rows[rows["whole"]]
        pairs = [
            (abs(one.of_whole - other.of_whole), f"{one.network} and {other.network} @{side}")
            for side, each in whole.groupby("side")
            for one, other in itertools.combinations(each.itertuples(), 2)
        ]
        apart, names = max(pairs, default=(np.nan, ""))
        grouped = whole["network"].str.startswith(("regnet", "resnext"))
        other = whole[~grouped].groupby("side")["of_whole"].median()
        of_groups = np.exp(whole["of_whole"] - whole["side"].map(other))[grouped] - 1
        yield {
            "runtime": runtime, "batch": batch, "parts": len(shares), "share, median": size.median(),
            "share, ninth decile": size.quantile(0.9), "share, worst": size.max(),
            "worst part": f"{worst['network']}@{worst['side']}, {worst['layers']} layers",
            "told over measured": np.exp(worst["share"]),
            "networks, median": np.exp(np.median([pair[0] for pair in pairs])) if pairs else np.nan,
            "networks, worst": np.exp(apart), "worst pair": names,
            "grouped": ", ".join(f"{error:+.0%}" for error in of_groups),
        }  # fmt: skip


def rows():
    """Read the rows that there are."""
    if not ROWS.exists():
        return []
    with ROWS.open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


PROFILES = dict.fromkeys(STRANGERS, "phones") | {ours: name for name, ours in PARTS.items()}
"""Costs of runtimes that have none of their name."""


def main():
    """Judge the shipped costs, and plain MACs; or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", metavar="NETWORK@SIDE")
    if wanted := parser.parse_args().measure:
        measure(wanted)
        return
    costs = {runtime: read_cost(PROFILES.get(runtime, runtime)).processor(1.0) for runtime in RUNTIMES}
    plain, unknown = read_cost(None).processor(1.0), read_cost("phones").processor(1.0)
    table = [
        {"costs": name} | {what: round(x, 2) if isinstance(x, float) else x for what, x in row.items()}
        for name, of in (
            ("own", costs),
            ("phones", dict.fromkeys(costs, unknown)),
            ("macs", dict.fromkeys(costs, plain)),
        )
        for row in judged(told(lambda runtime, work, of=of: of[runtime].seconds(work)))
    ]
    publish("parts", table, RESULTS)


def measure(wanted):
    """Measure networks that are not yet there."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which cannot be exported
    found = rows()
    known = {(row["network"], int(row["side"])) for row in found}
    for name, side in ((name, int(side)) for name, side in (each.split("@") for each in wanted)):
        if (name, side) in known:
            continue
        started_s, module = time.time(), network(name, side)
        with TemporaryDirectory() as folder:
            alone = [runtime for runtime in RUNTIMES if runtime in OFTEN or f"{name}@{side}" in IN_ALL]
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
