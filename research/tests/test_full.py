"""Scenarios of the papers' own sizes: one round of each variant trains on a cut-down copy."""

import math
from pathlib import Path

import pytest
import torch
import yaml

from sfl_sim.engine.experiment import Experiment
from sfl_sim.scenario.load import parse

FULL = sorted((Path(__file__).parents[2] / "scenarios" / "full").glob("*.yaml"))
SMALLER = {"mobilenet_v1": {"name": "lenet5", "cut": 1}, "resnet18": {"name": "resnet8", "cut": 1},
           "vgg11_bn": {"name": "cnn7", "cut": {"by": "random", "values": [1, 2, 3]}}}  # fmt: skip


@pytest.mark.parametrize("file", FULL, ids=lambda file: file.stem)
def test_one_round_of_every_variant_trains_on_a_cut_down_copy(file):
    values = yaml.safe_load(file.read_text())
    clients = min(20, values.get("clients", {}).get("count", 10))
    kept = {key: values["data"][key] for key in ("partition", "test") if key in values["data"]}
    if "min_size" in kept["partition"]:
        kept["partition"]["min_size"] = 1
    if "n_shards" in kept["partition"]:
        kept["partition"]["n_shards"] = 2 * clients
    if "clients" in values:
        values["clients"] |= {"count": clients}
    values |= {
        "repeats": 1,
        "data": {"name": "synthetic", "shape": [3, 16, 16], "train_samples": 20 * clients, "test_samples": 400, **kept},
        "model": SMALLER[values["model"]["name"]],
        "train": values["train"] | {"rounds": 1, "batch_size": 10, "local_epochs": 1},
    }
    for variant in parse(values).variants:
        (last,) = Experiment(variant.scenario, device=torch.device("cpu")).rounds()
        assert math.isfinite(last.row["loss"]), variant.name
