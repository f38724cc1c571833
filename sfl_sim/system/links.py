"""Rates of links over time, and durations of transfers over one link or over several at once."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Protocol, TypeVar

from sfl_sim.errors import ScenarioError
from sfl_sim.system.profiles import FloatArray

T = TypeVar("T")

BITS_PER_BYTE = 8.0
SAME = 1e-12
"""Relative difference up to which two numbers of bits count as equal."""
MAX_PIECES = 300_000
"""Number of pieces after which a walk over links ends in an error, after a second or two; a pattern has about a hundred
pieces, and a client that comes and goes a few a day."""


class Pattern:
    """Piecewise constant rate that repeats for ever; many links may share one pattern.

    Args:
        times_s: m + 1 rising times; piece i lasts from `times_s[i]` to `times_s[i + 1]`. The first is 0, the
            last is the period.
        rates_bps: m rates, 0 or above and not all 0.

    Attributes:
        period_s: seconds after which the rate repeats.
        mean_bps: mean rate over the period.
        bits_by: bits that pass from the start of the period until each of `times_s`.
    """

    __slots__ = ("bits_by", "mean_bps", "period_s", "rates_bps", "times_s")

    def __init__(self, times_s: Sequence[float], rates_bps: Sequence[float]) -> None:
        self.times_s = [float(time) for time in times_s]
        self.rates_bps = [float(rate) for rate in rates_bps]
        pieces = zip(self.times_s, self.times_s[1:], self.rates_bps, strict=False)
        self.bits_by = list(accumulate(((end - start) * rate for start, end, rate in pieces), initial=0.0))
        self.period_s = self.times_s[-1]
        self.mean_bps = self.bits_by[-1] / self.period_s

    def piece_at(self, time_s: float) -> int:
        """Return the index of the piece at `time_s`, a time within the period."""
        return min(bisect_right(self.times_s, time_s), len(self.rates_bps)) - 1

    def takes_s(self, here_s: float, bits: float) -> float:
        """Return the seconds from `here_s`, a time within the period, until the last of `bits` has passed."""
        times_s, rates_bps, bits_by = self.times_s, self.rates_bps, self.bits_by
        piece = bisect_right(times_s, here_s) - 1
        periods, rest = divmod(bits_by[piece] + rates_bps[piece] * (here_s - times_s[piece]) + bits, bits_by[-1])
        if not rest:  # the period's last bit passes before a closing piece of rate 0, not after it
            periods, rest = periods - 1, bits_by[-1]
        piece = bisect_left(bits_by, rest) - 1
        there_s = periods * self.period_s + (times_s[piece] + (rest - bits_by[piece]) / rates_bps[piece])
        return there_s - here_s if there_s > here_s else 0.0


@dataclass(frozen=True, slots=True)
class RateTrace:
    """Rate of one direction of a link: `mean_bps`, varying as `pattern`, which the run starts at `phase_s`.

    Without a pattern the rate is constant. Times are simulated seconds.
    """

    mean_bps: float
    pattern: Pattern | None = None
    phase_s: float = 0.0
    key: ClassVar[str] = "clients.network.trace"

    def transfer_s(self, start_s: float, size_bytes: float) -> float:
        """Invert the integral of the rate: the seconds until the last bit of a transfer begun at `start_s` has left.

        At a constant rate they do not depend on the start, not even in the last bit.
        """
        pattern = self.pattern
        if pattern is None:
            return BITS_PER_BYTE * size_bytes / self.mean_bps
        pattern_bits = BITS_PER_BYTE * size_bytes / (self.mean_bps / pattern.mean_bps)
        return pattern.takes_s((start_s + self.phase_s) % pattern.period_s, pattern_bits)

    def pieces(self, start_s: float) -> Iterator[tuple[float, float]]:
        """Yield the constant pieces from `start_s` on, without end: when each ends, and its rate in bit/s."""
        pattern = self.pattern
        if pattern is None:
            yield math.inf, self.mean_bps
            return
        here_s = (start_s + self.phase_s) % pattern.period_s
        scale = self.mean_bps / pattern.mean_bps
        first = pattern.piece_at(here_s)
        period_start_s = start_s - here_s
        while True:
            for piece in range(first, len(pattern.rates_bps)):
                yield period_start_s + pattern.times_s[piece + 1], scale * pattern.rates_bps[piece]
            period_start_s += pattern.period_s
            first = 0


class LazySequence(Sequence[T]):
    """One item for each of n clients, made when it is first asked for: most of a large fleet never take part."""

    __slots__ = ("_made", "_make", "_n")

    def __init__(self, n: int, make: Callable[[int], T]) -> None:
        self._n = n
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, client: int) -> T:  # type: ignore[override]  # nobody wants a slice of clients
        if client not in self._made:
            self._made[client] = self._make(range(self._n)[client])
        return self._made[client]


class Links(LazySequence[RateTrace]):
    """Links of all clients in one direction.

    Attributes:
        mean_bps: (C,) mean rates.
        patterns: (C,) how each of them varies; None if none does.
        phases_s: (C,) seconds into the pattern at which the run begins.
    """

    def __init__(self, mean_bps: FloatArray, patterns: Sequence[Pattern] | None, phases_s: FloatArray) -> None:
        super().__init__(
            len(mean_bps),
            lambda client: RateTrace(
                float(mean_bps[client]), None if patterns is None else patterns[client], float(phases_s[client])
            ),
        )
        self.mean_bps, self.patterns, self.phases_s = mean_bps, patterns, phases_s


class Pieces(Protocol):
    """Piecewise constant rate, of a link or of the presence of a client.

    Attributes:
        key: key of the scenario that decides on the pieces.
    """

    key: ClassVar[str]

    def pieces(self, start_s: float) -> Iterator[tuple[float, float]]:
        """Yield the constant pieces from `start_s` on: when each ends (the last: inf), and its rate in bit/s."""


def joint_transfer_s(links: Sequence[Pieces], start_s: float, size_bytes: float, until_s: float = math.inf) -> float:
    """Return the seconds until the last bit has passed several links at once, always at the rate of the slowest.

    Of a transfer that ends after `until_s` they may be infinite.

    The links may have different periods, so the pieces are walked one by one: over links that vary, the cost grows
    with the number of pieces that the transfer lasts.

    Raises ScenarioError if the links are never open at the same time, or the walk is longer than `MAX_PIECES`.
    """
    if not size_bytes:
        return 0.0
    now_s, bits = start_s, BITS_PER_BYTE * size_bytes
    for end_s, rate_bps in slowest(links, start_s):
        passing = rate_bps * (end_s - now_s)
        if bits <= passing * (1 + SAME):  # rounding alone must not send the last bit behind a closed piece
            return now_s - start_s + bits / rate_bps
        now_s, bits = end_s, bits - passing
        if now_s > until_s:
            return math.inf
    raise ScenarioError("the links of one transfer are never open at the same time", key=links[-1].key)


def moved_bytes(links: Sequence[Pieces], start_s: float, end_s: float) -> float:
    """Return the bytes that pass several links at once from `start_s` to `end_s`."""
    bits, now_s = 0.0, start_s
    for until_s, rate_bps in slowest(links, start_s):
        bits += rate_bps * (min(until_s, end_s) - now_s)
        now_s = until_s
        if until_s >= end_s:
            break
    return bits / BITS_PER_BYTE


def slowest(links: Sequence[Pieces], start_s: float) -> Iterator[tuple[float, float]]:
    """Yield the constant pieces of the smallest of the rates, as `Pieces.pieces` does.

    Raises ScenarioError if there are more than `MAX_PIECES`.
    """
    walks = [link.pieces(start_s) for link in links]
    pieces = [next(walk) for walk in walks]
    for _ in range(MAX_PIECES):
        closed_until_s = max((end_s for end_s, rate_bps in pieces if not rate_bps), default=None)
        end_s = min(end_s for end_s, _ in pieces) if closed_until_s is None else closed_until_s
        yield end_s, min(rate_bps for _, rate_bps in pieces)
        if end_s == math.inf:
            return
        for i, link in enumerate(links):
            if pieces[i][0] < end_s:  # a closed piece may outlast many pieces of the other links
                walks[i] = link.pieces(end_s)
            if pieces[i][0] <= end_s:
                pieces[i] = next(walks[i])
    raise ScenarioError(
        f"a transfer that began at {start_s:.6g} s is not over at {end_s:.6g} s, after {MAX_PIECES:,} changes of its "
        "links or of its clients' presence: they are open too briefly for its bytes, or never open at the same time",
        key=links[-1].key,
    )
