"""Names and numbers as people read them: units of time, bytes and rates, medians over seeds, fewer points per line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup

if TYPE_CHECKING:
    from sfl_sim.store import schema as stored

TIME_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
NBSP = "\u00a0"  # a number and its unit stay on one line
ENOUGH_SEEDS = 5
"""Number of seeds from which on their standard deviation is drawn; that of fewer is hardly known."""
MAX_NAMED = 8
"""Largest number of names in a sentence."""
PREFIXES = ("", "k", "M", "G", "T", "P")


def time_unit(longest_s: float) -> tuple[str, float]:
    """Name and length in seconds of the unit in which `longest_s` is a small number: one for a whole axis."""
    return next(((name, size_s) for name, size_s in TIME_UNITS if longest_s >= 2 * size_s), TIME_UNITS[-1])


def data_unit(most_bytes: float) -> tuple[str, float]:
    """Name and number of bytes of the unit in which `most_bytes` is a small number: one for a whole axis."""
    power = max((power for power in range(len(PREFIXES)) if most_bytes >= 2 * 1000**power), default=0)
    return f"{PREFIXES[power]}B", 1000.0**power


def duration(seconds: float) -> str:
    """A time in at most two units: 2 h 14 min, 53 s, 1.25 s, 40 ms."""
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.3g}{NBSP}ms"
    if seconds < 9.995:
        return f"{seconds:.3g}{NBSP}s"
    units = TIME_UNITS[:4]
    # Round in the smaller of the two units first, so that 59.6 min reads 1 h and not 60 min.
    for (large, large_s), (small, small_s) in itertools.pairwise(units):
        whole, rest = divmod(round(seconds / small_s), round(large_s / small_s))
        if whole:
            return f"{whole}{NBSP}{large} {rest}{NBSP}{small}" if rest else f"{whole}{NBSP}{large}"
    return f"{seconds:.0f}{NBSP}s"


def data_size(size_bytes: float) -> str:
    """A number of bytes with three digits and a decimal prefix: 1.34 GB, 250 kB."""
    return prefixed(size_bytes, "B")


def prefixed(number: float, unit: str = "") -> str:
    """A number with three digits and a decimal prefix: 1.34 G, 250 k."""
    power = 0
    while power < len(PREFIXES) - 1 and number >= 999.5:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{NBSP}{PREFIXES[power]}{unit}".rstrip()


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; a share of few digits, such as 0.3595, is the decimal number that it is written as."""
    return f"{round(100 * share, 9):.{digits}f}{NBSP}%"


def points(share: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * share:.1f}".replace("-", "−")


def reading(column: stored.StoredColumn) -> Callable[[float], str]:
    """Return what writes numbers of a stored column, by its format or else its unit."""
    by_unit: dict[str, Callable[[float], str]] = {
        "s": duration,
        "B": data_size,
        "share": percent,
        "difference": points,
        "J": partial(prefixed, unit="J"),
        "prefix": prefixed,
    }
    if "{" in column.number:
        return lambda number: column.number.format(number).replace("%", f"{NBSP}%")
    return by_unit.get(column.number or column.unit, tenths)


def tenths(number: float) -> str:
    """A number that is often whole: 12, 12.5, 0.4."""
    return f"{number:,.1f}".removesuffix(".0")


def plural(number: float, noun: str) -> str:
    """A number and its noun: 1 seed, 12 rounds."""
    return f"{tenths(number)} {noun}{'' if number == 1 else 's'}"


def over_seeds(frame: pd.DataFrame, by: str, columns: Sequence[str]) -> pd.DataFrame:
    """Compute by value of `by` the median of each column over seeds, and its spread: `<column>_low`, `_high`.

    These are the least and the most of a few seeds, and the median ± standard deviation of `ENOUGH_SEEDS` or more.
    """
    groups = frame.groupby(by)[list(columns)]
    middle, low, high = groups.median(), groups.min(), groups.max()
    if groups.size().max() >= ENOUGH_SEEDS:
        low, high = middle - groups.std(), middle + groups.std()
    return pd.concat([middle, low.add_suffix("_low"), high.add_suffix("_high")], axis=1)


def thin(frame: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Keep at most `limit` rows, evenly spaced, the first and the last among them."""
    if len(frame) <= limit:
        return frame
    return frame.iloc[np.linspace(0, len(frame) - 1, limit).round().astype(int)]


def listed(names: Sequence[Markup], last: str = "and") -> Markup:
    """Names in a sentence, the last one after a word: a, b and c."""
    *others, final = names
    return Markup(" {} ").format(last).join([Markup(", ").join(others), final] if others else [final])


def few_of(names: Sequence[Markup], last: str = "and") -> Markup:
    """Join names by commas and a word, and count those beyond the first few."""
    n_more = len(names) - MAX_NAMED
    more = [Markup("another one") if n_more == 1 else Markup("{} more").format(n_more)] if n_more > 0 else []
    return listed([*names[:MAX_NAMED], *more], last)


def capitalised(sentence: Markup) -> Markup:
    """Give the sentence a capital at the start, unless a tag is there."""
    return sentence[:1].upper() + sentence[1:]
