"""What a branch of KoReA-SFL asks its assistants for, and how much of it: METHODS.md section 8, Eq. (2) to (6')."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rounding = Literal["largest_remainder", "floor"]
TINY = 1e-12
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
    """Q: the proportion of a client's samples, but one for every label at least."""
    return max(n_labels, int(samples * proportion + TINY))


def knowledge_request(score: Floats, total: int, rounding: Rounding = "largest_remainder") -> Ints:
    """How many samples of each label (L,) to ask for: of those seen less than on average, the less the more (Eq. 3, 4).

    Largest remainders add up to `total`, of equal ones the first label's counts; `floor` leaves out the rest. Nothing
    is asked for if all labels have been seen equally often.

        >>> knowledge_request(np.array([80 / 7, 10, 200 / 7, 0]), 15)
        array([ 1,  2,  0, 12])
    """
    lacking = np.maximum(0, score.mean() - score)
    if not lacking.any():
        return np.zeros(len(score), dtype=np.int64)
    exact = total * lacking / lacking.sum()
    request: Ints = np.floor(exact).astype(np.int64)
    if rounding == "largest_remainder":
        request[np.argsort(request - exact, kind="stable")[: total - request.sum()]] += 1
    return request


class Ask(NamedTuple):
    """So many samples of each label (L,) of one assistant."""

    assistant: int
    counts: Ints


def asks(request: Ints, candidates: Iterator[int], held: Ints, least: int = 1) -> Iterator[Ask]:
    """Whom to ask for what: each candidate for as much as it has of what is still missing, until nothing is.

    Args:
        candidates: used up as far as needed.
        held: (C, L) samples of each label that each client holds.
        least: samples for which a client is asked at all.
    """
    missing = request.copy()
    while missing.any() and (assistant := next(candidates, None)) is not None:
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
    ratio = now / max(before, TINY)
    factors = {"window_ratio": ratio, "clp": 2.0 if ratio > 1 else 0.5, "printed": ratio - 1}
    return proportion * factors.get(rule, 1.0)


def last_mean(numbers: Sequence[float], window: int) -> float:
    """The mean of the last `window` of them, or of all if there are fewer."""
    return float(np.mean(numbers[-window:]))
