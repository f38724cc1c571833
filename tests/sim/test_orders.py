"""Order policies: the golden sequences of docs/methods/README.md#golden-values, and what must hold for every order."""

from itertools import permutations
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_server import Server

from sfl_sim.errors import ScenarioError
from sfl_sim.knowledge import Known, known_by
from sfl_sim.rng import stream
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, OF_RUNS, ORDERS, InARow, Roster, check_burst, check_max_wait
from sfl_sim.sim.station import Job, Sorting


def served(order, jobs, burst=1.0, seed=0, service_s=lambda c: 1.0, clients=None, **roster):
    """The clients in the order of service when everybody is always there."""
    left = dict(jobs)
    policy = (ORDERS | OF_RUNS)[order](Roster(clients or list(jobs), left, burst, stream(seed, "order", 1), **roster))
    sequence = []
    while sum(left.values()):
        waiting = {c: Job(c, state=None, arrived_s=0.0, service_s=service_s(c)) for c, n in left.items() if n}
        for job in waiting.values() if isinstance(policy, Sorting) else ():
            policy.add(job)
        client = policy(waiting, 0.0).client
        left[client] -= 1
        sequence.append(client)
    return sequence


FOUR = dict.fromkeys(range(4), 6)


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_depends_on_what_its_trait_says_and_on_nothing_else(order):
    usual = served(order, FOUR)
    others = {
        Known.JOBS: served(order, FOUR, service_s=lambda c: 4.0 - c),
        Known.LABELS: served(order, FOUR, clients=[3, 2, 1, 0], labels=[3, 2, 1, 0]),
    }
    if "random" in order:  # a draw from a list depends on the sequence of the list
        del others[Known.LABELS]
    assert {known for known, sequence in others.items() if sequence != usual} == set(known_by(ORDERS[order]))


def test_a_recorded_sequence_is_served_again_without_those_who_do_not_take_part():
    assert served("recorded", {1: 2, 3: 1}, recorded=[3, 7, 1, 1]) == [3, 1, 1]
    with pytest.raises(ScenarioError, match=r"client 3 .* 2 jobs .* 1 "):
        served("recorded", {1: 2, 3: 2}, recorded=[3, 7, 1, 1])


@pytest.mark.parametrize(
    ("order", "jobs", "burst", "start"),
    [
        ("cyclic", FOUR, 1, "01230123"),
        ("cyclic", FOUR, 3, "000111222333000111222333"),
        ("cyclic", FOUR, 4, "000011112222333300112233"),
        ("cyclic", FOUR, inf, "000000111111222222333333"),
        ("cyclic_reverse", FOUR, 1, "0123321001233210"),
        ("cyclic", {0: 1, 1: 3, 2: 2}, 1, "012121"),
        ("cyclic", {7: 1, 2: 1, 5: 1}, 1, "725"),
    ],
)
def test_golden_sequences_of_cyclic_lists(order, jobs, burst, start):
    assert "".join(map(str, served(order, jobs, burst))).startswith(start)


def test_random_client_serves_all_jobs_of_a_client_in_a_row():
    sequence = served("random_client", FOUR, float("inf"))
    assert [len(set(sequence[i : i + 6])) for i in range(0, 24, 6)] == [1, 1, 1, 1]


def test_random_sweep_visits_everybody_once_per_sweep():
    sequence = served("random_sweep", FOUR)
    sweeps = [sequence[i : i + 4] for i in range(0, 24, 4)]
    assert all(sorted(sweep) == [0, 1, 2, 3] for sweep in sweeps)
    assert len({tuple(sweep) for sweep in sweeps}) > 1


def test_random_job_leaves_few_clients_for_the_end_of_a_round():
    """About 2.3 clients share the last 10 jobs with C=10 and B=78; a sweep leaves all ten (orders.md#choices)."""
    jobs = dict.fromkeys(range(10), 78)
    last = [len(set(served("random_job", jobs, seed=seed)[-10:])) for seed in range(60)]
    assert 2.0 < sum(last) / len(last) < 2.7
    assert len(set(served("random_sweep", jobs)[-10:])) == 10


def test_strict_orders_hold_the_server_for_the_client_whose_turn_it_is():
    policy = ORDERS["cyclic"](Roster([0, 1], {0: 1, 1: 1}))
    only_one = {1: Job(1, state=None, arrived_s=0.0, service_s=1.0)}
    assert policy(only_one, 0.0) is None
    assert policy.turn == 0


@pytest.mark.parametrize("order", ARRIVAL_DRIVEN)
def test_orders_that_arrival_drives_take_no_burst(order):
    with pytest.raises(ScenarioError, match=rf"^server\.burst: {order} "):
        check_burst(order, 3)
    check_burst("cyclic", 3)


def test_a_bound_on_waiting_belongs_to_bounded_wait_or_to_an_order_of_ones_own():
    for order, max_wait_s in (("bounded_wait", None), ("cyclic", 0.0)):
        with pytest.raises(ScenarioError, match=rf"^server\.max_wait_s: {order} "):
            check_max_wait(order, max_wait_s)
    for order, max_wait_s in (("bounded_wait", 0.0), ("my_orders:impatient", 1.0), ("cyclic", None)):
        check_max_wait(order, max_wait_s)


def timeline(order, tours, **roster):
    """(client, arrived, started, ended) of every job, in order of service; `tours` as of `Server.tour`, by client."""
    server = Server()
    left = {client: len(jobs) for client, jobs in tours.items()}
    server.station.rank("w2", ORDERS[order](Roster(list(tours), left, **roster)), left)
    return server.run(*(server.tour(client, jobs) for client, jobs in tours.items()))


def clients_of(seen):
    return [client for client, *_ in seen]


def held_s(seen):
    """Measure, before each service, the seconds for which the server idled although a job waited."""
    arrived_s, started_s, ended_s = np.array(seen)[:, 1:].T
    first_waiting_s = np.minimum.accumulate(arrived_s[::-1])[::-1]
    return started_s - np.maximum(first_waiting_s, [0.0, *ended_s[:-1]])


def test_a_bounded_wait_passes_the_turn_on_and_the_late_client_waits_for_its_next():
    """Service 1 s, patience 3 s: client 0 is waited for from 1 to 4 and comes at 4.5, in the turn of client 1."""
    tours = {0: [(4.5, 1.0), (0.0, 1.0)], 1: [(1.0, 1.0), (0.0, 1.0)], 2: [(2.0, 1.0)]}
    assert timeline("bounded_wait", tours, max_wait_s=3.0) == [
        (1, 1.0, 4.0, 5.0), (2, 2.0, 5.0, 6.0), (0, 4.5, 6.0, 7.0), (1, 5.0, 7.0, 8.0), (0, 7.0, 8.0, 9.0)
    ]  # fmt: skip


def test_a_bounded_wait_is_over_when_its_time_is_and_not_before():
    def first(comes_s):
        return timeline("bounded_wait", {0: [(comes_s, 1.0)], 1: [(1.0, 1.0)]}, max_wait_s=3.0)[0]

    assert first(4.0) == (0, 4.0, 4.0, 5.0)
    assert first(4.1) == (1, 1.0, 4.0, 5.0)


def test_who_does_not_come_for_the_rest_of_its_burst_loses_the_rest():
    """Bursts of 3: client 0 goes away for 5 s after its first job, and has a whole burst when the list comes round."""
    tours = {0: [(0.0, 1.0), (5.0, 1.0), (0.0, 1.0), (0.0, 1.0)], 1: [(0.0, 1.0)] + [(1.0, 1.0)] * 4}
    seen = timeline("bounded_wait", tours, burst=3, max_wait_s=2.0)
    assert clients_of(seen) == [0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert seen[1][2] == 3.0


def test_label_aware_goes_through_the_labels_in_turn_where_everybody_waits():
    labels = {4: 8, 1: 8, 0: 5, 3: 5, 2: 6, 5: 6}
    sequence = served("label_aware", dict.fromkeys(labels, 4), labels=labels)
    assert [labels[client] for client in sequence] == [8, 5, 6] * 8


def test_label_aware_serves_of_those_who_came_the_label_served_longest_ago_the_first_to_come_of_a_label():
    """Labels of clients 0 to 3: a, a, b, c. While 0 is served, 1, 3 and 2 come, in this sequence."""
    tours = {0: [(0.0, 9.0), (0.0, 9.0)], 1: [(1.0, 1.0), (0.0, 1.0)], 2: [(3.0, 1.0)], 3: [(2.0, 1.0)]}
    assert clients_of(timeline("label_aware", tours, labels=[0, 0, 1, 2])) == [0, 2, 3, 1, 0, 1]


@settings(max_examples=40)
@given(services_s=st.lists(st.integers(1, 9).map(float), min_size=1, max_size=6))
def test_shortest_job_has_the_least_waiting_of_all_sequences_of_jobs_that_are_all_there(services_s):
    seen = timeline("shortest_job", {client: [(1.0, service_s)] for client, service_s in enumerate(services_s)})
    waited_s = sum(started_s - arrived_s for _, arrived_s, started_s, _ in seen)
    assert waited_s == min(np.cumsum(sequence[:-1]).sum() for sequence in permutations(services_s))


def test_jobs_of_one_length_are_served_as_they_came():
    assert clients_of(timeline("shortest_job", {0: [(3.0, 1.0)], 1: [(2.0, 1.0)], 2: [(0.0, 9.0)]})) == [2, 1, 0]


def test_shortest_job_waits_as_theory_says_for_two_lengths_of_jobs():
    """Cobham: W_k = R / ((1 - s_{k-1})(1 - s_k)), R = lambda E[S^2] / 2, s_k the load of the lengths up to k."""
    rng = stream(0, "two lengths")
    n, per_s = 10_000, 0.7
    comes_s, services_s = np.cumsum(rng.exponential(1 / per_s, n)), rng.choice([0.5, 1.5], n)
    seen = timeline("shortest_job", {c: [job] for c, job in enumerate(zip(comes_s, services_s, strict=True))})
    residual_s = per_s * (0.5**2 + 1.5**2) / 2 / 2
    load = np.cumsum([0.0, per_s * 0.5 / 2, per_s * 1.5 / 2])
    for k, service_s in enumerate([0.5, 1.5], start=1):
        waits_s = [started_s - arrived_s for c, arrived_s, started_s, _ in seen if services_s[c] == service_s]
        assert np.mean(waits_s) == pytest.approx(residual_s / (1 - load[k - 1]) / (1 - load[k]), rel=0.1)


whole_s = st.integers(0, 6).map(float)  # so that sums are exact and clients come together now and then
fleets = st.lists(st.lists(st.tuples(whole_s, whole_s), min_size=1, max_size=5), min_size=1, max_size=5).map(
    lambda tours: dict(enumerate(tours))
)
bursts = st.sampled_from([1, 2, 3, inf])


@settings(max_examples=60)
@given(tours=fleets, burst=bursts)
def test_unbounded_patience_is_the_cyclic_order(tours, burst):
    assert timeline("bounded_wait", tours, burst=burst) == timeline("cyclic", tours, burst=burst)


@settings(max_examples=100)
@given(tours=fleets, burst=bursts, max_wait_s=st.sampled_from([0.0, 1.0, 3.0]))
def test_the_server_is_held_for_a_job_no_longer_than_the_bound(tours, burst, max_wait_s):
    """The server never idles for longer than the bound while a job waits; without patience, never."""
    assert held_s(timeline("bounded_wait", tours, burst=burst, max_wait_s=max_wait_s)).max() <= max_wait_s


@settings(max_examples=100)
@given(order=st.sampled_from(sorted(ORDERS)), tours=fleets, burst=bursts, max_wait_s=st.sampled_from([0.0, 2.0, inf]))
def test_every_order_serves_every_client_its_jobs_and_those_of_arrival_hold_nobody(order, tours, burst, max_wait_s):
    seen = timeline(order, tours, burst=burst, max_wait_s=max_wait_s, labels=[0, 1, 0, 1, 0])
    assert {client: clients_of(seen).count(client) for client in tours} == {c: len(jobs) for c, jobs in tours.items()}
    if order in ARRIVAL_DRIVEN:
        assert held_s(seen).max() == 0


@settings(max_examples=60)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    jobs=st.dictionaries(st.integers(0, 20), st.integers(1, 7), min_size=1, max_size=6),
    burst=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_every_order_serves_every_job_once_and_is_repeatable(order, jobs, burst, seed):
    sequence = served(order, jobs, burst, seed)
    assert {c: sequence.count(c) for c in jobs} == jobs
    assert sequence == served(order, jobs, burst, seed)


@pytest.mark.parametrize("order", ["fcfs", "cyclic", "random_job", "shortest_job", "label_aware"])
def test_the_jobs_of_a_row_are_served_one_after_another_and_count_as_one(order):
    """Three clients with 2, 1 and 2 rows of two jobs each; the server is held for the second job of a row."""
    jobs = {2: 4, 0: 2, 1: 4}
    rows = {client: n // 2 for client, n in jobs.items()}
    single = served(order, dict(rows))
    followed = dict(rows)
    policy = InARow(ORDERS[order](Roster(list(rows), followed, 1.0, stream(0, "order", 1))), followed, 2)
    left, sequence = dict(jobs), []
    while sum(left.values()):
        waiting = {c: Job(c, state=None, arrived_s=0.0, service_s=1.0) for c, n in left.items() if n}
        for job in waiting.values():
            policy.add(job)
        if policy.turn is not None:
            assert policy({c: job for c, job in waiting.items() if c != policy.turn}, 0.0) is None
        sequence.append(policy(waiting, 0.0).client)
        left[sequence[-1]] -= 1
    assert sequence == [client for client in single for _ in range(2)]


def test_a_client_that_goes_away_in_a_row_ends_it():
    rows = {0: 1, 1: 1}
    policy = InARow(ORDERS["cyclic"](Roster([0, 1], rows)), rows, 2)
    both = {c: Job(c, state=None, arrived_s=0.0, service_s=1.0) for c in (0, 1)}
    assert policy(both, 0.0).client == 0
    policy.skip(0)
    assert policy.turn is None
    assert policy({1: both[1]}, 0.0).client == 1
