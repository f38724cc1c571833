"""Rounds that lose everybody, and rounds in which nobody may wait for somebody who is lost."""

from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lossy_world import EVERYBODY, FOR_GOOD_S, TOGETHER, TRAIN_ALONE, bits, gone_at, run

from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence

VARIANTS = {
    **{name: [options] for name, options in TRAIN_ALONE.items()}, **TOGETHER,
    "splitfed_v1": [{}, *TOGETHER["splitfed_v1"]], "splitnn": [{}], "slowmo": [{}], "fednag": [{}],
    "smofi": [*({"barrier": barrier} for barrier in ("paper", "strict", "relaxed")),
              {"barrier": "relaxed", "host": "fednar"}, {"fusion": False}, {"carry_fused": True}],
    "korea": [
        {"proportion": "fixed", "p0": 0.5, "assistants": "all"}, {"proportion": "off"},
        {"proportion": "window_ratio", "p0": 0.3, "assistants": "all", "patience_s": 0.5},
    ],
}  # fmt: skip
WAYS = [(name, options) for name, several in VARIANTS.items() for options in several]


def test_every_method_that_survives_is_tried():
    asynchronous = {"fedbuff", "fedasync"}  # which have tests of their own
    surviving = {name for name, kind in METHODS.items() if kind.survives} - asynchronous
    assert surviving == set(VARIANTS), "enter it in TRAIN_ALONE or TOGETHER of tests/support/lossy_world.py"


@pytest.mark.parametrize(("name", "options"), [way for way in WAYS if way[0] != "splitnn"])  # which waits
def test_with_everybody_lost_the_model_stays_as_it_is(name, options):
    """Lost right at the beginning of the second round, before anybody has done anything."""
    once, _, (first,) = run(name, [EVERYBODY], options=options)
    away = gone_at(dict.fromkeys(EVERYBODY, first["ended_s"].max() + 0.01))
    method, simulator, _ = run(name, [EVERYBODY, EVERYBODY], away, options)
    assert simulator.records.take_dropouts()
    assert bits(method) == bits(once)


@pytest.mark.parametrize("name", ["splitfed_v3", "multihead", "splitnn"])
def test_with_everybody_lost_in_the_first_round_the_model_is_the_initial_one(name):
    """Methods that have models only of clients that have trained."""
    method, *_ = run(name, [EVERYBODY], gone_at(dict.fromkeys(EVERYBODY, 0.01)))
    assert bits(method) == bits(run(name, [])[0])


seconds = st.floats(0.1, 8)
"""A round takes four seconds and more."""
coming_and_going = st.lists(st.tuples(seconds, seconds, seconds), min_size=4, max_size=4)


SLOW, USUAL = 0.3, 20.0
"""Speedups of the server."""


@settings(deadline=None, max_examples=100)
@example(
    way=("smofi", {"barrier": "relaxed", "host": "fednar"}), stays=[(FOR_GOOD_S, 1.0, 0.0)] * 4,
    policy="deadline", deadline_s=5.0, order="fcfs", speedup=SLOW, rounds=[EVERYBODY],
)  # whose optimisers' steps are lost while all their clients wait for a fusion  # fmt: skip
@given(
    way=st.sampled_from(WAYS),
    stays=coming_and_going,
    policy=st.sampled_from(["drop", "deadline"]),
    deadline_s=seconds,
    order=st.sampled_from(sorted(ORDERS)),
    speedup=st.sampled_from([SLOW, USUAL]),
    rounds=st.lists(st.lists(st.sampled_from(EVERYBODY), min_size=1, unique=True), min_size=1, max_size=4),
)
def test_nobody_waits_for_ever_for_somebody_who_is_lost(way, stays, policy, deadline_s, order, speedup, rounds):
    """Clients come and go as they like, some come back within the round: every round ends (or the clock would tell)."""
    (name, options), deadline_s = way, deadline_s if policy == "deadline" else inf
    presence = [Presence([(0.0, there_s)], there_s + away_s, phase_s) for there_s, away_s, phase_s in stays]
    _, simulator, _ = run(name, rounds, presence, options, policy, deadline_s, order, speedup, device=None)
    lost = {(loss.round, loss.client) for loss in simulator.records.take_dropouts()}
    if name not in ("korea", "splitnn"):  # where others may be, too: assistants, and who holds the model
        assert lost <= {(round, client) for round, clients in enumerate(rounds, start=1) for client in clients}
