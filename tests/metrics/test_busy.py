"""How long devices, links and server were busy: sums of recorded operations, by client."""

import pytest
from small_world import fleet, task

from sfl_sim.methods import METHODS
from sfl_sim.methods.seen import ClientRound
from sfl_sim.metrics.busy import busy
from sfl_sim.testing import simulate


def test_sums_are_those_of_the_operations_at_each_place():
    world = fleet(2, macs_per_s=[1e5, 2e5], uplink_bps=8e4, downlink_bps=4e5)
    rows = simulate(METHODS["splitfed_v1"](task([6, 3], batch_size=3, device=None)), 1, world=world).rows
    clients, (macs, worked_s) = busy(rows)
    assert sorted(clients) == [0, 1]
    device_s, device_macs, up_s, up_bytes, down_s, down_bytes, served_s, jobs, queue_s = clients[1]
    assert device_macs / device_s == pytest.approx(2e5)
    assert 8 * up_bytes / up_s == pytest.approx(8e4)
    assert 8 * down_bytes / down_s == pytest.approx(4e5)
    own = rows[(rows["client"] == 1) & (rows["node"] == b"client")]
    assert device_macs == own["macs"].sum()
    assert macs / worked_s == pytest.approx(world.server_macs_per_s)
    at_server = rows[(rows["client"] == 1) & (rows["node"] == b"server")]
    assert jobs == len(at_server) == 1
    assert served_s == pytest.approx(at_server["macs"].sum() / world.server_macs_per_s)
    assert queue_s == 0


def test_who_waits_for_a_worker_has_waited():
    """Two clients that are equally fast bring their jobs together to one slow worker."""
    world = fleet(2, macs_per_s=1e6, speedup=0.01)
    clients, _ = busy(simulate(METHODS["splitfed_v1"](task([3, 3], batch_size=3)), 1, world=world, workers=1).rows)
    first, second = (ClientRound(*clients[c]) for c in (0, 1))
    assert first.queue_s == 0
    assert second.queue_s == pytest.approx(first.server_s)


def test_nothing_happened_to_nobody():
    rows = simulate(METHODS["splitfed_v1"](task([6], device=None)), 0).rows
    assert busy(rows) == ({}, (0.0, 0.0))


def test_what_takes_no_time_has_no_rate():
    """Models that are exchanged for free make no link faster than it is."""
    world = fleet(2, uplink_bps=8e4, downlink_bps=4e5)
    work = task([6, 3], batch_size=3, device=None)
    rows = simulate(METHODS["splitfed_v1"](work), 1, world=world, include_model_exchange=False).rows
    clients, _ = busy(rows)
    one = ClientRound(*clients[0])
    assert 8 * one.up_bytes / one.up_s == pytest.approx(8e4)
    assert 8 * one.down_bytes / one.down_s == pytest.approx(4e5)
