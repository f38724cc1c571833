"""One round in detail: its view, the queue of the server, the Gantt chart, and why it takes so long."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_table import read
from synthetic_run import LABELS, World, write_run

from sfl_sim.metrics.queue import queue_length
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.one_round import (
    CHANGES,
    MAX_CLIENTS,
    UNDER_THE_BAR,
    OneRound,
    gantt,
    help_table,
    path_table,
    server_lanes,
    server_queue,
    service_order,
)
from sfl_sim.report.pages.run import panels


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


@pytest.fixture(scope="module")
def one_label_each(frames: Frames) -> Frames:
    """Client c holds 500 samples of label c."""
    held = [500 * np.eye(len(LABELS), dtype=int)[label] for label in frames.clients["dominant_label"]]
    return replace(frames, clients=frames.clients.assign(label_samples=held))


def test_a_fixed_order_trains_the_labels_in_turn(one_label_each: Frames) -> None:
    view = next(view for view in OneRound(one_label_each).views if view.variant.order == "cyclic")
    served = view.ops[view.ops["node"] == "server"].sort_values("started_s")
    edges_s = np.r_[served["started_s"], view.duration_s]

    work = view.trained(edges_s)

    assert (work > 0).sum().eq(1).all()  # one label at a time ...
    rows = (work > 0).to_numpy().argmax(axis=0)
    assert rows.tolist() == [*range(len(LABELS))] * 8  # ... from the first to the last, once for every mini-batch


def test_in_the_order_of_service_every_job_is_a_column_whenever_it_ran(one_label_each: Frames) -> None:
    view = next(view for view in OneRound(one_label_each).views if view.variant.order == "cyclic")

    (strip,) = service_order(view).data

    n_jobs, n_labels = 8 * len(LABELS), len(LABELS)
    assert list(strip.x) == list(range(n_jobs + 1))
    assert np.array_equal(strip.z, 100 * np.tile(np.eye(n_labels), n_jobs // n_labels))
    assert list(strip.y) == list(view.label_samples)


def test_the_strip_shares_the_time_axis_of_the_queue_and_names_the_labels(one_label_each: Frames) -> None:
    view = OneRound(one_label_each).views[1]
    figure = server_queue(view, view.duration_s, most_waiting=9)
    (strip,) = figure.select_traces({"type": "heatmap"})

    z = np.asarray(strip.z)
    assert strip.xaxis is None  # that of the queue
    assert set(z.sum(axis=0).round()) <= {0, 100}  # the server idles, or all that it trains has a label
    assert (z > 0).any(axis=1).all()
    assert list(figure.layout.yaxis2.tickvals) == list(view.label_samples.columns)
    assert sorted(view.label_samples.columns) == sorted(LABELS)


def test_where_a_fast_server_blurs_the_labels_the_queue_stands_alone(one_label_each: Frames) -> None:
    view = next(view for view in OneRound(one_label_each).views if view.variant.order == "cyclic")
    served = view.training
    sweep, turn = np.divmod(np.arange(len(served)), len(LABELS))
    ops = view.ops.copy()
    ops.loc[served.index, "started_s"] = sweep * view.duration_s / 8 + turn * 1e-6  # all labels in an instant, 8 times
    ops.loc[served.index, "ended_s"] = ops.loc[served.index, "started_s"] + 1e-6
    fast = replace(view, ops=ops)

    assert not list(server_queue(fast, view.duration_s, most_waiting=9).select_traces({"type": "heatmap"}))
    assert list(service_order(fast).select_traces({"type": "heatmap"}))  # by jobs they can still be told apart


def test_the_caption_speaks_of_labels_above_only_where_there_are_any(frames: Frames, one_label_each: Frames) -> None:
    def caption(told: Frames) -> str:
        return next(panel.caption for panel in panels(told) if panel.title == "The server's queue")

    assert "labels of the same jobs" in caption(one_label_each)
    assert "labels" not in caption(frames)


def test_ticks_of_many_labels_are_thinned(one_label_each: Frames) -> None:
    view = OneRound(one_label_each).views[1]
    many = pd.DataFrame(1, index=view.label_samples.index, columns=[f"label {label}" for label in range(200)])

    figure = server_queue(replace(view, label_samples=many), view.duration_s, most_waiting=9)

    assert len(figure.layout.yaxis2.tickvals) < 15
    assert figure.layout.height < 400


def test_clients_of_unknown_labels_leave_the_queue_alone(frames: Frames) -> None:
    view = OneRound(frames).views[1]

    assert not list(server_queue(view, view.duration_s, most_waiting=9).select_traces({"type": "heatmap"}))


JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=25).map(
    lambda rows: pd.DataFrame(
        {"started_s": [start for start, _ in rows], "ended_s": [start + length for start, length in rows]}, dtype=float
    )
)


@settings(max_examples=80)
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


def test_the_table_says_what_the_path_is_made_of_and_who_is_on_it_and_who_is_not(eight: Frames) -> None:
    views = [view for view in OneRound(eight).views if view.critical.slack_s.any()]

    assert views
    for view, row in zip(views, read(path_table(views)).values(), strict=True):
        found = view.critical
        *parts, most_on_it, slack, most_slack = row.values()
        percents = [float(share.removesuffix(" %")) for _, share in parts if share]
        assert sum(percents) == pytest.approx(100, abs=len(percents) / 2)
        assert most_on_it[0].startswith(f"{view.names[found.seconds_by('client').drop(-1).idxmax()]}:")
        assert most_slack[0] == view.names[found.slack_s.idxmax()]
        assert slack[1] == f"0 s to {most_slack[1]}"


def test_where_nobody_has_slack_nobody_has_most(frames: Frames) -> None:
    view = OneRound(frames).views[0]
    alone = replace(view, ops=view.ops[view.ops["client"].isin([view.critical.path["client"].iloc[0], -1])])

    (row,) = read(path_table([alone])).values()

    assert row["Median slack"] == ("0 s", "no client has any")
    assert row["Most slack"] == ("–", "")


def test_what_would_help_is_told_where_the_run_knows(folder: Path) -> None:
    frames = merge([load(folder)])
    name = frames.variants[0].name
    after_s = [60.0, 100.0, 99.99, 80.0, 103.0, 90.0]
    speedups = {
        "variant": name,
        "seed": 0,
        "round": 2,
        "change": list(CHANGES)[:6],
        "before_s": 100.0,
        "after_s": after_s,
    }

    before = help_table(OneRound(frames).views)
    pd.DataFrame(speedups).to_parquet(folder / "speedups.parquet")
    table = help_table(OneRound(frames).views)
    assert table
    (row,) = read(table).values()

    assert before is None
    assert row["As it is"] == ("1 min 40 s", "round 2")
    assert [row[title][1] for title in list(CHANGES.values())[:6]] == [
        "−40.0 %, most", "no change", "no change", "−20.0 %", "+3.0 %", "−10.0 %",
    ]  # fmt: skip


def test_the_panel_follows_the_gantt_chart(frames: Frames) -> None:
    titles = [panel.title for panel in panels(frames)]

    assert titles.index("Why a round takes so long") == titles.index("One round, operation by operation") + 1
