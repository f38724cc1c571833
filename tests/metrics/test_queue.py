"""Queue of the server, and its work by label and time, from recorded jobs."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.metrics.queue import held_idle, queue_length, work_by_label

TIME_S = st.integers(0, 30).map(float)  # coarse, so that events coincide
JOBS = st.lists(st.tuples(TIME_S, TIME_S, TIME_S), min_size=1, max_size=25).map(
    lambda rows: pd.DataFrame(np.cumsum(rows, axis=1), columns=["requested_s", "started_s", "ended_s"])
)


@settings(max_examples=80)
@given(JOBS)
def test_the_queue_is_what_counting_at_any_instant_gives(jobs):
    queue = queue_length(jobs)

    instants_s = np.arange(-0.5, 95.0, 0.5)
    requested_s, started_s, ended_s = (jobs[[column]].to_numpy() for column in jobs)
    waiting = ((requested_s <= instants_s) & (instants_s < started_s)).sum(axis=0)
    serving = ((started_s <= instants_s) & (instants_s < ended_s)).sum(axis=0)
    latest = np.searchsorted(queue["time_s"], instants_s, side="right")
    assert np.array_equal(np.r_[0, queue["waiting"]][latest], waiting)
    assert np.array_equal(np.r_[0, queue["serving"]][latest], serving)


def test_a_server_that_waits_for_an_absent_client_is_held_idle():
    # It serves one client until 2, then holds the turn until 5, although another waits from 1 on.
    jobs = pd.DataFrame({"requested_s": [0.0, 1.0, 5.0], "started_s": [0.0, 6.0, 5.0], "ended_s": [2.0, 7.0, 6.0]})

    held = held_idle(queue_length(jobs))

    assert held.to_numpy().tolist() == [[2.0, 5.0]]


HELD = pd.DataFrame({"cat": [30, 0], "dog": [10, 5]})


def jobs(*rows):
    return pd.DataFrame(rows, columns=["client", "started_s", "ended_s", "macs"])


def test_a_jobs_work_goes_to_its_clients_labels_in_the_time_of_its_service():
    work = work_by_label(jobs((0, 1.0, 2.0, 8.0), (1, 2.5, 4.5, 6.0)), HELD, np.array([0.0, 1.5, 3.0, 5.0]))

    assert work.loc["cat"].tolist() == [3.0, 3.0, 0.0]
    assert work.loc["dog"].tolist() == [1.0, 1.0 + 1.5, 4.5]


def test_a_job_of_no_client_is_a_job_of_all():
    work = work_by_label(jobs((-1, 0.0, 1.0, 9.0)), HELD, np.array([0.0, 1.0]))

    assert work[0].to_dict() == {"cat": 6.0, "dog": 3.0}


def test_work_before_and_after_the_given_time_does_not_count_and_work_in_no_time_does():
    work = work_by_label(jobs((0, -1.0, 1.0, 8.0), (0, 1.0, 1.0, 2.0), (1, 1.0, 3.0, 6.0)), HELD, np.array([0.0, 1, 2]))

    assert work.sum().tolist() == [4.0, 2.0 + 3.0]


def test_many_clients_with_a_job_each_take_memory_for_the_jobs_alone():
    n = 3000
    held = pd.DataFrame(np.eye(10, dtype=int)[np.arange(n) % 10])
    turns = np.arange(n)
    served = pd.DataFrame({"client": turns, "started_s": turns, "ended_s": turns + 1, "macs": 1.0})
    tracemalloc.start()
    work = work_by_label(served, held, np.arange(n + 1.0))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert work.sum(axis=1).tolist() == [n / 10] * 10
    assert peak_bytes < 8 * n * n / 10


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(-1, 1), st.floats(0, 9), st.floats(0.1, 9), st.floats(0, 100)), max_size=20),
    st.lists(st.floats(0, 500), max_size=5),
)
def test_no_work_is_lost_or_made_however_time_is_cut(served, cuts):
    now_s, rows = 0.0, []
    for client, idle_s, service_s, macs in served:
        now_s += idle_s + service_s
        rows.append((client, now_s - service_s, now_s, macs))

    work = work_by_label(jobs(*rows), HELD, np.sort([0.0, *cuts, 501.0]))

    assert work.sum().sum() == pytest.approx(sum(macs for *_, macs in served))
