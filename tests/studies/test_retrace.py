"""Lineages: where all operations came about alike, training gives the same numbers, whatever the clock said."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import CASES, fleet, task, tensors

from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ORDERS
from sfl_sim.studies.retrace import Provenance
from sfl_sim.testing import cases_of, simulate

V1, V2 = (cases_of(METHODS[name])[0] for name in ("splitfed_v1", "splitfed_v2"))
IN_DOUBT = [case for case in CASES if case.method(task((9, 8, 3), momentum=0.9, device=None)).depends_on_time]


def lineages(case, world, **others):
    lineage = Provenance(read=lambda _: 1.0)
    simulate(case.method(task((9, 8, 3), device=None, momentum=0.9)), world=world, executor=lineage, **others)
    return Counter(each.lineage for each in lineage.take())


def trained(case, world, **others):
    return tensors(simulate(case.method(task((9, 8, 3), momentum=0.9)), world=world, **others).method)


rates = st.lists(st.floats(2e4, 1e6), min_size=3, max_size=3)


@settings(max_examples=25)
@given(
    case=st.sampled_from([*CASES, *IN_DOUBT]),
    order=st.sampled_from(sorted(ORDERS.keys() - {"bounded_wait"})),
    here=st.tuples(rates, rates),
    there=st.tuples(rates, rates),
    workers=st.sampled_from([1, 2, float("inf")]),
)
def test_operations_of_equal_lineage_are_the_same_training(case, order, here, there, workers):
    worlds = [fleet(3, *world, speedup=3.0) for world in (here, there)]
    one, other = (lineages(case, world, order=order, workers=workers) for world in worlds)
    if case not in IN_DOUBT:
        assert one == other
    if one == other:
        first, second = (trained(case, world, order=order, workers=workers) for world in worlds)
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())


def test_a_turn_that_two_clients_change_is_another_lineage_of_all_that_follows():
    """Client 0 is the first to bring its job in the one world, and the last in the other."""
    early, late = (fleet(3, uplink_bps=uplink) for uplink in ([1e6, 1e5, 1e5], [1e4, 1e5, 1e5]))
    one, other = (lineages(V2, world) for world in (early, late))
    assert one.total() == other.total()
    forwards_of_the_first_batch = 3
    assert (one & other).total() <= forwards_of_the_first_batch + 1  # and that the optimiser's state is forgotten
    assert lineages(V1, early) == lineages(V1, late)
