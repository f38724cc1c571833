"""Order policies: the golden sequences of METHODS.md section 18, and what must hold for every order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.sim.orders import ORDERS, Roster, check_burst
from sfl_sim.sim.station import Job


def served(order, jobs, burst=1.0, seed=0):
    """The clients in the order of service when everybody is always there."""
    left = dict(jobs)
    policy = ORDERS[order](Roster(list(jobs), left, burst, stream(seed, "order", 1)))
    sequence = []
    while sum(left.values()):
        waiting = {c: Job(c, state=None, arrived_s=0.0, service_s=1.0) for c, n in left.items() if n}
        client = policy(waiting, 0.0).client
        left[client] -= 1
        sequence.append(client)
    return sequence


FOUR = dict.fromkeys(range(4), 6)


@pytest.mark.parametrize(
    ("order", "burst", "start"),
    [
        ("cyclic", 1, "01230123"),
        ("cyclic", 3, "000111222333000111222333"),
        ("cyclic", 4, "000011112222333300112233"),
        ("cyclic", float("inf"), "000000111111222222333333"),
        ("cyclic_reverse", 1, "0123321001233210"),
    ],
)
def test_golden_sequences_of_four_clients_with_six_batches(order, burst, start):
    assert "".join(map(str, served(order, FOUR, burst))).startswith(start)


def test_a_client_that_is_done_is_skipped():
    assert served("cyclic", {0: 1, 1: 3, 2: 2}) == [0, 1, 2, 1, 2, 1]


def test_the_cyclic_list_is_the_order_of_the_roster():
    assert served("cyclic", {7: 1, 2: 1, 5: 1}) == [7, 2, 5]


def test_random_client_serves_all_jobs_of_a_client_in_a_row():
    sequence = served("random_client", FOUR, float("inf"))
    assert [len(set(sequence[i : i + 6])) for i in range(0, 24, 6)] == [1, 1, 1, 1]


def test_random_sweep_visits_everybody_once_per_sweep():
    sequence = served("random_sweep", FOUR)
    sweeps = [sequence[i : i + 4] for i in range(0, 24, 4)]
    assert all(sorted(sweep) == [0, 1, 2, 3] for sweep in sweeps)
    assert len({tuple(sweep) for sweep in sweeps}) > 1


def test_random_job_leaves_few_clients_for_the_end_of_a_round():
    """METHODS.md CHOICE 3: with C=10 and B=78 about 2.3 clients share the last 10 jobs; a sweep leaves all ten."""
    jobs = dict.fromkeys(range(10), 78)
    last = [len(set(served("random_job", jobs, seed=seed)[-10:])) for seed in range(60)]
    assert 2.0 < sum(last) / len(last) < 2.7
    assert len(set(served("random_sweep", jobs)[-10:])) == 10


def test_strict_orders_hold_the_server_for_the_client_whose_turn_it_is():
    policy = ORDERS["cyclic"](Roster([0, 1], {0: 1, 1: 1}))
    only_one = {1: Job(1, state=None, arrived_s=0.0, service_s=1.0)}
    assert policy(only_one, 0.0) is None
    assert policy.turn == 0


def test_fcfs_takes_no_burst():
    with pytest.raises(ScenarioError, match=r"server\.burst.*one job at a time"):
        check_burst("fcfs", 3)
    check_burst("cyclic", 3)


@settings(deadline=None, max_examples=60)
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
