"""Fit of costs/phones.csv to latencies of two runtimes, of a profile for each of four runtimes, and their errors.

    python -m research.profiles.fit_phones

The model: on every device a network takes time in proportion to `work @ costs`: MACs of convolutions, MACs of matrix
products (1x1 and depthwise convolutions, dense layers, attention), MACs of grouped convolutions, elements of
activations that move, and calls. The costs are common to all devices and runtimes. Each source's devices are reduced to
one typical device, since they share a runtime and so its errors. Sources: ncnn on phones, boards and laptops;
onnxruntime and torch on one x86 core; TFLite and PyTorch Mobile on four phones. `phones` is fitted to ncnn and
onnxruntime. Fitted to all five it would be better in ncnn and torch, and worse in onnxruntime and PyTorch Mobile.

A runtime's own profile is fitted to its source alone, and drawn to what all other sources say: of a dozen networks one
or two have grouped convolutions, and a fit without that pull would follow the error of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from research.profiles import fit_ncnn
from sfl_sim.system.profiles import read_table

HERE = Path(__file__).parents[2] / "profiles"
REFERENCE = "mobilenet_v2"
SOURCES = ("ncnn", "onnxruntime")  # to which `phones` is fitted
RUNTIMES = ("tflite", "pytorch_mobile", "onnxruntime", "torch")  # with a profile of their own
ANCHORS = {REFERENCE, "phone mobilenetv2_w1"}
COSTS = ["conv", "matrix", "grouped", "moved", "n_ops"]
ROBUST = 0.1  # a network's error, in ln(latency), above which it counts by its size and not by its square
PULL = 0.1  # weight of the other sources' costs: of 0, 0.03, 0.1, 0.2 and 0.4 the one with the least ninth decile
POINTWISE_BACKWARD = 2.3  # research/profiles/backward.py
UPDATE_MACS = 5.6  # research/profiles/optimisers.py, of torch

Typical = dict[str, pd.Series]
"""ln(latency) of networks on the typical device of each source."""
Price = Callable[[pd.DataFrame, Typical], pd.Series]
"""Prices of all networks, given their work and what was seen of some."""


def measurements() -> pd.DataFrame:
    """Read latencies in ms of all sources: columns source, row (a device in one setting), network and ms."""
    table = pd.DataFrame(read_table(HERE / "measurements" / "runtimes.csv", ["ms"], "measurements").columns)
    ours = table.assign(source=table["runtime"], row=table["runtime"], ms=table["ms"].astype(float))
    wide = fit_ncnn.clients(fit_ncnn.measurements())
    wide.index = ["ncnn, " + ", ".join(map(str, row)) for row in wide.index]
    ncnn = wide.rename_axis("row").melt(ignore_index=False, var_name="network", value_name="ms").dropna().reset_index()
    ncnn["network"] = np.where(ncnn["network"] == REFERENCE, REFERENCE, "ncnn " + ncnn["network"])
    found = pd.DataFrame(read_table(HERE / "measurements" / "phone_runtimes.csv", ["relative"], "measurements").columns)
    on_phones = found.assign(
        source=found["runtime"], row=found["runtime"] + ", phone, " + found["phone"],
        network="phone " + found["network"], ms=found["relative"].astype(float),
    )  # fmt: skip
    columns = [*ncnn.columns, "source"]
    return pd.concat([ours[columns], ncnn.assign(source="ncnn"), on_phones[columns]], ignore_index=True)


def family(network: str) -> str:
    """Name what must be left out together: a network in all its widths, sizes and versions."""
    name = network.removeprefix("ncnn ").removeprefix("phone ").removeprefix("wide_")
    name = name.replace("vision_transformer", "vit").replace("mobilenetv", "mobilenet_v").replace("regnetx", "regnet_x")
    name = name.replace("mobilenet_w1", "mobilenet")
    found = re.match(r"mobilenet_v\d|[a-z]+", name)
    return found[0] if found else name


def work_of(networks: list[str]) -> pd.DataFrame:
    """Count the work of one image, by network: the amounts that `COSTS` price, and those of a profile's reference."""
    import torch

    from research.profiles.measure_runtimes import SIDES, build
    from research.profiles.ncnn_networks import NETWORKS
    from research.profiles.phone_networks import NETWORKS as ON_PHONES
    from sfl_sim.models.price import price_of

    work = {}
    for network in networks:
        where, _, name = network.rpartition(" ")
        makers = {
            "": lambda name: (partial(build, name), SIDES.get(name, 224)),
            "ncnn": NETWORKS.__getitem__,
            "phone": lambda name: (ON_PHONES[name], 224),
        }
        make, side = makers[where](name)
        layer, _ = price_of(_without_weights(make), torch.zeros(1, 3, side, side, device="meta"))
        kinds = layer.macs_by_kind
        others = layer.pointwise + kinds["depthwise"] + kinds["dense"] + kinds["attention"]
        work[network] = {
            "conv": kinds["conv"] - layer.pointwise - layer.grouped, "matrix": others, "grouped": layer.grouped,
            "moved": layer.moved, "n_ops": layer.n_ops, "pointwise": layer.pointwise, **{
                f"{kind}_macs": macs for kind, macs in kinds.items()
            }, "macs": layer.macs,
        }  # fmt: skip
    return pd.DataFrame.from_dict(work, orient="index", dtype=float)


def _without_weights(make: Callable[[], Any]) -> Any:
    """Make a network on torch's meta device, at once if its shapes can be found there."""
    import torch

    try:
        with torch.device("meta"):
            return make()
    except NotImplementedError:  # RegNet finds its widths by computing
        return make().to("meta")


def typical(measured: pd.DataFrame) -> Typical:
    """Reduce the devices of each source to one by a median polish: ln(ms) = device + network."""
    found = {}
    for source, rows in measured.groupby("source"):
        log = np.log(rows.pivot_table("ms", "row", "network", aggfunc="min"))
        networks = log.median()
        for _ in range(10):
            devices = log.sub(networks).median(axis="columns")
            networks = log.sub(devices, axis="index").median()
        found[str(source)] = networks
    return found


def fitted(work: pd.DataFrame, seen: Typical, near: pd.Series | None = None) -> pd.Series:
    """Fit the costs by robust least squares of ln(latency), each source with a speed of its own.

    A source's networks together count as the square root of their number. Costs `near` draw those that are sought to
    theirs, relative to a MAC of a matrix product, with the weight `PULL`.
    """
    size = np.array([1.0, 1.0, 1.0, 10.0, 1e5])  # so that all costs are of the order of 1
    items = [
        (work.loc[logs.index, COSTS].to_numpy() * size, logs.to_numpy()) for logs in seen.values() if len(logs) > 1
    ]

    def errors(log_costs: np.ndarray) -> np.ndarray:
        each = [np.log(amounts @ np.exp(log_costs)) - logs for amounts, logs in items]
        apart = [] if near is None else log_costs - np.log(near / size).to_numpy()
        pull = [] if near is None else PULL * (apart - apart[COSTS.index("matrix")])
        return np.concatenate([*((error - np.median(error)) / len(error) ** 0.25 for error in each), pull])

    found = least_squares(errors, np.zeros(len(COSTS)), bounds=(-12, 8), loss="soft_l1", f_scale=ROBUST)
    costs = pd.Series(np.exp(found.x) * size, COSTS)
    return costs * work.loc[REFERENCE, "macs"] / (work.loc[REFERENCE, COSTS] @ costs)


def of_phones(work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Fit the costs for an unknown runtime."""
    return fitted(work, {source: logs for source, logs in seen.items() if source in SOURCES})


def of_runtime(runtime: str, work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Fit the costs of a runtime, near those of all others."""
    others = fitted(work, {source: logs for source, logs in seen.items() if source != runtime})
    return fitted(work, {runtime: seen[runtime]}, others)


def fitted_price(work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Price all networks by the costs for an unknown runtime."""
    return work[COSTS] @ of_phones(work, seen)


def runtime_price(runtime: str, work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Price all networks by a runtime's costs."""
    return work[COSTS] @ of_runtime(runtime, work, seen)


def macs(work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Price all networks by their MACs."""
    return work["macs"]


def errors(measured: pd.DataFrame, prices: pd.Series, networks: list[str]) -> pd.DataFrame:
    """Predict `networks` on every row that also has the reference, from its latency; gives the relative errors."""
    anchors = measured[measured["network"].isin(ANCHORS)]
    per_price = (anchors["ms"] / prices[anchors["network"]].to_numpy()).groupby(anchors["row"]).min()
    rows = measured[measured["network"].isin(networks) & measured["row"].isin(per_price.index)]
    predicted_ms = prices[rows["network"]].to_numpy() * per_price[rows["row"]].to_numpy()
    return rows.assign(error=predicted_ms / rows["ms"] - 1)


def left_out(work: pd.DataFrame, measured: pd.DataFrame, price: Price) -> pd.DataFrame:
    """Predict every network, and with it all of its family, from prices that were made without it."""
    found = []
    for left in sorted({family(network) for network in work.index} - {family(REFERENCE)}):
        inside = [network for network in work.index if family(network) == left]
        prices = price(work, typical(measured[~measured["network"].isin(inside)]))
        found.append(errors(measured, prices, inside).assign(family=left))
    return pd.concat(found)


def source_left_out(work: pd.DataFrame, measured: pd.DataFrame, price: Price) -> pd.DataFrame:
    """Predict all networks of every source, with its runtime and devices, from prices made of the others."""
    found = []
    for source in measured["source"].unique():
        prices = price(work, typical(measured[measured["source"] != source]))
        others = [network for network in work.index if network not in ANCHORS]
        found.append(errors(measured[measured["source"] == source], prices, others))
    return pd.concat(found)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Summarise errors by source: median and ninth decile of the absolute errors, a 90 % interval of the median.

    Every network counts once, by the median over the devices. The interval is a bootstrap over networks.
    """
    sizes = found.assign(size=found["error"].abs()).groupby(["source", "network"])["size"].median()
    rows = {}
    for source, each in sizes.groupby("source"):
        draws = np.median(np.random.default_rng(0).choice(each, (2000, len(each))), axis=1)
        low, high = np.quantile(draws, [0.05, 0.95])
        rows[source] = {"median": each.median(), "low": low, "high": high, "p90": each.quantile(0.9)}
    return pd.DataFrame.from_dict(rows, orient="index")


def in_words(found: pd.DataFrame) -> str:
    """Say the errors of every source."""
    says = "{source} {median:.2f} ({low:.2f} to {high:.2f}; nine of ten below {p90:.2f})"
    return ", ".join(says.format(source=source, **row) for source, row in summary(found).iterrows())


def profile(costs: pd.Series, reference: pd.Series) -> dict[str, str]:
    """Give the row of a cost profile."""
    matrix, grouped = 1 / costs["matrix"], 1 / costs["grouped"]
    return {
        "reference_network": f"{REFERENCE} 224x224",
        "conv_efficiency": f"{1 / costs['conv']:.3g}",
        "pointwise_efficiency": f"{matrix:.3g}",
        "grouped_efficiency": f"{grouped:.3g}",
        **{f"{kind}_efficiency": f"{matrix:.3g}" for kind in ("depthwise", "dense", "attention")},
        "moved_macs": f"{costs['moved']:.3g}",
        "overhead_macs": f"{costs['n_ops']:.3g}",
        "pointwise_backward": str(POINTWISE_BACKWARD),
        **{f"reference_{kind}_macs": f"{reference[f'{kind}_macs']:.0f}" for kind in fit_ncnn.KINDS},
        "reference_pointwise_macs": f"{reference['pointwise']:.0f}",
        "reference_grouped_macs": f"{reference['grouped']:.0f}",
        "reference_moved": f"{reference['moved']:.0f}",
        "reference_ops": f"{reference['n_ops']:.0f}",
    }


UNIT = (
    "efficiency: MAC/s of a kind over MAC/s of the reference network; overhead_macs: MACs at the latter rate for a call"
    " of a layer; moved_macs: the same for an element of activations read or written; pointwise_backward: time of a"
    " backward pass over that of a forward pass; reference_*: amounts in the reference network for one sample"
)


def write(name: str, header: dict[str, str], row: dict[str, str]) -> None:
    """Write a cost profile."""
    lines = [*(f"# {key}: {text}" for key, text in header.items()), ",".join(row), ",".join(row.values())]
    (HERE / "costs" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def main() -> None:
    """Write costs/phones.csv and those of the runtimes."""
    measured = measurements()
    work, seen = work_of(sorted(measured["network"].unique())), typical(measured)
    network, source, before = (
        in_words(left(work, measured, price))
        for left, price in ((left_out, fitted_price), (source_left_out, fitted_price), (left_out, macs))
    )
    fit = measured[measured["source"].isin(SOURCES)]
    header = {
        "what": "what a MAC costs by kind of layer, an element of activations moved, and a layer's call, on any device",
        "source": "measurements/ncnn.csv and the rows of onnxruntime in measurements/runtimes.csv, which name theirs",
        "unit": UNIT,
        "n": f"{fit['network'].nunique()} networks and sizes, {fit['row'].nunique()} rows of"
        f" {fit['source'].nunique()} sources",
        "derived": "by research/profiles/fit_phones.py; pointwise_backward by research/profiles/backward.py. Networks"
        " predicted from the machine's latency of MobileNet-V2, median absolute relative error with its 90 % interval;"
        f" each left out of the fit with its family: {network}; each source left out: {source}; plain MACs: {before};"
        " torch, tflite and pytorch_mobile are in no fit",
        "licence": "facts, stated with their source",
        "caution": "forward passes of single images; ncnn alone ran on phones; grouped convolutions were measured on an"
        " x86 processor only (and in AlexNet); a runtime without kernels for them may need several times as long",
    }
    write("phones", header, profile(of_phones(work, seen), work.loc[REFERENCE]))
    for runtime in RUNTIMES:
        of_it = measured[measured["source"] == runtime]
        table = "phone_runtimes" if of_it["row"].str.contains("phone").any() else "runtimes"
        left = left_out(work, measured, partial(runtime_price, runtime))
        says = in_words(left[left["source"] == runtime])
        grouped = work.loc[of_it["network"].unique(), "grouped"] > 0
        header = {
            "what": "what a MAC costs by kind of layer, an element of activations moved, and a layer's call in"
            f" {runtime}",
            "source": f"the rows of {runtime} in measurements/{table}.csv, which names theirs",
            "unit": UNIT,
            "n": f"{of_it['network'].nunique()} networks, of which {grouped.sum()} have grouped convolutions, on"
            f" {of_it['row'].nunique()} device{'s' * (of_it['row'].nunique() > 1)}",
            "derived": "by research/profiles/fit_phones.py, drawn to what other runtimes say; each network left out"
            f" with its family and predicted from the device's latency of MobileNet-V2: {says}",
            "licence": "facts, stated with their source",
            "caution": "forward passes of single images",
        }
        row = profile(of_runtime(runtime, work, seen), work.loc[REFERENCE])
        if runtime == "torch":
            row["update_macs"] = str(UPDATE_MACS)
            header["unit"] += (
                "; update_macs: MACs for an element that an optimiser's step reads or writes, of 4 a weight with SGD, 9"
                " with momentum, 19 with Adam"
            )
            header["derived"] += "; update_macs by research/profiles/optimisers.py, of an embedding of 50257 x 768"
            header["caution"] += (
                "; update_macs is of tables that no cache holds: with smaller tensors a step takes a fifth (SGD) to a"
                " half (Adam) of it; a backward pass of depthwise 5x5 and 7x7 convolutions takes 6 to 9 forward passes"
                " in oneDNN, and dropout 0.4 of a training step of a 3x3 convolution of 64 channels; neither is priced"
            )
        write(runtime, header, row)


if __name__ == "__main__":
    main()
