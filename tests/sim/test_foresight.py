"""Timing without an event loop: the same timeline as with one, operation for operation and bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import fleet, task

from sfl_sim.errors import StuckError
from sfl_sim.execute.timing import Timing
from sfl_sim.methods import METHODS
from sfl_sim.ops import SERVER, Expect, State, Value, Work, expect, on, par, read, send
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.foresight import Foresight, stages
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.trace import Entry, Fork, Unforeseen, trace

V1 = [("splitfed_v1", {"server_agg_every": every}) for every in ("step", "epoch", "round")]
REGULAR = [("fedavg", {}), ("splitfed_v2", {}), *V1]


class NeverRuns(Simulator):
    """A simulator whose event loop must not be needed."""

    def run(self, flow, round):
        raise AssertionError("the event loop was used")


def method_of(name, options, samples, **settings):
    kind = METHODS[name]
    return kind(task(samples, device=None, **settings), kind.Options(**options))


def timeline(method, clients, foresee, world, order="fcfs", kind=Simulator, **settings):
    """Two rounds of a method, by event loop or by foresight; its rows and when it ends."""
    simulator = kind(world, Timing(), ORDERS[order], **settings)
    foresight = Foresight(simulator)
    for number in (1, 2):
        if foresee:
            foresight.run(lambda number=number: method.round(number, clients), number, like="all")
        else:
            simulator.run(method.round(number, clients), number)
    return simulator.take_rows(), simulator.now_s


rates = st.sampled_from([1e3, 3e3, 7.7e3, 1e4])  # few values, so that clients tie now and then


@st.composite
def worlds(draw, n):
    def each():
        return draw(st.lists(rates, min_size=n, max_size=n))

    speedup, latency_s = draw(st.sampled_from([0.5, 3.0, 100.0])), draw(st.sampled_from([0.0, 0.3]))
    return fleet(n, each(), each(), each(), speedup, latency_s=latency_s)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_foreseen_rounds_are_those_of_the_event_loop_to_the_bit(data):
    draw = data.draw
    samples = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    clients = draw(st.permutations(range(len(samples))))[: draw(st.integers(1, len(samples)))]
    name, options = draw(st.sampled_from(REGULAR))
    method = method_of(name, options, samples, batch_size=2, local_epochs=draw(st.integers(1, 2)))
    settings = {
        "world": draw(worlds(len(samples))),
        "order": draw(st.sampled_from(sorted(ORDERS))),
        "workers": draw(st.sampled_from([1, 2, float("inf")])),
        "burst": draw(st.sampled_from([1, 2, float("inf")])),
        "include_model_exchange": draw(st.booleans()),
    }
    if settings["order"] == "fcfs":
        settings["burst"] = 1
    rows, ended_s = timeline(method, clients, False, **settings)
    foreseen, foreseen_s = timeline(method, clients, True, **settings)
    assert foreseen_s == ended_s
    assert foreseen.tobytes() == rows.tobytes()


@pytest.mark.parametrize(("name", "options"), REGULAR)
def test_regular_methods_need_no_event_loop_where_clients_are_alike_in_number_of_batches(name, options):
    method = method_of(name, options, (4, 4, 4))
    rows, _ = timeline(method, [0, 1, 2], True, fleet(3), kind=NeverRuns)
    assert len(rows)
    assert method.regular


@pytest.mark.parametrize(("name", "options"), REGULAR)
def test_regular_methods_do_the_same_in_every_round(name, options):
    method = method_of(name, options, (4, 7, 2), batch_size=2)
    simulator = Simulator(fleet(3), Timing(), ORDERS["fcfs"])
    one, other = (trace(method.round(number, [2, 0, 1]), simulator.prices) for number in (1, 2))

    assert without_states(one) == without_states(other)


def without_states(found):
    """A trace whose entries can be compared."""
    if isinstance(found, Entry):
        return found._replace(state=None)
    if isinstance(found, Expect):
        return found.jobs
    return [without_states(item) for item in (found.branches if isinstance(found, Fork) else found)]


def test_a_method_of_ones_own_is_regular_only_if_it_says_so():
    class Mine(METHODS["splitfed_v2"]):
        pass

    assert METHODS["splitfed_v2"].regular
    assert not Mine.regular


def test_links_that_vary_are_left_to_the_event_loop():
    method = method_of("splitfed_v2", {}, (4, 4))
    varying = fleet(2, profile="mobiperf", uplink_bps=None, downlink_bps=None, trace="hsdpa_bus")
    rows, _ = timeline(method, [0, 1], False, varying)
    foreseen, _ = timeline(method, [0, 1], True, varying)
    assert foreseen.tobytes() == rows.tobytes()


class Compute:
    name = "work"
    aggregates = False

    def work(self, state, *args):
        return Work.of(1e6)

    def out(self, state, *args):
        return Value("result")


def flows_that_meet():
    """Flows whose branches do meet elsewhere than at the server, or ask for a number."""
    shared = State("model")

    def job(client, state, node=None):
        done = yield on(client, Compute(), State("model"))
        yield on(SERVER if node is None else node, Compute(), state, done)

    def one_device():
        yield par(job(0, State("model")) for _ in range(2))

    def one_state_without_an_order():
        yield par(job(c, shared) for c in range(2))

    def more_jobs_than_announced():
        yield expect(shared, {0: 1})
        yield par(job(c, shared) for c in range(2))

    def forks_twice():
        def outer():
            yield par([job(0, State("model"))])

        yield par([outer(), job(1, State("model"))])

    def reads():
        yield read(Value("norm"))

    return [one_device, one_state_without_an_order, more_jobs_than_announced, forks_twice, reads]


@pytest.mark.parametrize("flow", flows_that_meet(), ids=lambda flow: flow.__name__)
def test_flows_that_meet_elsewhere_need_the_event_loop(flow):
    with pytest.raises(Unforeseen):
        stages(trace(flow(), Simulator(fleet(2), Timing(), ORDERS["fcfs"]).prices))


def test_a_server_that_is_held_for_ever_is_named():
    def round():
        shared = State("model")
        yield expect(shared, {0: 1})
        yield par([job()])

    def job():
        yield send(Value("smashed", 10), 0, SERVER)

    with pytest.raises((StuckError, Unforeseen)):
        stages(trace(round(), Simulator(fleet(1), Timing(), ORDERS["cyclic"]).prices))


def test_rows_that_end_together_stand_in_an_order_of_their_own():
    method = method_of("splitfed_v1", {}, (4, 4, 4, 4))
    rows, _ = timeline(method, [0, 1, 2, 3], False, fleet(4))
    turned, _ = timeline(method, [3, 1, 0, 2], False, fleet(4))
    assert (np.diff(rows["ended_s"]) >= 0).all()
    assert rows.tobytes() == turned.tobytes()
