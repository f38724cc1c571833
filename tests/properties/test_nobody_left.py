"""Rounds that lose everybody, and rounds in which nobody may wait for somebody who is lost."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lossy_world import EVERYBODY, bits, gone_at, run
from small_world import CASES

from sfl_sim.methods.asynchronous import Asynchronous
from sfl_sim.methods.korea import Korea
from sfl_sim.methods.smofi import Smofi, SmofiOptions
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence
from sfl_sim.testing import LONG_S, LOSSY, Case

OTHERS = [Case(Smofi, SmofiOptions(barrier="relaxed", host="fednar")), Case(Smofi, SmofiOptions(carry_fused=True))]
SURVIVING = [case for case in [*CASES, *OTHERS] if case.kind.survives and not issubclass(case.kind, Asynchronous)]
"""Without asynchronous methods: their round ends with an update, which clients that always leave never bring."""


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


@settings(max_examples=100)
@example(
    case=OTHERS[0], stays=[(LONG_S, 1.0, 0.0)] * 4,
    policy="deadline", deadline_s=5.0, order="fcfs", speedup=SLOW, rounds=[EVERYBODY],
)  # whose optimisers' steps are lost while all their clients wait for a fusion  # fmt: skip
@given(
    case=st.sampled_from(SURVIVING),
    stays=coming_and_going,
    policy=st.sampled_from(["drop", "deadline"]),
    deadline_s=seconds,
    order=st.sampled_from(sorted(ORDERS)),
    speedup=st.sampled_from([SLOW, USUAL]),
    rounds=st.lists(st.lists(st.sampled_from(EVERYBODY), min_size=1, unique=True), min_size=1, max_size=4),
)
def test_nobody_waits_for_ever_for_somebody_who_is_lost(case, stays, policy, deadline_s, order, speedup, rounds):
    """Clients come and go as they like, some come back within the round: every round ends (or the clock would tell)."""
    if policy == "deadline" and not case.kind.knows_deadlines:
        policy = "drop"
    presence = [Presence([(0.0, there_s)], there_s + away_s, phase_s) for there_s, away_s, phase_s in stays]
    world, deadline_s = replace(LOSSY, order=order, speedup=speedup), deadline_s if policy == "deadline" else inf
    run = world.run(case, rounds, device=None, presence=presence, lost=policy, deadline_s=deadline_s)
    lost = {(loss.round, loss.client) for loss in run.clock.records.take_dropouts()}
    if case.kind.knows_deadlines and case.kind is not Korea:  # whose assistants may be lost, too
        assert lost <= {(round, client) for round, clients in enumerate(rounds, start=1) for client in clients}
