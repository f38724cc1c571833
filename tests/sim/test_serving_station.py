"""A server of requests against hand computation, queueing theory, and whoever looks at every instant."""

from dataclasses import replace
from functools import partial
from itertools import count
from math import factorial, inf
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import made_by
from small_world import fleet

from sfl_sim.errors import DeadlockError
from sfl_sim.ops import SERVER, Event, State, Value, Work, expect, on, par, send, wait
from sfl_sim.rng import stream
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.system.conditions import mean_one
from sfl_sim.system.cost import FittedProcessor
from sfl_sim.training.executors import Timing

WORLD = fleet(8, macs_per_s=1.0, speedup=1.0)
"""A server of one MAC a second."""
OVERHEAD = replace(WORLD, server=FittedProcessor(1.0, 1.0, 1.0, 1.0, op_s=1.0))
"""A fleet whose server needs a second for each call, too."""


class Answer:
    """A request's work at the server: so many MACs, and one call of a layer."""

    name = "answer"
    aggregates = False

    def __init__(self, macs):
        self.macs = macs

    def work(self, state, request):
        return Work.of(self.macs)._replace(n_ops=1)

    def out(self, state, request):
        return Value("answer", step=request.step)


def request(number, client, macs, state):
    features = made_by(client)
    features.step = number
    yield on(SERVER, Answer(macs), state, features)


def server(world=WORLD, workers=1, **rules):
    station = partial(ServingStation, batch_s=Prices(world).batch_s, **rules)
    return EventClock(world, Timing(), Queueing(ORDERS["fcfs"], workers), station=station)


def served(arrivals, simulator):
    """The rows of requests (arrives_s, client, macs, state) in the order of their numbers."""
    flows = [(arrives_s, request(n, c, macs, state)) for n, (arrives_s, c, macs, state) in enumerate(arrivals)]
    simulator.serve(flows)
    rows = simulator.take_rows()
    return rows[np.argsort(rows["step"])]


def waits_s(interarrival_s, services_s, simulator):
    times_s, state = np.cumsum(interarrival_s).tolist(), State("model")
    rows = served(((t, 0, s, state) for t, s in zip(times_s, services_s.tolist(), strict=True)), simulator)
    return rows["started_s"] - rows["requested_s"]


def assert_theory(waits, theory_s):
    """The theory's mean is in the 99 % interval of 20 batch means, after a tenth for warming up; and that is narrow."""
    means = [part.mean() for part in np.array_split(waits[len(waits) // 10 :], 20)]
    half = 2.861 * np.std(means, ddof=1) / np.sqrt(20)
    assert half < 0.15 * theory_s
    assert np.mean(means) == pytest.approx(theory_s, abs=half)


def test_m_g_1_waits_as_pollaczek_and_khinchine_say():
    """rho (1 + cv^2) / (2 mu (1 - rho)), with service times drawn around the computed ones."""
    rng, rho, cv = stream(0, "m/g/1"), 0.5, 0.5
    simulator = server(drawn_s=lambda computed_s: computed_s * mean_one(rng, cv))
    waits = waits_s(stream(0, "m/g/1 arrivals").exponential(1 / rho, 40_000), np.ones(40_000), simulator)
    assert_theory(waits, rho * (1 + cv**2) / (2 * (1 - rho)))


def test_m_m_c_waits_as_erlang_says():
    """C(c, a) / (c mu - lambda), with the probability C to find all lanes busy."""
    rng, c, a = stream(0, "m/m/c"), 3, 1.8
    all_busy = a**c / factorial(c) / (1 - a / c)
    erlang_c = all_busy / (sum(a**k / factorial(k) for k in range(c)) + all_busy)
    waits = waits_s(rng.exponential(1 / a, 40_000), rng.exponential(1.0, 40_000), server(workers=c))
    assert_theory(waits, erlang_c / (c - a))


def test_a_tandem_of_devices_uplinks_and_two_workers_ends_when_ciw_says():
    """Two phones, each a queue before the queue of its uplink, and one queue before two workers."""
    ciw = pytest.importorskip("ciw", reason="an independent simulator of queues: pip install ciw")
    rng, n = stream(0, "tandem"), 200
    gaps_s, device_s, answer_s = rng.exponential(2.0, (2, n)), rng.exponential(1.2, (2, n)), rng.exponential(0.8, 2 * n)
    upload_s = rng.integers(1, 4, (2, n))

    def tandem(number, client, state):
        yield on(client, Answer(device_s[client, number]), state, Value("sample", step=number))
        yield send(Value("features", int(upload_s[client, number]), step=number), client, SERVER)
        yield from request(number, client, 1.0, state)

    in_turn = iter(answer_s)
    simulator = server(fleet(2, 1.0, 8.0, speedup=1.0), workers=2, drawn_s=lambda _: next(in_turn))
    came_s, state = gaps_s.cumsum(axis=1), State("model")
    simulator.serve(sorted(((came_s[c, k], tandem(k, c, state)) for c in (0, 1) for k in range(n)), key=itemgetter(0)))
    rows = simulator.take_rows()

    def queue(times_s):  # those of all customers in turn
        return ciw.dists.Sequential([*map(float, times_s), inf])

    to = {"device 0": 2, "device 1": 3, "uplink 0": 4, "uplink 1": 4, "server": None}
    theirs = ciw.Simulation(
        ciw.create_network(
            arrival_distributions=[*map(queue, gaps_s), None, None, None],
            service_distributions=[*map(queue, (*device_s, *upload_s, answer_s))],
            number_of_servers=[1, 1, 1, 1, 2],
            routing=[[float(end == node) for node in range(5)] for end in to.values()],
        )
    )
    theirs.simulate_until_max_time(1e6)
    ended_s = sorted(record.exit_date for record in theirs.get_all_records() if record.node == 5)
    assert np.sort(rows["ended_s"][rows["node"] == b"server"]) == pytest.approx(ended_s, rel=1e-9)


def test_batches_as_computed_by_hand():
    """Batches of up to three: a second for each request and one for the call; a free lane waits two seconds.

    The third of the first batch comes before the two seconds are over. Two come while the lane is busy, and have waited
    enough when it gets free. The last is alone for two seconds.
    """
    state = State("model")
    arrivals = [(t, 0, 1.0, state) for t in (0.0, 1.0, 1.5, 2.0, 3.0, 10.0)]
    rows = served(arrivals, server(OVERHEAD, max_batch=3, max_wait_s=2.0))
    assert rows["started_s"].tolist() == [1.5, 1.5, 1.5, 5.5, 5.5, 12.0]
    assert rows["ended_s"].tolist() == [5.5, 5.5, 5.5, 8.5, 8.5, 14.0]


def test_who_comes_just_as_a_lane_gets_free_is_there_for_the_choice():
    """Even if the event of that arrival is the youngest of the instant: messages without a byte, sent just then."""
    state = State("model")

    def late():
        yield on(0, Answer(5.0), state, Value("features"))
        yield send(Value("features"), 0, SERVER)
        yield send(Value("features"), 0, SERVER)
        yield from request(2, 0, 1.0, state)

    simulator = server()
    simulator.serve([(0.0, request(0, 2, 5.0, state)), (0.0, late()), (5.0, request(1, 1, 1.0, state))])
    rows = simulator.take_rows()
    assert rows["client"][rows["node"] == b"server"].tolist() == [2, 0, 1]


def test_a_batch_costs_the_macs_of_all_and_the_calls_of_one():
    ops = [on(SERVER, Answer(macs), State("model"), Value("features")) for macs in (2.0, 3.0)]
    assert Prices(OVERHEAD).batch_s(ops) == 2 + 3 + 1
    assert Prices(WORLD).batch_s(ops) == 2 + 3


SECONDS = st.integers(0, 6)
REQUESTS = st.lists(st.tuples(SECONDS, st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=25).map(
    lambda found: [(sum(gap for gap, *_ in found[: n + 1]), *rest) for n, (_, *rest) in enumerate(found)]
)  # arrives_s, client, model; whole seconds, so that much happens at once


@settings(max_examples=60)
@given(REQUESTS, st.integers(1, 3), SECONDS)
def test_without_batches_a_server_is_a_station_to_whose_jobs_nobody_objects(requests, workers, max_wait_s):
    def rows(simulator):
        arrivals = [(0.1 * at_s, c, 0.37, State("model")) for at_s, c, _ in requests]
        return served(arrivals, simulator).tobytes()

    plain = EventClock(WORLD, Timing(), Queueing(ORDERS["fcfs"], workers))
    assert rows(server(workers=workers, max_batch=1, max_wait_s=max_wait_s)) == rows(plain)


def by_looking_at_every_second(requests, workers, max_batch, max_wait_s):
    """Find the starts and ends of requests, of one MAC and one call each."""
    busy_until, waiting, found = [], [], {}
    for now_s in count():
        busy_until = [until_s for until_s in busy_until if until_s > now_s]
        waiting += [(now_s, c, n, model) for n, (at_s, c, model) in enumerate(requests) if at_s == now_s]
        for _ in range(workers - len(busy_until)):
            lines = [sorted(one for one in waiting if one[-1] == model) for model in (0, 1)]
            due = [li for li in lines if len(li) >= max_batch or any(at_s + max_wait_s <= now_s for at_s, *_ in li)]
            if due:
                batch = min(due)[:max_batch]
                busy_until.append(now_s + len(batch) + 1)
                found |= {n: (now_s, busy_until[-1]) for *_, n, _ in batch}
                waiting = [one for one in waiting if one not in batch]
        if len(found) == len(requests):
            break
    return [found[n] for n in range(len(requests))]


@settings(max_examples=100)
@given(REQUESTS, st.integers(1, 3), st.integers(2, 4), SECONDS)
def test_any_requests_are_served_once_and_as_who_looks_at_every_second_would(requests, workers, max_batch, max_wait_s):
    models = [State("model"), State("model")]
    rules = {"max_batch": max_batch, "max_wait_s": max_wait_s}
    rows = served([(at_s, c, 1.0, models[model]) for at_s, c, model in requests], server(OVERHEAD, workers, **rules))
    expected = by_looking_at_every_second(requests, workers, **rules)
    assert rows["step"].tolist() == list(range(len(requests)))
    assert list(zip(rows["started_s"], rows["ended_s"], strict=True)) == expected


def test_lanes_without_number_let_nobody_wait():
    assert not waits_s(np.full(9, 0.5), np.full(9, 4.0), server(workers=inf)).any()


def test_what_is_simultaneous_stays_so():
    """Arrivals stay simultaneous although floats are off by a bit: 0.27 + (4.3 - 0.27) < 4.3."""
    state = State("model")
    came_s = served([(t, 0, 0.1, state) for t in (0.27, 4.3, 4.3)], server())["requested_s"]
    assert came_s[1] == came_s[2] == np.nextafter(4.3, 0)


def test_a_batch_that_never_fills_is_told():
    state = State("model")
    with pytest.raises(DeadlockError, match="client 3, 5 "):
        served([(0.0, c, 1.0, state) for c in (3, 5)], server(max_batch=3, max_wait_s=inf))


def test_a_request_that_waits_for_ever_is_told():
    def waits():
        yield wait([Event("the end of days")])

    with pytest.raises(DeadlockError, match="the end of days"):
        server().serve([(0.0, waits())])


@pytest.mark.parametrize("nested", [False, True])
def test_what_goes_wrong_in_a_request_is_raised_as_it_is(nested):
    def wrong():
        yield on(SERVER, Answer(1.0), State("model"), Value("features"))
        raise KeyError("in a request")

    def flow():
        yield par([wrong()])

    with pytest.raises(KeyError, match="in a request"):
        server().serve([(0.0, flow() if nested else wrong())])


def test_jobs_are_not_announced_to_a_server_of_requests():
    def training():
        yield expect(State("model"), {0: 1})

    with pytest.raises(TypeError, match="announcements"):
        server().serve([(0.0, training())])
