"""What a branch of KoReA-SFL asks its assistants for, and how much of it: METHODS.md section 8, Eq. (2) to (6')."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rounding = Literal["largest_remainder", "floor"]
ROUNDING, DIGITS = 1e-12, 9
"""Products and means of floats that should be equal are so up to this share, quotients to so many decimal places."""
SMALLEST = 1e-12
"""Norm by which one is divided (Eq. 6')."""
Rule = Literal["window_ratio", "clp", "printed", "fixed", "off"]


class LabelHistory:
    """The labels that a branch was trained on, those of earlier rounds weighted by powers of `decay` (Eq. 2)."""

    def __init__(self, n_labels: int, decay: float) -> None:
        self.decay = decay
        self._counts = np.zeros(n_labels)
        self._weight = 0.0

    def add(self, counts: Ints) -> None:
        """Another round, on a client that holds `counts` (L,) samples of each label."""
        self._counts = self.decay * self._counts + counts
        self._weight = self.decay * self._weight + 1

    @property
    def score(self) -> Floats:
        """The score vector (L,): a weighted mean of counts; zeros before the first round."""
        return self._counts / self._weight if self._weight else self._counts


def request_size(samples: int, proportion: float, n_labels: int) -> int:
    """Q: the proportion of a client's samples, but one for every label at least; nothing of a proportion of zero."""
    return 0 if not proportion else max(n_labels, int(samples * proportion * (1 + ROUNDING)))


def knowledge_request(score: Floats, total: int, rounding: Rounding = "largest_remainder") -> Ints:
    """How many samples of each label (L,) to ask for: of those seen less than on average, the less the more (Eq. 3, 4).

    Largest remainders add up to `total`, of equal ones the first label's counts; `floor` leaves out the rest. Nothing
    is asked for if all labels have been seen equally often.

        >>> knowledge_request(np.array([80 / 7, 10, 200 / 7, 0]), 15)
        array([ 1,  2,  0, 12])
    """
    mean = score.mean()
    lacking = np.where(score < mean * (1 - ROUNDING), mean - score, 0)
    if not lacking.any():
        return np.zeros(len(score), dtype=np.int64)
    exact = np.round(total * lacking / lacking.sum(), DIGITS)
    request: Ints = np.floor(exact).astype(np.int64)
    if rounding == "largest_remainder":
        remainders = np.round(exact - request, DIGITS)
        request[np.argsort(-remainders, kind="stable")[: total - request.sum()]] += 1
    return request


class Ask(NamedTuple):
    """So many samples of each label (L,) of one assistant."""

    assistant: int
    counts: Ints


def asks(request: Ints, candidates: Iterable[int], held: Ints, least: int = 1) -> Iterator[Ask]:
    """Whom to ask for what: each candidate for as much as it has of what is still missing, until nothing is.

    Args:
        candidates: in the order of asking.
        held: (C, L) samples of each label that each client holds.
        least: samples for which a client is asked at all.
    """
    missing = request.copy()
    for assistant in candidates:
        if not missing.any():
            return
        counts = np.minimum(held[assistant], missing)
        if counts.sum() >= least:
            missing -= counts
            yield Ask(assistant, counts)


def next_proportion(rule: Rule, proportion: float, before: float, now: float) -> float:
    """The proportion p of the next round from that of this one, and gradient norms F of the round before and this one.

    `window_ratio` is Eq. (6'): as the norm shrinks, so does p. `clp` doubles p while the norm grows and else halves it.
    `printed` is Eq. (6) as it stands in the paper, without the "1 +" (METHODS.md CHOICE 21).

        >>> [round(next_proportion(rule, 0.1, 1.0, 0.8), 3) for rule in ("window_ratio", "clp", "printed", "fixed")]
        [0.08, 0.05, -0.02, 0.1]
    """
    if not (isfinite(before) and isfinite(now)):  # of a model that diverges
        return proportion
    ratio = now / max(before, SMALLEST)
    factors = {"window_ratio": ratio, "clp": 2.0 if ratio > 1 else 0.5, "printed": ratio - 1}
    return proportion * factors.get(rule, 1.0)


@dataclass
class Proportion:
    """The proportion p, from round to round.

    Attributes:
        value: of this round.
        bounds: of later ones.
        window: rounds whose gradient norms are averaged.
        norms: lr ||g||^2 of every round, the mean over branches (FGN); none by the clock alone, and p stays.
    """

    rule: Rule
    value: float
    bounds: tuple[float, float]
    window: int
    norms: list[float] = field(default_factory=list)

    @property
    def adapts(self) -> bool:
        """Whether it follows the gradient norm."""
        return self.rule not in ("fixed", "off")

    def go_on(self) -> None:
        """To the next round."""
        if len(self.norms) > 1:
            before, now = fmean(self.norms[:-1][-self.window :]), fmean(self.norms[-self.window :])
            low, high = self.bounds
            self.value = min(max(next_proportion(self.rule, self.value, before, now), low), high)
