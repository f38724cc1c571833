"""A round that asks more clients than it wants goes on without the last ones, as soon as the others are there."""

from math import inf

import numpy as np
import pytest

from sfl_sim.methods import METHODS
from sfl_sim.ops import par, send
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.testing import bits, fleet, simulate, task

UPLINKS_BPS = [1.1e4, 2.3e4, 4.1e4, 7.9e4]
SAMPLES = (8, 8, 8, 8)


def run(name, rounds=1, **dropouts):
    world = fleet(4, macs_per_s=[1e3, 2e3, 3e3, 4e3], uplink_bps=UPLINKS_BPS, downlink_bps=1e5)
    return simulate(METHODS[name](task(SAMPLES, momentum=0.9)), rounds, world=world, dropouts=Dropouts(**dropouts))


def instant(trial):
    (lost_s,) = {dropout.lost_s for dropout in trial.clock.records.dropouts}
    return lost_s


@pytest.mark.parametrize("name", ["fedavg", "splitfed_v2", "splitfed_v3", "multihead", "fedprox"])
def test_it_is_as_if_a_deadline_passed_when_the_last_wanted_client_has_come(name):
    first = run(name, wanted=2)
    late = run(name, policy="deadline", deadline_s=instant(first))
    assert np.sort(first.rows).tobytes() == np.sort(late.rows).tobytes(), "but for the order at one instant"
    assert bits(first.method) == bits(late.method)
    assert {dropout.cause for dropout in first.clock.records.dropouts} == {"overtaken"}
    assert {dropout.client for dropout in first.clock.records.dropouts} == {0, 1}


def test_the_round_lasts_as_long_as_the_fastest_alone_would_take():
    alone = {n: run("fedavg", [range(4)[-n:]]).clock.now_s for n in (1, 2, 3, 4)}
    for n, lasts_s in alone.items():
        assert run("fedavg", wanted=n if n < 4 else inf).clock.now_s == lasts_s


def test_what_clients_had_under_way_ends_then_and_nothing_of_it_takes_time_later():
    both = run("fedavg", 2, wanted=2)
    ends_s = both.rows["ended_s"]
    second = both.rows[both.rows["round"] == 2]
    first = both.rows[both.rows["round"] == 1]
    assert np.all(first["ended_s"] <= second["requested_s"].min())
    assert np.all(first["started_s"] <= first["ended_s"])
    assert np.all(second["started_s"][second["kind"] == b"model"] == second["requested_s"][second["kind"] == b"model"])
    assert both.clock.now_s == pytest.approx(2 * run("fedavg", wanted=2).clock.now_s, rel=1e-12)
    assert ends_s.max() == both.clock.now_s


def test_clients_that_drop_out_are_not_among_those_that_have_come():
    everybody = run("splitfed_v2", wanted=4)
    assert not everybody.clock.records.dropouts


def test_jobs_of_overtaken_clients_leave_the_queue_of_the_server():
    world = fleet(4, macs_per_s=1e9, uplink_bps=1e9, downlink_bps=1e9, speedup=1e-4)  # all wait for one slow worker
    method = METHODS["splitfed_v1"](task((4, 8, 8, 8)))
    trial = simulate(method, 2, world=world, workers=1, dropouts=Dropouts(wanted=1))
    served = trial.rows[trial.rows["node"] == b"server"]
    assert len(trial.clock.records.dropouts) == 2 * 3
    of_first = served[(served["client"] == 0) & (served["kind"] == b"train")]
    assert len(of_first) == 2
    for lost in served[(served["macs"] == 0) & (served["kind"] == b"train")]:
        assert lost["started_s"] == lost["ended_s"], "it had waited"


def test_a_flow_that_waits_for_another_is_overtaken_too():
    class Waits(METHODS["fedavg"], survives=True):
        def round(self, round, clients):
            from sfl_sim.ops import Event, wait

            def never():
                yield wait([Event("never")])

            def comes(c):
                yield send(self.whole, c, c)

            self.came = yield par({c: comes(c) if c < 2 else never() for c in clients})

    trial = simulate(Waits(task(SAMPLES)), 1, dropouts=Dropouts(wanted=2))
    assert trial.method.came.keys() == {0, 1}
