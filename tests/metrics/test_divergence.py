"""Jensen-Shannon divergence of the clients' labels: its values in closed form, and its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.metrics.divergence import label_divergence


def test_values_in_closed_form():
    """Mean of (1, 0) and (1/2, 1/2) is (3/4, 1/4): 1/2 log2(4/3) + 1/4 log2(2/3) + 1/4 log2(2) bits."""
    expected = np.log2(4 / 3) / 2 + np.log2(2 / 3) / 4 + 1 / 4
    assert label_divergence(np.array([[10, 0], [0, 10], [7, 7]])) == pytest.approx([expected, expected, 0])


@given(st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=6))
def test_it_lies_between_equal_and_disjoint_and_is_unknown_for_a_client_without_samples(counts):
    counts = np.array([*counts, [1, 2, 3]])
    divergence = label_divergence(counts)
    assert np.array_equal(np.isnan(divergence), counts.sum(axis=1) == 0)
    assert ((divergence >= 0) & (divergence <= 1))[counts.sum(axis=1) > 0].all()
    assert label_divergence(counts[-1:]) == pytest.approx([0])
