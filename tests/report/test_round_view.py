from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sfl_sim.metrics.queue import queue_length
from sfl_sim.report.round_view import round_views

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames


def test_only_a_fixed_order_holds_the_server(frames: Frames) -> None:
    held_s = {v.variant.order: (v.held["ended_s"] - v.held["started_s"]).sum() for v in round_views(frames)}

    assert held_s["fcfs"] == 0
    assert held_s["cyclic"] > 1


def test_times_are_those_of_the_round(frames: Frames) -> None:
    for view in round_views(frames):
        assert view.ops["requested_s"].min() == 0
        assert view.ops["ended_s"].max() == pytest.approx(view.duration_s)


def test_the_mean_queue_is_its_integral_over_the_run(frames: Frames) -> None:
    view = round_views(frames)[1]
    queue = queue_length(view.variant.ops(["requested_s", "started_s", "ended_s"], node="server"))
    run_s = frames.rounds.query("variant == @view.variant.label and seed == @view.variant.seed")["ended_s"].max()

    integral = (queue["waiting"] * -queue["time_s"].diff(-1)).sum()

    assert view.mean_waiting == pytest.approx(integral / run_s)
