"""Metrics: the golden values and I17 of METHODS.md, and a breakdown that adds up."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import fleet, simulate, task

from sfl_sim.methods import METHODS
from sfl_sim.metrics.accuracy import backward_transfer, headline, paper_like, performance_gap, way_to
from sfl_sim.metrics.breakdown import breakdown, traffic
from sfl_sim.records import OP_DTYPE

accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=10)


def test_golden_performance_gap_and_backward_transfer():
    assert performance_gap([0.9, 0.5, 0.1]) == pytest.approx(0.4)
    assert backward_transfer(np.array([[0.2, 0.9, 0.8], [0.5, 0.6, 0.7]]).T) == pytest.approx(0)


@given(accuracies)
def test_i17_the_gap_is_best_minus_mean_and_zero_only_if_all_are_equal(accuracy):
    gap = performance_gap(accuracy)
    assert gap == pytest.approx(max(accuracy) - sum(accuracy) / len(accuracy), abs=1e-12)
    assert gap >= -1e-12
    if max(accuracy) - min(accuracy) > 1e-9:
        assert gap > 0


@given(st.lists(accuracies.map(lambda a: (a * 10)[:3]), min_size=2, max_size=6))
def test_i17_labels_that_only_improve_have_no_positive_backward_transfer(history):
    assert backward_transfer(np.sort(np.array(history), axis=0)) <= 1e-12


def test_labels_without_test_samples_do_not_count():
    assert performance_gap([0.9, np.nan, 0.5]) == pytest.approx(0.2)
    assert backward_transfer([[0.9, np.nan], [0.5, np.nan]]) == pytest.approx(0.4)


def run_of(accuracy):
    n = len(accuracy)
    rounds = pd.DataFrame({
        "round": range(1, n + 1), "ended_s": 10.0 * np.arange(1, n + 1), "accuracy": accuracy,
        "performance_gap": 0.1, "bytes_up": 7, "bytes_down": 3,
    })  # fmt: skip
    labels = pd.DataFrame({"round": range(1, n + 1), "label": 0, "accuracy": accuracy})
    return rounds, labels


def test_the_headline_tells_the_last_rounds_and_the_best_one():
    found = headline(*run_of([0.1, 0.5, 0.8, 0.7, 0.9, 0.6]))
    assert found["accuracy"] == pytest.approx(0.7)  # median of the last five
    assert found["best_accuracy"] == 0.9
    assert found["backward_transfer"] == pytest.approx(0.3)


def test_the_way_to_a_target_is_counted_in_rounds_seconds_and_bytes_up_to_the_first_that_reaches_it():
    rounds, _ = run_of([0.1, 0.5, 0.75, 0.7, 0.9, 0.6])
    assert way_to(0.75, rounds) == {
        "target_accuracy": 0.75, "rounds_to_accuracy": 3, "time_to_accuracy_s": 30.0, "bytes_to_accuracy": 30
    }  # fmt: skip


@pytest.mark.parametrize(("target", "accuracy"), [(0.75, [0.1, 0.2]), (None, [0.1, 0.2]), (0.75, [None, None])])
def test_a_target_that_no_round_reaches_is_null(target, accuracy):
    found = way_to(target, run_of(accuracy)[0])
    assert found.pop("target_accuracy") == target
    assert set(found.values()) == {None}


def test_a_timing_only_run_has_no_accuracy():
    assert set(headline(*run_of([None, None])).values()) == {None}


def test_the_paper_like_summary_by_hand():
    """Medians over seeds .2 .4 .3 .5 .6 in the last five rounds; the median of the seeds' own medians would be .3."""
    history = [[0.9, 0.9, 0.9], [0.1, 0.2, 0.6], [0.3, 0.4, 0.5], [0.3, 0.3, 0.9], [0.5, 0.1, 0.6], [0.0, 0.6, 0.7]]
    middle, spread = paper_like(history)
    assert middle == pytest.approx(0.4)
    assert spread == pytest.approx(((4 + 0 + 1 + 1 + 4) / 100 / 4) ** 0.5)


def test_one_round_has_no_spread_over_rounds():
    middle, spread = paper_like([[0.1, 0.5, 0.3]])
    assert middle == 0.3
    assert np.isnan(spread)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("order", ["fcfs", "cyclic"])
def test_the_breakdown_adds_up_to_the_round(name, order):
    world = fleet(3, [1e5, 3e5, 7e5], [1e5, 4e4, 9e4], [3e5, 2e5, 1e5], speedup=2.0)
    _, simulator, rows = simulate(name, task(device=None), 1, order=order, world=world, workers=1)
    spent = breakdown(rows, range(3), 0.0, simulator.now_s)
    assert sum(spent.values()) == pytest.approx(simulator.now_s, rel=1e-9)
    assert min(spent.values()) >= 0


def test_a_breakdown_by_hand():
    """One client: model down, forward, up, server, down, backward, model up, average; nobody to wait for."""
    world = fleet(1, 1e5, 1e5, 2e5)
    _, simulator, rows = simulate("splitfed_v2", task([4], device=None), 1, world=world)
    spent = breakdown(rows, [0], 0.0, simulator.now_s)
    length_s = rows["ended_s"] - rows["started_s"]
    assert spent["device"] == pytest.approx(length_s[rows["node"] == b"client"].sum())
    assert spent["uplink"] == pytest.approx(length_s[rows["node"] == b"uplink"].sum())
    assert spent["aggregate"] == pytest.approx(length_s[rows["kind"] == b"average"].sum())
    assert spent["queue"] == 0
    assert spent["barrier"] == pytest.approx(0, abs=1e-12)


def test_a_fixed_order_turns_barrier_into_queue():
    """The fast client waits at the server for the slow one's turn instead of at the end of the round."""
    world = fleet(2, [1e5, 1e6])
    spent = {}
    for order in ("fcfs", "cyclic"):
        _, simulator, rows = simulate("splitfed_v2", task([12, 12], device=None), 1, order=order, world=world)
        spent[order] = breakdown(rows, [0, 1], 0.0, simulator.now_s)
    assert spent["fcfs"]["queue"] < 0.1 * spent["cyclic"]["queue"]
    assert spent["cyclic"]["barrier"] < 0.5 * spent["fcfs"]["barrier"]


def test_an_instant_of_overlapping_operations_counts_once():
    """Of two clients, the second uploads while it computes; and the server fuses while the first does nothing else."""
    rows = np.zeros(4, OP_DTYPE)
    rows["node"] = [b"client", b"client", b"uplink", b"server"]
    rows["client"] = [0, 1, 1, -1]
    rows["requested_s"] = rows["started_s"] = [10, 10, 14, 12]
    rows["ended_s"] = [13, 16, 18, 15]
    spent = breakdown(rows, [0, 1], 10.0, 20.0)
    expected = {"device": (3 + 6) / 2, "uplink": 2 / 2, "aggregate": 2 / 2, "barrier": (5 + 2) / 2}
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | expected)
    assert sum(spent.values()) == pytest.approx(10)


def test_operations_of_clients_that_take_no_part_are_left_out():
    """Hydra's setup, to which all clients belong."""
    _, simulator, rows = simulate("hydra", task(device=None), 1, clients=[0, 2])
    told = rows[rows["kind"] == b"label counts"]
    assert sorted(told["client"]) == [0, 1, 2]
    ours = rows[rows["client"] != 1]
    found = breakdown(rows, [0, 2], 0.0, simulator.now_s)
    assert found == breakdown(ours, [0, 2], 0.0, simulator.now_s)
    uplink = ours[ours["node"] == b"uplink"]
    assert found["uplink"] == pytest.approx((uplink["ended_s"] - uplink["requested_s"]).sum() / 2)


def test_merged_jobs_are_nobody_s_and_all_wait_for_them():
    *_, rows = simulate("mergesfl", task(device=None), 1)
    jobs = rows[rows["node"] == b"server"]
    spent = breakdown(rows, range(3), 0.0, rows["ended_s"].max())
    own = rows[rows["client"] < 0]
    assert set(jobs["client"]) == {-1}
    assert spent["server"] == spent["queue"] == 0
    assert spent["aggregate"] == pytest.approx((own["ended_s"] - own["requested_s"]).sum())


def test_traffic_counts_messages_between_clients_once():
    *_, rows = simulate("splitnn", task(device=None), 1)
    found = traffic(rows)
    assert found["bytes_up"] + found["bytes_down"] == rows["bytes"].sum()
