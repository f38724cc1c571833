"""A fleet is drawn from its seed, and its server is faster than the mean client by the speed-up."""

from __future__ import annotations

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.system.fleet import build_fleet


def test_the_server_needs_the_clients_mean_seconds_over_the_speed_up() -> None:
    seconds_per_frame, frame_macs = (0.02, 0.05, 0.08), 1e9  # METHODS 18: s, gamma = 100
    fleet = build_fleet(
        3,
        0,
        {"macs_per_s": [frame_macs / s for s in seconds_per_frame]},
        {"uplink_bps": 20e6, "downlink_bps": 10e6},
        speedup=100,
    )
    server_share_of_batch_macs = 3 * (1 - 0.3) * 50 * frame_macs  # rho_cut = 0.3, 50 samples
    assert server_share_of_batch_macs / fleet.server_macs_per_s == pytest.approx(0.0525)
    assert fleet.uplink_bps == [20e6] * 3
    assert fleet.downlink_bps == [10e6] * 3


def test_a_seed_gives_one_fleet_and_another_seed_another() -> None:
    first, again, other = (
        build_fleet(20, seed, {}, {"profile": "mobiperf", "latency_s": 0.01}, speedup=100) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.devices != other.devices
    assert first.uplink_bps != other.uplink_bps


def test_the_network_is_drawn_apart_from_the_devices() -> None:
    phones, given = (
        build_fleet(20, 0, compute, {"profile": "fedscale"}, speedup=100) for compute in ({}, {"macs_per_s": 1e9})
    )
    assert phones.uplinks == given.uplinks


def test_a_server_needs_a_speed_up() -> None:
    with pytest.raises(ScenarioError, match=r"server.speedup: .*found 0.0; allowed: a number above 0"):
        build_fleet(2, 0, {}, {"profile": "mobiperf"}, speedup=0)
