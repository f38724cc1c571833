"""Fit of costs/phones.csv to latencies of two runtimes, of a profile for each of five runtimes, and their errors.

    python -m research.profiles.fit_phones

The model: on every device a network takes time in proportion to `work @ costs`: MACs of convolutions, of 1x1, grouped
and depthwise ones, of dense layers and attention, MACs of channels that fill up vectors, elements of activations that
move, weights that a call reads, and calls. The costs are common to all devices and runtimes. Each source's devices are
reduced to one typical device, since they share a runtime and so its errors. Sources are whole networks: ncnn on phones,
boards and laptops; onnxruntime and torch on one x86 core; TFLite and PyTorch Mobile on four phones; and parts of
networks (`parts.py`) in ncnn, onnxruntime, torch and LiteRT, which are sources of their own. `phones` is fitted to
those of ncnn and onnxruntime.

A runtime's own profile is fitted to its sources alone, and drawn to what all other sources say: of a dozen networks one
or two have grouped convolutions, and a fit without that pull would follow the error of each. What `parts.py` leaves out
is in no fit, nor are these networks of its list as torch and onnxruntime ran them at 224 pixels.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from research.profiles.ncnn_networks import HERE, REFERENCE, clients
from research.profiles.ncnn_networks import measurements as of_ncnn
from sfl_sim.ops import KINDS, Work
from sfl_sim.system.profiles import read_table

OF_PHONES = ("ncnn", "onnxruntime")  # runtimes to which `phones` is fitted
RUNTIMES = ("tflite", "pytorch_mobile", "ncnn", "onnxruntime", "torch")  # with a profile of their own
ANCHORS = {REFERENCE, "phone mobilenetv2_w1"}
USUAL = {"conv": 1.0, "pointwise": 1.0, "grouped": 1.0, "depthwise": 1.0, "dense": 1.0, "padded": 0.3, "moved": 10.0,
         "weights": 3.0, "n_ops": 1e5}  # fmt: skip
"""Costs in MACs, to which a fit is drawn with the weight `HOLD` where nothing else tells them."""
COSTS = [*USUAL]
STRANGERS, PARTS = ("mnn", "openvino"), {"tflite": "litert"}
HOLD = 0.03
OF_PARTS = 0.25
"""Weight of parts: of 1, 0.5, 0.25 and 0.12 the largest with which whole networks are told about as well as without."""
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
    wide = clients(of_ncnn())
    wide.index = ["ncnn, " + ", ".join(map(str, row)) for row in wide.index]
    ncnn = wide.rename_axis("row").melt(ignore_index=False, var_name="network", value_name="ms").dropna().reset_index()
    ncnn["network"] = np.where(ncnn["network"] == REFERENCE, REFERENCE, "ncnn " + ncnn["network"])
    found = pd.DataFrame(read_table(HERE / "measurements" / "phone_runtimes.csv", ["relative"], "measurements").columns)
    on_phones = found.assign(
        source=found["runtime"], row=found["runtime"] + ", phone, " + found["phone"],
        network="phone " + found["network"], ms=found["relative"].astype(float),
    )  # fmt: skip
    columns = [*ncnn.columns, "source"]
    return pd.concat([ours[columns], ncnn.assign(source="ncnn"), on_phones[columns], parts()], ignore_index=True)


def parts() -> pd.DataFrame:
    """Read latencies of parts that may be fitted; a mini-batch is a row of its own, as its speed may be another."""
    from research.profiles.parts import FITTED, rows

    found = pd.DataFrame(rows())
    found = found[~found["runtime"].isin(STRANGERS)]
    is_fitted = [name in FITTED[int(side)] for name, side in zip(found["network"], found["side"], strict=True)]
    found = found[is_fitted]
    source = found["runtime"].replace("litert", "tflite") + ", parts"
    network = "part " + found["network"] + " " + found["side"] + " " + found["layers"] + " " + found["batch"]
    return pd.DataFrame({"row": source, "network": network, "ms": found["ms"].astype(float), "source": source})


def to_fit(measured: pd.DataFrame) -> pd.DataFrame:
    """Leave out what is in no fit: networks that `parts.py` leaves out, and TFLite's that had no kernels."""
    from research.profiles.parts import LEFT_OUT

    left = {name for names in LEFT_OUT.values() for name in names}
    is_left = measured["network"].isin(left) & measured["source"].isin(["onnxruntime", "torch"])
    without_kernels = (measured["source"] == "tflite") & measured["network"].str.contains("regnet")  # of 2020
    return measured[~(is_left | without_kernels)]


def family(network: str) -> str:
    """Name what must be left out together: a network in all its widths, sizes and versions."""
    name = network.removeprefix("ncnn ").removeprefix("phone ").removeprefix("part ").removeprefix("wide_")
    name = name.replace("vision_transformer", "vit").replace("mobilenetv", "mobilenet_v").replace("regnetx", "regnet_x")
    name = name.replace("mobilenet_w1", "mobilenet")
    found = re.match(r"mobilenet_v\d|[a-z]+", name)
    return found[0] if found else name


def work_of(networks: list[str]) -> pd.DataFrame:
    """Count the work of one image, by network: the amounts that `COSTS` price, and those of a profile's reference."""
    import torch

    from research.profiles.measure_runtimes import SIDES, build
    from research.profiles.ncnn_networks import NETWORKS
    from research.profiles.parts import works
    from research.profiles.phone_networks import NETWORKS as ON_PHONES
    from sfl_sim.models.part import sample_work
    from sfl_sim.models.price import price_of

    found, of_parts = {}, works() if any(network.startswith("part ") for network in networks) else {}
    for network in networks:
        where, _, name = network.partition(" ") if " " in network else ("", "", network)
        if where == "part":
            name, *numbers = name.split()
            work = of_parts[name, *map(int, numbers)]
        else:
            makers = {
                "": lambda name: (partial(build, name), SIDES.get(name, 224)),
                "ncnn": NETWORKS.__getitem__,
                "phone": lambda name: (ON_PHONES[name], 224),
            }
            make, side = makers[where](name)
            image = torch.zeros(1, 3, side, side, device="meta")
            work = sample_work([price_of(_without_weights(make), image)[0]])
        kinds = dict(zip([f"{kind}_macs" for kind in KINDS], work.by_kind, strict=True))
        found[network] = amounts(work) | kinds | {"macs": work.macs}
    return pd.DataFrame.from_dict(found, orient="index", dtype=float)


def amounts(work: Work) -> dict[str, float]:
    """Give what `COSTS` price of a work."""
    conv, depthwise, dense, attention = work.by_kind
    pointwise, grouped, moved, _ = work.finer
    each = [conv - pointwise - grouped, pointwise, grouped, depthwise, dense + attention, work.padded, moved,
            work.weights, work.n_ops]  # fmt: skip
    return dict(zip(COSTS, each, strict=True))


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

    A source's networks together count as the square root of their number, parts with `OF_PARTS`: they ran beside other
    work, which takes caches away, so that what is read from memory was dearer there. Costs `near` draw those that are
    sought to theirs, relative to a MAC of a 1x1 convolution, with the weight `PULL`.
    """
    size = np.array([*USUAL.values()])
    items = [
        (work.loc[logs.index, COSTS].to_numpy() * size, logs.to_numpy(), _weight(source) / len(logs) ** 0.25)
        for source, logs in seen.items()
        if len(logs) > 1
    ]
    towards = np.zeros(len(COSTS)) if near is None else np.log(near / size).to_numpy()
    hold, anchor = HOLD if near is None else PULL, COSTS.index("pointwise")

    def errors(log_costs: np.ndarray) -> np.ndarray:
        each = [(np.log(amounts @ np.exp(log_costs)) - logs, weight) for amounts, logs, weight in items]
        apart = log_costs - towards
        pull = hold * (apart - apart[anchor])
        return np.concatenate([*(weight * (error - np.median(error)) for error, weight in each), pull])

    found = least_squares(errors, towards, bounds=(-12, 8), loss="soft_l1", f_scale=ROBUST)
    costs = pd.Series(np.exp(found.x) * size, COSTS)
    return costs * work.loc[REFERENCE, "macs"] / (work.loc[REFERENCE, COSTS] @ costs)


def of_phones(work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Fit the costs for an unknown runtime."""
    return fitted(work, {source: logs for source, logs in seen.items() if _runtime(source) in OF_PHONES})


def of_runtime(runtime: str, work: pd.DataFrame, seen: Typical) -> pd.Series:
    """Fit the costs of a runtime, near those of all others."""
    others = fitted(work, {source: logs for source, logs in seen.items() if _runtime(source) != runtime})
    return fitted(work, {source: logs for source, logs in seen.items() if _runtime(source) == runtime}, others)


def _weight(source: str) -> float:
    return OF_PARTS if source.endswith("parts") else 1.0


def _runtime(source: str) -> str:
    return source.removesuffix(", parts")


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
    rows = measured[measured["network"].isin(networks) & measured["row"].isin(per_price.index)]  # no parts
    predicted_ms = prices[rows["network"]].to_numpy() * per_price[rows["row"]].to_numpy()
    return rows.assign(error=predicted_ms / rows["ms"] - 1)


def left_out(work: pd.DataFrame, measured: pd.DataFrame, price: Price) -> pd.DataFrame:
    """Predict every network, and with it all of its family, from prices that were made without it."""
    found, fit = [], to_fit(measured)
    for left in sorted({family(network) for network in work.index} - {family(REFERENCE)}):
        inside = [network for network in work.index if family(network) == left]
        prices = price(work, typical(fit[~fit["network"].isin(inside)]))
        found.append(errors(measured, prices, inside).assign(family=left))
    return pd.concat(found)


def source_left_out(work: pd.DataFrame, measured: pd.DataFrame, price: Price) -> pd.DataFrame:
    """Predict all networks of every source, with its runtime and devices, from prices made of the others."""
    found, fit = [], to_fit(measured)
    for source in sorted({_runtime(source) for source in measured["source"]}):
        prices = price(work, typical(fit[fit["source"].map(_runtime) != source]))
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
    kinds = {"conv": "conv", "pointwise": "pointwise", "grouped": "grouped", "depthwise": "depthwise",
             "dense": "dense", "attention": "dense"}  # fmt: skip
    return {
        "reference_network": f"{REFERENCE} 224x224",
        **{f"{kind}_efficiency": f"{1 / costs[cost]:.3g}" for kind, cost in kinds.items()},
        "padded_macs": f"{costs['padded']:.3g}",
        "moved_macs": f"{costs['moved']:.3g}",
        "weight_macs": f"{costs['weights']:.3g}",
        "overhead_macs": f"{costs['n_ops']:.3g}",
        "pointwise_backward": str(POINTWISE_BACKWARD),
        **{f"reference_{kind}_macs": f"{reference[f'{kind}_macs']:.0f}" for kind in KINDS},
        "reference_pointwise_macs": f"{reference['pointwise']:.0f}",
        "reference_grouped_macs": f"{reference['grouped']:.0f}",
        "reference_padded": f"{reference['padded']:.0f}",
        "reference_moved": f"{reference['moved']:.0f}",
        "reference_weights": f"{reference['weights']:.0f}",
        "reference_ops": f"{reference['n_ops']:.0f}",
    }


UNIT = (
    "efficiency: MAC/s of a kind over MAC/s of the reference network; overhead_macs: MACs at the latter rate for a call"
    " of a layer; moved_macs, weight_macs, padded_macs: the same for an element of activations read or written, for an"
    " element of weights that a call reads (four for a weight of a 3x3 convolution with stride 1 and one group), for a"
    " MAC of channels that fill up vectors of 16; pointwise_backward: time of a backward pass over that of a forward"
    " pass; reference_*: amounts in the reference network for one sample"
)


def write(name: str, header: dict[str, str], row: dict[str, str]) -> None:
    """Write a cost profile."""
    lines = [*(f"# {key}: {text}" for key, text in header.items()), ",".join(row), ",".join(row.values())]
    (HERE / "costs" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def of_shares(costs: pd.Series, runtimes: Sequence[str]) -> str:
    """Say how far the shares of parts of left-out networks are off in runtimes."""
    from research.profiles.parts import judged, told

    def price(runtime: str, work: Work) -> float:
        return sum(costs[what] * amount for what, amount in amounts(work).items())

    says = (
        "{runtime} x {batch} {share, median:.2f} (nine of ten below {share, ninth decile:.2f}; at worst"
        " {share, worst:.2f}: {worst part})"
    )
    return ", ".join(says.format(**row) for row in judged(told(price)) if row["runtime"] in runtimes)


CAUTION = {
    "tflite": "grouped convolutions are those of LiteRT 2.3 with XNNPACK on x86: TFLite of 2020 had no kernels for"
    " them, and took several times as long for a network of them",
    "ncnn": "parts were measured on x86; large dense layers and vision transformers in ncnn are slower than this",
    "torch": "update_macs is of tables that no cache holds: with smaller tensors a step takes a fifth (SGD) to a half"
    " (Adam) of it; a backward pass of depthwise 5x5 and 7x7 convolutions takes 6 to 9 forward passes in oneDNN, and"
    " dropout 0.4 of a training step of a 3x3 convolution of 64 channels; neither is priced",
}


def main() -> None:
    """Write costs/phones.csv and those of the runtimes."""
    measured = measurements()
    work = work_of(sorted(measured["network"].unique()))
    seen = typical(to_fit(measured))
    network, source, before = (
        in_words(left(work, measured, price))
        for left, price in ((left_out, fitted_price), (source_left_out, fitted_price), (left_out, macs))
    )
    fit = to_fit(measured)
    of_them = fit[fit["source"].map(_runtime).isin(OF_PHONES)]
    costs = of_phones(work, seen)
    shares = "Shares that first layers take of networks that no fit has seen are wrong by a factor of: "
    header = {
        "what": "what a MAC costs by kind of layer, an element of activations moved, a weight read and a layer's call,"
        " on any device",
        "source": "measurements/ncnn.csv, the rows of onnxruntime in measurements/runtimes.csv, and of both in"
        " measurements/parts.csv, which name theirs",
        "unit": UNIT,
        "n": f"{of_them['network'].nunique()} networks, parts and sizes, {of_them['row'].nunique()} rows of"
        f" {of_them['source'].nunique()} sources",
        "derived": "by research/profiles/fit_phones.py; pointwise_backward by research/profiles/backward.py. Networks"
        " predicted from the machine's latency of MobileNet-V2, median absolute relative error with its 90 % interval;"
        f" each left out of the fit with its family: {network}; each source left out: {source}; plain MACs: {before};"
        " torch, tflite and pytorch_mobile are in no fit",
        "judged": shares + of_shares(costs, STRANGERS),
        "licence": "facts, stated with their source; ncnn is BSD-3-Clause",
        "caution": "forward passes; ncnn alone ran on phones, and only whole networks; parts and grouped convolutions"
        " were measured on x86 processors; a runtime without kernels for grouped ones may need several times as long",
    }
    write("phones", header, profile(costs, work.loc[REFERENCE]))
    for runtime in RUNTIMES:
        of_it = fit[fit["source"].map(_runtime) == runtime]
        whole = of_it[of_it["source"] == runtime]
        table = {"tflite": "phone_runtimes", "pytorch_mobile": "phone_runtimes", "ncnn": "ncnn"}.get(
            runtime, "runtimes"
        )
        left = left_out(work, measured, partial(runtime_price, runtime))
        grouped = work.loc[of_it["network"].unique(), "grouped"] > 0
        of_parts = "" if len(whole) == len(of_it) else f", and {len(of_it) - len(whole)} parts on one x86 core"
        costs = of_runtime(runtime, work, seen)
        header = {
            "what": "what a MAC costs by kind of layer, an element of activations moved, a weight read and a layer's"
            f" call in {runtime}",
            "source": f"the rows of {runtime} in measurements/{table}.csv"
            f"{' and measurements/parts.csv' * bool(of_parts)}, which name theirs",
            "unit": UNIT,
            "n": f"{whole['network'].nunique()} networks on {whole['row'].nunique()}"
            f" device{'s' * (whole['row'].nunique() > 1)}{of_parts}; {grouped.sum()} have grouped convolutions",
            "derived": "by research/profiles/fit_phones.py, drawn to what other runtimes say; each network left out"
            f" with its family and predicted from the device's latency of MobileNet-V2:"
            f" {in_words(left[left['source'] == runtime])}",
            **({"judged": shares + says} if (says := of_shares(costs, [PARTS.get(runtime, runtime)])) else {}),
            "licence": "facts, stated with their source" + "; ncnn is BSD-3-Clause" * (runtime == "ncnn"),
            "caution": f"forward passes; {CAUTION.get(runtime, 'of single images')}",
        }  # fmt: skip
        row = profile(costs, work.loc[REFERENCE])
        if runtime == "torch":
            row["update_macs"] = str(UPDATE_MACS)
            header["unit"] += (
                "; update_macs: MACs for an element that an optimiser's step reads or writes, of 4 a weight with SGD, 9"
                " with momentum, 19 with Adam"
            )
            header["derived"] += "; update_macs by research/profiles/optimisers.py, of an embedding of 50257 x 768"
        write(runtime, header, row)


if __name__ == "__main__":
    main()
