"""Presence of clients, checked against a plain count of repeated intervals."""

from itertools import islice, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.system.presence import TICKS_PER_S, Presence

MODEST = settings(max_examples=80)
TICK_S = 1 / TICKS_PER_S

MORNINGS = Presence([(6, 10), (11, 12)], period_s=24)


class Log:
    """Intervals as they are given, with the time of presence counted in the simplest way."""

    def __init__(self, intervals, period_s, phase_s):
        self.intervals, self.period_s, self.phase_s = intervals, period_s, phase_s
        self.presence = Presence(intervals, period_s, phase_s)

    def __repr__(self):
        return f"Presence({self.intervals}, {self.period_s}, {self.phase_s})"

    def seconds(self, start_s, end_s):
        first, last = (int((time_s + self.phase_s) // self.period_s) for time_s in (start_s, end_s))
        shifts_s = [turn * self.period_s - self.phase_s for turn in range(first - 1, last + 1)]
        clipped = (
            (max(start_s, begin + shift_s), min(end_s, end + shift_s))
            for shift_s in shifts_s
            for begin, end in self.intervals
        )
        return sum(end - begin for begin, end in clipped if begin < end)

    def is_present(self, at_s):
        return self.seconds(at_s, at_s + TICK_S / 2) > 0


def ticks(least, most):
    return st.integers(least, most).map(lambda n: n * TICK_S)


@st.composite
def logs(draw):
    """Draw intervals that may touch each other and the ends of the period, and may be all of it or nothing."""
    edges_s = draw(st.lists(ticks(0, 40_000), min_size=1, max_size=12, unique=True).map(sorted))
    stays = [stay for stay in pairwise(edges_s) if draw(st.booleans())]
    shift_s = edges_s[0] if draw(st.booleans()) else 0
    period_s = max(edges_s[-1] - shift_s, TICK_S) + draw(st.just(0) | ticks(0, 5000))
    return Log([(begin - shift_s, end - shift_s) for begin, end in stays], period_s, draw(ticks(0, 100_000)))


instants = ticks(0, 200_000)


@pytest.mark.parametrize(
    ("at_s", "there", "until_s", "again_s", "done_s"),
    [
        (0, False, 0, 6, 8),
        (6, True, 10, 6, 8),
        (8.5, True, 10, 8.5, 11.5),
        (9, True, 10, 9, 12),  # the last second passes when the client leaves, not when it is back
        (10, False, 10, 11, 31),
        (11.5, True, 12, 11.5, 31.5),
        (35, True, 36, 35, 55),
    ],
)
def test_who_comes_in_the_mornings(at_s, there, until_s, again_s, done_s):
    assert MORNINGS.is_present(at_s) is there
    assert (MORNINGS.until_s(at_s), MORNINGS.again_s(at_s), MORNINGS.done_s(at_s, 2)) == (until_s, again_s, done_s)


def test_its_pieces_its_intervals_and_its_share():
    assert list(islice(MORNINGS.pieces(9), 5)) == [(10, inf), (11, 0), (12, inf), (30, 0), (34, inf)]
    assert MORNINGS.intervals(9, 31) == [(9, 10), (11, 12), (30, 31)]
    assert MORNINGS.share == 5 / 24


def test_a_run_that_begins_at_eight_finds_it_there():
    assert Presence([(6, 10), (11, 12)], period_s=24, phase_s=8).intervals(0, 24) == [(0, 2), (3, 4), (22, 24)]


def test_what_touches_across_the_end_of_the_period_is_one_stay():
    nights = Presence([(0, 6), (22, 24)], period_s=24)
    assert (nights.until_s(3), nights.until_s(23), nights.until_s(47)) == (6, 30, 54)


def test_who_is_always_there_and_who_never_is():
    always, never = Presence([(0, 3), (3, 24)], 24), Presence([], 24)
    assert always.is_present(100)
    assert (always.until_s(100), always.again_s(100), always.done_s(100, 7)) == (inf, 100, 107)
    assert (never.is_present(100), never.until_s(100), never.again_s(100), never.done_s(100, 7)) == (0, 100, inf, inf)
    assert (list(always.pieces(5)), list(never.pieces(5))) == ([(inf, inf)], [(inf, 0)])
    assert (always.intervals(5, 9), never.intervals(5, 9)) == ([(5, 9)], [])


@given(periods=st.tuples(st.integers(1, 6), st.integers(1, 6)), data=st.data())
@MODEST
def test_two_meet_if_an_instant_finds_both(periods, data):
    hours = [data.draw(st.sets(st.integers(0, period - 1))) for period in periods]
    one, other = (Presence([(h, h + 1) for h in of], period) for of, period in zip(hours, periods, strict=True))
    at_once = [hour for hour in range(60) if one.is_present(hour) and other.is_present(hour)]  # 60: of all periods
    assert one.meets(other) == other.meets(one) == bool(at_once)


@given(log=logs(), at_s=instants)
@MODEST
def test_a_stay_ends_and_begins_when_the_intervals_do(log, at_s):
    presence = log.presence
    until_s, again_s = presence.until_s(at_s), presence.again_s(at_s)
    assert presence.is_present(at_s) == log.is_present(at_s) == (again_s == at_s) == (until_s > at_s)
    if until_s < inf:
        assert not presence.is_present(until_s)
        assert log.seconds(at_s, until_s) == until_s - at_s
    if again_s < inf:
        assert presence.is_present(again_s)
        assert log.seconds(at_s, again_s) == 0


@given(at_s=st.floats(0, 1e7), phase_s=st.floats(0, 10))
@MODEST
def test_rounding_does_not_separate_equal_instants(at_s, phase_s):
    presence = Presence([(0.1, 0.2), (0.3, 0.7)], period_s=0.9, phase_s=phase_s)
    assert presence.is_present(presence.again_s(at_s))
    assert not presence.is_present(presence.until_s(at_s))
    come_s = presence.again_s(at_s)
    assert presence.until_s((come_s + presence.until_s(come_s)) / 2) == presence.until_s(come_s)


@given(log=logs(), start_s=instants, work_s=ticks(1, 200_000))
@MODEST
def test_work_is_done_at_the_first_instant_by_which_presence_adds_up_to_it(log, start_s, work_s):
    done_s = log.presence.done_s(start_s, work_s)
    if not log.intervals:
        assert done_s == inf
    else:
        assert log.seconds(start_s, done_s) == work_s
        assert log.is_present(done_s - TICK_S / 2)


@given(log=logs(), start_s=st.floats(0, 1e6), work_s=st.floats(0, 1e3))
@MODEST
def test_work_takes_its_time_to_the_bit_while_nobody_goes_away(log, start_s, work_s):
    done_s = log.presence.done_s(start_s, work_s)
    if start_s + work_s <= log.presence.until_s(start_s):
        assert done_s == start_s + work_s
    elif done_s < inf:
        assert log.seconds(start_s, done_s) == pytest.approx(work_s, abs=1e-6)


@given(log=logs(), start_s=instants, lasts_s=ticks(0, 100_000))
@MODEST
def test_pieces_and_intervals_tell_the_same_as_instants(log, start_s, lasts_s):
    now_s = start_s
    for end_s, rate in islice(log.presence.pieces(start_s), 20):
        assert end_s > now_s
        middle_s = (now_s + min(end_s, now_s + 1)) / 2
        assert log.presence.is_present(now_s) == log.presence.is_present(middle_s) == (rate > 0)
        now_s = end_s
    end_s = start_s + lasts_s
    clipped = log.presence.intervals(start_s, end_s)
    assert sum(end - begin for begin, end in clipped) == log.seconds(start_s, end_s)
    assert log.presence.seconds_by(end_s) - log.presence.seconds_by(start_s) == log.seconds(start_s, end_s)
    assert all(start_s <= begin < end <= end_s for begin, end in clipped)


@given(log=logs(), at_s=instants, work_s=ticks(0, 100_000), periods=st.integers(1, 1000))
@MODEST
def test_every_period_is_the_same(log, at_s, work_s, periods):
    later_s = at_s + periods * log.period_s
    presence = log.presence
    assert presence.is_present(later_s) == presence.is_present(at_s)
    assert presence.until_s(later_s) - later_s == presence.until_s(at_s) - at_s
    assert presence.done_s(later_s, work_s) - later_s == presence.done_s(at_s, work_s) - at_s
