"""Fit of the cost profile costs/ncnn.csv to the latencies in measurements/ncnn.csv, and its prediction error.

    python -m research.profiles.fit_ncnn

The model: on every device a network takes time in proportion to `work @ costs`, its MACs by kind and its ops, each at a
cost. The costs are common to all devices; the latency of one network, the reference, gives a device's speed. They are
fitted to the medians over machines of a network's latency relative to the reference: a machine's speed drops out, and
what one machine or one version of ncnn does with one network has no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sfl_sim.system import cost
from sfl_sim.system.profiles import read_table

HERE = Path(__file__).parents[2] / "profiles"
KINDS = list(cost.KINDS)
REFERENCE = "mobilenet_v2"  # the network of devices/ai_benchmark.csv
ROBUST = 0.1  # a network's error, in ln(latency), above which it counts by its size and not by its square

Fit = Callable[[pd.DataFrame, pd.Series], pd.Series]


def measurements() -> pd.DataFrame:
    """Read latencies in ms by machine (device_class, device, num_threads, core_set) and network, NaN if unknown."""
    table = pd.DataFrame(read_table(HERE / "measurements" / "ncnn.csv", [REFERENCE], "measurements").columns)
    return table.set_index(["device_class", "device", "num_threads", "core_set"]).apply(pd.to_numeric)


def clients(latency_ms: pd.DataFrame) -> pd.DataFrame:
    """Select machines that could be clients: phones, edge boards and laptops."""
    return latency_ms.drop(index="server_or_desktop", level="device_class")


def networks() -> pd.DataFrame:
    """Count the MACs by kind and n_ops of one image, by network."""
    import torch

    from research.profiles.ncnn_networks import NETWORKS
    from sfl_sim.models.price import price_of

    work = {}
    for name, (build, side) in NETWORKS.items():
        with torch.device("meta"):  # drawing weights, which do not matter, would take most of the time
            network = build()
        layer, _ = price_of(network.to("meta"), torch.zeros(1, 3, side, side, device="meta"))
        work[name] = {**layer.macs_by_kind, "n_ops": layer.n_ops}
    return pd.DataFrame.from_dict(work, orient="index", columns=[*KINDS, "n_ops"], dtype=float)


def plain(work: pd.DataFrame, relative_latency: pd.Series) -> pd.Series:
    """Return the default costs of sfl-sim, without a fit: every MAC costs the same, and an op nothing."""
    return pd.Series([1.0] * len(KINDS) + [0.0], work.columns)


def fitted(work: pd.DataFrame, relative_latency: pd.Series) -> pd.Series:
    """Fit costs of a MAC of each kind and of an op, none below 0, in average MACs of the reference network.

    The fit is robust least squares of ln(latency). Attention costs the same as dense layers: both are matrix products,
    and as only one network has it, a cost of its own would fit that network's error.

    Args:
        work: MACs by kind and n_ops, one row per network, the reference among them.
        relative_latency: latency of the same networks, 1 for the reference.
    """
    columns = [work["conv"], work["depthwise"], work["dense"] + work["attention"], 1e6 * work["n_ops"]]
    reference_macs = work.loc[REFERENCE, KINDS].sum()
    design = np.column_stack(columns) / reference_macs
    conv, depthwise, matrix, op = least_squares(
        lambda costs: np.log(design @ costs) - np.log(relative_latency),
        np.ones(4),
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=ROBUST,
    ).x
    costs = pd.Series([conv, depthwise, matrix, matrix, 1e6 * op], work.columns)
    return costs * reference_macs / (work.loc[REFERENCE] @ costs)


def relative(latency_ms: pd.DataFrame) -> pd.Series:
    """Compute the median over machines of each network's latency relative to the reference."""
    return latency_ms.div(latency_ms[REFERENCE], axis=0).median()


def left_out(
    work: pd.DataFrame, ratios: pd.Series, latency_ms: pd.DataFrame, fit: Fit, rate_from: list[str]
) -> pd.DataFrame:
    """Predict the latency in ms of every network except the reference on every machine from the other networks.

    Args:
        work: MACs by kind and n_ops, as for `fitted`.
        ratios: relative latencies, as from `relative`, to which `fit` is applied without the predicted network.
        latency_ms: measured latency by machine and network.
        fit: function that fits the costs.
        rate_from: networks whose latencies give a machine's speed by their median, without the predicted one.
    """
    predicted = {}
    for network in work.index.drop(REFERENCE):
        others = work.index.drop(network)
        priced = work @ fit(work.loc[others], ratios[others])
        known = [name for name in rate_from if name != network]
        predicted[network] = priced[network] * latency_ms[known].div(priced[known]).median(axis=1)
    return pd.DataFrame(predicted).where(latency_ms.notna())


def errors(predicted: pd.DataFrame, latency_ms: pd.DataFrame) -> dict[str, float]:
    """Compute quartiles of the absolute relative error and of the machines' rank correlations (Spearman)."""
    error = (predicted / latency_ms - 1).abs().stack().quantile([0.25, 0.5, 0.75]).tolist()
    rank = predicted.corrwith(latency_ms, axis=1, method="spearman").quantile([0.25, 0.5, 0.75]).tolist()
    return dict(zip(["error_25", "error", "error_75", "rank_25", "rank", "rank_75"], error + rank, strict=True))


def main() -> None:
    """Write costs/ncnn.csv."""
    work, latency_ms = networks(), clients(measurements())
    ratios = relative(latency_ms)
    costs = fitted(work, ratios)
    after, before = (
        errors(left_out(work, ratios, latency_ms, fit, [REFERENCE]), latency_ms) for fit in (fitted, plain)
    )
    says = "{error:.3f} ({error_25:.3f} to {error_75:.3f}) and {rank:.3f} ({rank_25:.3f} to {rank_75:.3f})"
    header = {
        "what": "what a MAC costs by kind of layer, and a layer's call, on any device",
        "source": "measurements/ncnn.csv, that is github.com/Tencent/ncnn @a4d2ea1d4422, benchmark/README.md",
        "unit": "efficiency: MAC/s of a kind over MAC/s of the reference network; overhead_macs: MACs at the latter"
        " rate, for a call of a convolution, linear map or attention block; reference_*: MACs by kind and calls of the"
        " reference network for one sample",
        "n": f"{len(work)} networks on {len(latency_ms.index.unique('device'))} phones, edge boards and laptops,"
        f" {len(latency_ms)} rows",
        "derived": "by research/profiles/fit_ncnn.py; each network left out in turn and predicted from the machine's"
        " latency of MobileNet-V2: median absolute relative error, and median rank correlation across networks on a"
        f" machine (quartiles): {says.format(**after)}; of plain MACs {says.format(**before)}",
        "licence": "facts, stated with their source; ncnn is BSD-3-Clause",
        "caution": "forward passes of single images, not training; dense layers are slow with one image, since a batch"
        " would share the loading of weights; 3x3 convolutions are faster than others (Winograd), so a network of"
        " nothing else (VGG) is predicted 2.2 times too slow, and without the vision transformer"
        " the order of networks is no better than by plain MACs; attention is taken to cost what dense layers cost",
    }
    row = {
        "reference_network": f"{REFERENCE} 224x224",
        **{f"{kind}_efficiency": f"{1 / costs[kind]:.3g}" for kind in KINDS},
        "overhead_macs": f"{costs['n_ops']:.3g}",
        **{f"reference_{kind}_macs": f"{work.loc[REFERENCE, kind]:.0f}" for kind in KINDS},
        "reference_ops": f"{work.loc[REFERENCE, 'n_ops']:.0f}",
    }
    lines = [*(f"# {key}: {text}" for key, text in header.items()), ",".join(row), ",".join(row.values())]
    (HERE / "costs" / "ncnn.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
