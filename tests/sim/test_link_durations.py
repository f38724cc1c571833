"""Durations that depend on when they begin end many things at once where they end each by itself."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.sim.link_durations import Durations, Transfer
from sfl_sim.system.links import Pattern, RateTrace

lengths_s = st.sampled_from([0.25, 1.0, 1 / 3, 7.1])
rates_bps = st.sampled_from([0.0, 8.0, 1 / 3, 96.0])


@st.composite
def patterns(draw):
    pieces = draw(
        st.lists(st.tuples(lengths_s, rates_bps), min_size=1, max_size=5).filter(lambda p: any(r for _, r in p))
    )
    return Pattern([0.0, *np.cumsum([length for length, _ in pieces])], [rate for _, rate in pieces])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_many_at_once_end_where_each_ends_by_itself(data):
    draw = data.draw
    known = draw(st.lists(patterns(), min_size=1, max_size=2))

    def transfer():
        pattern = draw(st.sampled_from(known))
        mean_bps = draw(st.sampled_from([pattern.mean_bps, 5.0]))
        link = RateTrace(mean_bps, pattern, draw(st.floats(0, pattern.period_s)))
        return Transfer(link, pattern, draw(st.sampled_from([0, 1, 3, 1000])), draw(st.sampled_from([0.0, 0.1])))

    each = [transfer() if draw(st.booleans()) else draw(st.floats(0, 10)) for _ in range(draw(st.integers(1, 8)))]
    starts_s = np.array(draw(st.lists(st.floats(0, 1e4), min_size=len(each), max_size=len(each))))
    ended_s = starts_s + Durations(each)

    assert ended_s.tolist() == [start_s + duration for start_s, duration in zip(starts_s.tolist(), each, strict=True)]
    some = np.arange(0, len(each), 2)
    assert (starts_s[some] + Durations(each)[some]).tolist() == ended_s[some].tolist()
