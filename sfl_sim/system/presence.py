"""Presence of a client: intervals that repeat for ever."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import inf, lcm
from typing import ClassVar

TICKS_PER_S = 1024
"""Ticks in a second, to which the ends of intervals are rounded. It is a power of 2: sums of such times are exact, and
two ways to compute when a client goes away give the same instant."""
TRIES = 10_000
"""Stays of which one is looked for that meets another's; with the same period it is settled long before."""


class Presence:
    """Intervals in which a client is present, and the times at which its work is done.

    Args:
        intervals: [start_s, end_s) in any order, begun within the period; they may touch but not overlap.
        period_s: seconds after which they repeat.
        phase_s: time in the period at which the run begins.

    Attributes:
        period_s: seconds after which the intervals repeat.
        share: share of the time in which the client is present.
    """

    __slots__ = ("_before_s", "_begins_s", "_ends_s", "period_s", "share")
    key: ClassVar[str] = "clients.availability.profile"

    def __init__(self, intervals: Iterable[tuple[float, float]], period_s: float, phase_s: float = 0.0) -> None:
        period_s, phase_s = _exact(period_s), _exact(phase_s)
        exact = ((_exact(start_s), _exact(end_s)) for start_s, end_s in intervals)
        stays = sorted(((start - phase_s) % period_s, end - start) for start, end in exact if start < end)
        begins_s, ends_s = _joined(stays)
        if len(begins_s) > 1 and ends_s[-1] == begins_s[0] + period_s:  # one interval across the end of the period
            ends_s = [*ends_s[1:-1], ends_s[0] + period_s]
            begins_s = begins_s[1:]
        lengths_s = [end - begin for begin, end in zip(begins_s, ends_s, strict=True)]
        self.share = sum(lengths_s) / period_s
        if self.share == 1:
            begins_s, ends_s = [0.0], [inf]
        self.period_s = period_s
        self._begins_s = begins_s
        self._ends_s = ends_s
        self._before_s = list(accumulate(lengths_s, initial=0.0))
        """Seconds of presence in a period before each interval, and in the whole period."""

    def is_present(self, at_s: float) -> bool:
        """Return True if the client is present at this instant."""
        return at_s < self._around(at_s)[0]

    def until_s(self, at_s: float) -> float:
        """Return the instant at which the client leaves: inf if never, `at_s` itself if it is absent."""
        return max(at_s, self._around(at_s)[0])

    def again_s(self, at_s: float) -> float:
        """Return the next instant of presence: `at_s` itself if the client is present, inf if it never comes."""
        end_s, begin_s, _ = self._around(at_s)
        return at_s if at_s < end_s else begin_s

    def meets(self, other: Presence) -> bool:
        """Return True if both are present at some instant, or if `TRIES` stays do not settle it."""
        period_s, now_s = lcm(*(int(there.period_s * TICKS_PER_S) for there in (self, other))) / TICKS_PER_S, 0.0
        for _ in range(TRIES):
            begin_s = self.again_s(now_s)
            now_s = other.again_s(begin_s) if begin_s < period_s else inf
            if now_s >= period_s:
                return False
            if now_s < self.until_s(begin_s):
                return True
        return True

    def done_s(self, start_s: float, work_s: float) -> float:
        """Return the instant at which the client has been present for `work_s` seconds since `start_s`.

        If it does not leave meanwhile, that is `start_s + work_s` to the bit.
        """
        end_s, begin_s, upcoming = self._around(start_s)
        end_s = max(end_s, start_s)
        if start_s + work_s <= end_s:
            return start_s + work_s
        if begin_s == inf:
            return inf
        worked_s = self._before_s[upcoming] + work_s - (end_s - start_s)  # counted from the period of the next begin
        periods, rest_s = divmod(worked_s, self._before_s[-1])
        if not rest_s:  # the last second passes before the absence at the end of a period, not after it
            periods, rest_s = periods - 1, self._before_s[-1]
        last = bisect_left(self._before_s, rest_s) - 1
        period_start_s = begin_s - self._begins_s[upcoming] + periods * self.period_s
        return period_start_s + self._begins_s[last] + (rest_s - self._before_s[last])

    def seconds_by(self, at_s: float) -> float:
        """Return how long the client has been present from the start of the run to `at_s`."""
        if self.share in (0, 1):
            return at_s * self.share
        periods, in_period_s = divmod(at_s, self.period_s)
        begun = bisect_right(self._begins_s, in_period_s)
        from_before_s = max(0.0, self._ends_s[-1] - self.period_s)  # of the stay across the begin of the period
        to_come_s = max(0.0, self._ends_s[begun - 1] - in_period_s) if begun else 0.0
        in_period_there_s = min(from_before_s, in_period_s) + self._before_s[begun] - to_come_s
        return periods * self._before_s[-1] + in_period_there_s

    def pieces(self, start_s: float) -> Iterator[tuple[float, float]]:
        """Yield presence and absence from `start_s` on: when each ends (the last: inf), and inf or 0 as a rate."""
        now_s = start_s
        while now_s < inf:
            end_s, begin_s, _ = self._around(now_s)
            present = now_s < end_s
            now_s = end_s if present else begin_s
            yield now_s, inf if present else 0.0

    def stays_by(self, at_s: float) -> float:
        """Return how often the client has come from the start of the run to `at_s`, about."""
        return len(self._begins_s) * (1 if self.share == 1 else at_s / self.period_s)

    def intervals(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """List the intervals in which the client is present, clipped to [start_s, end_s)."""
        found = []
        begin_s = self.again_s(start_s)
        while begin_s < end_s:
            found.append((begin_s, min(self.until_s(begin_s), end_s)))
            begin_s = self.again_s(found[-1][1])
        return found

    def _around(self, at_s: float) -> tuple[float, float, int]:
        """Find the end of the last interval that began by `at_s`, and the begin and index of the next one."""
        if not self._begins_s:
            return -inf, inf, 0
        in_period_s = at_s % self.period_s
        period_start_s = at_s - in_period_s
        upcoming = bisect_right(self._begins_s, in_period_s)
        end_s = period_start_s + self._ends_s[upcoming - 1] - (0.0 if upcoming else self.period_s)
        if upcoming < len(self._begins_s):
            return end_s, period_start_s + self._begins_s[upcoming], upcoming
        return end_s, period_start_s + self.period_s + self._begins_s[0], 0


def _exact(time_s: float) -> float:
    return round(time_s * TICKS_PER_S) / TICKS_PER_S


def _joined(stays: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return begins and ends of stays (begin, length) in order of time; stays that touch become one."""
    begins_s: list[float] = []
    ends_s: list[float] = []
    for begin_s, length_s in stays:
        if ends_s and ends_s[-1] == begin_s:
            ends_s[-1] += length_s
        else:
            begins_s.append(begin_s)
            ends_s.append(begin_s + length_s)
    return begins_s, ends_s
