"""The top of pages: what was simulated, and what a reader must know before believing the rest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_run import ARRIVAL, CYCLIC, FramesOf, World, write_run

from sfl_sim.report.about import setup_in_words, warnings
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import Run, load, settings_by_variant


def test_the_line_of_setup_says_what_was_simulated_and_what_varied() -> None:
    scenario = {
        "name": "run",
        "data": {"name": "digits", "partition": {"kind": "dominant_label", "p": 0.95}},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": {"compute": 1e9, "network": "mobiperf"},
        "train": {"rounds": 15, "lr": 0.05},
        "grid": {
            "server.workers": [1, 2],
            "train.batch_size": [1, 2, 4, 8],
            "clients.network.scale": [1, 2],
            "clients.network.trace": [None, "hsdpa_bus"],
        },
    }

    line = setup_in_words(list(settings_by_variant(scenario).values()), [10, 10])

    parts = dict(part.split(": ") for part in line.split("; "))
    said = {name: part.split(", ") for name, part in parts.items()}
    assert said["Data"][:2] == ["digits", "dominant_label p=0.95 phi=1"]
    assert (said["model"], said["server"][0]) == (["cnn_small", "cut 1"], "workers 1/2")
    assert said["clients"][:3] == ["10", "devices 1e+09 MAC/s", "links mobiperf"]
    assert said["clients"][3:] == ["their rates × 1/2", "trace none/hsdpa_bus"]
    assert said["training"] == ["15 rounds", "mini-batches of several values", "learning rate 0.05"]


def test_numbers_of_clients_are_told_from_the_least_to_the_most() -> None:
    compute = {"macs_per_s": [2.5e8, 495000000.00000006, 1e8]}
    network = {"uplink_bps": [1e6, 1e6, 1e6], "downlink_bps": 1e7}
    scenario = {
        "name": "run",
        "data": {"name": "digits"},
        "clients": {"count": 3, "compute": compute, "network": network},
    }
    line = setup_in_words(list(settings_by_variant(scenario).values()), [3])
    assert "clients: 3, devices 1e+08 to 4.95e+08 MAC/s, uplinks 1e+06 bit/s;" in line


def test_of_a_scenario_that_is_not_understood_nothing_is_said() -> None:
    assert setup_in_words(list(settings_by_variant({"forgotten": 1}).values())) == ""


@pytest.fixture
def run(small_folder: Path) -> Run:
    """Two variants, one seed, four rounds."""
    return load(small_folder)


def with_rounds_of_their_own(run: Run) -> Run:
    scenario = {"name": "doors", "train": {"rounds": 30}, "grid": {"train.rounds": [10, 20]}}
    summary = run.summary.assign(variant=["rounds=10", "rounds=20"])
    return replace(run, scenario=scenario, summary=summary, manifest=run.manifest | {"status": "interrupted"})


def changed(column: str, value: float, variant: str, rounds: list[int]) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        rows = (run.rounds["variant"] == variant) & run.rounds["round"].isin(rounds)
        return replace(run, rounds=run.rounds.assign(**{column: run.rounds[column].mask(rows, value)}))

    return change


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda run: replace(run, summary=run.summary.assign(stopped=["60 s have passed", None])),
         [ARRIVAL, "seed 0", "4 rounds", "60 s have passed"]),
        (lambda run: replace(run, manifest=run.manifest | {"status": "interrupted"}), ["interrupted", "4 of 30"]),
        (with_rounds_of_their_own, ["interrupted", "4 of 10 or 20"]),
        (changed("loss", np.nan, CYCLIC, [3, 4]), [CYCLIC, "seed 0", "round 3"]),
        (changed("skipped", 2.0, CYCLIC, [3, 4]), [CYCLIC, "seed 0", "4 updates", "round 3", "train.on_nan"]),
        (lambda run: replace(run, manifest=run.manifest | {"notes": ["data.partition: no client holds a sample of 1"]}),
         ["data.partition: no client holds a sample of 1"]),
    ],
)  # fmt: skip
def test_it_is_warned_of_what_happened_to_which_trial(run: Run, change: Callable[[Run], Run], facts: list[str]) -> None:
    (warning,) = warnings(replace(merge([run]), runs=[change(run)]))
    assert [fact for fact in facts if fact not in warning] == []
    assert warning.startswith("heterogeneous_bw: " if "doors" not in change(run).name else "doors: ")


def test_what_two_runs_are_warned_about_alike_is_said_once(tmp_path: Path, small: World) -> None:
    worlds = [replace(small, name=name, trained=False) for name in ("one", "two")]

    (warning,) = warnings(merge([load(write_run(tmp_path / world.name, world)) for world in worlds]))

    assert warning.startswith("one, two: timing-only.")


@pytest.mark.parametrize(("rule", "is_read"), [("window_ratio", True), ("fixed", False)])
def test_a_timing_only_run_tells_where_a_rule_had_no_norm_to_read(
    frames_of: FramesOf, small: World, rule: str, is_read: bool
) -> None:
    (run,) = frames_of(replace(small, trained=False)).runs
    options: list[dict[str, Any]] = [{"proportion": rule, "p0": 0.01}, {}] * (len(run.summary) // 2)

    (warning,) = warnings(merge([replace(run, summary=run.summary.assign(method_options=options))]))

    assert ("p0 = 0.01" in warning) is is_read


def test_variants_that_failed_are_named_with_their_errors_and_the_rest_is_told(run: Run) -> None:
    failed = [
        {"variant": ARRIVAL, "seed": 0, "round": 5, "error": "RuntimeError: <b>no</b>"},
        *({"variant": f"variant {i}", "seed": 0, "round": 1, "error": "killed"} for i in range(9)),
    ]

    first, second, *_, last = warnings(
        merge([replace(run, manifest=run.manifest | {"status": "failed"} | {"failed": failed})])
    )

    for warning, facts in (
        (first, [ARRIVAL, "seed 0", "RuntimeError: <b>no</b>", "4 rounds"]), (second, ["variant 0", "killed"]),
        (last, ["5 more", "manifest.json"]),
    ):  # fmt: skip
        assert [fact for fact in facts if fact not in warning] == []


def test_a_complete_run_warns_of_nothing(frames: Frames) -> None:
    assert warnings(frames) == []
