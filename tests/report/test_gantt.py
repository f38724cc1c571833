from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import World, write_run

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.one_round import MAX_CLIENTS, UNDER_THE_BAR, OneRound, gantt, server_lanes

if TYPE_CHECKING:
    from pathlib import Path

JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=25).map(
    lambda rows: pd.DataFrame(
        {"started_s": [start for start, _ in rows], "ended_s": [start + length for start, length in rows]}, dtype=float
    )
)


@settings(max_examples=80, deadline=None)
@given(JOBS)
def test_jobs_on_one_lane_do_not_overlap_and_no_lane_is_wasted(jobs: pd.DataFrame) -> None:
    lanes = server_lanes(jobs)

    for _, rows in jobs.groupby(lanes):
        rows = rows.sort_values("started_s")
        assert (rows["ended_s"].iloc[:-1].to_numpy() <= rows["started_s"].iloc[1:].to_numpy()).all()
    at_once = [((jobs["started_s"] <= t) & (t < jobs["ended_s"])).sum() for t in jobs["started_s"]]
    assert lanes.nunique() == max(at_once, default=0)


def test_the_bars_of_a_resource_last_as_long_as_its_operations(frames: Frames) -> None:
    view = OneRound(frames).views[0]
    figure = gantt(frames, view, until_s=100.0)  # below two minutes: the axis is in seconds

    for name, node in (("device", "client"), ("uplink", "uplink"), ("server", "server")):
        (trace,) = figure.select_traces({"name": name})
        ops = view.ops[view.ops["node"] == node]
        assert np.nansum(np.diff(trace.x)) == pytest.approx((ops["ended_s"] - ops["started_s"]).sum(), rel=1e-3)


def test_clients_stand_in_the_cyclic_order(frames: Frames) -> None:
    view = OneRound(frames).views[1]
    position = frames.labels.query("seed == @view.variant.seed").drop_duplicates("label").set_index("label_name")

    _, *lanes = gantt(frames, view, until_s=100.0).layout.yaxis.ticktext

    assert position.loc[[text.split(", ")[0] for text in lanes], "position"].tolist() == list(range(10))


def test_the_critical_path_is_a_line_under_bars_from_the_start_of_the_round_to_its_end(frames: Frames) -> None:
    view = OneRound(frames).views[1]
    figure = gantt(frames, view, until_s=100.0)

    (line,) = figure.select_traces({"name": "critical path"})

    assert line.x[0] == 0
    assert line.x[-1] == pytest.approx(view.duration_s)
    assert np.diff(line.x)[::2].sum() == pytest.approx(view.duration_s, rel=1e-5)
    assert np.abs(np.diff(line.x)[1::2]).max() == 0  # it goes over to another lane in no time
    lanes = {text.split(", client ")[1].split()[0]: lane for lane, text in enumerate(figure.layout.yaxis.ticktext[1:])}
    clients = {int(client) for client, lane in lanes.items() if np.isclose(line.y - lane, UNDER_THE_BAR).any()}
    assert clients == set(view.critical.path["client"]) - {-1}


def test_a_large_fleet_is_shown_in_part(tmp_path: Path, small: World) -> None:
    frames = merge([load(write_run(tmp_path / "run", replace(small, clients=MAX_CLIENTS + 9, rounds=1)))])

    figure = gantt(frames, OneRound(frames).views[0], until_s=10.0)

    assert len(figure.layout.yaxis.ticktext) == 1 + MAX_CLIENTS


def test_assistants_stand_below_those_who_train_and_what_waits_for_them_is_drawn(frames: Frames) -> None:
    view = OneRound(frames).views[0]
    trainees, asked = view.ops["client"] < 5, view.ops["client"] >= 5
    answered = view.ops[asked & (view.ops["node"] == "uplink")].assign(kind="knowledge")
    later = view.ops.assign(
        requested_s=view.ops["requested_s"].where(view.ops["node"] != "server", view.ops["ended_s"])
    )
    helped = replace(view, ops=pd.concat([later[trainees], answered]))

    figure = gantt(frames, helped, until_s=100.0)

    _, *lanes = figure.layout.yaxis.ticktext
    assert [text.startswith("<i>") for text in lanes] == [False] * 5 + [True] * 5
    (waiting,) = figure.select_traces({"name": "waiting for assistants"})
    jobs = helped.ops[helped.ops["node"] == "server"]
    assert np.nansum(np.diff(waiting.x)) >= (jobs["ended_s"] - jobs["started_s"]).sum() * 0.999
    assert not list(gantt(frames, view, until_s=100.0).select_traces({"name": "waiting for assistants"}))
