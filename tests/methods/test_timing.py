"""Simulated time of the methods against closed forms (docs/methods/timing.md, I19, I20)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import fleet, simulate, task

from sfl_sim.models.replica import Replica
from sfl_sim.models.zoo import network
from sfl_sim.ops import Work
from sfl_sim.system.links import Pattern, RateTrace

ORDERS = ["fcfs", "cyclic", "random_job"]


def times(work, world):
    """Eqs (11) to (14) per client: seconds of the device, the server and the links for one whole mini-batch.

    The first layer computes no gradient of samples: one forward pass of it less than Eq. (12) says.
    """
    part1, part2 = work.split(work.cut)
    size = work.data.batch_size
    s = np.array([work.network.macs / rate for rate in world.macs_per_s])  # s/frame
    rho_cut = part1.part.macs / work.network.macs
    device_s = (3 * rho_cut - work.network.layers[0].macs / work.network.macs) * size * s
    server_s = 3 * (1 - rho_cut) * size * s.mean() / 100
    up_bits = size * (part1.part.out_numel * 8 + 8) * 8
    down_bits = size * part2.part.in_numel * 8 * 8
    links_s = up_bits / np.array(world.uplinks.mean_bps) + down_bits / np.array(world.downlinks.mean_bps)
    return device_s + server_s + links_s, server_s


WORLD = {"macs_per_s": [1e5, 3e5, 7e5], "uplink_bps": [1e5, 4e4, 9e4], "downlink_bps": [3e5, 2e5, 1e5]}


def ended_s(name, work, world, rounds=1, **settings):
    _, simulator, _ = simulate(name, work, rounds, world=world, include_model_exchange=False, **settings)
    return simulator.now_s


@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v3", "multihead"])
def test_methods_with_a_lane_for_every_client_take_what_eqs_11_to_14_say(name):
    """max_c B_c * T_c without model exchange, to 1e-9 relative; clients with 5, 3 and 2 whole batches."""
    work, world = task([20, 12, 8], device=None), fleet(3, **WORLD)
    batch_s, _ = times(work, world)
    assert ended_s(name, work, world) == pytest.approx(max(batch_s * [5, 3, 2]), rel=1e-9)


def test_mergesfl_waits_for_all_before_and_after_every_server_step():
    """sum_t [max(CF + UP) + SV + max(DN + CB)] over the active clients, and all models go at once, before and after.

    Part-1 is the first layer, so CB takes as long as CF.
    """
    work, world = task([20, 12, 8], device=None), fleet(3, **WORLD)
    part1, part2 = work.split(1)
    macs_per_s, up_bps, down_bps = (np.array(WORLD[key]) for key in ("macs_per_s", "uplink_bps", "downlink_bps"))
    before_s = 4 * part1.part.macs / macs_per_s + 4 * (part1.part.out_numel * 8 + 8) * 8 / up_bps
    after_s = 4 * part1.part.macs / macs_per_s + 4 * part1.part.out_numel * 8 * 8 / down_bps
    expected_s = 0.0
    for step in range(5):
        active = [c for c, n_batches in enumerate([5, 3, 2]) if step < n_batches]
        served_s = 3 * part2.part.macs * 4 * len(active) / world.server_macs_per_s
        expected_s += before_s[active].max() + served_s + after_s[active].max()
    assert ended_s("mergesfl", work, world) == pytest.approx(expected_s, rel=1e-9)
    models_s = part1.size_bytes * 8 * (1 / min(up_bps) + 1 / min(down_bps))
    average_s = 3 * part1.part.n_parameters / world.server_macs_per_s
    _, simulator, _ = simulate("mergesfl", work, 1, world=world)
    assert simulator.now_s == pytest.approx(expected_s + models_s + average_s, rel=1e-9)


class Given(SimpleNamespace):
    """A part with the given prices, which is equal to no other."""

    __hash__ = object.__hash__


def given_parts(work, macs, cut_macs, cut_numel):
    """The task with parts of given prices instead of those of a real network; fp32, no weights."""

    def part(macs, **prices):
        def work(samples, passes, gradient=True):
            return Work.of(samples * passes * macs)

        empty = {"n_parameters": 0, "n_buffers": 0, "size_bytes": 0, "aggregate": None}
        return Replica(Given(work=work, wire_dtype=torch.float32, label_bytes=8, **empty, **prices))

    parts = [
        part(macs=cut_macs, out_numel=cut_numel, first=True),
        part(macs=macs - cut_macs, in_numel=cut_numel, first=False),
    ]
    network = SimpleNamespace(split=lambda *cuts, **_: parts, macs=macs, lora=None)
    return replace(work, network=network)


def test_the_golden_latency_of_three_clients():
    """Golden values: s, Bs=50, rho_cut=0.3, gamma=100, A=65,536, tau -> T and the server's part."""
    s, tau_bps, macs = [0.02, 0.05, 0.08], [20e6, 10e6, 5e6], 1e9
    work = given_parts(task([50, 50, 50], batch_size=50, device=None), macs, 0.3 * macs, 65_536)
    world = fleet(3, [macs / seconds for seconds in s], tau_bps, tau_bps)
    *_, rows = simulate("splitfed_v1", work, 1, world=world, include_model_exchange=False)
    served = rows[rows["kind"] == b"train"]
    assert served["ended_s"] - served["started_s"] == pytest.approx(0.0525)
    done = rows[rows["kind"] == b"backward"]
    labels_s = 50 * 8 * 8 / np.array(tau_bps)  # Eq. (14) leaves the labels out
    assert done["ended_s"] - labels_s == pytest.approx([11.438, 23.274, 45.596], abs=1e-3)


def test_averaging_every_step_waits_for_the_slowest_at_every_step():
    """sum_t max over the active clients of T_c."""
    work, world = task([20, 12, 8], device=None), fleet(3, **WORLD)
    batch_s, _ = times(work, world)
    active = [batch_s[[c for c, b in enumerate([5, 3, 2]) if t < b]] for t in range(5)]
    found = ended_s("splitfed_v1", work, world, options={"server_agg_every": "step"})
    assert found == pytest.approx(sum(map(max, active)), rel=1e-9)


def test_averaging_every_epoch_waits_for_the_slowest_in_every_epoch():
    """Links that change turn by turn make another client the slowest in the second epoch: more than once a round."""
    work = task([8, 8], device=None, local_epochs=2)
    one_epoch_s, _ = times(work, fleet(2, 1e9, [1e4, 1e5], 1e9))
    slow_s = 2 * one_epoch_s.max()
    turns = Pattern([0.0, slow_s, 2 * slow_s], [1.0, 10.0])
    world = fleet(2, 1e9, [1e4, 1e4], 1e9)
    mean_bps = 1e4 * turns.mean_bps
    uplinks = [RateTrace(mean_bps, turns, 0.0), RateTrace(mean_bps, turns, slow_s)]
    world = replace(world, uplinks=uplinks)
    once_s = ended_s("splitfed_v1", work, world)
    every_epoch_s = ended_s("splitfed_v1", work, world, options={"server_agg_every": "epoch"})
    assert every_epoch_s > 1.3 * once_s


def test_who_is_done_early_uploads_part_1_while_the_others_go_on():
    work, world = task([4, 12], device=None), fleet(2, 1e6, [1e4, 1e6], 1e6)
    *_, rows = simulate("splitfed_v1", work, 1, world=world, options={"server_agg_every": "step"})
    upload = rows[(rows["kind"] == b"model") & (rows["node"] == b"uplink") & (rows["client"] == 0)]
    others = rows[(rows["kind"] == b"forward") & (rows["client"] == 1) & (rows["step"] == 1)]
    assert others["started_s"] < upload["ended_s"]
    assert rows["ended_s"].max() >= upload["ended_s"]


def test_splitnn_takes_one_client_after_another():
    work, world = task([20, 12, 8], device=None), fleet(3, **WORLD)
    batch_s, _ = times(work, world)
    assert ended_s("splitnn", work, world) == pytest.approx(sum(batch_s * [5, 3, 2]), rel=1e-9)


def test_fcfs_at_a_slow_server_as_computed_by_hand():
    """Two clients, two batches each, unit times: device forward 1, backward of the first layer 1, server 6, links free.

    Both arrive at 1. Client 0 is served 1 to 7, client 1 7 to 13. Client 0 works back and forth 7 to 9 and arrives
    at 9, is served 13 to 19; client 1 arrives at 15, is served 19 to 25. The last backward ends at 26.
    """
    work = task([4, 4], batch_size=2, device=None)
    part1, part2 = work.split(1)
    forward_macs = 2 * part1.part.macs
    served_macs = 3 * 2 * part2.part.macs
    world = fleet(
        2, macs_per_s=forward_macs, uplink_bps=1e18, downlink_bps=1e18, speedup=served_macs / 6 / forward_macs
    )
    *_, rows = simulate("splitfed_v2", work, 1, world=world, include_model_exchange=False, workers=1)
    jobs = rows[rows["kind"] == b"train"]
    assert jobs["client"].tolist() == [0, 1, 0, 1]
    assert jobs["requested_s"] == pytest.approx([1, 1, 9, 15])
    assert jobs["started_s"] == pytest.approx([1, 7, 13, 19])
    assert rows["ended_s"].max() == pytest.approx(26)


def test_model_exchange_takes_its_time_unless_it_is_left_out():
    work, world = task([4], device=None), fleet(1, uplink_bps=1e5, downlink_bps=2e5)
    part1, _ = work.split(1)
    _, with_exchange, _ = simulate("splitfed_v2", work, 1, world=world)
    exchange_s = part1.size_bytes * 8 * (1 / 1e5 + 1 / 2e5)
    without_s = ended_s("splitfed_v2", work, world)
    average_s = (part1.part.n_parameters) / world.server_macs_per_s
    assert with_exchange.now_s == pytest.approx(without_s + exchange_s + average_s, rel=1e-9)


rates = st.lists(st.floats(1e4, 1e7), min_size=3, max_size=3)


@settings(max_examples=25)
@given(compute=rates, up=rates, down=rates, epochs=st.integers(1, 2), order=st.sampled_from(ORDERS))
def test_i20_more_waiting_takes_more_time(compute, up, down, epochs, order):
    """V1 <= V1-epoch <= V1-step (max of sums <= sum of max), and V2 in any order >= V1 (more precedences)."""
    work, world = task([12, 8, 6], device=None, local_epochs=epochs), fleet(3, compute, up, down)
    every_round, every_epoch, every_step = (
        ended_s("splitfed_v1", work, world, options={"server_agg_every": e}) for e in ("round", "epoch", "step")
    )
    slack = 1 + 1e-9
    assert every_round <= every_epoch * slack
    assert every_epoch <= every_step * slack
    for name in ("splitfed_v2", "hydra", "mergesfl"):
        assert every_round <= ended_s(name, work, world, order=order) * slack


def test_i20_with_an_infinitely_fast_server_fcfs_v2_takes_v1s_time():
    work = task([12, 8, 6], device=None)
    v1_s = ended_s("splitfed_v1", work, fleet(3, **WORLD, speedup=1e12))
    assert ended_s("splitfed_v2", work, fleet(3, **WORLD, speedup=1e12)) == pytest.approx(v1_s, rel=1e-6)


def test_i20_for_identical_clients_arrival_order_and_cyclic_order_take_the_same_time():
    work, world = task([12, 12, 12], device=None), fleet(3)
    for name in ("splitfed_v2", "hydra"):
        assert ended_s(name, work, world) == pytest.approx(ended_s(name, work, world, order="cyclic"))


def bytes_of(rows):
    return {link: int(rows["bytes"][rows["node"] == link.encode()].sum()) for link in ("uplink", "downlink", "peer")}


@pytest.mark.parametrize("order", ORDERS)
def test_i19_bytes_of_v1_and_v2_are_equal_whatever_the_order(order):
    work = task([12, 8, 6], device=None)
    v1 = bytes_of(simulate("splitfed_v1", work)[2])
    assert bytes_of(simulate("splitfed_v2", work, order=order)[2]) == v1
    assert bytes_of(simulate("multihead", work, order=order)[2]) == v1  # of which part-1 is the body
    assert bytes_of(simulate("mergesfl", work, order=order)[2]) == v1
    hydra = bytes_of(simulate("hydra", work, order=order)[2])
    assert hydra == v1 | {"uplink": v1["uplink"] + 4 * 3 * 3}  # once, the numbers of samples of 3 labels of 3 clients


def test_bytes_are_the_formulas_of_section_4_3():
    work = task([12, 8, 6], device=None)
    part1, _ = work.split(1)
    (whole,) = work.split()
    n, activations = 26, part1.part.out_numel * 8
    v2 = bytes_of(simulate("splitfed_v2", work, 1)[2])
    assert v2["uplink"] == n * (activations + 8) + 3 * part1.size_bytes
    assert v2["downlink"] == n * activations + 3 * part1.size_bytes
    v3 = bytes_of(simulate("splitfed_v3", work, 1)[2])
    assert v3 == {"uplink": n * (activations + 8), "downlink": n * activations, "peer": 0}
    fedavg = bytes_of(simulate("fedavg", work, 1)[2])
    assert fedavg == {"uplink": 3 * whole.size_bytes, "downlink": 3 * whole.size_bytes, "peer": 0}
    splitnn = bytes_of(simulate("splitnn", work, 1)[2])
    assert splitnn["peer"] == 2 * part1.size_bytes
    assert splitnn["downlink"] == n * activations + part1.size_bytes  # the very first hand-over is the server's


def test_the_golden_bytes_of_resnet18():
    """Golden values: 78 jobs of 64 samples at A = 65,536 and P1 = 149,824 parameters, one client and round."""
    work = task([78 * 64], batch_size=64, cut=4, device=None)
    work = replace(work, network=network("resnet18", (3, 32, 32), 10))
    *_, rows = simulate("splitfed_v2", work, 1)
    part1, _ = work.split(4)
    statistics = 2 * part1.part.n_buffers * 4  # batch-norm statistics travel too; the golden value counts parameters
    assert rows["bytes"].max() == 16_777_728
    assert rows["bytes"].sum() - statistics == 2_618_484_224
