"""Ratios of two running times on a busy machine: the sides alternate, and the median over many pairs counts.

The speed of a shared machine drifts by 30 %; timing one side after the other once showed a ratio of 1.3 between two
equal builds. So only ratios of pairs measured in one run are used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def alternate(a: Callable[[], object], b: Callable[[], object], pairs: int) -> tuple[list[float], list[float]]:
    """Measure seconds of `a()` and `b()`, `pairs` times each, in the order a b b a; one untimed call of each first."""
    a()
    b()
    sides: list[tuple[Callable[[], object], list[float]]] = [(a, []), (b, [])]
    for number in range(pairs):
        for side, seconds in sides if number % 2 == 0 else reversed(sides):
            began_s = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began_s)
    return sides[0][1], sides[1][1]


def quartiles(ours_s: Sequence[float], theirs_s: Sequence[float]) -> tuple[float, float, float]:
    """Give lower quartile, median and upper quartile of the ratios ours / theirs, pair by pair; needs two pairs."""
    low, middle, high = statistics.quantiles([x / y for x, y in zip(ours_s, theirs_s, strict=True)], n=4)
    return low, middle, high
