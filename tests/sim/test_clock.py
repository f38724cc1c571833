"""Timing by arrays gives the timeline of the event clock, operation for operation and bit for bit."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import computing, made_by, sending, together
from small_world import CASES, fleet, task

from sfl_sim.errors import DeadlockError
from sfl_sim.methods import METHODS
from sfl_sim.ops import (
    AGGREGATOR,
    SERVER,
    Event,
    Expect,
    Occur,
    State,
    Value,
    Wait,
    expect,
    occur,
    par,
    read,
    send,
    wait,
)
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Shared
from sfl_sim.sim.clock import Clock, stages
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS, InTurn
from sfl_sim.sim.station import first_come
from sfl_sim.sim.trace import Fork, NotPlannable, PlannedOperation, trace
from sfl_sim.system.conditions import Conditions, Throttling
from sfl_sim.system.links import Pattern, RateTrace
from sfl_sim.system.presence import Presence
from sfl_sim.system.topology import build_topology
from sfl_sim.testing import Case
from sfl_sim.training.executors import Timing

REGULAR = [case for case in CASES if case.kind.regular]
BY_EVENTS = [
    Case(METHODS["smofi"], METHODS["smofi"].Options(barrier="relaxed")),
    Case(METHODS["u_shaped"], METHODS["u_shaped"].Options(server="shared")),
]
"""Branches of the first share clients who bring jobs; the second brings two jobs in a row."""


class NeverRuns(EventClock):
    """An event clock that must not be needed."""

    def run(self, flow, round, in_round=True):
        raise AssertionError("the event loop was used")


def method_of(name, options, samples, **settings):
    kind = METHODS[name]
    return kind(task(samples, device=None, **settings), kind.Options(**options))


def timeline(method, clients, by_arrays, world, order="fcfs", kind=EventClock, exchange=True, **queue):
    """Two rounds of a method, by events or by arrays; its rows and when it ends."""
    queueing = Queueing(ORDERS[order], **queue)
    clock = Clock(kind(world, Timing(), queueing, include_model_exchange=exchange))
    for number in (1, 2):
        clock.run(lambda number=number: method.round(number, clients), number, like="all" if by_arrays else None)
    return clock.events.take_rows(), clock.now_s


rates = st.sampled_from([1e3, 3e3, 7.7e3, 1e4])  # few values, so that clients tie now and then
PATTERNS = [Pattern([0, 1, 3], [1, 0.5]), Pattern([0, 0.7, 2, 2.5, 4], [0, 3, 0.1, 0])]
STAYS = [[(0.0, 1.5), (2.0, 2.25)], [(0.5, 8.5)]]
varying = st.builds(RateTrace, rates, st.sampled_from([None, *PATTERNS]), st.sampled_from([0.0, 0.3, 2.0]))


@st.composite
def worlds(draw, n):
    def each():
        return draw(st.lists(rates, min_size=n, max_size=n))

    speedup, latency_s = draw(st.sampled_from([0.5, 3.0, 100.0])), draw(st.sampled_from([0.0, 0.3]))
    world = fleet(n, each(), each(), each(), speedup, latency_s=latency_s)
    if draw(st.booleans()):
        return world
    links = st.lists(varying, min_size=n, max_size=n)
    there = draw(st.sampled_from([None, *STAYS]))
    return replace(
        world,
        uplinks=draw(links),
        downlinks=draw(links),
        conditions=draw(st.sampled_from([None, Conditions(0.3), Conditions(0.2, Throttling(0.5, 3.0, 2.0))])),
        presence=there and [Presence(there, 9.0, phase_s) for phase_s in range(n)],
    )


@settings(max_examples=150)
@given(st.data())
def test_rounds_by_arrays_are_those_by_events_to_the_bit(data):
    draw = data.draw
    samples = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    clients = draw(st.permutations(range(len(samples))))[: draw(st.integers(1, len(samples)))]
    work = task(samples, device=None, batch_size=2, local_epochs=draw(st.integers(1, 2)), momentum=0.9)
    method = draw(st.sampled_from(REGULAR)).method(work)
    settings = {
        "world": draw(worlds(len(samples))),
        "order": draw(st.sampled_from(sorted(ORDERS))),
        "workers": draw(st.sampled_from([1, 2, float("inf")])),
        "burst": draw(st.sampled_from([1, 2, float("inf")])),
        "max_wait_s": draw(st.sampled_from([0.0, 1.0, float("inf")])),
        "exchange": draw(st.booleans()),
    }
    if settings["order"] == "fcfs":
        settings["burst"] = 1
    rows, ended_s = timeline(method, clients, False, **settings)
    foreseen, foreseen_s = timeline(method, clients, True, **settings)
    assert foreseen_s == ended_s
    assert foreseen.tobytes() == rows.tobytes()


@pytest.mark.parametrize("case", [case for case in REGULAR if case not in BY_EVENTS], ids=str)
def test_regular_methods_need_no_event_loop_where_clients_are_alike_in_number_of_batches(case):
    method = case.method(task((4, 4, 4), device=None, momentum=0.9))
    rows, _ = timeline(method, [0, 1, 2], True, fleet(3), kind=NeverRuns)
    assert len(rows)
    assert method.regular


@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_regular_methods_do_the_same_in_every_round(case):
    method = case.method(task((4, 7, 2), device=None, batch_size=2, momentum=0.9))
    simulator = EventClock(fleet(3), Timing(), ORDERS["fcfs"])
    one, other = (trace(method.round(number, [2, 0, 1]), simulator.prices) for number in (1, 2))

    assert without_states(one) == without_states(other)


def without_states(found):
    """A trace whose entries can be compared."""
    if isinstance(found, PlannedOperation):
        return found._replace(state=None)
    if isinstance(found, Expect):
        return found.jobs
    if isinstance(found, Wait | Occur):
        return str(found)
    return [without_states(item) for item in (found.branches if isinstance(found, Fork) else found)]


def test_a_method_of_ones_own_is_regular_only_if_it_says_so():
    class Mine(METHODS["splitfed_v2"]):
        pass

    assert METHODS["splitfed_v2"].regular
    assert not Mine.regular


WORLDS = {
    "links that vary": fleet(2, profile="mobiperf", uplink_bps=None, downlink_bps=None, trace="hsdpa_bus"),
    "devices that jitter": replace(fleet(2), conditions=Conditions(0.5)),
    "devices that get hot": replace(fleet(2), conditions=Conditions(throttling=Throttling(0.5, 1.0, 1.0))),
    "clients that come back": replace(fleet(2), presence=[Presence([(0, 0.01)], 0.03, phase_s) for phase_s in (0, 1)]),
}


@pytest.mark.parametrize("order", ["fcfs", "cyclic"])
@pytest.mark.parametrize("name", WORLDS)
def test_worlds_whose_durations_depend_on_their_start_need_no_event_loop(name, order):
    method = method_of("splitfed_v2", {}, (4, 9), batch_size=2)
    rows, ended_s = timeline(method, [0, 1], False, WORLDS[name], order)
    foreseen, foreseen_s = timeline(method, [0, 1], True, WORLDS[name], order, kind=NeverRuns)
    assert foreseen.tobytes() == rows.tobytes()
    assert (foreseen_s, ended_s) != timeline(method, [0, 1], True, fleet(2), order)[1:] * 2


def test_everybody_counts_as_present_outside_of_rounds():
    def flow():
        return computing(0, 1e6)

    clock = Clock(NeverRuns(replace(fleet(1), presence=[Presence([(5, 6)], 9)]), Timing(), ORDERS["fcfs"]))
    clock.run(flow, 1, like="setup", in_round=False)
    assert clock.now_s == 1.0
    clock.run(flow, 1, like="round")
    assert clock.now_s == 6.0


NEEDS_EVENTS = {
    "clients may be lost": {"dropouts": Dropouts("deadline", deadline_s=1e9)},
    "clients share links": {
        "fleet": replace(
            fleet(2), topology=build_topology(2, stream(0, "test"), Shared(access_points=1, backhaul_bps=1e6))
        )
    },
    "branches share clients who bring jobs": {"name": "smofi", "options": {"barrier": "relaxed"}},
    "who is next": {"name": "splitfed_v2", "order": "shortest_job"},
}


@pytest.mark.parametrize("why", NEEDS_EVENTS)
def test_what_needs_the_event_loop_says_why(why, caplog):
    usual = {"name": "splitfed_v1", "options": {}, "fleet": fleet(2), "order": "fcfs", "dropouts": None}
    world = usual | NEEDS_EVENTS[why]
    method = method_of(world["name"], world["options"], (4, 4))
    clock = Clock(EventClock(world["fleet"], Timing(), ORDERS[world["order"]], dropouts=world["dropouts"]))
    with caplog.at_level("DEBUG", "sfl_sim"):
        for number in (1, 2):
            clock.run(lambda number=number: method.round(number, [0, 1]), number, like="all")
    (said,) = caplog.messages
    assert why in said


def job(client, state, node=SERVER):
    yield from computing(client, 1e6)
    yield from computing(node, 1e6, state, made_by(client))


def waits_for(event, **at_most):
    yield wait([event], **at_most)


def lets_occur(event):
    yield occur(event)


def flows_that_meet():
    """Flows whose branches do meet elsewhere than at the server, or do not do what they announce."""
    shared = State("model")

    def one_device():
        return together(job(0, State("model")) for _ in range(2))

    def one_state_without_an_order():
        return together(job(c, shared) for c in range(2))

    def another_state_than_announced():
        yield expect(shared, {0: 1, 1: 1})
        yield par(job(c, State("model")) for c in range(2))

    def more_jobs_than_announced():
        yield expect(shared, {0: 1})
        yield par(job(c, shared) for c in range(2))

    def jobs_at_the_aggregator():
        yield expect(shared, {0: 1, 1: 1})
        yield par(job(c, shared, AGGREGATOR) for c in range(2))

    def announced_and_never_brought():
        yield par(job(c, State("model")) for c in range(2))
        yield expect(shared, {0: 1})

    def jobs_of_nobody():
        return together(computing(SERVER, 1e6) for _ in range(2))

    def jobs_of_several_clients():
        def several():
            for client in (0, 1):
                yield from job(client, State("model"))

        return together([several(), job(2, State("model"))])

    def between_clients():
        return together([sending(100, 0, 1)])

    def forks_twice():
        return together([together([job(0, State("model"))]), job(1, State("model"))])

    def reads():
        yield read(Value("norm"))

    def waits_for_what_comes_later():
        later = Event("later")
        yield par([waits_for(later)])
        yield occur(later)

    def waits_at_most_a_second():
        return together([waits_for(Event("never"), at_most_s=1.0)])

    def one_event_of_two_branches():
        event = Event("of both")
        return together([job(0, State("model")), lets_occur(event), lets_occur(event), waits_for(event)])

    return [
        one_device, one_state_without_an_order, another_state_than_announced, more_jobs_than_announced,
        jobs_at_the_aggregator, announced_and_never_brought, jobs_of_nobody, jobs_of_several_clients, between_clients,
        forks_twice, reads, waits_for_what_comes_later, waits_at_most_a_second, one_event_of_two_branches,
    ]  # fmt: skip


@pytest.mark.parametrize("flow", flows_that_meet(), ids=lambda flow: flow.__name__)
def test_flows_that_meet_elsewhere_need_the_event_loop(flow):
    with pytest.raises(NotPlannable):
        stages(trace(flow(), EventClock(fleet(3), Timing(), ORDERS["fcfs"]).prices))


def test_a_flow_that_cannot_be_foreseen_is_driven_to_its_end_before_it_runs_again():
    ends = []

    def flow():
        yield send(State("model", 100), 0, 1)
        ends.append("whole")

    Clock(EventClock(fleet(2), Timing(), ORDERS["fcfs"])).run(flow, 1, like=1)
    assert ends == ["whole", "whole"]


class Patient(InTurn):
    """A policy of one's own that is made like turns and behaves otherwise."""

    def __call__(self, waiting, now_s):
        return first_come(waiting, now_s) if len(waiting) == 2 else None


OWN_ORDERS = {
    "too few turns": lambda roster: InTurn(iter(roster.clients)),
    "turns without end": lambda roster: InTurn(cycle(roster.clients)),
    "turns of a stranger": lambda roster: InTurn(iter([7, 0, 1])),
    "a policy of its own": Patient,
    "arrival for one client alone": lambda roster: first_come if len(roster.clients) == 1 else Patient(roster),
}


@pytest.mark.parametrize("name", OWN_ORDERS)
def test_an_order_of_ones_own_is_timed_as_the_event_loop_times_it(name):
    def outcome(by_arrays):
        clock = Clock(EventClock(fleet(2, [1e3, 3e3]), Timing(), OWN_ORDERS[name]))
        try:
            clock.run(lambda: method.round(1, [0, 1]), 1, like=1 if by_arrays else None)
        except DeadlockError as error:
            return str(error)
        return clock.events.take_rows().tobytes()

    method = method_of("splitfed_v2", {}, (4, 8))
    assert outcome(True) == outcome(False)


def test_a_message_is_priced_as_it_is_when_it_is_sent():
    class Shrinks(State):
        def snapshot(self):
            return State("model", self.size_bytes // 4)

    def flow():
        yield send(Shrinks("model", 4000), 0, SERVER)

    prices = EventClock(fleet(1, uplink_bps=8.0), Timing(), ORDERS["fcfs"]).prices
    (entry,) = trace(flow(), prices)
    assert prices.seconds(entry.demand) == 1000


def test_rounds_by_arrays_and_by_events_may_follow_upon_each_other():
    method = method_of("splitfed_v2", {}, (4, 7, 5))
    mixed, plain = (Clock(EventClock(fleet(3, [1e3, 2e3, 3e3]), Timing(), ORDERS["cyclic"])) for _ in range(2))
    for number in range(1, 6):
        mixed.run(lambda number=number: method.round(number, [2, 0, 1]), number, like=1 if number % 2 else None)
        plain.run(lambda number=number: method.round(number, [2, 0, 1]), number)
    assert mixed.events.take_rows().tobytes() == plain.events.take_rows().tobytes()


def test_what_happens_once_and_is_nothing_takes_no_time():
    clock = Clock(EventClock(fleet(2), Timing(), ORDERS["fcfs"]))
    clock.run(METHODS["fedavg"](task((4, 4), device=None)).setup, 1, like="setup", in_round=False)
    assert clock.refused is None
    assert (clock.now_s, len(clock.events.take_rows())) == (0, 0)


def test_a_clock_keeps_the_latest_plan_and_clocks_that_share_plans_keep_all():
    alone, shared, plans = [], [], {}
    method = method_of("splitfed_v1", {}, (4, 4))
    for written, kept in ((alone, None), (shared, plans)):
        for _ in range(2):
            clock = Clock(EventClock(fleet(2), Timing(), ORDERS["fcfs"]), kept)
            for number, clients in enumerate([[0], [1], [0]], start=1):

                def flow(number=number, clients=clients, written=written):
                    written.append(clients)
                    return method.round(number, clients)

                clock.run(flow, number, like=tuple(clients))
    assert alone == [[0], [1], [0]] * 2
    assert shared == [[0], [1]]
    assert list(plans) == [(0,), (1,)]


def test_rows_that_end_together_stand_in_an_order_of_their_own():
    method = method_of("splitfed_v1", {}, (4, 4, 4, 4))
    rows, _ = timeline(method, [0, 1, 2, 3], False, fleet(4))
    turned, _ = timeline(method, [3, 1, 0, 2], False, fleet(4))
    assert (np.diff(rows["ended_s"]) >= 0).all()
    assert rows.tobytes() == turned.tobytes()
