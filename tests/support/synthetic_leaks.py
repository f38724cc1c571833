"""What a cut gives away, beside the tables of a synthetic run; variants with `cut=3` in their names are cut there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from stored import write_table

PIXELS = bytes(range(16))


def add_leaks(run: Path, ssim: Mapping[str, float], pictures: bool = True) -> Path:
    """Write leakage.parquet, with the similarity of each variant and less after round 1, and a few pictures."""
    trials = [(each["name"], each["seed"]) for each in json.loads((run / "summary.json").read_text())["variants"]]
    leaks = [row for name, seed in trials for row in _figures(name, seed, ssim.get(name, 0.7))]
    write_table(run, "run", "leakage", pd.DataFrame(leaks))
    if pictures:
        drawn = [row for name, seed in trials for row in _pictures(name, seed)]
        write_table(run, "run", "reconstructions", pd.DataFrame(drawn))
    return run


def _cut(name: str) -> int:
    return 3 if "cut=3" in name else 1


def _figures(name: str, seed: int, ssim: float) -> list[dict[str, Any]]:
    values = {
        ("inversion", "ssim"): ssim + 0.01 * seed, ("inversion", "psnr"): 20.0, ("norm", "auc"): 0.6,
        ("dependence", "dcor2_unbiased"): 0.7, ("dependence", "dcor"): 0.9, ("clusters", "accuracy"): 0.95,
        ("nearest", "accuracy"): 0.9, ("commonest label", "accuracy"): 0.2,
    }  # fmt: skip
    found = [(_cut(name), attack, metric, value) for (attack, metric), value in values.items()]
    found += [(0, "mean", "ssim", 0.1), (0, "inversion", "ssim", 0.95)]
    return [
        {"variant": name, "seed": seed, "round": round, "cut": cut, "attack": attack, "client": client,
         "metric": metric, "value": value - 0.1 * (round == 1), "chance": 0.22, "labels_sent": True}
        for cut, attack, metric, value in found for client in (-1, 2) for round in (1, 4)
    ]  # fmt: skip


def _pictures(name: str, seed: int) -> list[dict[str, Any]]:
    return [
        {"variant": name, "seed": seed, "round": 4, "cut": at, "attack": attack, "client": 2, "sample": sample,
         "label": 0, "shape": [1, 4, 4], "original": PIXELS, "drawn": PIXELS[::-1]}
        for at, attack in ((0, "mean"), (0, "inversion"), (_cut(name), "inversion")) for sample in (5, 6)
    ]  # fmt: skip
