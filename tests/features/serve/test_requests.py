"""Requests: their way through the queues, thresholds with and without a clock, and the samples that they ask about."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import batch_norm_net, fleet

from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.fleet import poisson
from sfl_sim.features.serve.requests import EarlyExit, Thresholds, draw_rows
from sfl_sim.models.network import Network
from sfl_sim.rng import stream
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.executors import Timing

N = 4


def deployed(cuts=(1,) * N):
    """Ghosts of a small network; all clients' requests run through one model at the server."""
    layers = Network("small", batch_norm_net, (1, 4, 4), 3).split(1, 2, seed=0, device=None)
    return [Deployed(layers[:cut], None, layers[cut:], ()) for cut in cuts]


def serve(models, world, arrivals, entropies, rule, **station):
    """What was decided, and the operations."""
    requests = EarlyExit(models, entropies, rule)
    at_server = partial(ServingStation, batch_s=Prices(world).batch_s, **station)
    simulator = EventClock(world, Timing(), ORDERS["fcfs"], station=at_server)
    times_s, clients = (column.tolist() for column in arrivals)
    simulator.serve((t, requests.request(n, c)) for n, (t, c) in enumerate(zip(times_s, clients, strict=True)))
    return requests, simulator.take_rows()


def offload_rate(share, start=0.5, step=0.05, highest=1.0):
    return Thresholds([start] * N, step, share, highest)


def latency_budget(budget_s, share, start=0.5, step=0.02, highest=1.0):
    return Thresholds([start] * N, step, 1 - share, highest, budget_s)


def queue(arrivals_s, services_s, places):
    """When each leaves: a Lindley recursion for each place, in order of arrival."""
    ends_s, free_s = np.zeros(len(arrivals_s)), {}
    for n in np.argsort(arrivals_s, kind="stable"):
        ends_s[n] = free_s[places[n]] = max(arrivals_s[n], free_s.get(places[n], 0.0)) + services_s[n]
    return ends_s


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (1, 2, 2, 1)])
def test_a_request_passes_the_queues_of_device_uplink_server_and_downlink(cuts):
    n, latency_s = 2_000, 0.003
    world = fleet(N, [3e3, 4e3, 5e3, 6e3], [8e3, 9e3, 1e4, 2e4], [900.0, 1e3, 2e3, 3e3], 1.3, latency_s=latency_s)
    models = deployed(cuts)
    times_s, clients = poisson([0.9, 1.0, 1.1, 1.2], n, stream(0, "arrivals"))
    entropies = stream(0, "entropies").random(n)
    requests, rows = serve(models, world, (times_s, clients), entropies, Thresholds([0.2, 0.4, 0.6, 0.8]))

    def services(of):
        return np.array([of(c) for c in range(N)])[clients]

    offloaded = entropies >= np.array([0.2, 0.4, 0.6, 0.8])[clients]
    done_s = queue(times_s, services(lambda c: world.processors[c].seconds(models[c].device_work)), clients)
    ended_s = done_s.copy()
    up = services(lambda c: world.uplinks[c].transfer_s(0.0, models[c].feature_bytes))
    sent_s = queue(done_s[offloaded], up[offloaded], clients[offloaded]) + latency_s
    at_server = services(lambda c: world.server.seconds(models[c].server_work))
    answered_s = queue(sent_s, at_server[offloaded], np.zeros(n))
    down = services(lambda c: world.downlinks[c].transfer_s(0.0, 8))
    ended_s[offloaded] = queue(answered_s, down[offloaded], clients[offloaded]) + latency_s

    found_s = np.zeros(n)
    np.maximum.at(found_s, rows["step"], rows["ended_s"])
    assert np.array_equal(requests.offloaded, offloaded)
    assert found_s == pytest.approx(ended_s, abs=1e-9)


def test_a_requests_operations_follow_upon_one_another_and_bear_its_number():
    world = fleet(N, macs_per_s=1e4, uplink_bps=1e4, latency_s=0.01)
    times_s, clients = arrivals = poisson([3.0] * N, 300, stream(0, "arrivals"))
    entropies = stream(0, "entropies").random(300)
    requests, rows = serve(deployed(), world, arrivals, entropies, Thresholds([0.5] * N), max_batch=4, max_wait_s=0.05)
    told = {}
    for row in rows:
        told.setdefault(int(row["step"]), []).append(row)
    assert sorted(told) == list(range(300))
    for number, mine in told.items():
        places = [(row["node"], row["kind"]) for row in mine]
        exits = [(b"client", b"exit")]
        rest = [(b"uplink", b"features"), (b"server", b"answer"), (b"downlink", b"answer")]
        assert places == exits + rest * bool(requests.offloaded[number])
        assert {int(row["client"]) for row in mine} == {clients[number]}
        assert mine[0]["requested_s"] == pytest.approx(times_s[number], abs=1e-12)
        assert all(a["ended_s"] == b["requested_s"] for a, b in pairwise(mine))
        assert mine[-1]["bytes"] == (8 if requests.offloaded[number] else 0)
    assert (requests.in_force == 0.5).all()


def test_serving_is_deterministic():
    def rows():
        arrivals = poisson([2.0] * N, 500, stream(0, "arrivals"))
        rule = latency_budget(0.5, share=0.9, step=0.05)
        return serve(deployed(), fleet(N, 1e4, 1e4), arrivals, stream(0, "entropies").random(500), rule, max_batch=4)[1]

    assert rows().tobytes() == rows().tobytes()


def test_a_device_without_an_exit_offloads_all_and_one_that_holds_the_model_nothing():
    models = deployed()[:1] + deployed((3,))
    entropies = np.array([np.inf, -np.inf])
    arrivals = np.zeros(2), np.array([0, 1])
    requests, _ = serve(models, fleet(2), arrivals, entropies, offload_rate(0.5, start=1.0))
    assert requests.offloaded.tolist() == [True, False]


def test_a_latency_budget_is_held_also_when_the_load_doubles():
    """Alone with all the requests the server would be loaded to 0.9, and then to 1.8: it cannot bear that."""
    budget_s, half = 0.3, 8_000
    world, models = fleet(N, macs_per_s=1e6, uplink_bps=1e6, speedup=0.05), deployed()
    rate_per_s = 0.9 / world.server.seconds(models[0].server_work)
    (calm_s, calm), (busy_s, busy) = (
        poisson([load * rate_per_s / N] * N, half, stream(0, "arrivals", load)) for load in (1, 2)
    )
    arrivals = np.r_[calm_s, calm_s[-1] + busy_s], np.r_[calm, busy]
    rule = latency_budget(budget_s, share=0.95)
    requests, rows = serve(models, world, arrivals, stream(0, "entropies").random(2 * half), rule)

    ended_s = np.zeros(2 * half)
    np.maximum.at(ended_s, rows["step"], rows["ended_s"])
    late = ended_s - arrivals[0] > budget_s
    settled = [slice(half // 4, half), slice(5 * half // 4, 2 * half)]
    assert [late[part].mean() for part in settled] == pytest.approx([0.05, 0.05], abs=0.01)
    offloaded = [requests.offloaded[part].mean() for part in settled]
    assert offloaded[0] > 0.75 > 0.5 > offloaded[1]


SLOW_SERVER = fleet(N, macs_per_s=1e9, uplink_bps=1e9, speedup=1e-4)
ANSWER_S = SLOW_SERVER.server.seconds(deployed()[0].server_work)


def overloaded(rule, load, n):
    """Decisions and latencies, where requests come `load` times as fast as the server could answer 40 % of them."""
    arrivals = poisson([load / 0.4 / ANSWER_S / N] * N, n, stream(0, "arrivals"))
    requests, rows = serve(deployed(), SLOW_SERVER, arrivals, stream(0, "entropies").random(n), rule)
    ended_s = np.zeros(n)
    np.maximum.at(ended_s, rows["step"], rows["ended_s"])
    return requests, ended_s - arrivals.times_s


@pytest.mark.parametrize("load", [1.5, 4])
def test_a_share_of_offloaded_requests_is_held_although_answers_come_ever_later(load):
    n = 2_000
    requests, latency_s = overloaded(offload_rate(0.4), load, n)
    assert latency_s[-n // 4 :].max() > 2 * latency_s[: n // 4].max()
    assert requests.offloaded[-n // 4 :].mean() == pytest.approx(0.4, abs=0.02)


def test_a_latency_budget_is_held_in_an_overload_that_only_devices_can_bear():
    """What was sent up at first keeps the server busy for long."""
    n, budget_s = 6_000, 5 * ANSWER_S
    rule = latency_budget(budget_s, share=0.95)
    late = overloaded(rule, 20, n)[1] > budget_s
    assert late[: n // 20].mean() > 0.2
    assert late[-n // 4 :].mean() == pytest.approx(0.05, abs=0.025)


def test_every_request_is_judged_once_and_no_later_than_when_its_budget_has_passed():
    judged = []

    class Noted(Thresholds):
        def learn(self, client, undesired):
            judged.append((client, not undesired))

    arrivals = np.arange(6) * ANSWER_S / 100, np.array([0, 1, 2, 3, 0, 1])
    rule = Noted([0.0] * N, budget_s=2.5 * ANSWER_S)
    _, rows = serve(deployed(), SLOW_SERVER, arrivals, np.ones(6), rule)
    assert len(rows) == 6 * 4
    assert judged == [(0, True), (1, True), (2, False), (3, False), (0, False), (1, False)]


def test_a_diverged_exit_is_never_sure():
    """NaN is not below any threshold: such a request is offloaded, as the metrics count it."""
    arrivals = poisson([1.0] * N, 20, stream(0, "arrivals"))
    requests, _ = serve(deployed(), fleet(N), arrivals, np.full(20, np.nan), Thresholds([9.0] * N))
    assert requests.offloaded.all()


def offloads(rule, entropies, client=0):
    """Whether each of a client's requests is offloaded, one after another."""
    found = []
    for entropy in entropies:
        found.append(bool(entropy >= rule.values[client]))
        rule.learn(client, found[-1])
    return np.array(found)


def test_fixed_thresholds_stay():
    rule = Thresholds([0.1, 0.7])
    rule.learn(1, True)
    rule.learn(1, False)
    assert rule.values == [0.1, 0.7]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_share_of_offloaded_requests_is_held_whatever_the_entropies(share):
    """At once for two clients that know nothing of each other; e_n is then the quantile of the entropies."""
    rng, rule = stream(0, "entropies"), offload_rate(share, start=1.0, step=0.02, highest=2.3)
    for client, entropies in enumerate([2.3 * rng.random(4_000), rng.exponential(0.2, 4_000).clip(max=2.3)]):
        found = offloads(rule, entropies, client)
        assert found[1_000:].mean() == pytest.approx(share, abs=0.01)
        assert rule.values[client] == pytest.approx(np.quantile(entropies, 1 - share), abs=0.15)


def test_the_share_is_held_again_when_the_data_change():
    """Client-specific data that nobody trained on: all entropies are twice as large."""
    rng, rule = stream(0, "entropies"), offload_rate(0.3, start=1.0, step=0.02, highest=2.3)
    offloads(rule, rng.random(2_000))
    before = rule.values[0]
    found = offloads(rule, 2 * rng.random(3_000))
    assert found[:50].mean() > 0.5
    assert found[1_000:].mean() == pytest.approx(0.3, abs=0.01)
    assert rule.values[0] > 1.5 * before


@settings(max_examples=50)
@given(st.lists(st.floats(0.2, 0.8), min_size=1, max_size=200), st.floats(0.1, 0.9), st.floats(0.01, 0.1))
def test_the_share_is_off_by_no_more_than_theory_allows_whatever_the_entropies(entropies, share, step):
    """Gibbs and Candes 2021, Prop. 4.1: no chance is needed. No entropy leads to an end of the thresholds."""
    found = offloads(offload_rate(share, step=step), entropies)
    assert abs(found.mean() - share) <= (0.3 + step) / (step * len(found)) + 1e-9


@pytest.mark.parametrize(("in_time", "end"), [(True, 0.0), (False, 2.3)])
def test_a_budget_that_is_always_kept_or_never_leads_to_an_end_and_no_further(in_time, end):
    rule = latency_budget(1.0, share=0.95, start=1.0, step=0.5, highest=2.3)
    for _ in range(200):
        rule.learn(0, not in_time)
    assert rule.values[0] == end
    rule.learn(0, in_time)
    assert 0 < rule.values[0] < 2.3


OWNERS = np.array([2, 0, 2, 0, 2, 5])


def test_requests_are_about_their_own_clients_samples_and_all_of_them_alike():
    clients = stream(0, "clients").choice([0, 2, 5], 6_000)
    rows = draw_rows(OWNERS, clients, stream(0, "samples"))
    assert (OWNERS[rows] == clients).all()
    for client in (0, 2):
        drawn = np.bincount(rows[clients == client])[OWNERS[: rows[clients == client].max() + 1] == client]
        assert drawn == pytest.approx(drawn.mean(), rel=0.15)


def test_a_client_without_samples_cannot_be_asked():
    with pytest.raises(ScenarioError, match="client 3 has requests"):
        draw_rows(OWNERS, np.array([0, 3, 7]), stream(0, "samples"))
