"""The top of pages: what was simulated, and what a reader must know before believing the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic_run import FramesOf, World, write_run

from sfl_sim.report.about import setup_in_words, warnings
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load, settings_by_variant

if TYPE_CHECKING:
    from pathlib import Path


def test_the_line_of_setup_says_what_was_simulated_and_what_varied() -> None:
    scenario = {
        "name": "run",
        "data": {"name": "digits", "partition": {"kind": "dominant_label", "p": 0.95}},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": {"compute": 1e9, "network": "mobiperf"},
        "train": {"rounds": 15, "lr": 0.05},
        "grid": {"server.workers": [1, 2], "train.batch_size": [1, 2, 4, 8]},
    }

    line = setup_in_words(list(settings_by_variant(scenario).values()), [10, 10])

    assert line.startswith("Data: digits, dominant_label p=0.95")
    assert "model: cnn_small, cut 1; clients: 10, devices 1e+09 MAC/s, links mobiperf;" in line
    assert "server: workers 1/2" in line
    assert "training: 15 rounds, mini-batches of several values, learning rate 0.05" in line


def test_of_a_scenario_that_is_not_understood_nothing_is_said() -> None:
    assert setup_in_words(list(settings_by_variant({"forgotten": 1}).values())) == ""


def test_what_two_runs_are_warned_about_alike_is_said_once(tmp_path: Path, small: World) -> None:
    worlds = [replace(small, name=name, trained=False) for name in ("one", "two")]

    (warning,) = warnings(merge([load(write_run(tmp_path / world.name, world)) for world in worlds]))

    assert warning.startswith("one, two: timing-only.")


def test_a_seed_that_stopped_early_is_told_with_its_reason(frames_of: FramesOf) -> None:
    small = World(variants=World().variants[:1], seeds=(0, 1), clients=3, rounds=4)
    frames = frames_of(small)
    (run,) = frames.runs
    summary = run.summary.assign(stopped=["60 s have passed", None])
    (warning,) = warnings(merge([replace(run, summary=summary)]))
    assert "with seed 0 stopped after 4 rounds: 60 s have passed. Its accuracy" in warning


@pytest.mark.parametrize(("rule", "is_read"), [("window_ratio", True), ("fixed", False)])
def test_a_timing_only_run_tells_where_a_rule_had_no_norm_to_read(
    frames_of: FramesOf, small: World, rule: str, is_read: bool
) -> None:
    (run,) = frames_of(replace(small, trained=False)).runs
    options = [{"proportion": rule, "p0": 0.01}, {}] * (len(run.summary) // 2)

    (warning,) = warnings(merge([replace(run, summary=run.summary.assign(method_options=options))]))

    assert ("stays at p0 = 0.01, since its rule reads a gradient norm" in warning) is is_read


def test_an_interrupted_run_warns_how_far_it_came(frames_of: FramesOf, small: World) -> None:
    (warning,) = warnings(frames_of(replace(small, status="interrupted")))

    assert warning.startswith("heterogeneous_bw: interrupted after round 4 of 30.")


def test_variants_with_rounds_of_their_own_are_interrupted_before_those(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, status="interrupted"))
    scenario = {"name": "doors", "train": {"rounds": 30}, "grid": {"train.rounds": [10, 20]}}
    summary = frames.runs[0].summary.assign(variant=["rounds=10", "rounds=20"])
    (warning,) = warnings(replace(frames, runs=[replace(frames.runs[0], scenario=scenario, summary=summary)]))
    assert "interrupted after round 4 of 10 or 20." in warning


def test_variants_that_failed_are_named_with_their_errors_and_the_rest_is_told(
    frames_of: FramesOf, small: World
) -> None:
    (run,) = frames_of(replace(small, status="failed")).runs
    known, seed = run.rounds[["variant", "seed"]].iloc[0]
    failed = [
        {"variant": known, "seed": int(seed), "round": 5, "error": "RuntimeError: <b>no</b>"},
        *({"variant": f"variant {i}", "seed": 0, "round": 1, "error": "killed"} for i in range(9)),
    ]

    first, second, *_, last = warnings(merge([replace(run, manifest=run.manifest | {"failed": failed})]))

    rounds = len(run.rounds[(run.rounds["variant"] == known) & (run.rounds["seed"] == seed)])
    assert f"{known} with seed {seed} failed: RuntimeError: <b>no</b>. " in first
    assert first.endswith(f"What follows has its first {rounds} rounds.")
    assert second == "heterogeneous_bw: variant 0 with seed 0 failed: killed. It is not shown."
    assert last == "heterogeneous_bw: 5 more failed; manifest.json lists them all."


def test_labels_that_no_client_holds_are_named_once_a_seed(frames_of: FramesOf, small: World) -> None:
    (run,) = frames_of(small).runs
    counts = [np.array([3, 0] + [1] * (run.labels["label"].nunique() - 2))] * len(run.clients)
    name = run.labels.set_index("label")["label_name"][1].iloc[0]

    found = warnings(merge([replace(run, clients=run.clients.assign(label_samples=counts))]))

    assert [text.partition(" with ")[2] for text in found] == [
        f"seed {seed} holds a training sample of {name}." for seed in run.clients["seed"].unique()
    ]


def test_a_complete_run_warns_of_nothing(frames: Frames) -> None:
    assert warnings(frames) == []


def test_updates_that_were_skipped_are_warned_about(frames: Frames) -> None:
    assert not [text for text in warnings(frames) if "left out" in text]
    run = frames.runs[0]
    rounds = run.rounds.assign(skipped=0.0)
    rounds.loc[
        (rounds["variant"] == "splitfed_v2, cyclic") & (rounds["seed"] == 1) & rounds["round"].isin([3, 4]), "skipped"
    ] = 2.0

    (text,) = (text for text in warnings(replace(frames, runs=[replace(run, rounds=rounds)])) if "left out" in text)
    assert "splitfed_v2, cyclic with seed 1 left out 4 updates" in text
    assert "the first in round 3" in text
