from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.report.round_view import held_idle, queue_length, round_views

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames

TIME_S = st.integers(0, 30).map(float)  # coarse, so that events coincide
JOBS = st.lists(st.tuples(TIME_S, TIME_S, TIME_S), min_size=1, max_size=25).map(
    lambda rows: pd.DataFrame(np.cumsum(rows, axis=1), columns=["requested_s", "started_s", "ended_s"])
)


@settings(max_examples=80, deadline=None)
@given(JOBS)
def test_the_queue_is_what_counting_at_any_instant_gives(jobs: pd.DataFrame) -> None:
    queue = queue_length(jobs)

    instants_s = np.arange(-0.5, 95.0, 0.5)
    requested_s, started_s, ended_s = (jobs[[column]].to_numpy() for column in jobs)
    waiting = ((requested_s <= instants_s) & (instants_s < started_s)).sum(axis=0)
    serving = ((started_s <= instants_s) & (instants_s < ended_s)).sum(axis=0)
    latest = np.searchsorted(queue["time_s"], instants_s, side="right")
    assert np.array_equal(np.r_[0, queue["waiting"]][latest], waiting)
    assert np.array_equal(np.r_[0, queue["serving"]][latest], serving)


def test_a_server_that_waits_for_an_absent_client_is_held_idle() -> None:
    # It serves one client until 2, then holds the turn until 5, although another waits from 1 on.
    jobs = pd.DataFrame({"requested_s": [0.0, 1.0, 5.0], "started_s": [0.0, 6.0, 5.0], "ended_s": [2.0, 7.0, 6.0]})

    held = held_idle(queue_length(jobs))

    assert held.to_numpy().tolist() == [[2.0, 5.0]]


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
