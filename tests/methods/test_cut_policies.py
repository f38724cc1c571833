"""Cut policies decide by rounds that have ended; they change how long rounds take, and not what is learned."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import distance, fleet, task

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.cut_policies import CUT_POLICIES, CutCost, PolicyInput, bandit, greedy, makespan, median
from sfl_sim.methods.seen import ClientRound, ObservedTimes
from sfl_sim.methods.smofi import SmofiOptions
from sfl_sim.methods.splitfed_v1 import V1Options
from sfl_sim.models.network import LASTING
from sfl_sim.scenario.sections import ClientCuts
from sfl_sim.testing import bits, simulate

SAMPLES = [180, 120, 160]
SLOW_TO_FAST = {"macs_per_s": [1e4, 1e7, 1e7], "uplink_bps": [1e6, 1e5, 1e4], "downlink_bps": [1e6, 1e5, 1e4]}
"""A slow device with a fast link, and fast devices with slow links."""


def run(policy, rounds=4, world=None, cuts=(1, 2), name="splitfed_v1", options=None, samples=SAMPLES, **settings):
    work = task(samples, batch_size=30, cut=max(cuts), round_cuts=cuts, cut_policy=policy, **settings)
    return simulate(METHODS[name](work, options), rounds, world=world or fleet(len(samples), **SLOW_TO_FAST))


def told(*clients, server=(1e6, 1e-3), workers=1):
    """`ObservedTimes` after one round: of each client the rate of its device (MAC/s) and of its links (bytes/s)."""
    seen = ObservedTimes(workers)
    seen.learn(1, {c: (1.0, macs, 1.0, link, 1.0, link) for c, (macs, link) in enumerate(clients)}, server)
    return seen


def known(seen, held=None, costs=None, batches=1):
    """Three cuts with the numbers of NEXT_METHODS, G.2: 16 samples, neither labels nor models."""
    of = {
        cut: CutCost(3 * macs, 0.0, n_bytes, n_bytes, 0.0)
        for cut, macs, n_bytes in ((1, 10e6, 65536), (2, 40e6, 16384), (3, 80e6, 4096))
    }
    samples, n_batches = (lambda c: 16 * batches), (lambda c: batches)
    return PolicyInput(costs or of, seen, held or {}, begins=1, samples=samples, batches=n_batches)


@pytest.mark.parametrize(
    ("macs_per_s", "bps", "times_s", "cut"),
    [
        (1e9, 8e6, (2.577, 2.444, 3.971), 2),
        (1e9, 80e6, (0.690, 1.972, 3.853), 1),
        (1e10, 8e6, (2.145, 0.716, 0.515), 3),
    ],
)
def test_greedy_takes_the_cut_with_which_a_mini_batch_is_fastest(macs_per_s, bps, times_s, cut):
    what = known(told((macs_per_s, bps / 8)), held={0: {1: 4 - cut}})
    assert [what.round_s(0, each) for each in what.cuts] == pytest.approx(times_s, abs=1e-3)
    assert min(what.cuts, key=lambda each: what.round_s(0, each)) == cut


def test_a_client_moves_for_a_tenth_of_its_time_and_not_for_less():
    """From cut 1, with 2.577 s, to cut 2 it would save a twentieth."""
    seen = told((1e9, 1e6))
    assert greedy(known(seen), [0]) == {0: 1}
    assert greedy(known(seen, held={0: {1: 3}}), [0]) == {0: 2}


def waiting(queue_s, jobs=1):
    """As `told`, of one client whose jobs have each waited."""
    seen = ObservedTimes()
    seen.learn(1, {0: (1.0, 1e9, 1.0, 1e6, 1.0, 1e6, 0.1, jobs, jobs * queue_s)}, (1e6, 1e-3))
    return seen


def test_a_queue_is_a_part_of_a_round_and_no_part_of_what_a_client_takes_alone():
    what = known(waiting(queue_s=5.0, jobs=3), batches=4)
    assert what.round_s(0, 1) == pytest.approx(what.alone_s(0, 1) + 4 * 5.0)


def test_a_long_queue_makes_greedy_stay_and_makespan_does_not_look_at_it():
    """From cut 3 to 2 a client would save 1.5 of 4 s alone, and 1.5 of 104 s with the queue."""
    held = {0: {1: 1, 2: 3}}
    assert greedy(known(waiting(queue_s=100.0), held), [0]) == {0: 3}
    assert makespan(known(waiting(queue_s=100.0), held), [0]) == {0: 2}


def test_the_cut_that_a_client_has_is_that_of_its_last_round():
    assert known(told((1.0, 1.0)), held={0: {1: 1, 2: 3, 4: 2}}).cut(0) == 2
    assert known(told((1.0, 1.0))).cut(0) == 1, "where it has begun"


def test_a_bandit_gives_a_cut_that_was_tried_once_another_chance():
    """Means are 10 s of four rounds, 10.5 s of one, and 12 s of one: the second may be better than it was."""
    seen, lasted_s = (
        ObservedTimes(),
        {1: (1, 10.0), 2: (1, 10.0), 3: (1, 10.0), 4: (1, 10.0), 5: (2, 10.5), 6: (3, 12.0)},
    )
    for number, (_, seconds) in lasted_s.items():
        seen.learn(number, {0: (seconds, 1e9, 0.0, 0.0, 0.0, 0.0)}, (1e6, 1e-3))
    held = {0: {number: cut for number, (cut, _) in lasted_s.items()}}
    assert bandit(known(seen, held), [0]) == {0: 2}


def test_makespan_takes_work_from_a_server_that_is_slower_than_all_clients():
    """It would work for 72 s, the slower client needs 52. The faster one takes a layer more, and not two."""
    costs = {1: CutCost(1, 9, 0, 0, 0), 2: CutCost(3, 6, 0, 0, 0), 3: CutCost(9, 1, 0, 0, 0)}
    seen = told((1.0, 1.0), (2.0, 1.0), server=(4.0, 1.0))
    alone = greedy(known(seen, costs=costs), [0, 1])
    assert alone == {0: 1, 1: 1}
    what = known(seen, costs=costs)
    assert makespan(what, [0, 1]) == {0: 1, 1: 2}
    many = told((1.0, 1.0), (2.0, 1.0), server=(4.0, 1.0), workers=2)
    assert makespan(known(many, costs=costs), [0, 1]) == alone


@given(st.lists(st.tuples(st.floats(1e7, 1e11), st.floats(1e4, 1e8)), min_size=1, max_size=5), st.floats(1e-6, 1e3))
def test_no_policy_predicts_a_longer_round_than_greedy_does(clients, server_s):
    costs = {cut: CutCost(cut * 1e7, (4 - cut) * 1e8, 1e5 / cut, 1e5 / cut, cut * 1e3) for cut in (1, 2, 3)}
    what, everybody = known(told(*clients, server=(1e9, server_s)), costs=costs), range(len(clients))

    def lasts_s(cuts):
        work_s = sum(what.server_s(c, cut) for c, cut in cuts.items())
        return max(work_s, *(what.round_s(c, cut) for c, cut in cuts.items()))

    assert lasts_s(makespan(what, everybody)) <= lasts_s(greedy(what, everybody))
    for policy in CUT_POLICIES.values():
        assert set(policy(what, everybody)) == set(everybody)


def test_median_evens_out_the_times():
    """The slow client takes 1, 2 or 3 s, the other a tenth of it; the middle is 0.65 s."""
    costs = {cut: CutCost(cut, 0, 0, 0, 0) for cut in (1, 2, 3)}
    what = known(told((16.0, 1.0), (160.0, 1.0)), costs=costs)
    assert median(what, [0, 1]) == {0: 1, 1: 3}


def test_a_bandit_tries_every_cut_once_and_then_stays_with_the_fastest():
    """On a steady system, with exceptions that become rare."""
    found = run(bandit, rounds=40)
    for c, of_client in found.method.held.items():
        cuts = list(of_client.values())
        assert set(cuts[:2]) == {1, 2}
        lasts_s = {cut: found.method.known.round_s(c, cut) for cut in (1, 2)}
        fastest = min(lasts_s, key=lasts_s.get)
        assert np.mean(np.array(cuts[20:]) == fastest) > 0.7


def test_what_is_predicted_is_what_happens():
    """Where rates are constant and nobody waits: then a client's next round takes what `round_s` says, to the end."""
    work = task(SAMPLES, batch_size=30, cut=2, round_cuts=(1, 2), cut_policy=greedy, device=None)
    method = METHODS["splitfed_v1"](work)
    found = simulate(method, 5, world=fleet(3, **SLOW_TO_FAST))
    rounds = {number: found.rows[found.rows["round"] == number] for number in (4, 5)}
    for c, cut in enumerate(method.client_cuts(range(3))):
        own = rounds[5][rounds[5]["client"] == c]
        assert method.held[c][5] == cut
        assert own["ended_s"].max() - own["started_s"].min() == pytest.approx(method.known.round_s(c, cut))


@pytest.mark.parametrize("policy", CUT_POLICIES.values())
def test_what_is_learned_is_what_fedavg_learns(policy):
    ours = run(policy).method
    assert len({tuple(of_client.values()) for of_client in ours.held.values()}) > 1, "clients differ"
    fedavg = simulate(METHODS["fedavg"](task(SAMPLES, batch_size=30)), 4)
    assert distance(ours, fedavg.method) < 1e-10


def test_a_policy_with_one_cut_is_no_policy():
    ours = run(greedy, cuts=(2,))
    plain = simulate(METHODS["splitfed_v1"](task(SAMPLES, batch_size=30, cut=2)), 4, world=fleet(3, **SLOW_TO_FAST))
    assert bits(ours.method) == bits(plain.method)
    assert ours.rows.tobytes() == plain.rows.tobytes()


@pytest.mark.parametrize("policy", CUT_POLICIES.values())
def test_a_timing_only_run_decides_alike(policy):
    assert run(policy).rows.tobytes() == run(policy, device=None).rows.tobytes()


def test_everybody_begins_at_the_first_value():
    assert set(run(greedy, rounds=1, cuts=(2, 1)).method.client_cuts(range(3))) == {2}
    assert set(run(median, rounds=1, cuts=(1, 2)).method.client_cuts(range(3))) == {1}


@pytest.mark.parametrize("name", ["splitfed_v1", "fedprox", "fednar", "fedavgm", "slowmo", "fednag"])
def test_whoever_can_have_different_cuts_can_change_them(name):
    method = run(greedy, name=name, momentum=0.5).method
    assert len({of_client[4] for of_client in method.held.values()}) == 2


@pytest.mark.parametrize(
    ("name", "options", "key", "found"),
    [
        ("splitfed_v2", None, "model.cut.by", "greedy"),
        ("dtfl", None, "model.cut.by", "greedy"),
        ("splitfed_v1", V1Options(server_agg_every="step"), "method.server_agg_every", "step"),
        ("smofi", SmofiOptions(fusion=True), "model.cut", [1, 2]),
    ],
)
def test_whoever_cannot_says_so(name, options, key, found):
    with pytest.raises(ScenarioError) as refused:
        run(greedy, name=name, options=options)
    assert (refused.value.key, refused.value.found) == (key, found)


def test_a_policy_is_not_told_how_fast_things_are():
    """`PolicyInput` holds sizes, and what was seen and held; a client never seen is like the median of others."""
    seen = told((1e9, 1e6), (3e9, 1e6), (2e9, 1e6))
    assert known(seen).round_s(7, 1) == known(seen).round_s(2, 1)
    assert ClientRound(1, 1, 1, 1, 1, 1).queue_s == 0


def test_a_scenario_can_name_every_policy():
    names, _ = get_args(ClientCuts.model_fields["by"].annotation)
    assert set(get_args(names)) == {*LASTING, "round", *CUT_POLICIES}
