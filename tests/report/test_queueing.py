"""Which label the server trains when, above its queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from synthetic_run import LABELS

from sfl_sim.report.pages.one_round import OneRound, server_queue, service_order
from sfl_sim.report.pages.run import panels

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames


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
