"""Energy is power times time, and joules per bit; it adds up, and waiting costs only what it is said to cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from small_world import fleet, simulate, task

from sfl_sim.methods import METHODS
from sfl_sim.metrics.energy import client_joule, op_joule
from sfl_sim.scenario.optional_sections import PowerSection
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.power import read_power
from sfl_sim.system.presence import Presence

LTE = PowerSection(compute_w=3.0, radio="lte")
ALPHA_UP, ALPHA_DOWN, BASE_W = 0.43839, 0.05197, 1.28804  # W per Mbit/s, W per Mbit/s, W: Huang et al., Table 4


def rows_of(*ops):
    """Rows from (node, client, started_s, ended_s, bytes)."""
    rows = np.zeros(len(ops), OP_DTYPE)
    for number, op in enumerate(ops):
        rows[["node", "client", "started_s", "ended_s", "bytes"]][number] = op
    return rows


def test_computing_and_sending_by_hand():
    """4 s at 3 W; 2 MB up in 8 s, that is at 2 Mbit/s; 2 MB down in 2 s, at 8 Mbit/s; what the server does is free."""
    rows = rows_of(
        ("client", 0, 0, 4, 0), ("uplink", 0, 4, 12, 2e6), ("server", 0, 12, 13, 0), ("downlink", 0, 13, 15, 2e6)
    )
    up, down = (ALPHA_UP * 2 + BASE_W) * 8, (ALPHA_DOWN * 8 + BASE_W) * 2
    assert op_joule(rows, read_power(1, LTE)) == pytest.approx([12, up, 0, down])


def test_given_watts_replace_a_radio_profile():
    rows = rows_of(("uplink", 1, 0, 8, 2e6), ("downlink", 0, 8, 9, 2e6))
    power = read_power(2, PowerSection(compute_w=3.0, uplink_w=[1.0, 2.0], downlink_w=0.5))
    assert op_joule(rows, power) == pytest.approx([16, 0.5])


def test_participants_use_idle_power_while_waiting_and_overlap_counts_once():
    """Client 0 is busy from 0 to 6 s and from 7 to 8 s of a round of 10 s, 1 since before it, 2 never; 3 is away."""
    rows = rows_of(
        ("client", 0, 0, 4, 0), ("uplink", 0, 2, 6, 0), ("client", 0, 3, 5, 0), ("client", 0, 7, 8, 0),
        ("client", 1, -5, 10, 0), ("server", 2, 0, 10, 0),
    )  # fmt: skip
    power = {"compute_w": 1.0, "uplink_w": 1.0, "downlink_w": 1.0}
    awake, asleep = (
        client_joule(rows, read_power(4, PowerSection(**power, idle_w=w)), [0, 1, 2], 0.0, 10.0) for w in (0.1, 0.0)
    )
    assert asleep == pytest.approx([4 + 4 + 2 + 1, 10, 0, 0])
    assert awake - asleep == pytest.approx([0.3, 0, 1.0, 0])


def test_an_absent_client_uses_no_energy():
    """Client 0 is there from 2 to 5 s and from 8 to 11 s of each 12 s: it computes for 1 s, and for 2 + 1 s of 6 s."""
    rows = rows_of(("client", 0, 2, 3, 0), ("client", 0, 3, 9, 0), ("client", 1, 3, 9, 0))
    presence = [Presence([(2, 5), (8, 11)], period_s=12), Presence([(0, 1)], period_s=1)]
    power = read_power(2, PowerSection(compute_w=1.0, uplink_w=1.0, downlink_w=1.0, idle_w=0.1))
    assert op_joule(rows, power, presence) == pytest.approx([1, 3, 6])
    assert client_joule(rows, power, [0, 1], 0.0, 12.0, presence) == pytest.approx([4 + 0.2, 6 + 0.6])


def test_a_message_between_clients_counts_at_both_ends():
    power = read_power(2, LTE)
    peer, up, down = (op_joule(rows_of((node, 1, 0, 8, 2e6)), power) for node in ("peer", "uplink", "downlink"))
    assert peer == pytest.approx(up + down)


def test_what_takes_no_time_takes_no_energy():
    work = task(device=None)
    free, paid = (
        simulate("splitfed_v1", work, 1, world=fleet(3), include_model_exchange=included)[2]
        for included in (False, True)
    )
    power = read_power(3, LTE)
    models = paid["kind"] == b"model"
    assert models.any()
    assert op_joule(free, power).sum() == pytest.approx(op_joule(paid, power)[~models].sum())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_clients_energies_add_up_to_the_fleets(name):
    """Sums of watts x seconds and joules x bits suffice at constant rates and without latency."""
    _, simulator, rows = simulate(name, task(device=None), 2, world=fleet(3, [1e5, 3e5, 7e5], [1e5, 4e4, 9e4], 2e5))
    seconds = rows["ended_s"] - rows["started_s"]
    megabit = 8e-6 * rows["bytes"]
    up, down = (np.isin(rows["node"], [link, b"peer"]) for link in (b"uplink", b"downlink"))
    fleet_joule = 3.0 * seconds[rows["node"] == b"client"].sum()
    fleet_joule += (ALPHA_UP * megabit + BASE_W * seconds)[up].sum()
    fleet_joule += (ALPHA_DOWN * megabit + BASE_W * seconds)[down].sum()
    by_client = client_joule(rows, read_power(3, LTE), range(3), 0.0, simulator.now_s)
    assert by_client.sum() == pytest.approx(fleet_joule)
    assert (by_client > 0).all()


spans = st.tuples(st.integers(0, 4), st.floats(-5, 10), st.floats(0, 5))


@given(ops=st.lists(spans, max_size=12), compute_w=st.floats(0.5, 5))
@hypothesis_settings(max_examples=60)
def test_idle_power_equal_to_compute_power_gives_the_energy_of_computing_all_the_time(ops, compute_w):
    """Operations of a device in a round may be any, one after another."""
    free_s = dict.fromkeys(range(5), -5.0)
    laid = []
    for client, gap_s, length_s in ops:
        started_s = free_s[client] + max(0.0, gap_s)
        free_s[client] = ended_s = min(started_s + length_s, 10.0)
        laid.append(("client", client, min(started_s, ended_s), ended_s, 0))
    power = read_power(5, PowerSection(compute_w=compute_w, uplink_w=1.0, downlink_w=1.0, idle_w=compute_w))
    assert client_joule(rows_of(*laid), power, range(5), 0.0, 10.0) == pytest.approx(5 * [10 * compute_w])
