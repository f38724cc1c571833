"""The server's queue against hand computation and Lindley's recursion."""

import gc
import weakref
from math import inf

import numpy as np
import pytest
from small_server import Server

from sfl_sim.rng import stream
from sfl_sim.sim.orders import ORDERS, Roster
from sfl_sim.sim.station import Hold, Job, first_come


def strangers(arrivals_s, services_s):
    """Every job from a client of its own, on one state."""
    server = Server()
    return np.array(
        server.run(*(server.visit(c, [a], [s]) for c, (a, s) in enumerate(zip(arrivals_s, services_s, strict=True))))
    )


def test_first_come_first_served_as_computed_by_hand():
    seen = strangers([0.0, 1.0, 1.5, 10.0], [2.0, 3.0, 1.0, 1.0])
    assert seen[:, 0].tolist() == [0, 1, 2, 3]
    assert seen[:, 2].tolist() == [0.0, 2.0, 5.0, 10.0]
    assert seen[:, 3].tolist() == [2.0, 5.0, 6.0, 11.0]


def test_jobs_of_one_instant_are_served_by_client_id_whoever_asked_first_and_also_as_the_server_gets_free():
    server = Server()
    seen = server.run(*(server.visit(c, [at_s], [2.0]) for c, at_s in [(5, 1.0), (3, 1.0), (7, 3.0), (6, 3.0)]))
    assert [row[0] for row in seen] == [3, 5, 6, 7]


def test_a_strict_order_holds_the_server_and_the_wait_is_seen():
    server = Server()
    left = {0: 1, 1: 1}
    server.station.rank("w2", ORDERS["cyclic"](Roster([0, 1], left)), left)
    seen = server.run(server.visit(1, [1.0], [1.0]), server.visit(0, [5.0], [1.0]))
    assert seen == [(0, 5.0, 5.0, 6.0), (1, 1.0, 6.0, 7.0)]


class Data:
    """Data of a job's step, which nobody waits for."""

    def succeed(self):
        pass


def test_a_job_that_has_been_served_is_forgotten_without_the_garbage_collector():
    """Jobs hold their steps' data, which are gigabytes in a round of a large network."""
    server, data = Server(), Data()
    seen = weakref.ref(data)

    def flow(data):
        server.station.serve(Job(0, "w2", 0.0, 1.0, customer=server, branch=data))
        yield server.env.timeout(0.0)

    gc.disable()
    try:
        flows = [flow(data), server.visit(1, [0.0], [1.0])]
        del data
        server.run(*flows)
        del flows
        assert seen() is None
    finally:
        gc.enable()


def test_what_a_lost_client_s_waiting_job_was_to_change_is_forgotten():
    """As an own part-2 of each client, which would otherwise stay for the rest of the run."""
    server, state = Server(), Data()
    seen = weakref.ref(state)
    server.lost = lambda job: None

    def flow(state):
        server.station.serve(Job(0, "w2", 0.0, 2.0, customer=server, branch=Data()))
        server.station.serve(Job(1, state, 0.0, 1.0, customer=server, branch=Data()))
        yield server.env.timeout(1.0)
        server.station.lose(1)

    flows = [flow(state)]
    del state
    server.run(*flows)
    flows.clear()
    assert seen() is None


def ruled_by(policy, *clients, workers=1):
    """A server whose policy chooses among one job of each client, and the instants when it was asked."""
    server, asked_s = Server(workers), []

    def noted(waiting, now_s):
        asked_s.append(now_s)
        return policy(waiting, now_s)

    server.station.rank("w2", noted, dict.fromkeys(clients, 1))
    return server, asked_s


def until_four(waiting, now_s):
    return Hold(4.0) if now_s < 4.0 else first_come(waiting, now_s)


def test_a_policy_holds_the_server_until_an_instant_and_is_asked_at_every_arrival_on_the_way():
    server, asked_s = ruled_by(until_four, 0, 1)
    seen = server.run(server.visit(0, [1.0], [1.0]), server.visit(1, [2.5], [1.0]))
    assert seen == [(0, 1.0, 4.0, 5.0), (1, 2.5, 5.0, 6.0)]
    assert asked_s == [1.0, 2.5, 4.0, 5.0]


def test_who_comes_at_the_instant_when_a_hold_ends_is_there_for_the_choice():
    server, _ = ruled_by(lambda waiting, now_s: Hold(4.0) if now_s < 4.0 else waiting[min(waiting)], 2, 7)

    def late():
        yield server.env.timeout(3.0)  # so that the event of the arrival is younger than that of the hold's end
        yield from server.visit(2, [4.0], [1.0])

    assert server.run(server.visit(7, [1.0], [1.0]), late())[0] == (2, 4.0, 4.0, 5.0)


@pytest.mark.parametrize("service_s", [0.5, 9.0])
def test_a_hold_that_was_given_up_leaves_nothing_behind(service_s):
    """Cancel a hold: at its end no job waits any more, or the state is being changed."""
    server, asked_s = ruled_by(
        lambda waiting, now_s: Hold(4.0) if now_s < 2.0 else first_come(waiting, now_s), 0, 1, workers=2
    )
    seen = server.run(*(server.visit(c, [1.0 + c], [service_s]) for c in (0, 1)))
    assert [started_s for _, _, started_s, _ in seen] == [2.0, 2.0 + service_s]
    assert asked_s == [1.0, 2.0, 2.0 + service_s]


@pytest.mark.parametrize("until_s", [0.5, 1.0, inf])
def test_to_hold_until_now_or_for_ever_is_to_wait_for_an_arrival(until_s):
    server, asked_s = ruled_by(
        lambda waiting, now_s: Hold(until_s) if now_s < 2.0 else first_come(waiting, now_s), 0, 1
    )
    seen = server.run(*(server.visit(c, [1.0 + 2 * c], [1.0]) for c in (0, 1)))
    assert [started_s for _, _, started_s, _ in seen] == [3.0, 4.0]
    assert asked_s == [1.0, 3.0, 4.0]
    assert server.env.now == 5.0  # and nothing is left that will ever happen


def test_a_server_that_was_held_a_hundred_times_has_one_appointment():
    server, left = Server(), {0: 100, 1: 100}
    server.station.rank("w2", ORDERS["bounded_wait"](Roster([0, 1], left, max_wait_s=1e6)), left)
    clients = [server.env.process(server.tour(c, [(away_s, 1.0)] * 100)) for c, away_s in [(0, 9.0), (1, 1.0)]]
    server.env.run(server.env.all_of(clients))
    to_come_s = [event[0] for event in server.env._queue]
    assert len([time_s for time_s in to_come_s if time_s > server.env.now]) == 1


def test_a_held_state_leaves_the_lane_to_others_and_waits_for_it_when_the_hold_ends():
    server, _ = ruled_by(until_four, 0)
    seen = server.run(server.visit(0, [1.0], [1.0]), server.visit(1, [2.0], [5.0], "another"))
    assert seen == [(1, 2.0, 2.0, 7.0), (0, 1.0, 7.0, 8.0)]


@pytest.mark.parametrize(("states", "starts_s"), [("wwww", [0, 1, 2, 3]), ("abcd", [0, 0, 1, 1])])
def test_jobs_on_one_state_never_overlap_and_those_on_different_states_share_the_lanes(states, starts_s):
    server = Server(workers=2)
    seen = server.run(*(server.visit(c, [0.0], [1.0], state) for c, state in enumerate(states)))
    assert [row[2] for row in seen] == starts_s


def test_a_free_lane_goes_to_the_state_whose_oldest_job_came_first():
    server = Server()
    visits = [(0, 0.0, 10.0, "busy"), (9, 1.0, 1.0, "old"), (2, 2.0, 1.0, "young")]
    seen = server.run(*(server.visit(c, [at_s], [service_s], state) for c, at_s, service_s, state in visits))
    assert [row[0] for row in seen] == [0, 9, 2]


def test_jobs_of_nobody_and_several_of_one_client_are_served_as_they_come():
    server = Server()
    seen = server.run(*(server.visit(c, [0.0], [1.0]) for c in (-1, 4, -1, 4)))
    assert [row[0] for row in seen] == [-1, -1, 4, 4]
    assert [row[2] for row in seen] == [0.0, 1.0, 2.0, 3.0]


def test_a_policy_ranks_announced_jobs_only_and_the_rest_comes_first():
    """An average of the shared state between two jobs of a strict order."""
    server = Server()
    left = {0: 1, 1: 1}
    server.station.rank("w2", ORDERS["cyclic"](Roster([0, 1], left)), left)
    seen = server.run(server.visit(1, [0.0], [1.0]), server.visit(-1, [1.0], [1.0]), server.visit(0, [5.0], [1.0]))
    assert [row[0] for row in seen] == [-1, 0, 1]
    assert [row[2] for row in seen] == [1.0, 5.0, 6.0]


def test_two_jobs_of_one_client_at_once_cannot_be_ordered():
    server = Server()
    left = {0: 2}
    server.station.rank("w2", ORDERS["cyclic"](Roster([0], left)), left)
    server.env.process(server.visit(7, [0.0], [9.0]))
    with pytest.raises(RuntimeError, match="client 0 brings a job"):
        server.run(server.visit(0, [1.0], [1.0]), server.visit(0, [1.0], [1.0]))


def test_any_stream_of_strangers_follows_the_lindley_recursion():
    """W_{n+1} = max(0, W_n + S_n - (A_{n+1} - A_n)), computed apart."""
    rng = stream(0, "lindley")
    arrivals_s = np.cumsum(rng.exponential(1.0, 500))
    services_s = rng.exponential(0.9, 500)
    waits_s = [0.0]
    for gap_s, service_s in zip(np.diff(arrivals_s), services_s, strict=False):
        waits_s.append(max(0.0, waits_s[-1] + service_s - gap_s))
    seen = strangers(arrivals_s, services_s)
    assert seen[:, 2] - seen[:, 1] == pytest.approx(np.array(waits_s), abs=1e-9)


def test_of_states_whose_jobs_came_together_the_one_of_the_lowest_client_is_served_first():
    """Client 1 comes for the state that is being changed, so the state for which client 2 came is listed before it."""
    server = Server()
    flows = [server.visit(0, [0.0], [5.0], "a"), server.visit(2, [1.0], [1.0], "b"), server.visit(1, [1.0], [1.0], "a")]
    assert [client for client, *_ in server.run(*flows)] == [0, 1, 2]
