"""Rules that hold a share of offloaded requests, or of late ones, without a label."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.methods.exit_thresholds import Fixed, LatencyBudget, OffloadRate
from sfl_sim.rng import stream


def offloads(rule, entropies, client=0):
    """Whether each of a client's requests is offloaded, one after another."""
    found = []
    for entropy in entropies:
        found.append(bool(entropy >= rule.threshold(client)))
        rule.decided(client, found[-1])
    return np.array(found)


def test_fixed_thresholds_stay():
    rule = Fixed([0.1, 0.7])
    rule.decided(1, True)
    rule.judged(1, False)
    assert [rule.threshold(client) for client in (0, 1)] == [0.1, 0.7]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_share_of_offloaded_requests_is_held_whatever_the_entropies(share):
    """At once for two clients that know nothing of each other; e_n is then the quantile of the entropies."""
    rng, rule = stream(0, "entropies"), OffloadRate(share, start=1.0, step=0.02, highest=2.3)
    for client, entropies in enumerate([2.3 * rng.random(4_000), rng.exponential(0.2, 4_000).clip(max=2.3)]):
        found = offloads(rule, entropies, client)
        assert found[1_000:].mean() == pytest.approx(share, abs=0.01)
        assert rule.threshold(client) == pytest.approx(np.quantile(entropies, 1 - share), abs=0.15)


def test_the_share_is_held_again_when_the_data_change():
    """Client-specific data that nobody trained on: all entropies are twice as large."""
    rng, rule = stream(0, "entropies"), OffloadRate(0.3, start=1.0, step=0.02, highest=2.3)
    offloads(rule, rng.random(2_000))
    before = rule.threshold(0)
    found = offloads(rule, 2 * rng.random(3_000))
    assert found[:50].mean() > 0.5
    assert found[1_000:].mean() == pytest.approx(0.3, abs=0.01)
    assert rule.threshold(0) > 1.5 * before


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.2, 0.8), min_size=1, max_size=200), st.floats(0.1, 0.9), st.floats(0.01, 0.1))
def test_the_share_is_off_by_no_more_than_theory_allows_whatever_the_entropies(entropies, share, step):
    """Gibbs and Candes 2021, Prop. 4.1: no chance is needed. No entropy leads to an end of the thresholds."""
    found = offloads(OffloadRate(share, start=0.5, step=step, highest=1.0), entropies)
    assert abs(found.mean() - share) <= (0.3 + step) / (step * len(found)) + 1e-9


@pytest.mark.parametrize(("in_time", "end"), [(True, 0.0), (False, 2.3)])
def test_a_budget_that_is_always_kept_or_never_leads_to_an_end_and_no_further(in_time, end):
    rule = LatencyBudget(1.0, share=0.95, start=1.0, step=0.5, highest=2.3)
    for _ in range(200):
        rule.judged(0, in_time)
    assert rule.threshold(0) == end
    rule.judged(0, not in_time)
    assert 0 < rule.threshold(0) < 2.3
