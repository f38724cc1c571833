"""Predicted times of networks in torch on the machine that runs this, after calibration with sfl-sim devices measure.

    python -m research.profiles.own_networks            from the rows in profiles/measurements/own_networks.csv
    python -m research.profiles.own_networks --measure  measures them anew here, in some minutes

Eleven networks on images of 3x32x32 are measured whole and in parts at two cuts, forward passes and steps, with
mini-batches of 1, 4 and 16. Two ways to predict: with costs fitted to all other networks, and with costs fitted to the
network's own parts, without the one that is predicted.
"""

import argparse
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.pairs import publish
from research.profiles.fit_phones import HERE
from sfl_sim.features.devices.fit import calibrate_devices
from sfl_sim.features.devices.measure import measure
from sfl_sim.scenario.load import parse

RESULTS = Path(__file__).parent / "results"
ROWS = HERE / "measurements" / "own_networks.csv"
NETWORKS = ("lenet5", "cnn_small", "cnn8", "mobilenet_v1", "mobilenet_v2", "resnet8", "resnet18", "vgg11_bn",
            "densenet121", "vit_s16", "mlp")  # fmt: skip
BATCHES = (1, 4, 16)
HEADER = (
    "# what: seconds of networks and of their parts on one machine, and the work that is priced\n"
    "# source: measured for this project by research/profiles/own_networks.py with sfl-sim devices measure, torch"
    " {torch}, {threads} threads of a virtual machine (AMD EPYC)\n"
    "# unit: ms of a mini-batch; columns of work as sfl-sim devices fit reads them\n"
    "# caution: one machine, whose own times differ by up to a half between runs of small networks\n"
)


def measured() -> None:
    """Write `ROWS`."""
    tables = []
    for name in NETWORKS:
        values = {"data": {"name": "synthetic", "shape": [3, 32, 32], "train_samples": 64}, "model": {"name": name},
                  "clients": {"count": 2}, "train": {"rounds": 1}}  # fmt: skip
        network = parse({**values, "method": "fedavg"}).variants[0].scenario
        with tempfile.NamedTemporaryFile("w+", suffix=".csv") as file:
            n_layers = _n_layers(name)
            cuts = sorted({max(1, n_layers // 3), max(1, 2 * n_layers // 3)})
            measure(network, file, machine="vm", cuts=cuts, batches=BATCHES, device=torch.device("cpu"), notify=print)
            file.flush()
            tables.append(pd.read_csv(file.name, dtype=str))
    table = pd.concat(tables).drop(columns=["spread", "runs"])
    header = HEADER.format(torch=torch.__version__, threads=torch.get_num_threads())
    ROWS.write_text(header + table.to_csv(index=False), encoding="utf-8")


def _n_layers(name: str) -> int:
    from sfl_sim.models.zoo import network

    return len(network(name, (3, 32, 32), 10))


def _calibrated(rows: pd.DataFrame, cost: str = "phones") -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rows.csv")
        rows.to_csv(table, index=False)
        found = calibrate_devices(table, cost).rows
    told = rows.reset_index(drop=True)
    return pd.concat([told[["network", "part", "batch"]], found[["kind", "measured_ms", "unseen_ms"]]], axis="columns")


def factor(errors) -> str:
    """Say a median and the largest of factors by which times are wrong."""
    sizes = np.exp(np.abs(errors))
    return f"{np.median(sizes):.2f} (at most {np.max(sizes):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        measured()
    rows = pd.read_csv(ROWS, comment="#", dtype=str).fillna("")
    rows = rows[rows[[column for column in rows.columns if column.endswith("_macs")]].astype(float).sum(axis=1) > 0]
    ways = {
        "costs fitted to the other networks": _calibrated(rows.reset_index(drop=True)),
        "costs fitted to its own parts": pd.concat(
            [_calibrated(own.reset_index(drop=True)) for _, own in rows.groupby("network", sort=False)],
            ignore_index=True,
        ),
    }
    table = []
    for way, found in ways.items():
        error = np.log(found["unseen_ms"] / found["measured_ms"])
        of_whole = error[found["part"] == "whole"].groupby([found["network"], found["kind"], found["batch"]]).median()
        pairs = [
            each[one] - each[other]
            for _, each in of_whole.groupby(["kind", "batch"])
            for each in [each.droplevel(["kind", "batch"]).dropna()]
            for one, other in combinations(each.index, 2)
        ]
        wide = of_whole.unstack("batch")
        table.append({
            "way": way, "a row": factor(error.dropna()), "ratio of two networks": factor(pairs),
            "an image in a mini-batch of 1 over one of 16": factor((wide["1"] - wide["16"]).dropna()),
            "part-1's share of a cut": factor(_shares(found).dropna()),
        })  # fmt: skip
    publish("own_networks", table, RESULTS)
    publish("own_networks_batches", _batches(ways["costs fitted to its own parts"]), RESULTS)


def _shares(found: pd.DataFrame) -> pd.Series:
    """Error of part-1's share, in the logarithm: parts of one cut follow each other in the table."""
    parts = found[found["part"].isin(["part-1", "part-2"])].reset_index(drop=True)
    key = [
        parts["network"],
        parts["batch"],
        parts["kind"],
        parts.groupby(["network", "batch", "kind", "part"]).cumcount(),
    ]
    wide = parts.set_index([*key, "part"])[["measured_ms", "unseen_ms"]].unstack("part")
    share = {what: wide[what]["part-1"] / wide[what].sum(axis=1) for what in ("measured_ms", "unseen_ms")}
    return np.log(share["unseen_ms"] / share["measured_ms"])


def _batches(found: pd.DataFrame) -> list[dict[str, object]]:
    """Time per image in a mini-batch of 1 over that in one of 16, measured and predicted, by network."""
    wide = found[found["part"] == "whole"].set_index(["network", "kind", "batch"])[["measured_ms", "unseen_ms"]]
    wide = wide.unstack("batch")
    rows = []
    for network, kind in wide.index:
        per_image = {what: 16 * wide.loc[(network, kind), (f"{what}_ms", "1")] for what in ("measured", "unseen")}
        if np.isfinite(per_image["measured"]):
            ratios = {w: round(ms / wide.loc[(network, kind), (f"{w}_ms", "16")], 2) for w, ms in per_image.items()}
            rows.append({"network": network, "kind": kind, **ratios})
    return rows


if __name__ == "__main__":
    main()
