"""Durations that depend on their start: those of transfers over links whose rates vary.

Such a duration is no number of seconds. But added to the start of an operation it gives the operation's end, and
`sim/array_clock.py` does nothing else with durations. The ends equal those of the event loop to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfl_sim.sim.prices import Computing, Moving, Prices
from sfl_sim.system.links import BITS_PER_BYTE, Pattern, RateTrace

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Duration of a message of `size_bytes` over a link whose rate varies by `pattern`."""

    link: RateTrace
    pattern: Pattern
    size_bytes: int
    latency_s: float

    def __radd__(self, start_s: float) -> float:
        """Give the end of a transfer that begins at `start_s`."""
        return start_s + (self.link.transfer_s(start_s, self.size_bytes) + self.latency_s)


Duration = float | Transfer


def duration_of(demand: Computing | Moving, prices: Prices) -> Duration:
    """Give the duration of an operation that uses no links but those of one client."""
    if isinstance(demand, Moving):
        src, dst, size_bytes = demand
        link = prices.fleet.downlinks[dst] if src < 0 else prices.fleet.uplinks[src]
        if link.pattern:
            return Transfer(link, link.pattern, size_bytes, prices.latency_s(src, dst))
    return prices.seconds(demand)


class Durations:
    """Durations of several operations, which can be added to an array of starts like an array of seconds."""

    __array_ufunc__ = None  # NumPy leaves `array + durations` to `__radd__`

    def __init__(self, each: Sequence[Duration]) -> None:
        self._each = each
        by_pattern: dict[Pattern, dict[int, Transfer]] = {}
        for place, one in enumerate(each):
            if isinstance(one, Transfer):
                by_pattern.setdefault(one.pattern, {})[place] = one
        self._seconds = np.array([0.0 if isinstance(one, Transfer) else one for one in each])
        self._transfers = [_Transfers(*item) for item in by_pattern.items()]

    def __getitem__(self, places: NDArray[np.int64]) -> Durations:
        return Durations([self._each[place] for place in places.tolist()])

    def tolist(self) -> list[Duration]:
        """Give the durations as a list."""
        return list(self._each)

    def __radd__(self, starts_s: Floats) -> Floats:
        """Give the ends of operations that begin at `starts_s`, (operations,)."""
        ended_s: Floats = starts_s + self._seconds
        for transfers in self._transfers:
            ended_s[transfers.places] = transfers.ended_s(starts_s[transfers.places])
        return ended_s


class _Transfers:
    """Transfers whose links vary in one pattern, with their places among the operations."""

    def __init__(self, pattern: Pattern, found: Mapping[int, Transfer]) -> None:
        self.places, transfers = np.array(list(found)), found.values()
        self._times_s, self._rates_bps = np.array(pattern.times_s), np.array(pattern.rates_bps)
        self._bits_by = np.array(pattern.bits_by)
        self._phase_s = np.array([one.link.phase_s for one in transfers])
        scale = np.array([one.link.mean_bps for one in transfers]) / pattern.mean_bps
        self._bits = BITS_PER_BYTE * np.array([one.size_bytes for one in transfers]) / scale
        self._latency_s = np.array([one.latency_s for one in transfers])

    def ended_s(self, starts_s: Floats) -> Floats:
        """Compute the ends by the same sequence of calculations as `RateTrace.transfer_s`, for equal rounding."""
        times_s, bits_by, rates_bps = self._times_s, self._bits_by, self._rates_bps
        period_s, period_bits = times_s[-1], bits_by[-1]
        here_s = np.fmod(starts_s + self._phase_s, period_s)
        piece = np.searchsorted(times_s, here_s, side="right") - 1
        bits = bits_by[piece] + rates_bps[piece] * (here_s - times_s[piece]) + self._bits
        periods, rest = np.divmod(bits, period_bits)
        is_whole = rest == 0.0
        periods[is_whole] -= 1.0
        rest[is_whole] = period_bits
        piece = np.searchsorted(bits_by, rest) - 1
        there_s = periods * period_s + (times_s[piece] + (rest - bits_by[piece]) / rates_bps[piece])
        ended_s: Floats = starts_s + (np.maximum(0.0, there_s - here_s) + self._latency_s)
        return ended_s
