"""A fleet is drawn from its seed, and its server is faster than the mean client by the speed-up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.ops import Work
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.system.conditions import Conditions, Throttling
from sfl_sim.system.fleet import build_fleet


def job(by_kind, n_ops):
    return Work(sum(by_kind), by_kind, n_ops)


FLEETS = {
    name: build_fleet(20, 0, Clients(compute={"cost": profile}), Server())
    for name, profile in {"macs": None, "ncnn": "ncnn"}.items()
}
works = st.builds(job, st.tuples(*[st.floats(0, 1e12)] * 4), st.integers(0, 1000))


def test_the_server_needs_the_clients_mean_seconds_over_the_speed_up():
    seconds_per_frame, frame_macs = (0.02, 0.05, 0.08), 1e9  # METHODS 18: s, gamma = 100
    compute = {"macs_per_s": [frame_macs / s for s in seconds_per_frame]}
    clients = Clients(compute=compute, network={"uplink_bps": 20e6, "downlink_bps": 10e6})
    fleet = build_fleet(3, 0, clients, Server(speedup=100.0))
    server_share_of_batch_macs = 3 * (1 - 0.3) * 50 * frame_macs  # rho_cut = 0.3, 50 samples
    assert server_share_of_batch_macs / fleet.server_macs_per_s == pytest.approx(0.0525)
    assert fleet.uplinks.mean_bps.tolist() == [20e6] * 3
    assert fleet.downlinks.mean_bps.tolist() == [10e6] * 3


def test_a_seed_gives_one_fleet_and_another_seed_another():
    first, again, other = (build_fleet(20, seed, Clients(network={"latency_s": 0.01}), Server()) for seed in (1, 1, 2))
    for name in ("devices", "macs_per_s", "processors", "deployed", "uplinks", "downlinks", "latency_s"):
        assert list(getattr(first, name)) == list(getattr(again, name))
    assert first.devices != other.devices
    assert list(first.uplinks) != list(other.uplinks)


def test_the_network_is_drawn_apart_from_the_devices():
    phones, given = (
        build_fleet(20, 0, Clients(compute=compute, network="fedscale"), Server())
        for compute in ("ai_benchmark", {"macs_per_s": 1e9})
    )
    assert list(phones.uplinks) == list(given.uplinks)


def test_a_server_may_have_a_cost_profile_of_its_own():
    work = job((0, 0, 1e9, 0), 10)
    server = {"macs_per_s": 1e11}
    seconds = {
        (client, own): build_fleet(1, 0, Clients(compute={"cost": client}), Server(**server, cost=own)).server.seconds(
            work
        )
        for client in ("macs", "ncnn")
        for own in (None, "macs", "ncnn")
    }
    assert seconds["ncnn", None] == seconds["ncnn", "ncnn"] == seconds["macs", "ncnn"]
    assert seconds["macs", None] == seconds["macs", "macs"] == seconds["ncnn", "macs"] == 1e9 / 1e11


def test_a_server_with_a_rate_of_its_own_does_not_follow_the_phones():
    """By its speed-up it does: other phones, or the same ones twice as fast, make it another server."""
    phones = [(0, Clients()), (1, Clients()), (0, Clients(compute={"scale": 2.0}))]
    by_ratio = {build_fleet(9, seed, clients, Server()).server_macs_per_s for seed, clients in phones}
    by_rate = [build_fleet(9, seed, clients, Server(macs_per_s=3e11)) for seed, clients in phones]
    assert len(by_ratio) == 3
    assert {fleet.server_macs_per_s for fleet in by_rate} == {3e11}
    assert by_rate[0].server.seconds(job((3e11, 0, 0, 0), 7)) == 1.0


def test_a_call_of_the_server_takes_its_time_however_many_layers_and_samples():
    fleet = build_fleet(2, 0, Clients(), Server(macs_per_s=1e9, call_s=0.25))
    assert fleet.server.seconds(job((1e9, 0, 0, 0), 7)) == 1.25
    assert fleet.server.seconds(job((8e9, 0, 0, 0), 7)) == 8.25
    assert fleet.server.seconds(Work.of(1e9)) == 1.0  # an average of models calls no layer
    assert list(fleet.processors) == list(build_fleet(2, 0, Clients(), Server()).processors)


@given(work=works)
def test_without_a_cost_profile_time_is_macs_over_rate_to_the_bit(work):
    assert FLEETS["macs"].cost == "macs"
    assert [p.seconds(work) for p in FLEETS["macs"].processors] == [work.macs / r for r in FLEETS["macs"].macs_per_s]
    assert FLEETS["macs"].server.seconds(work) == work.macs / FLEETS["macs"].server_macs_per_s


@pytest.mark.parametrize("cost", FLEETS)
@given(work=works)
def test_the_server_needs_the_clients_mean_seconds_over_the_speed_up_for_any_work(cost, work):
    clients_s = [processor.seconds(work) for processor in FLEETS[cost].processors]
    assert FLEETS[cost].server.seconds(work) == pytest.approx(np.mean(clients_s) / 100)


def test_a_cost_profile_changes_times_and_neither_devices_nor_rates():
    plain, fitted = FLEETS.values()
    assert fitted.cost == "ncnn"
    assert (fitted.devices, fitted.macs_per_s) == (plain.devices, plain.macs_per_s)
    conv = job((1e9, 0, 0, 0), 13)
    assert fitted.processors[0].seconds(conv) < plain.processors[0].seconds(conv) / 2  # Winograd


def test_nothing_disturbs_a_fleet_unless_it_is_asked_for():
    fleet = build_fleet(2, 0, Clients(), Server())
    assert (fleet.sample_s, fleet.conditions, fleet.presence) == (0.0, None, None)


def test_who_is_there_and_what_devices_compute_under_is_drawn_apart_from_all_else():
    hot = {"floor": 0.5, "warm_up_s": 300.0, "cool_down_s": 300.0}
    plain = build_fleet(5, 0, Clients(), Server())
    clients = Clients(
        compute={"sample_s": 0.001, "jitter": 0.1, "throttling": hot},
        availability={"profile": "flash", "begins_at_h": 6.0},
    )
    wild, again = (build_fleet(5, 0, clients, Server()) for _ in range(2))
    assert (wild.devices, list(wild.uplinks)) == (plain.devices, list(plain.uplinks))
    assert (wild.sample_s, wild.conditions) == (0.001, Conditions(0.1, Throttling(**hot)))
    assert wild.presence is not None
    assert again.presence is not None
    days = [[client.intervals(0, 1e6) for client in fleet] for fleet in (wild.presence, again.presence)]
    assert days[0] == days[1]
    assert len({tuple(day) for day in days[0]}) == 5


def test_only_a_deadline_leaves_everybody_there():
    fleet = build_fleet(2, 0, Clients(availability={"lost": "deadline", "deadline_s": 60.0}), Server())
    assert fleet.presence is None


def test_a_training_factor_slows_training_alone():
    compute = {"macs_per_s": 1e9, "training_factor": 3.0}
    fleet = build_fleet(2, 0, Clients(compute=compute), Server())
    step = Work.of(6e9)
    assert [processor.seconds(step) for processor in fleet.processors] == pytest.approx([18, 18])
    assert [processor.seconds(step) for processor in fleet.deployed] == pytest.approx([6, 6])
    assert fleet.server.seconds(step) == pytest.approx(0.06)
    assert fleet.training_factor == [3, 3]
