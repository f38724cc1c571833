"""The bound on all assignments of cuts: as if nobody waited, and the server were never idle."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.studies.cut_assignment import Bound, OwnTime

WHO = (2, 0, 1)
seconds = st.lists(st.lists(st.integers(1, 20), min_size=3, max_size=3), min_size=3, max_size=3).map(np.array)


def by_cut(times, server_s, elsewhere_s, who=WHO):
    """Clients need `server_s` (clients, cuts) at the server and `elsewhere_s` besides."""
    own_s = server_s + elsewhere_s
    rows = zip(own_s.T, server_s.T, strict=True)
    return [{(who, False): OwnTime(times, own, own, server)} for own, server in rows]


@settings(max_examples=60)
@given(server_s=seconds, elsewhere_s=seconds, workers=st.sampled_from([1.0, 2.0, float("inf")]))
def test_it_is_the_best_of_all_assignments_if_nobody_waits(server_s, elsewhere_s, workers):
    at = np.arange(3)
    rounds_s = [
        max((server_s + elsewhere_s)[at, columns].max(), server_s[at, columns].sum() / workers)
        for columns in map(list, itertools.product(range(3), repeat=3))
    ]
    assert Bound(by_cut(4, server_s, elsewhere_s), 4, workers, 3).round_s == pytest.approx(min(rounds_s))


def test_rounds_count_as_often_as_they_happen_and_clients_in_those_in_which_they_take_part():
    needed = np.array([[6.0, 3.0], [2.0, 5.0]])
    often = by_cut(3, needed, 0 * needed, who=(0, 1))
    seldom = by_cut(1, 2 * needed[1:], 0 * needed[1:], who=(1,))
    bound = Bound([a | b for a, b in zip(often, seldom, strict=True)], 4, float("inf"), 3)
    assert bound.round_s == (3 * 3 + 1 * 4) / 4
    assert bound.alone_s.tolist() == [[6, 3], [2.5, 6.25], [0, 0]]


def test_it_is_disproved_by_a_walk_in_which_a_client_needed_less():
    server_s = np.array([[6.0, 3.0], [2.0, 5.0], [1.0, 1.0]])
    cuts = by_cut(1, server_s, server_s)
    bound = Bound(cuts, 1, 1.0, 3)
    assert bound.agrees(cuts[0], [0, 0, 0])
    assert bound.agrees(cuts[1], [1, 1, 1])
    assert not bound.agrees(cuts[1], [1, 1, 0])  # client 2, the first of them, is to need 12 s
    assert not bound.agrees({}, [0, 0, 0])
