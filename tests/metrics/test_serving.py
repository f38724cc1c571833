"""Metrics of requests: the parts of their latency, the confidence in its mean, and saturation of the fleet."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.metrics.serving import PARTS, Saturation, confidence, falls_behind, request_rows, saturation, summary
from sfl_sim.store.columns import OP_DTYPE

GAPS_S = st.lists(st.floats(0, 5), min_size=9, max_size=9)
REQUESTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3), GAPS_S), min_size=1, max_size=20)
FLEET = pd.DataFrame(
    {
        "client": [0, 1], "group": ["fast", "slow"], "front_parameters": [200, 100], "device_parameters": [250, 150],
        "feature_channels": [8, 4], "server_parameters": [1000, 2000],
    }
)  # fmt: skip


def operations(requests):
    """Make the operations of requests, each (offloaded, client, lengths of its waits and works), in random order."""
    rows = []
    for step, (offloaded, client, gaps_s) in enumerate(requests):
        instants_s = np.cumsum(gaps_s)
        chain = [(b"client", b"exit"), (b"uplink", b"features"), (b"server", b"answer"), (b"downlink", b"answer")]
        for i, (node, kind) in enumerate(chain if offloaded else chain[:1]):
            rows.append((node, kind, 1, step, client, *instants_s[2 * i : 2 * i + 3], 0.0, 0))
    return np.random.default_rng(len(rows)).permutation(np.array(rows, OP_DTYPE))


@settings(max_examples=60)
@given(REQUESTS)
def test_the_parts_of_a_request_add_up_to_its_latency(requests):
    found = request_rows(operations(requests))

    latency_s = found["ended_s"] - found["arrived_s"]
    assert found[[f"{part}_s" for part in PARTS]].sum(axis=1).to_numpy() == pytest.approx(latency_s.to_numpy())
    assert found["offloaded"].tolist() == [offloaded for offloaded, _, _ in requests]
    assert found["client"].tolist() == [client for _, client, _ in requests]


def test_the_parts_of_a_request_by_hand():
    lengths_s = [10.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]  # arrival, then wait and work of each resource
    there, back = (request_rows(operations([(offloaded, 7, lengths_s)])).iloc[0] for offloaded in (True, False))

    assert [there[f"{part}_s"] for part in PARTS] == [1 + 2, 4 + 8, 16, 32, 64 + 128]
    assert [back[f"{part}_s"] for part in PARTS] == [1 + 2, 0, 0, 0, 0]
    assert (there["arrived_s"], there["ended_s"], back["ended_s"]) == (10, 10 + 255, 13)


# The mean and its confidence


def test_the_interval_of_independent_values_is_the_textbook_s():
    values = np.random.default_rng(1).exponential(size=40_000)
    assert confidence(values) == pytest.approx(1.96 / math.sqrt(40_000), rel=0.35)
    assert math.isnan(confidence(values[:39]))


def test_a_correlated_series_is_less_sure_of_its_mean():
    values = np.repeat(np.random.default_rng(1).exponential(size=400), 100)
    assert confidence(values) == pytest.approx(1.96 / math.sqrt(400), rel=0.35)


# Keeping up


def queue_at(load, n_requests=4000, offloaded=0.5, seed=0):
    """Poisson requests, of which a share is offloaded to one lane that serves each in a second."""
    rng = np.random.default_rng(seed)
    arrived_s = rng.exponential(offloaded / load, n_requests).cumsum()
    goes = rng.random(n_requests) < offloaded
    served_s, free_s = np.zeros(n_requests), 0.0
    for i in np.flatnonzero(goes):
        served_s[i] = free_s = max(free_s, arrived_s[i] + 0.25) + 1
    queue_s = np.where(goes, served_s - 1 - arrived_s - 0.25, 0)
    return pd.DataFrame(
        {
            "client": np.arange(n_requests) % 2, "arrived_s": arrived_s, "offloaded": goes, "correct": None,
            "ended_s": np.where(goes, served_s, arrived_s + 0.25),
            "device_s": 0.25, "uplink_s": 0.0, "queue_s": queue_s, "server_s": goes * 1.0, "downlink_s": 0.0,
        }
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offloaded", [1.0, 0.05])
@pytest.mark.parametrize(("load", "behind"), [(0.3, False), (0.85, False), (1.3, True), (3.0, True)])
def test_a_fleet_falls_behind_if_more_arrives_than_is_served(load, behind, offloaded, seed):
    requests = queue_at(load, int(3000 / offloaded), offloaded, seed)
    assert falls_behind(requests, warm_up=0.1) is behind


def queues_at(load, n_clients, each):
    """Poisson requests to devices that answer all themselves, in a second each."""
    rng = np.random.default_rng(0)
    n_requests = n_clients * each
    arrived_s = rng.exponential(1 / (load * n_clients), n_requests).cumsum()
    ended_s, free_s = np.zeros(n_requests), np.zeros(n_clients)
    for i, client in enumerate(rng.integers(0, n_clients, n_requests)):
        ended_s[i] = free_s[client] = max(free_s[client], arrived_s[i]) + 1
    return pd.DataFrame({"arrived_s": arrived_s, "ended_s": ended_s})


@pytest.mark.parametrize(
    ("load", "each", "behind"), [(0.5, 10, False), (0.7, 10, False), (0.9, 100, False), (1.3, 100, True)]
)
def test_many_queues_that_fill_up_at_the_start_are_no_saturation(load, each, behind):
    assert falls_behind(queues_at(load, 200, each), warm_up=0.1) is behind


def test_a_run_may_be_too_short_to_tell():
    assert falls_behind(queue_at(3.0, 35), warm_up=0.1) is None
    assert falls_behind(queue_at(0.8, 40), warm_up=0.1) is None
    assert falls_behind(queues_at(1.0, 200, 100), warm_up=0.1) is None


def test_a_late_queue_that_dissolves_is_no_trend():
    requests = queue_at(0.3)
    requests.loc[3400:3600, "ended_s"] += 30
    assert not falls_behind(requests, warm_up=0.1)


def test_few_requests_at_once_do_not_fall_behind():
    together = queue_at(0.5, 100).assign(arrived_s=0.0)
    assert falls_behind(together, warm_up=0.0) is None


def test_saturation_lies_above_the_highest_rate_that_is_kept_up_with():
    def cells(*behind):
        rates = [(rate, seed < share * 3) for rate, share in enumerate(behind, 1) for seed in range(3)]
        return pd.DataFrame(rates[::-1], columns=["rate_per_s", "falls_behind"])

    assert saturation(cells(0, 0, 0, 1, 1)) == Saturation(3, 4)
    assert saturation(cells(0, 0, 0)) is None
    assert saturation(cells(1, 1)) == Saturation(0, 1)
    assert saturation(cells(0, 1, 0, 1)) == Saturation(3, 4)  # 2 was a mistake: 3 was kept up with
    assert saturation(cells(0, 1 / 3, 2 / 3)) == Saturation(2, 3)
    unknown = pd.DataFrame({"rate_per_s": [1, 2, 3, 4], "falls_behind": [False, None, True, None]})
    assert saturation(unknown) == Saturation(1, 3)
    assert saturation(unknown[:2]) is None


# The summary


def test_a_stable_server_answers_what_arrives_and_is_as_busy_as_its_load():
    found = summary(queue_at(0.8, 8000), FLEET, warm_up=0.1, workers=1)

    assert found["counted"] == 7200
    assert found["arrivals_per_s"] == pytest.approx(1.6, rel=0.05)
    assert found["throughput_per_s"] == pytest.approx(found["arrivals_per_s"], rel=0.01)
    assert found["utilisation"] == pytest.approx(0.8, abs=0.03)
    assert sum(found["parts_s"].values()) == pytest.approx(found["latency_s"])
    # Mean wait of M/D/1: load / (2 (1 - load)) services, here of every second request.
    assert found["parts_s"]["queue"] == pytest.approx(0.5 * 0.8 / (2 * 0.2), abs=found["latency_error_s"])
    assert not found["falls_behind"]


def test_an_overloaded_server_answers_what_it_can():
    found = summary(queue_at(1.5, 4000), FLEET, warm_up=0.1, workers=1)

    assert found["utilisation"] == pytest.approx(1)
    assert found["throughput_per_s"] == pytest.approx(found["arrivals_per_s"] / 2 + 1, rel=0.03)
    assert found["falls_behind"]


def test_the_tail_is_made_of_requests_around_p95():
    requests = queue_at(0.9)
    found = summary(requests, FLEET, warm_up=0.0)

    assert sum(found["tail_parts_s"].values()) == pytest.approx(found["p95_s"], rel=0.05)
    assert found["tail_parts_s"]["queue"] > 2 * found["parts_s"]["queue"]
    latency_s = requests["ended_s"] - requests["arrived_s"]
    assert (latency_s <= found["p99_s"]).mean() == pytest.approx(0.99, abs=1e-3)


def test_groups_are_told_apart_and_the_warm_up_counts_for_none():
    requests = queue_at(0.5, 100).assign(correct=np.arange(100) % 4 < 2)
    requests.loc[:9, "ended_s"] += 1e6
    found = summary(requests, FLEET, warm_up=0.1)

    slow, fast = found["groups"]["slow"], found["groups"]["fast"]
    assert (slow["requests"], fast["requests"]) == (45, 45)
    assert found["latency_s"] == pytest.approx((slow["latency_s"] + fast["latency_s"]) / 2)
    assert found["latency_s"] < 10
    assert found["accuracy"] == pytest.approx(0.5, abs=0.02)


def test_eq_12_of_the_requests_is_the_mean_over_them():
    requests = queue_at(0.5, 6).assign(client=[0, 0, 0, 1, 1, 1], offloaded=[True, False, False, True, True, True])
    on_device = 250 / 1.0, 150 / 0.5
    back = 8 + 1000 / 100, 4 + 2000 / 100
    expected = (3 * on_device[0] + back[0] + 3 * on_device[1] + 3 * back[1]) / 6
    assert summary(requests, FLEET, warm_up=0.0)["latency_eq12"] == pytest.approx(expected)


@pytest.mark.parametrize("n_requests", [1, 5])
def test_what_is_not_known_is_null(n_requests):
    found = summary(queue_at(0.5, n_requests), FLEET, warm_up=0.5)

    assert found["accuracy"] is None
    assert found["utilisation"] is None
    assert found["latency_error_s"] is None
    json.dumps(found, allow_nan=False)
