"""The HARMONY study: its verdicts know their scenarios' variants, and read accuracies off stored answers."""

import json
from pathlib import Path

import pandas as pd
import pytest

from research.harmony import verdicts
from research.harmony.answered import Answered
from sfl_sim.scenario.concerns import NOT_LEARNED, values_except
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import load, training

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "harmony"
WITH_EXITS = set(verdicts.METHODS.values()) - {"splitfed_v1"}
DRIFTING = [
    f"out_of_client, drift={drift}, {verdicts.METHODS[name]}"
    for drift in ("false", "true")
    for name in ("multi-exit", "SplitGP .9", "SplitGP .2", "HARMONY")
]


@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("table", verdicts.METHODS.values()),
        ("ablation", (verdicts.WITHOUT | verdicts.RAW | verdicts.EQUAL).values()),
        ("cifar10", WITH_EXITS),
        ("fifty", WITH_EXITS),
        ("drift", DRIFTING),
    ],
)
def test_every_variant_that_is_judged_is_run(scenario, wanted):
    assert {variant.name for variant in load(SCENARIOS / f"{scenario}.yaml").variants} == set(wanted)


def test_the_models_that_are_served_are_those_of_the_table():
    def learned(scenario):
        found = [variant.scenario for variant in training(load(SCENARIOS / f"{scenario}.yaml")).variants]
        return {repr(values_except(one, {*NOT_LEARNED, Concern.SYSTEM, "serving"})) for one in found}

    assert learned("load") < learned("table")


@pytest.fixture
def answered(tmp_path):
    """Two seeds of one client with two own labels, on which device or server alone is right, and two unseen ones."""
    rows = [
        {"variant": "a", "seed": seed, "client": 0, "sample": 10 * label + i, "label": label, "seen": label < 2,
         "entropy": 0.3 if label < 2 else 1.5, "device_correct": label < 2, "server_correct": i < 3 + seed}
        for seed in (0, 1)
        for label in range(4)
        for i in range(10 if label < 2 else 5)
    ]  # fmt: skip
    others = [row | {"client": 1, "seen": row["label"] >= 2} for row in rows]  # so that every label is somebody's
    pd.DataFrame(rows + others).to_parquet(tmp_path / "answers.parquet")
    (tmp_path / "manifest.json").write_text('{"status": "complete"}')
    summary = {"variants": [{"name": "a", "seed": seed} for seed in (0, 1)]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return Answered(tmp_path)


def test_accuracies_are_means_over_clients_at_the_best_thresholds(answered):
    """At rho .5 client 0 has ten samples of unseen labels and client 1 four; the server has 3 or 4 in 5 right.

    Each does best to answer the labels below 2 itself.
    """
    (own,), (most,) = (answered.accuracy({"a": "a"}, rho).values() for rho in (0.0, 0.5))
    assert own == pytest.approx([(100 + 60) / 2, (100 + 80) / 2])
    assert most == pytest.approx([100 * ((20 + 2 * right) / 30 + (4 + 2 * right) / 14) / 2 for right in (3, 4)])


def test_device_and_server_are_told_apart_on_own_and_unseen_labels(answered):
    parts = answered.parts({"a": "a"})["a"]
    assert parts.loc[0, ("device_correct", True)] == pytest.approx((100 + 0) / 2)
    assert parts.loc[0, ("server_correct", False)] == pytest.approx((60 + 30) / 2)
