"""Scenarios of the papers' own sizes: one round of each variant trains on a cut-down copy."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import sfl_sim

FULL = sorted((Path(__file__).parents[2] / "scenarios" / "full").glob("*.yaml"))
SMALLER = {"mobilenet_v1": {"name": "lenet5", "cut": 1}, "resnet18": {"name": "resnet8", "cut": 1},
           "vgg11_bn": {"name": "cnn7", "cut": {"by": "random", "values": [1, 2, 3]}}}  # fmt: skip


@pytest.mark.parametrize("file", FULL, ids=lambda file: file.stem)
def test_one_round_of_every_variant_trains_on_a_cut_down_copy(file, tmp_path):
    values = yaml.safe_load(file.read_text())
    clients = values.get("clients", {}).get("count", 10)
    kept = {key: values["data"][key] for key in ("partition", "test") if key in values["data"]}
    if "min_size" in kept["partition"]:
        kept["partition"]["min_size"] = 2
    values |= {
        "repeats": 1,
        "data": {"name": "synthetic", "shape": [3, 16, 16], "train_samples": 12 * clients, "test_samples": 40, **kept},
        "model": SMALLER[values["model"]["name"]],
        "train": values["train"] | {"rounds": 1, "batch_size": 4, "local_epochs": 1},
    }
    results = sfl_sim.run(values, out=tmp_path / "run", progress=False)
    assert np.isfinite(results.rounds["loss"].astype(float)).all()
    assert results.rounds["variant"].nunique() == len(results.rounds)
