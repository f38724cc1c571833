"""Pareto-optimal choices."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.metrics.pareto import non_dominated

COSTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8)


@given(COSTS)
def test_a_choice_is_pareto_optimal_unless_another_is_better_in_one_cost_and_no_worse_in_the_other(costs):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    found = non_dominated(*zip(*costs, strict=True))
    assert found.tolist() == [not any(beats(other, offer) for other in costs) for offer in costs]


@given(COSTS)
def test_for_every_choice_there_is_a_pareto_optimal_one_that_is_no_worse(costs):
    costs = np.array(costs)
    pareto = costs[non_dominated(*costs.T)]
    assert all((pareto <= offer).all(axis=1).any() for offer in costs)
