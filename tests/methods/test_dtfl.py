"""DTFL: tiers by times of rounds that have ended, by nothing else, and none that holds up the round."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import fleet, task

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.ahead import UploadOptions
from sfl_sim.methods.dtfl import DtflOptions, deepest
from sfl_sim.methods.seen import ClientRound, ObservedTimes
from sfl_sim.methods.wire import Wire
from sfl_sim.store import places
from sfl_sim.testing import bits, simulate
from sfl_sim.training.codecs import Delta, Int

SAMPLES = [9, 6, 8]


def run(options, rounds=3, world=None, name="dtfl", **settings):
    work = task(SAMPLES, batch_size=3, **settings)
    return simulate(
        METHODS[name](work, options), rounds, world=world or fleet(3, macs_per_s=[1e4, 1e5, 1e6], speedup=2.0)
    )


def test_with_one_tier_it_is_local_loss():
    """With the same timeline and the same numbers."""
    ours, plain = run(DtflOptions(tiers=[1])), run(UploadOptions(server="copies"), name="cse_fsl")
    assert bits(ours.method) == bits(plain.method)
    assert ours.rows.tobytes() == plain.rows.tobytes()


def test_slow_phones_hold_fewer_layers():
    """In the first round all begin at the scenario's cut; then the slowest leaves most to the server."""
    method = run(DtflOptions(tiers=[1, 2]), cut=2, world=fleet(3, macs_per_s=[1e3, 1e6, 1e6], uplink_bps=1e6)).method
    assert [method.held[c][1] for c in range(3)] == [2, 2, 2]
    assert method.held[0][2] == 1
    assert method.held[1][2] == method.held[2][2] == 2


def test_decisions_follow_from_what_was_seen_and_from_nothing_else():
    """A method on another fleet decides alike, if it is told that it has seen the same."""
    options, told = DtflOptions(tiers=[1, 2]), ObservedTimes()
    told.rounds = {c: {1: ClientRound(s, 1e4, 0.1, 1e4, 0.1, 1e4)} for c, s in enumerate((50.0, 1.0, 0.5))}
    told._server_macs, told._server_s = 1e6, 1.0
    chosen = []
    for speed in (1e3, 1e9):
        method = run(options, rounds=0, world=fleet(3, macs_per_s=speed), cut=2).method
        method.task = replace(method.task, seen=told)
        method.held = {c: {1: 2} for c in range(3)}
        chosen.append([visit.cut for visit in method.visits(2, range(3)).values()])
    assert chosen[0] == chosen[1] == [1, 2, 2]


def test_a_round_takes_the_slower_of_device_and_server_and_then_the_uplink():
    """The server's rate is such that its passes of part-2 take longer than a quick device.

    These are three, but two of its first layer, since no gradient goes to the client.
    """
    method = run(DtflOptions(tiers=[1, 2]), rounds=0, cut=1).method
    for device_s in (1.0, 1e9):
        method.task.seen.rounds = {0: {1: ClientRound(device_s, 1e4, 0.5, 1e4, 0.1, 1e4)}}
        method.task.seen._server_macs, method.task.seen._server_s = 2.0, 1.0
        method.held = {0: {1: 1}}
        for cut, time_s in method.times_s(0).items():
            part1, part2 = method.parts[cut]
            own_s = device_s * method._macs(cut) / method._macs(1)
            server_s = SAMPLES[0] * (3 * part2.part.macs - method.task.network.layers[cut].macs) / 2.0
            sent_s = SAMPLES[0] * (part1.part.out_numel * 8 + part1.part.label_bytes) * 0.5 / 1e4
            assert time_s == pytest.approx((server_s if device_s == 1.0 else own_s) + sent_s)


@given(st.lists(st.lists(st.floats(0.1, 100), min_size=3, max_size=3), min_size=1, max_size=4))
def test_no_assignment_is_faster_and_nobody_could_hold_more(table):
    times_s = {c: dict(enumerate(row, 1)) for c, row in enumerate(table)}
    chosen = deepest(times_s)
    longest_s = max(times_s[c][key] for c, key in chosen.items())
    fastest_s = min(
        max(row[key - 1] for row, key in zip(table, keys, strict=True))
        for keys in product((1, 2, 3), repeat=len(table))
    )
    assert longest_s == fastest_s
    for c, key in chosen.items():
        assert all(times_s[c][deeper] > longest_s for deeper in range(key + 1, 4))


def test_a_client_that_was_lost_has_not_been_seen():
    method = run(DtflOptions(tiers=[1, 2])).method
    assert all(set(rounds) == {1, 2, 3} for rounds in method.held.values())
    method.held.pop(0)
    assert method.visits(4, range(3))[0].cut == method.task.cuts[0]


def test_no_gradient_comes_down_and_every_mini_batch_goes_up():
    found = run(DtflOptions(tiers=[1]), rounds=1, device=None)
    down = found.rows[places.at(found.rows["node"], "downlink")]
    assert set(down["kind"]) == {b"model"}
    up = found.rows[places.at(found.rows["node"], "uplink") & (found.rows["kind"] == b"smashed")]
    assert len(up) == sum(-(-n // 3) for n in SAMPLES)
    assert set(up["bytes"]) <= {n * (8 * 8 + 8) for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("tiers", "key", "found", "allowed"), [([3], "method.tiers", 3, "1 to 2"), ([2], "model.cut", 1, ["2"])]
)
def test_tiers_that_are_none_are_refused(tiers, key, found, allowed):
    with pytest.raises(ScenarioError) as refused:
        METHODS["dtfl"](task([4], device=None), DtflOptions(tiers=tiers))
    assert (refused.value.key, refused.value.found, refused.value.allowed) == (key, found, allowed)


def test_a_sample_is_compared_with_itself_at_one_tier_alone():
    """What it was at another layer says nothing."""
    METHODS["dtfl"](task([4], device=None, wire=Wire(up=Delta())), DtflOptions(tiers=[1]))
    with pytest.raises(ScenarioError) as refused:
        METHODS["dtfl"](task([4], device=None, wire=Wire(up=Delta())), DtflOptions(tiers=[1, 2]))
    assert (refused.value.key, refused.value.found) == ("wire.up", "delta")


def test_tiers_are_chosen_by_the_bytes_that_are_sent():
    """Codes of 8 bits are an eighth of float64, and labels stay as they are."""
    sent_s = []
    for wire in (Wire(), Wire(up=Int(bits=8))):
        method = run(DtflOptions(tiers=[1, 2]), rounds=0, cut=1, wire=wire).method
        method.task.seen.rounds = {0: {1: ClientRound(0.0, 1e4, 0.5, 1e4, 0.1, 1e4)}}
        method.task.seen._server_macs, method.task.seen._server_s = 1e12, 1.0
        method.held = {0: {1: 1}}
        sent_s.append(method.times_s(0)[1])
    part = method.parts[1][0].part
    plain, coded = (bits / 8 * part.out_numel + part.label_bytes for bits in (64, 8))
    assert coded / plain < sent_s[1] / sent_s[0] < 2 * coded / plain, "and the scales of codes"


def test_what_is_seen_is_what_was_recorded():
    """Rates of devices and links as they were busy, with latency, and smoothed over rounds."""
    world = fleet(3, macs_per_s=[1e4, 1e5, 1e6], uplink_bps=8e5)
    seen = run(DtflOptions(tiers=[1]), rounds=2, device=None, world=world).method.task.seen
    assert [seen.macs_per_s(c) for c in range(3)] == pytest.approx([1e4, 1e5, 1e6])
    assert seen.up_bps(0) == pytest.approx(8e5)
    assert seen.macs_per_s(7) == pytest.approx(1e5), "the median, of a client that has not been seen"
    assert seen.server_macs_per_s == pytest.approx(world.server_macs_per_s)
    assert ObservedTimes().up_bps(0) is None
    assert np.isfinite(seen.down_bps(1))


def test_newer_rounds_count_more():
    seen = ObservedTimes()
    seen.rounds = {
        0: {1: ClientRound(1, 8, 0, 0, 0, 0), 2: ClientRound(1, 4, 0, 0, 0, 0), 3: ClientRound(1, 2, 0, 0, 0, 0)}
    }
    assert seen.macs_per_s(0) == 0.5 * 2 + 0.5 * (0.5 * 4 + 0.5 * 8)
    assert seen.up_bps(0) is None
