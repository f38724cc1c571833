"""Lineages: where all operations came about alike, training gives the same numbers, whatever the clock said."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import fleet, simulate, task, tensors

from sfl_sim.methods import METHODS
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.provenance import Provenance

SHARED = {"splitfed_v2", "splitfrozen", "hydra"}
"""Methods whose clients change one state at the server."""
ASYNCHRONOUS = {"fedbuff", "fedasync"}
"""Methods whose clients begin with whatever the model is by then."""
HASTE = {"korea": {"assistants": "all", "proportion": "fixed", "p0": 0.5, "patience_s": 0.05}}
"""A method that does without what comes late."""


def lineages(name, world, **others):
    lineage = Provenance(read=lambda _: 1.0)
    simulate(name, task((9, 8, 3), device=None), world=world, executor=lineage, **others)
    return Counter(each.lineage for each in lineage.take())


def trained(name, world, **others):
    method, *_ = simulate(name, task((9, 8, 3)), world=world, **others)
    return tensors(method)


rates = st.lists(st.floats(2e4, 1e6), min_size=3, max_size=3)


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from([*sorted(METHODS), *sorted(SHARED), "korea"]),
    hasty=st.booleans(),
    order=st.sampled_from(sorted(ORDERS.keys() - {"bounded_wait"})),
    here=st.tuples(rates, rates),
    there=st.tuples(rates, rates),
    workers=st.sampled_from([1, 2, float("inf")]),
)
def test_operations_of_equal_lineage_are_the_same_training(name, hasty, order, here, there, workers):
    options = HASTE.get(name) if hasty else None
    worlds = [fleet(3, *world, speedup=3.0) for world in (here, there)]
    one, other = (lineages(name, world, order=order, workers=workers, options=options) for world in worlds)
    if name not in SHARED | ASYNCHRONOUS and options is None:
        assert one == other
    if one == other:
        first, second = (trained(name, world, order=order, workers=workers, options=options) for world in worlds)
        assert all(torch.equal(tensor, second[key]) for key, tensor in first.items())


def test_a_turn_that_two_clients_change_is_another_lineage_of_all_that_follows():
    """Client 0 is the first to bring its job in the one world, and the last in the other."""
    early, late = (fleet(3, uplink_bps=uplink) for uplink in ([1e6, 1e5, 1e5], [1e4, 1e5, 1e5]))
    one, other = (lineages("splitfed_v2", world) for world in (early, late))
    assert one.total() == other.total()
    forwards_of_the_first_batch = 3
    assert (one & other).total() <= forwards_of_the_first_batch + 1  # and that the optimiser's state is forgotten
    assert lineages("splitfed_v1", early) == lineages("splitfed_v1", late)
