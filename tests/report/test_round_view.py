from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from synthetic_run import World, write_run

from sfl_sim.metrics.queue import queue_length
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.one_round import OneRound

if TYPE_CHECKING:
    from pathlib import Path


def test_only_a_fixed_order_holds_the_server(frames: Frames) -> None:
    held_s = {v.variant.order: (v.held["ended_s"] - v.held["started_s"]).sum() for v in OneRound(frames).views}

    assert held_s["fcfs"] == 0
    assert held_s["cyclic"] > 1


def test_times_are_those_of_the_round(frames: Frames) -> None:
    for view in OneRound(frames).views:
        assert view.ops["requested_s"].min() == 0
        assert view.ops["ended_s"].max() == pytest.approx(view.duration_s)


def test_the_mean_queue_is_its_integral_over_the_run(frames: Frames) -> None:
    view = OneRound(frames).views[1]
    queue = queue_length(view.variant.rows("ops", ["requested_s", "started_s", "ended_s"], node="server"))
    run_s = frames.rounds.query("variant == @view.variant.label and seed == @view.variant.seed")["ended_s"].max()

    integral = (queue["waiting"] * -queue["time_s"].diff(-1)).sum()

    assert view.mean_waiting == pytest.approx(integral / run_s)


def test_assistants_are_those_who_give_features_and_do_not_train(frames: Frames) -> None:
    view = OneRound(frames).views[0]
    of_a_trainee, of_another = (
        pd.DataFrame(
            {"node": ["downlink", "client", "uplink"], "kind": ["request", "recall", "knowledge"], "client": c}
        )
        for c in (0, 77)
    )

    assert view.assistants == []
    assert replace(view, ops=pd.concat([view.ops, of_a_trainee, of_another])).assistants == [77]


def test_mini_batches_wait_for_features_from_their_arrival_until_the_server_is_asked(frames: Frames) -> None:
    ops = pd.DataFrame(
        [
            ("uplink", "smashed", 0, 3, 1.0, 1.0, 2.0),
            ("server", "train", 0, 3, 7.0, 7.0, 8.0),
            ("uplink", "smashed", 1, 3, 8.0, 8.0, 9.0),  # not served yet
            ("uplink", "knowledge", -1, 4, 5.0, 5.0, 7.0),
        ],
        columns=["node", "kind", "step", "client", "requested_s", "started_s", "ended_s"],
    )
    helped, alone = (
        replace(OneRound(frames).views[0], ops=each).without_features for each in (ops, ops[ops["client"] == 3])
    )

    assert helped[["client", "started_s", "ended_s"]].to_numpy().tolist() == [[3, 2.0, 7.0]]
    assert alone.empty


def test_rounds_that_look_the_same_are_drawn_once(tmp_path: Path, small: World) -> None:
    """Two methods in arrival order differ in what is learned, not in time; the cyclic order differs in time."""
    fcfs, cyclic, _ = World().variants
    world = replace(small, variants=(fcfs, replace(fcfs, name="splitfed_v1", method="splitfed_v1"), cyclic))

    first, second = OneRound(merge([load(write_run(tmp_path, world))])).views

    assert [each.name for each in (first.variant, *first.alike)] == ["splitfed_v2, fcfs", "splitfed_v1"]
    assert "splitfed_v1</b>" in first.html
    assert second.variant.name == "splitfed_v2, cyclic"
    assert not first.looks_like(second)


def test_clients_are_called_by_their_label_and_number(frames: Frames) -> None:
    numbered = replace(frames, labels=frames.labels.assign(label_name=frames.labels["label"].astype(str)))

    assert OneRound(frames).views[0].names[3] == "cat, client 3"
    assert OneRound(numbered).views[0].names[3] == "label 3, client 3"
