"""Clients that go away, or are too late, while they take part: what is lost, what stands still, who goes on."""

import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import UNIT, computing, made_by, sending, together
from small_world import fleet

from sfl_sim.errors import DeadlockError
from sfl_sim.methods import METHODS
from sfl_sim.ops import (
    AGGREGATOR,
    SERVER,
    Event,
    Lost,
    State,
    Value,
    expect,
    occur,
    par,
    present,
    send,
    start,
    wait,
)
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Shared
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence
from sfl_sim.system.topology import build_topology
from sfl_sim.testing import bits, simulate, task
from sfl_sim.training.executors import Timing

LONG_S = 1e6
"""A period that no story lives to see the end of."""
ALWAYS = Presence([(0, LONG_S)], LONG_S)


class Noting(Timing):
    """Remembers which steps were run, by their MACs."""

    def __init__(self):
        self.ran = []

    def run(self, op):
        self.ran.append(op.step.macs)


def there(*intervals):
    return Presence(intervals, LONG_S)


def world(presence, policy="drop", order="fcfs", deadline_s=inf, executor=None, topology=None, **rates):
    """Devices of 1 MAC/s, links of 1 byte a second, a server of 1 MAC/s; somebody is there at these times."""
    everybody = replace(fleet(len(presence), **(UNIT | rates)), presence=presence, topology=topology)
    dropouts = Dropouts(policy, presence, deadline_s)
    return EventClock(everybody, executor or Timing(), Queueing(ORDERS[order], max_wait_s=2.0), dropouts=dropouts)


def told(simulator):
    """Kind of place, request, start, end, MACs and bytes of what has been done."""
    rows = simulator.take_rows()
    columns = [rows[name].tolist() for name in ("node", "requested_s", "started_s", "ended_s", "macs", "bytes")]
    return list(zip(*columns, strict=True))


def caught(flow, log):
    """Run `flow`, and note who was lost."""
    try:
        yield from flow
    except Lost as lost:
        log.append(lost.client)


def later(wait_s, flow):
    """Begin a flow after so many seconds."""
    yield wait([Event("nothing")], wait_s)
    return (yield from flow)


@pytest.mark.parametrize(
    ("goes_s", "flow", "loser", "row"),
    [
        ([3], computing(0, 5), 0, (b"client", 0, 0, 3, 3, 0)),
        ([4], sending(9, 0, SERVER), 0, (b"uplink", 0, 0, 4, 0, 4)),
        ([3, 9], sending(5, 0, 1), 0, (b"peer", 0, 0, 3, 0, 3)),
        ([9, 3], sending(5, 0, 1), 1, (b"peer", 0, 0, 3, 0, 3)),
    ],
    ids=["a step", "a message", "a message between clients, with its sender", "and with its receiver"],
)
def test_what_has_not_been_done_when_a_client_goes_away_is_lost(goes_s, flow, loser, row):
    """At 1 MAC/s and 1 byte/s; what has been done until then counts, but no step was run."""
    simulator, log = world([there((0, at_s), (10, 20)) for at_s in goes_s], executor=Noting()), []
    simulator.run(caught(flow, log), 1)
    assert (log, told(simulator), simulator.executor.ran) == ([loser], [row], [])
    (loss,) = simulator.records.take_dropouts()
    assert (loss.client, loss.lost_s, loss.node, loss.cause) == (loser, simulator.now_s, row[0].decode(), "away")
    assert simulator.now_s == row[3]


def job(client, macs, state, first_s=0.0):
    if first_s:
        yield from computing(client, first_s)
    yield from computing(SERVER, macs, state, made_by(client))
    return client


def test_what_waits_for_a_device_is_lost_with_it():
    simulator, log = world([there((0, 3))]), []
    simulator.run(together(caught(computing(0, 2), log) for _ in range(3)), 1)
    assert log == [0, 0]
    assert told(simulator) == [(b"client", 0, 0, 2, 2, 0), (b"client", 0, 2, 3, 1, 0), (b"client", 0, 3, 3, 0, 0)]


def test_whoever_sends_to_a_client_that_is_lost_has_its_uplink_busy_as_before():
    """Ten bytes take client 0's uplink until 10 s; four more wait behind them until their receiver goes away at 5 s."""
    simulator, log = world([ALWAYS, there((0, 5))]), []
    flows = [sending(10, 0, SERVER), caught(sending(4, 0, 1), log), later(6, sending(2, 0, SERVER))]
    simulator.run(together(flows), 1)
    assert log == [1]
    assert [row[1:4] for row in told(simulator) if row[0] == b"uplink"] == [(0, 0, 10), (6, 10, 12)]


def test_who_is_lost_leaves_a_shared_link_to_the_others():
    """Two uploads of 8 bytes over 1 byte/s: half a byte a second each, until one goes away at 4 s with 2 bytes moved.
    The other's 6 bytes then have the link to themselves until 10 s."""
    shared = build_topology(2, stream(0, "access points"), Shared(access_points=1, capacity_bps=8.0))
    simulator = world([ALWAYS, there((0, 4))], topology=shared)
    assert simulator.run(together({c: sending(8, c, SERVER) for c in (0, 1)}), 1) == {0: None}
    assert told(simulator) == [(b"uplink", 0, 0, 4, 0, 2), (b"uplink", 0, 0, 10, 0, 8)]


def test_a_job_that_waits_is_taken_out_of_the_queue():
    """The server is busy with client 0 until 5 s; client 1 waits from 1 s and goes away at 3 s; client 2 is next."""
    simulator, part2 = world([ALWAYS, there((0, 3)), ALWAYS]), State("part-2")
    flows = {0: job(0, 5, part2), 1: job(1, 5, part2, 1), 2: job(2, 5, part2, 2)}
    assert simulator.run(together(flows), 1) == {0: 0, 2: 2}
    assert simulator.now_s == 10
    assert (b"server", 1, 3, 3, 0, 0) in told(simulator)


def test_a_job_in_service_is_finished_though_nobody_hears_of_it():
    """Ownership is order: what the server has begun to learn from it has learned."""
    simulator, log = world([there((0, 3))], executor=Noting()), []
    simulator.run(caught(job(0, 5, State("part-2")), log), 1)
    assert (log, simulator.now_s, simulator.executor.ran) == ([0], 5, [5])
    assert told(simulator) == [(b"server", 0, 0, 5, 5, 0)]
    assert [loss.lost_s for loss in simulator.records.take_dropouts()] == [3]


def test_a_job_that_comes_in_the_instant_in_which_its_client_goes_away_does_not_wait():
    """Client 0 goes away at 3 s: while a job of its waits, and when what it computes before another job has ended."""
    simulator, log, part2 = world([there((0, 3)), ALWAYS]), [], State("part-2")
    flows = [job(1, 10, part2), caught(job(0, 1, part2, 0.5), log), later(1, caught(job(0, 1, part2, 2), log))]
    simulator.run(together(flows), 1)
    assert log == [0, 0]
    rows = [row[1:5] for row in told(simulator) if row[0] == b"server"]
    assert rows == [(0.5, 3, 3, 0), (3, 3, 3, 0), (0, 0, 10, 10)]


def test_a_client_that_is_back_loses_nothing_when_its_job_of_before_is_finished():
    """Client 0 is away from 3 to 4 s while a job of its is in service, and has another wait when that ends, at 5 s."""
    simulator, log, part2 = world([there((0, 3), (4, 99))]), [], State("part-2")
    flows = [caught(job(0, 5, part2), log), later(4.25, job(0, 1, part2))]
    assert simulator.run(together(flows), 1) == [None, 0]
    assert (log, simulator.now_s) == ([0], 6)


def asked(clients):
    return (yield present(clients))


def test_outside_of_rounds_every_client_is_present():
    """Setup and finish ask whom they like, and take as long as if nobody ever left."""
    simulator = world([there((5, 9))])
    assert simulator.run(asked([0]), 1, in_round=False) == [0]
    assert simulator.run(computing(0, 7), 1, in_round=False) == 7
    assert simulator.now_s == 7


def test_so_is_everybody_in_a_world_without_absence():
    assert EventClock(fleet(2), Timing(), ORDERS["fcfs"]).run(asked([1, 0]), 1) == [1, 0]


@pytest.mark.parametrize(("presence", "clients"), [(ALWAYS, []), (Presence([], LONG_S), [0])])
def test_whoever_waits_for_those_that_never_come_is_told_so(presence, clients):
    with pytest.raises(DeadlockError, match=r"round 1 .*none"):
        world([presence]).run(asked(clients), 1)


def visit(client, jobs, part2):
    """Run `jobs` mini-batches, each with a second on the device and a second at the server."""
    for _ in range(jobs):
        yield from job(client, 1, part2, 1)
    return client


def round_of(clients, jobs, part2):
    yield expect(part2, dict.fromkeys(clients, jobs))
    return (yield par({c: visit(c, jobs, part2) for c in clients}))


@pytest.mark.parametrize("order", ["cyclic", "cyclic_reverse", "bounded_wait", "random_sweep", "random_client"])
def test_an_order_does_not_wait_for_the_lost(order):
    """Client 1 goes away before its first job: whatever the order, the others' three jobs each are served."""
    simulator = world([ALWAYS, there((0, 0.5)), ALWAYS], order=order)
    assert simulator.run(round_of([0, 1, 2], 3, State("part-2")), 1) == {0: 0, 2: 2}
    assert sum(row[0] == b"server" for row in told(simulator)) == 6


def test_in_cyclic_order_the_next_turn_begins_when_the_client_is_lost():
    """Turns 0, 1, 0, 1: client 0 is served from 1 to 2 s, waits for the turn of client 1 from 3 s on, and has it when
    that goes away at 4.5 s, in the midst of 9 s of computing."""
    simulator, part2 = world([ALWAYS, there((0, 4.5))], order="cyclic"), State("part-2")

    def both():
        yield expect(part2, {0: 2, 1: 2})
        return (yield par({0: visit(0, 2, part2), 1: job(1, 1, part2, 9)}))

    assert simulator.run(both(), 1) == {0: 0}
    assert [row[1:4] for row in told(simulator) if row[0] == b"server"] == [(1, 1, 2), (3, 4.5, 5.5)]


def test_with_patience_everything_stands_still_meanwhile():
    """5 MACs and 4 bytes, the client there for 3 s, away for 7, there for 4, away for 6: done at 12 s and at 22 s."""
    simulator = world([there((0, 3), (10, 14), (20, 99))], policy="wait")

    def flow():
        yield from computing(0, 5)
        yield from sending(4, 0, SERVER)

    simulator.run(flow(), 1)
    assert told(simulator) == [(b"client", 0, 0, 12, 5, 0), (b"uplink", 12, 12, 22, 0, 4)]
    assert simulator.records.take_dropouts() == []


def test_a_deadline_counts_from_the_beginning_of_its_round():
    """Two rounds with a deadline after 4 s: client 0 needs 3 s, client 1 needs 6."""
    simulator = world([ALWAYS, ALWAYS], policy="deadline", deadline_s=4)
    for begins_s in (0, 4):
        assert simulator.run(together({c: computing(c, (3, 6)[c]) for c in (0, 1)}), 1) == {0: 3}
        assert simulator.now_s == begins_s + 4
    assert [loss.cause for loss in simulator.records.take_dropouts()] == ["deadline"] * 2


def test_the_deadline_of_a_round_that_has_ended_means_nothing():
    """The first round ends at 1 s; its deadline, 4 s, passes while client 1 waits for client 0 in the second."""
    simulator, part2 = world([ALWAYS, ALWAYS], policy="deadline", deadline_s=4), State("part-2")
    assert simulator.run(together({1: job(1, 1, part2)}), 1) == {1: 1}
    assert simulator.run(together({0: job(0, 3.5, part2), 1: job(1, 0.25, part2)}), 2) == {0: 0, 1: 1}
    assert simulator.now_s == 4.75


def test_watches_of_rounds_that_have_ended_are_not_renewed():
    """A deadline of 4 s, and many rounds of 1 s: at most the watches of the last 4 s are left."""
    simulator, part2 = world([ALWAYS, ALWAYS], policy="deadline", deadline_s=4), State("part-2")
    for number in range(1, 101):
        simulator.run(together({c: job(c, 0.5, part2) for c in (0, 1)}), number)
    assert len(simulator.env._queue) <= 2 * 4


def test_jobs_that_never_come_are_told_though_a_deadline_is_still_to_pass():
    simulator, part2 = world([ALWAYS, ALWAYS], policy="deadline", deadline_s=4), State("part-2")

    def flow():
        yield expect(part2, {0: 2})
        yield from job(0, 1, part2)

    with pytest.raises(DeadlockError, match="1 jobs of client 0"):
        simulator.run(flow(), 1)


def test_before_the_deadline_a_client_may_be_away():
    """Away from 2 to 5 s: 4 MACs are done at 7 s, and of 9 MACs 4 are done at 7.5 s, half of one more."""
    simulator = world([there((0, 2), (5, 99))] * 2, policy="deadline", deadline_s=7.5)
    assert simulator.run(together({0: computing(0, 4), 1: computing(1, 9)}), 1) == {0: 4}
    assert told(simulator) == [(b"client", 0, 0, 7, 4, 0), (b"client", 0, 0, 7.5, 4.5, 0)]


def test_whoever_has_not_received_by_the_deadline_is_too_late_not_the_sender():
    simulator, log = world([ALWAYS, there((2, 99))], policy="deadline", deadline_s=4), []
    simulator.run(caught(sending(5, 0, 1), log), 1)
    assert (log, [loss.client for loss in simulator.records.take_dropouts()], simulator.now_s) == ([1], [1], 4)


def test_a_deadline_needs_nobody_to_be_away():
    simulator = EventClock(fleet(1, 1.0), Timing(), ORDERS["fcfs"], dropouts=Dropouts("deadline", None, 4.0))
    assert simulator.run(together({0: computing(0, 6)}), 1) == {}
    assert simulator.now_s == 4


def test_a_named_flow_that_is_lost_is_missing():
    simulator = world([there((0, 3)), ALWAYS])
    assert simulator.run(together({"a": computing(0, 5), "b": computing(1, 7)}), 1) == {"b": 7}


def test_a_list_of_flows_is_lost_with_one_of_them_once_the_others_are_done():
    simulator, log = world([there((0, 3)), ALWAYS]), []
    simulator.run(caught(together([computing(0, 5), computing(1, 7)]), log), 1)
    assert (log, simulator.now_s) == ([0], 7)


def test_what_nobody_catches_ends_the_run():
    with pytest.raises(Lost, match="client 0"):
        world([there((0, 3))]).run(computing(0, 5), 1)


def test_a_flow_that_nobody_waits_for_ends_by_itself():
    simulator, done = world([there((0, 3)), ALWAYS]), Event("the end")

    def beside():
        yield from computing(0, 5)
        yield occur(done)

    def flow():
        yield start(beside())
        yield from computing(1, 9)

    simulator.run(flow(), 1)
    assert (simulator.now_s, done.occurred) == (9, False)


def test_a_flow_may_go_on_after_a_loss():
    """Let a flow catch its loss and occur an event, so that the flows that wait for it go on."""
    simulator, done = world([there((0, 3)), ALWAYS]), Event("the end")

    def beside():
        try:
            yield from computing(0, 5)
        finally:
            yield occur(done)

    def flow():
        yield start(beside())
        return (yield wait([done]))

    assert simulator.run(flow(), 1) is True
    assert simulator.now_s == 3


def test_who_is_present_is_known_at_once_or_waited_for():
    simulator = world([there((4, 6)), there((5, 9))])

    def flow():
        first = yield present([0, 1])
        yield from computing(SERVER, 1.5)
        return first, (yield present([1, 0]))

    assert simulator.run(flow(), 1) == ([0], [1, 0])
    assert simulator.now_s == 5.5


BRIEFLY = Presence([(0, 2 / 1024)], 4 / 1024)
"""There for 2 ms every 4 ms, about."""


def test_a_message_takes_as_many_short_stays_as_it_needs_at_once(monkeypatch):
    """1,000 bytes at 1 byte a second need 512,000 stays, which nobody walks through one by one."""
    monkeypatch.setattr("sfl_sim.system.links.MAX_PIECES", 100)
    simulator = world([BRIEFLY], policy="wait")
    simulator.run(sending(1000, 0, SERVER), 1)
    assert simulator.now_s == 2000 - 2 / 1024


def test_of_a_message_that_is_lost_only_the_way_until_then_is_walked(monkeypatch):
    monkeypatch.setattr("sfl_sim.system.links.MAX_PIECES", 100)
    for policy, deadline_s in (("drop", inf), ("deadline", 0.1)):
        simulator, log = world([BRIEFLY, BRIEFLY], policy, deadline_s=deadline_s), []
        simulator.run(caught(sending(1000, 0, 1), log), 1)
        assert log
        assert simulator.now_s == (2 / 1024 if policy == "drop" else 0.1)


@st.composite
def presences(draw, n):
    """Clients that come and go every few seconds."""

    def one():
        lengths = draw(st.lists(st.sampled_from([0.5, 1.0, 2.5, 4.0]), min_size=2, max_size=6))
        times = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        return Presence(
            list(zip(times[::2], times[1::2], strict=False)), times[-1] + 1, draw(st.sampled_from([0, 1.5]))
        )

    return [one() for _ in range(n)]


@settings(max_examples=120)
@given(st.data(), st.sampled_from(sorted(ORDERS)), st.sampled_from(["drop", "wait", "deadline"]))
def test_whoever_is_lost_nobody_hangs_and_nothing_is_done_in_absence(data, order, policy):
    """Three rounds of split learning with one part-2 end; no client computes or sends while it is away, unless it
    pauses; every job of those who came through was served; and what was moved is at most what was sent."""
    n, jobs = 3, 2
    presence = data.draw(presences(n))
    simulator = world(presence, policy, order, deadline_s=6.0 if policy == "deadline" else inf)
    part2 = State("part-2")

    def client(c):
        part1 = yield send(Value("model", 1), AGGREGATOR, c)
        for _ in range(jobs):
            yield from job(c, 0.25, part2, 0.5)
            yield send(Value("gradients", 1), SERVER, c)
        yield send(part1, c, AGGREGATOR)
        return c

    def round():
        yield expect(part2, dict.fromkeys(range(n), jobs))
        return (yield par({c: client(c) for c in range(n)}))

    for number in (1, 2, 3):
        begins_s = simulator.now_s
        survivors = simulator.run(round(), number)
        rows, losses = simulator.take_rows(), simulator.records.take_dropouts()
        assert {loss.client for loss in losses} == set(range(n)) - set(survivors)
        for loss in losses:
            assert loss.lost_s <= simulator.now_s
            is_late, is_there = loss.lost_s == begins_s + 6, presence[loss.client].is_present(loss.lost_s)
            assert is_late if policy == "deadline" else not is_there
        if policy == "wait":
            assert list(survivors) == list(range(n))
        served = rows[(rows["node"] == b"server") & (rows["macs"] > 0)]
        for c in survivors:
            assert (served["client"] == c).sum() == jobs
            assert rows["bytes"][rows["client"] == c].sum() == 2 + jobs
        own = rows[rows["node"] != b"server"]
        assert (own["bytes"] <= 1).all()
        for row in own:
            worked_s = sum(
                end - begin for begin, end in presence[row["client"]].intervals(row["started_s"], row["ended_s"])
            )
            if policy == "drop":
                assert worked_s == pytest.approx(row["ended_s"] - row["started_s"], abs=1e-9)
            elif row["bytes"] == 1 or row["macs"] == 0.5:
                assert worked_s == pytest.approx(max(row["macs"], row["bytes"]), abs=1e-9)


@pytest.mark.parametrize("names", [True, False])
def test_what_a_lost_client_held_is_gone_at_once(names):
    """Free a lost client's model and graph at once, and not at the next garbage collection."""
    held = []

    def training():
        model = State("model")
        held.append(weakref.ref(model))
        yield from computing(0, 5.0, model)

    def round():
        with suppress(Lost):
            yield par({0: training()} if names else [training()])
        gone.append(held[0]() is None)

    gone = []
    gc.disable()
    try:
        world([there((0, 3), (7, 100))]).run(round(), 1)
    finally:
        gc.enable()
    assert gone == [True]


UPLINKS_BPS = [1.1e4, 2.3e4, 4.1e4, 7.9e4]
SAMPLES = (8, 8, 8, 8)


def overtaken(name, rounds=1, **dropouts):
    """A round that asks more clients than it wants goes on without the last ones, as soon as the others are there."""
    world = fleet(4, macs_per_s=[1e3, 2e3, 3e3, 4e3], uplink_bps=UPLINKS_BPS, downlink_bps=1e5)
    return simulate(METHODS[name](task(SAMPLES, momentum=0.9)), rounds, world=world, dropouts=Dropouts(**dropouts))


def instant(trial):
    (lost_s,) = {dropout.lost_s for dropout in trial.clock.records.dropouts}
    return lost_s


@pytest.mark.parametrize("name", ["fedavg", "splitfed_v2", "splitfed_v3", "multihead", "fedprox"])
def test_it_is_as_if_a_deadline_passed_when_the_last_wanted_client_has_come(name):
    first = overtaken(name, wanted=2)
    late = overtaken(name, policy="deadline", deadline_s=instant(first))
    assert np.sort(first.rows).tobytes() == np.sort(late.rows).tobytes(), "but for the order at one instant"
    assert bits(first.method) == bits(late.method)
    assert {dropout.cause for dropout in first.clock.records.dropouts} == {"overtaken"}
    assert {dropout.client for dropout in first.clock.records.dropouts} == {0, 1}


def test_the_round_lasts_as_long_as_the_fastest_alone_would_take():
    alone = {n: overtaken("fedavg", [range(4)[-n:]]).clock.now_s for n in (1, 2, 3, 4)}
    for n, lasts_s in alone.items():
        assert overtaken("fedavg", wanted=n if n < 4 else inf).clock.now_s == lasts_s


def test_what_clients_had_under_way_ends_then_and_nothing_of_it_takes_time_later():
    both = overtaken("fedavg", 2, wanted=2)
    first, second = (both.rows[both.rows["round"] == number] for number in (1, 2))
    assert np.all(first["ended_s"] <= second["requested_s"].min())
    assert np.all(first["started_s"] <= first["ended_s"])
    assert np.all(second["started_s"][second["kind"] == b"model"] == second["requested_s"][second["kind"] == b"model"])
    assert both.clock.now_s == pytest.approx(2 * overtaken("fedavg", wanted=2).clock.now_s, rel=1e-12)
    assert both.rows["ended_s"].max() == both.clock.now_s


def test_where_all_are_wanted_nobody_is_overtaken():
    assert not overtaken("splitfed_v2", wanted=4).clock.records.dropouts


def test_nobody_is_overtaken_before_he_has_begun():
    """Beginning takes HO-SFL's clients no time in round 1, so that all are there when the first have come."""
    trial = overtaken("ho_sfl", wanted=2)
    lost = [dropout.client for dropout in trial.clock.records.dropouts]
    assert sorted(lost) == [0, 1], "the slowest at their first mini-batch, and not the last in the list"


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
            def never():
                yield wait([Event("never")])

            self.came = yield par({c: sending(1, c, c) if c < 2 else never() for c in clients})

    trial = simulate(Waits(task(SAMPLES)), 1, dropouts=Dropouts(wanted=2))
    assert trial.method.came.keys() == {0, 1}
    lost = [(dropout.client, dropout.node, dropout.kind) for dropout in trial.clock.records.dropouts]
    assert lost == [(c, "client", "wait") for c in range(2, len(SAMPLES))], "though no operation of theirs was cut off"
    assert trial.rows[trial.rows["kind"] == b"wait"]["ended_s"].tolist() == [instant(trial)] * len(lost)
