"""Up to which entropy a client answers by itself: fixed, or learnt from what it sees, which are no labels.

The rules that learn are stochastic approximation (Robbins and Monro 1951, "A stochastic approximation method"; for the
share of errors of a predictor: Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", Eq. 2).
For each request e_n rises by step * (1 - share) if something undesired happens, else it falls by step * share. So it
rests where the thing happens to `share` of the client's requests, and follows where that moves. Whatever the requests
are, the share of the T learnt from is off by at most highest / (step * T), unless e_n has been at one of its ends. That
bears overload too, since no rule waits for answers, which then come later and later: `OffloadRate` learns when the
device decides, `LatencyBudget` no later than when the budget has passed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence


class Rule(ABC):
    """What decides how sure a client must be.

    Attributes:
        budget_s: how long after its arrival a request is judged that has not been answered; infinity if none is judged.
    """

    budget_s = math.inf

    @abstractmethod
    def threshold(self, client: int) -> float:
        """e_n: a request whose entropy (nats) is below is answered on the device."""

    def decided(self, client: int, offloaded: bool) -> None:  # noqa: B027 - a rule need not learn
        """Called when a client's device has decided on a request."""

    def judged(self, client: int, in_time: bool) -> None:  # noqa: B027
        """Called when a client's request has been answered, or else when `budget_s` has passed."""


class Fixed(Rule):
    """One threshold for each client, (N,)."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def threshold(self, client: int) -> float:
        """As given."""
        return self.values[client]


class _Tracking(Rule):
    """Holds the share of requests to which something undesired happens.

    Args:
        share: of a client's requests.
        start: the threshold of all clients at first.
        step: how far one request can move it: large follows the load, small rests.
        highest: the highest threshold; the lowest is 0. As high as entropies get: beyond, a threshold would only run
            away from where it is needed again, while its aim is out of reach.
    """

    def __init__(self, share: float, start: float, step: float, highest: float) -> None:
        self.share = share
        self.step = step
        self.highest = highest
        self._values: dict[int, float] = defaultdict(lambda: start)

    def threshold(self, client: int) -> float:
        """As learnt so far."""
        return self._values[client]

    def _move(self, client: int, happened: bool) -> None:
        moved = self._values[client] + self.step * (happened - self.share)
        self._values[client] = min(max(moved, 0.0), self.highest)


class OffloadRate(_Tracking):
    """Lets a client offload the given share of its requests: e_n is a running quantile of its entropies."""

    def decided(self, client: int, offloaded: bool) -> None:
        """Whether it is offloaded."""
        self._move(client, offloaded)


class LatencyBudget(_Tracking):
    """Lets a client offload as much as it can while the given share of its requests takes no longer than `budget_s`.

    Where offloading never takes so long, e_n ends at 0: the server answers everything. Where not even the device is
    fast enough, it ends at `highest`.

    Args:
        budget_s: from a request's arrival to its answer.
        share: of a client's requests that must be within it: 0.95 holds the 95th percentile.
        start, step, highest: as of `OffloadRate`.
    """

    def __init__(self, budget_s: float, share: float, start: float, step: float, highest: float) -> None:
        super().__init__(1 - share, start, step, highest)
        self.budget_s = budget_s

    def judged(self, client: int, in_time: bool) -> None:
        """Whether it is late."""
        self._move(client, not in_time)
