"""A cut for every client: who can have it, that nothing is learned differently, and what each client pays."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import deep_net, distance, fleet, simulate, task

from sfl_sim.errors import ScenarioError

EXACT = 1e-10


@settings(max_examples=12)
@given(
    clients=st.lists(st.tuples(st.integers(2, 10), st.integers(1, 4)), min_size=2, max_size=4),
    momentum=st.sampled_from([0.0, 0.9]),
    epochs=st.integers(1, 2),
    uniform=st.booleans(),
    data=st.data(),
)
def test_i2_splitfed_v1_is_fedavg_whatever_the_cuts_of_the_clients(clients, momentum, epochs, uniform, data):
    samples, cuts = map(list, zip(*clients, strict=True))
    taking_part = data.draw(st.lists(st.sampled_from(range(len(cuts))), min_size=1, unique=True))
    usual = {"build": deep_net, "local_epochs": epochs, "weight_decay": 1e-3, "uniform_weights": uniform}
    work = task(samples, cuts=cuts, momentum=momentum, **usual)
    v1, *_ = simulate("splitfed_v1", work, clients=taking_part)
    fedavg, *_ = simulate("fedavg", work, clients=taking_part)
    assert distance(v1, fedavg) < EXACT


WORK = {"samples": [20, 12, 8], "cuts": [1, 4, 3], "build": deep_net}
WORLD = {"macs_per_s": [1e5, 3e5, 7e5], "uplink_bps": [1e5, 4e4, 9e4], "downlink_bps": [3e5, 2e5, 1e5]}


def test_the_bytes_of_a_client_are_those_of_its_own_cut():
    """docs/methods/timing.md#bytes: B * (A + labels) and P1 up, B * A and P1 down."""
    work = task(**WORK, device=None)
    *_, rows = simulate("splitfed_v1", work, rounds=1)
    for c, (n, cut) in enumerate(zip([20, 12, 8], work.cuts, strict=True)):
        part1, _ = work.split(cut)
        activations = part1.part.out_numel * 8
        ours = rows[rows["client"] == c]
        assert ours["bytes"][ours["node"] == b"uplink"].sum() == n * (activations + 8) + part1.size_bytes
        assert ours["bytes"][ours["node"] == b"downlink"].sum() == n * activations + part1.size_bytes


def test_the_time_of_a_client_is_that_of_its_own_cut():
    """Eqs (11) to (14) with each client's rho_cut and activations, for 5, 3 and 2 whole batches of 4 samples.

    The first layer computes no gradient of samples: one forward pass of it less than Eq. (12) says.
    """
    work, world = task(**WORK, device=None), fleet(3, **WORLD)
    *_, rows = simulate("splitfed_v1", work, rounds=1, world=world, include_model_exchange=False)
    mean_s_per_mac = np.mean(1 / np.array(world.macs_per_s))
    for c, (n_batches, cut) in enumerate(zip([5, 3, 2], work.cuts, strict=True)):
        part1, part2 = work.split(cut)
        device_s = (3 * part1.part.macs - work.network.layers[0].macs) / world.macs_per_s[c]
        server_s = 3 * part2.part.macs * mean_s_per_mac / 100
        bits = part1.part.out_numel * 64
        links_s = (bits + 64) / world.uplinks.mean_bps[c] + bits / world.downlinks.mean_bps[c]
        ended_s = rows["ended_s"][(rows["client"] == c) & (rows["kind"] == b"backward")].max()
        assert ended_s == pytest.approx(n_batches * 4 * (device_s + server_s + links_s), rel=1e-9)


def test_every_layer_is_averaged_once_and_at_the_server_only_what_no_client_holds():
    work = task(**WORK, device=None)
    *_, rows = simulate("splitfed_v1", work, rounds=1)
    averages = rows[rows["kind"] == b"average"]
    (*_, last) = work.split(1, 3, 4)
    (whole,) = work.split()
    assert averages["macs"].sum() == 3 * (whole.part.n_parameters + whole.part.n_buffers)
    assert averages["macs"][averages["node"] == b"server"].tolist() == [3 * last.part.n_parameters]


def test_a_run_without_training_has_the_same_timeline():
    trained, timed = (simulate("splitfed_v1", task(**WORK, **device))[2] for device in ({}, {"device": None}))
    assert np.array_equal(trained, timed)


@pytest.mark.parametrize("name", ["splitfed_v2", "splitnn"])
def test_clients_that_share_a_part_2_have_one_cut(name):
    with pytest.raises(ScenarioError) as caught:
        simulate(name, task(**WORK))
    assert (caught.value.key, caught.value.found) == ("model.cut", [1, 3, 4])


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_part_2_is_averaged_within_the_round_only_where_all_clients_have_one_cut(every):
    with pytest.raises(ScenarioError) as caught:
        simulate("splitfed_v1", task(**WORK), options={"server_agg_every": every})
    assert (caught.value.key, caught.value.allowed) == ("method.server_agg_every", ["round"])
    simulate("splitfed_v1", task(cut=2), options={"server_agg_every": every})


def test_fedavg_needs_no_cut():
    simulate("fedavg", replace(task(), cuts=[]))


@pytest.mark.parametrize("name", ["splitfed_v1", "fedavgm", "fednag"])
def test_i2_holds_with_a_cut_drawn_for_every_round(name):
    """Where the model is cut says nothing about what is learned, momenta and velocities included; bytes tell."""
    usual = {"samples": [10, 6], "build": deep_net, "momentum": 0.9}
    fixed, *_ = simulate(name, task(cut=3, **usual), rounds=5)
    drawn, _, rows = simulate(name, task(cuts=[4, 4], round_cuts=[1, 3, 4], **usual), rounds=5)
    assert distance(fixed, drawn) < EXACT
    part1_bytes = {int(n) for n in rows["bytes"][(rows["kind"] == b"model") & (rows["node"] == b"uplink")]}
    assert len(part1_bytes) > 1


def test_the_cut_of_a_round_depends_on_seed_and_round_alone():
    usual = {"samples": [10, 6], "cuts": [4, 4], "round_cuts": [1, 3, 4], "build": deep_net, "device": None}
    (*_, smofi), (*_, v1) = (simulate(name, task(**usual), rounds=6) for name in ("smofi", "splitfed_v1"))
    bytes_of = [[rows["bytes"][rows["round"] == number].sum() for number in range(1, 7)] for rows in (smofi, v1)]
    assert bytes_of[0] == bytes_of[1]
    assert len(set(bytes_of[0])) > 1
