"""The server's queue against hand computation and queueing theory."""

import numpy as np
import pytest
import simpy

from sfl_sim.rng import stream
from sfl_sim.sim.orders import ORDERS, Roster
from sfl_sim.sim.station import Job, Station


class Server:
    """A station and what its clients saw: (client, arrived, started, ended)."""

    def __init__(self, workers=1):
        self.env = simpy.Environment()
        self.station = Station(self.env, workers)
        self.seen = []

    def visit(self, client, arrivals_s, services_s, state="w2"):
        """A client that comes at each of `arrivals_s`, but never before its last job is done."""
        for arrives_s, service_s in zip(arrivals_s, services_s, strict=True):
            if arrives_s > self.env.now:
                yield self.env.timeout(arrives_s - self.env.now)
            job = Job(client, state, self.env.now, service_s)
            yield self.station.serve(job)
            self.seen.append((client, job.arrived_s, job.started_s, self.env.now))

    def run(self, *flows):
        for flow in flows:
            self.env.process(flow)
        self.env.run()
        return self.seen


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


def test_jobs_that_come_at_one_instant_are_served_by_client_id_whoever_asked_first():
    server = Server()
    seen = server.run(*(server.visit(c, [1.0], [1.0]) for c in (5, 3, 9)))
    assert [row[0] for row in seen] == [3, 5, 9]


def test_a_job_that_comes_just_as_the_server_gets_free_competes_by_client_id():
    server = Server()
    seen = server.run(server.visit(7, [0.0], [2.0]), server.visit(6, [2.0], [1.0]), server.visit(2, [2.0], [1.0]))
    assert [row[0] for row in seen] == [7, 2, 6]


def test_a_strict_order_holds_the_server_and_the_wait_is_seen():
    server = Server()
    left = {0: 1, 1: 1}
    server.station.rank("w2", ORDERS["cyclic"](Roster([0, 1], left)), left)
    seen = server.run(server.visit(1, [1.0], [1.0]), server.visit(0, [5.0], [1.0]))
    assert seen == [(0, 5.0, 5.0, 6.0), (1, 1.0, 6.0, 7.0)]


def test_jobs_on_one_state_never_overlap_however_many_lanes_there_are():
    server = Server(workers=4)
    seen = server.run(*(server.visit(c, [0.0], [1.0]) for c in range(4)))
    assert [row[2] for row in seen] == [0.0, 1.0, 2.0, 3.0]


def test_jobs_on_different_states_share_the_lanes():
    server = Server(workers=2)
    seen = server.run(*(server.visit(c, [0.0], [1.0], state=f"w2 of {c}") for c in range(4)))
    assert [row[2] for row in seen] == [0.0, 0.0, 1.0, 1.0]


def test_a_free_lane_goes_to_the_state_whose_oldest_job_came_first():
    server = Server()
    seen = server.run(
        server.visit(0, [0.0], [10.0], state="busy"),
        server.visit(9, [1.0], [1.0], state="old"),
        server.visit(2, [2.0], [1.0], state="young"),
    )
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
    with pytest.raises(RuntimeError, match="client 0 brings a job to an ordered state before its last one was served"):
        server.run(server.visit(0, [1.0], [1.0]), server.visit(0, [1.0], [1.0]))


def test_a_d_d_1_queue_is_periodic():
    """Arrivals every 2 s, service 1.5 s: nobody waits; service 3 s: the n-th job waits n seconds."""
    arrivals_s = 2.0 * np.arange(50)
    assert (np.subtract(*strangers(arrivals_s, np.full(50, 1.5))[:, [2, 1]].T) == 0).all()
    assert np.subtract(*strangers(arrivals_s, np.full(50, 3.0))[:, [2, 1]].T) == pytest.approx(np.arange(50.0))


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


def test_an_m_m_1_queue_waits_as_theory_says():
    """Mean wait rho/(mu - lambda) = 1 s at lambda = 1/2, mu = 1; the estimate's standard error is about 0.03 s."""
    rng = stream(1, "m/m/1")
    n = 20_000
    seen = strangers(np.cumsum(rng.exponential(2.0, n)), rng.exponential(1.0, n))
    assert (seen[:, 2] - seen[:, 1]).mean() == pytest.approx(1.0, abs=0.12)


def test_of_states_whose_jobs_came_together_the_one_of_the_lowest_client_is_served_first():
    """Client 1 comes for the state that is being changed, so the state for which client 2 came is listed before it."""
    server = Server()
    flows = [server.visit(0, [0.0], [5.0], "a"), server.visit(2, [1.0], [1.0], "b"), server.visit(1, [1.0], [1.0], "a")]
    assert [client for client, *_ in server.run(*flows)] == [0, 1, 2]
