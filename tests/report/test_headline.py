from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic_run import Setting, World, write_run

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.headline import headline, warnings
from sfl_sim.report.load import load

if TYPE_CHECKING:
    from pathlib import Path

FramesOf = Callable[[World], Frames]


@pytest.fixture
def frames_of(tmp_path: Path) -> FramesOf:
    return lambda world: merge([load(write_run(tmp_path / world.name, world))])


def plain(sentence: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", sentence)).replace("\u00a0", " ").replace("● ", "")


def test_it_names_who_reaches_the_target_first(frames: Frames) -> None:
    time_s = frames.summary.groupby("variant")["time_to_accuracy_s"].median().sort_values()

    first = plain(headline(frames)[0])

    assert first.startswith(f"{time_s.index[0]} reaches 70 % accuracy first, after ")
    assert f"the next is {time_s.index[1]} after " in first


def test_it_says_how_many_times_faster_than_the_baseline_that_is(frames: Frames) -> None:
    seconds = {"splitfed_v2, fcfs": 90.0, "splitfed_v2, cyclic": 60.0, "hydra, cyclic": 30.0}
    summary = frames.summary.assign(time_to_accuracy_s=frames.summary["variant"].map(seconds), best_accuracy=0.875)
    relative = summary.assign(reference="splitfed_v2, cyclic")

    absolute, share = (plain(headline(replace(frames, summary=each))[0]) for each in (summary, relative))

    assert ", 3.00× as fast as splitfed_v2, fcfs, the slowest; the next is splitfed_v2, cyclic after 1 min." in absolute
    assert ", 2.00× as fast as splitfed_v2, cyclic, of whose best accuracy the target is 80 %;" in share


def test_of_many_targets_the_first_few_are_told(eight: Frames) -> None:
    targets = eight.summary["variant"].rank(method="dense") / 20  # 5 % to 40 %
    frames = replace(eight, summary=eight.summary.assign(target_accuracy=targets, time_to_accuracy_s=1.0))

    told = [plain(text) for text in headline(frames)]

    assert len([text for text in told if " reaches " in text]) == 3
    assert "5 more targets below." in told


def test_it_says_what_an_order_costs(frames: Frames) -> None:
    """Seed by seed: the clients of one are three times as slow as those of the other."""
    run_s = {"splitfed_v2, fcfs": {0: 100.0, 1: 300.0}, "splitfed_v2, cyclic": {0: 150.0, 1: 330.0}}
    told = [
        run_s.get(name, {}).get(seed, 1.0)
        for name, seed in zip(frames.summary["variant"], frames.summary["seed"], strict=True)
    ]
    frames = replace(frames, summary=frames.summary.assign(simulated_s=told))
    more = (1.5 + 1.1) / 2 - 1  # and not 240 / 200 - 1

    cost, *_ = [plain(text) for text in headline(frames)[1:]]

    assert cost.startswith("With splitfed_v2, serving in cyclic order takes ")
    share = float(re.search(r"takes ([\d.]+) % more simulated time than arrival order", cost)[1])
    assert share == pytest.approx(100 * more, abs=0.6)


def test_an_order_is_compared_whatever_its_settings(frames_of: FramesOf, small: World) -> None:
    bounded = Setting("splitfed_v2, bounded_wait, max_wait_s=10", "splitfed_v2", "bounded_wait", 0.8, 0.1)

    texts = [plain(text) for text in headline(frames_of(replace(small, variants=(*small.variants, bounded))))]

    assert [text.partition(" takes ")[0] for text in texts if " takes " in text] == [
        "With splitfed_v2, serving in cyclic order",
        "With splitfed_v2, serving in bounded_wait order (max_wait_s=10)",
    ]


def test_of_many_orders_the_costliest_of_every_method_is_told(eight: Frames) -> None:
    slow = {"splitfed_v2, label_aware": 3, "hydra, bounded_wait, max_wait_s=10": 2}
    factor = eight.summary["variant"].map(slow).fillna(1)
    frames = replace(eight, summary=eight.summary.assign(simulated_s=factor * eight.summary["simulated_s"]))

    costs = [plain(text) for text in headline(frames) if " takes " in text]

    assert [text.partition(": it takes ")[0] for text in costs] == [
        "With splitfed_v2, the costliest order is label_aware",
        "With hydra, the costliest order is bounded_wait (max_wait_s=10)",
    ]


def test_orders_are_compared_within_one_run_only(tmp_path: Path, small: World) -> None:
    runs = [replace(small, name=variant.name, variants=(variant,)) for variant in small.variants]
    frames = merge([load(write_run(tmp_path / run.name, run)) for run in runs])

    assert not [text for text in headline(frames) if " takes " in text]


def test_orders_are_compared_within_a_method_only(frames_of: FramesOf, small: World) -> None:
    fcfs, _, hydra = World().variants

    assert len(headline(frames_of(replace(small, variants=(fcfs, hydra))))) == 2  # the target is not reached, the best


def test_an_order_that_comes_with_other_clients_is_not_compared(frames: Frames) -> None:
    preset = (frames.clients["variant"] == "splitfed_v2, cyclic") & (frames.clients["client"] >= 5)

    assert len(headline(frames)) == 1 + len(headline(replace(frames, clients=frames.clients[~preset])))


def test_a_target_that_nobody_reaches_gives_way_to_the_best_accuracy(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(small)
    best = frames.summary.groupby("variant")["accuracy"].median().idxmax()

    unreached, most_accurate, *_ = (plain(text) for text in headline(frames))

    assert unreached == "The target of 70 % accuracy is not reached."
    assert most_accurate.startswith(f"{best} ends with the best accuracy, ")


def test_a_single_variant_is_not_compared(frames_of: FramesOf) -> None:
    alone = World(variants=(Setting("hydra, cyclic", "hydra", "cyclic", 0.9, 0.0),), clients=3)

    (sentence,) = headline(frames_of(alone))

    assert re.fullmatch(r"hydra, cyclic reaches 70 % accuracy after .* and \d+ rounds\.", plain(sentence))


def test_a_timing_only_run_speaks_of_time(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False))

    first, *_ = (plain(text) for text in headline(frames))

    assert re.search(r"takes .* of simulated time per round", first)
    assert "timing-only" in warnings(frames)[0]


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
