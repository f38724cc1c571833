"""Transfers over links whose rate varies, checked against a plain numerical integral of the rate."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.system.links import LazySequence, Pattern, RateTrace, joint_transfer_s
from sfl_sim.system.presence import Presence

FloatArray = npt.NDArray[np.float64]
MODEST = settings(max_examples=80)

STOP_AND_GO = Pattern([0, 1, 2, 3], [8, 0, 16])  # one byte in the first second, none, two bytes in the third


@st.composite
def patterns(draw):
    durations = draw(st.lists(st.floats(0.05, 20), min_size=1, max_size=6))
    rates = [draw(st.just(0.0) | st.floats(1e3, 1e7)) for _ in durations]
    rates[draw(st.integers(0, len(rates) - 1))] = draw(st.floats(1e3, 1e7))
    return Pattern([0, *np.cumsum(durations)], rates)


@st.composite
def varying(draw):
    pattern = draw(patterns())
    mean_bps = draw(st.just(pattern.mean_bps) | st.floats(1e3, 1e8))
    return RateTrace(mean_bps, pattern, draw(st.floats(0, 1)) * pattern.period_s)


def finish_s(link, start_s, size_bytes):
    return start_s + link.transfer_s(start_s, size_bytes)


def joint_finish_s(links, start_s, size_bytes):
    return start_s + joint_transfer_s(links, start_s, size_bytes)


links = varying() | st.builds(RateTrace, st.floats(1e3, 1e8))
starts = st.floats(0, 5000)
durations = st.floats(0, 300)


def edges_s(trace, start_s, end_s):
    """List the instants from start to end at which the rate may change."""
    if trace.pattern is None:
        return np.array([start_s, end_s])
    times_s, period_s = np.array(trace.pattern.times_s), trace.pattern.times_s[-1]
    periods = np.arange(start_s // period_s - 1, (end_s + trace.phase_s) // period_s + 2)
    edges = np.add.outer(periods * period_s, times_s).ravel() - trace.phase_s
    return np.unique(np.clip(edges, start_s, end_s))


def rates_bps(trace, at_s):
    if trace.pattern is None:
        return np.full(at_s.shape, trace.mean_bps)
    times_s, rates = np.array(trace.pattern.times_s), np.array(trace.pattern.rates_bps)
    mean_bps = np.average(rates, weights=np.diff(times_s))
    piece = np.searchsorted(times_s, (at_s + trace.phase_s) % times_s[-1], side="right") - 1
    relative: FloatArray = rates[np.minimum(piece, rates.size - 1)] / mean_bps
    return trace.mean_bps * relative


def bits_moved(traces, start_s, end_s):
    """Integrate the slowest link's rate from start to end."""
    edges = np.unique(np.concatenate([edges_s(trace, start_s, end_s) for trace in traces]))
    middles = (edges[1:] + edges[:-1]) / 2
    return float(np.min([rates_bps(trace, middles) for trace in traces], axis=0) @ np.diff(edges))


def size_for(trace, duration_s):
    """A payload that keeps the link busy for about so long."""
    return trace.mean_bps * duration_s / 8


def rounding_bits(trace, size_bytes):
    """Bound of the rounding error in bits: of the payload, and of times up to some 10,000 s at the highest rate."""
    pattern = trace.pattern
    peak = 1.0 if pattern is None else max(pattern.rates_bps) / pattern.mean_bps
    return 1e-9 * (peak * trace.mean_bps + size_bytes) + 1e-6


def is_no_earlier(late_s, early_s, trace, size_bytes):
    """Compare in bits, not in seconds: one bit of rounding error may cost a whole stretch in which the rate is 0."""
    return late_s >= early_s or bits_moved([trace], late_s, early_s) <= rounding_bits(trace, size_bytes)


def test_a_constant_link_needs_the_payload_over_the_rate():
    assert finish_s(RateTrace(8e6), 10.0, 1e6) == 11.0
    assert joint_finish_s([RateTrace(8e6), RateTrace(2e6)], 10.0, 1e6) == 14.0


@pytest.mark.parametrize(
    ("start_s", "size_bytes", "done_s"),
    [
        (0, 0.5, 0.5),
        (0, 1, 1.0),  # the last bit leaves before the link closes, not after
        (0, 2, 2.5),
        (0, 3, 3.0),
        (0, 3.5, 3.5),
        (1.5, 0.5, 2.25),  # begun while the link is closed
        (0.5, 3, 3.5),  # a whole period from any instant moves a whole period's bits
        (300, 1, 301.0),
    ],
)
def test_a_link_that_opens_and_closes(start_s, size_bytes, done_s):
    assert finish_s(RateTrace(8.0, STOP_AND_GO), start_s, size_bytes) == done_s


def test_the_phase_is_where_in_the_pattern_the_clock_begins():
    assert finish_s(RateTrace(8.0, STOP_AND_GO, phase_s=2.0), 0, 2.5) == 1.5
    assert finish_s(RateTrace(8.0, STOP_AND_GO, phase_s=2.0), 1.5, 1) == 3.25


def test_the_mean_rate_scales_the_pattern():
    assert finish_s(RateTrace(16.0, STOP_AND_GO), 0, 2) == 1.0
    assert finish_s(RateTrace(4.0, STOP_AND_GO), 0, 1) == 2.5


def test_a_closed_last_piece_is_not_waited_for():
    closes = Pattern([0, 1, 4], [8, 0])
    assert finish_s(RateTrace(closes.mean_bps, closes), 0, 1) == 1.0
    assert finish_s(RateTrace(closes.mean_bps, closes), 0, 3) == 9.0


def test_nothing_takes_no_time_even_on_a_closed_link():
    link = RateTrace(8.0, STOP_AND_GO)
    assert finish_s(link, 1.5, 0) == 1.5
    assert joint_finish_s([link, link], 1.5, 0) == 1.5


def test_a_pattern_of_one_piece_is_a_constant_link():
    flat = RateTrace(2e6, Pattern([0, 7], [5]))
    assert finish_s(flat, 3.0, 1e7) == pytest.approx(finish_s(RateTrace(2e6), 3.0, 1e7), rel=1e-12)


def test_a_year_long_transfer_costs_no_walk_through_its_periods():
    periods = 10**12
    assert finish_s(RateTrace(8.0, STOP_AND_GO), 0, 3 * periods) == 3.0 * periods


@MODEST
@given(links, starts, durations)
def test_what_moves_between_start_and_finish_is_the_payload(link, start_s, duration_s):
    size_bytes = size_for(link, duration_s)
    moved = bits_moved([link], start_s, finish_s(link, start_s, size_bytes))
    assert moved == pytest.approx(8 * size_bytes, rel=1e-9, abs=rounding_bits(link, size_bytes))


@MODEST
@given(links, starts, durations, durations)
def test_more_takes_longer(link, start_s, duration_s, more_s):
    small, big = size_for(link, duration_s), size_for(link, duration_s + more_s)
    assert is_no_earlier(finish_s(link, start_s, big), finish_s(link, start_s, small), link, big)


@MODEST
@given(links, starts, durations, durations)
def test_who_starts_later_ends_no_earlier(link, start_s, later_s, duration_s):
    size_bytes = size_for(link, duration_s)
    late_s, early_s = finish_s(link, start_s + later_s, size_bytes), finish_s(link, start_s, size_bytes)
    assert is_no_earlier(late_s, early_s, link, size_bytes)


@MODEST
@given(links, starts, durations, st.floats(0, 1))
def test_a_transfer_in_two_parts_ends_as_the_whole(link, start_s, duration_s, share):
    size_bytes = size_for(link, duration_s)
    whole_s = finish_s(link, start_s, size_bytes)
    parts_s = finish_s(link, finish_s(link, start_s, share * size_bytes), (1 - share) * size_bytes)
    assert is_no_earlier(whole_s, parts_s, link, size_bytes)
    assert is_no_earlier(parts_s, whole_s, link, size_bytes)


@pytest.mark.parametrize(("size_bytes", "done_s"), [(0.25, 0.5), (0.75, 2.5), (1, 3.5), (1.25, 5.25)])
def test_links_in_a_row_move_at_the_rate_of_the_slowest(size_bytes, done_s):
    slows_down = Pattern([0, 2.5, 5], [8, 2])  # with the others: 4 bit/s, closed from 1 s, 4, 2, closed from 4 s, 4
    together = [RateTrace(8.0, STOP_AND_GO), RateTrace(slows_down.mean_bps, slows_down), RateTrace(4.0)]
    assert joint_finish_s(together, 0.0, size_bytes) == done_s


@MODEST
@given(st.lists(links, min_size=1, max_size=3), starts, st.floats(0, 60))
def test_jointly_the_payload_moves_at_the_smallest_rate_and_never_sooner_than_alone(together, start_s, duration_s):
    slowest = min(together, key=lambda link: link.mean_bps)
    size_bytes = size_for(slowest, duration_s)
    try:
        done_s = joint_finish_s(together, start_s, size_bytes)
    except ScenarioError:  # their open stretches never meet
        assert bits_moved(together, start_s, start_s + 1000) == 0
        return
    tolerance = max(rounding_bits(link, size_bytes) for link in together)
    assert bits_moved(together, start_s, done_s) == pytest.approx(8 * size_bytes, rel=1e-9, abs=tolerance)
    for link in together:
        assert is_no_earlier(done_s, finish_s(link, start_s, size_bytes), link, size_bytes)


def test_a_long_transfer_waits_through_any_number_of_closed_stretches():
    every_other_second = RateTrace(4.0, Pattern([0, 1, 2], [8, 0]))
    assert joint_finish_s([every_other_second, RateTrace(8.0)], 0.0, 110_000) == 219_999


def test_links_that_are_never_open_together_are_an_error_and_no_endless_loop(monkeypatch):
    monkeypatch.setattr("sfl_sim.system.links.MAX_PIECES", 1000)
    even, odd = Pattern([0, 1, 2], [8, 0]), Pattern([0, 1, 2], [0, 8])
    with refused("clients.network.trace", says="same time"):
        joint_finish_s([RateTrace(4.0, even), RateTrace(4.0, odd)], 0.0, 1)


def test_a_transfer_over_links_that_blink_too_briefly_for_it_names_the_key_that_the_scenario_has(monkeypatch):
    monkeypatch.setattr("sfl_sim.system.links.MAX_PIECES", 1000)
    blinking, brief = Pattern([0, 1, 2], [8, 0]), Presence([(0.0, 0.002)], 0.004)
    for links, key in (
        ([RateTrace(4.0, blinking), RateTrace(8.0)], "clients.network.trace"),
        ([RateTrace(4.0, blinking), brief], "clients.availability.profile"),
    ):
        with refused(key):
            joint_finish_s(links, 0.0, 10_000)


@pytest.mark.parametrize("pieces", [2, 9, 10, 11])
def test_the_last_bit_that_passes_as_a_link_closes_does_not_wait_until_it_opens(pieces):
    """0.7 s at 1 bit/s, 0.7 s closed: sums of 0.7 round, and a bit's last trace would be sent a piece later."""
    blinking = RateTrace(0.5, Pattern([0, 0.7, 1.4], [1, 0]))
    assert joint_finish_s([blinking, RateTrace(8.0)], 0.0, pieces * 0.7 / 8) == pytest.approx(1.4 * pieces - 0.7)


def test_an_absence_outlasts_any_number_of_pieces_of_a_trace():
    """A month closed, beside a link that changes every second: it is passed in one step, and not taken for ever."""
    month_s = 30 * 86_400
    closed_first = RateTrace(8.0, Pattern([0, month_s, 2 * month_s], [0, 16]))
    every_other_second = RateTrace(4.0, Pattern([0, 1, 2], [8, 0]))
    assert joint_finish_s([closed_first, every_other_second], 0.5, 2) == month_s + 3


def test_links_are_made_when_they_are_asked_for_and_once():
    made: list[int] = []

    def make(client):
        made.append(client)
        return [client]

    of_clients = LazySequence(3, make)
    assert of_clients[1] is of_clients[1]
    assert made == [1]
    assert list(of_clients) == [[0], [1], [2]]
    with pytest.raises(IndexError):
        of_clients[3]
