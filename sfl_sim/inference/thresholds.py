"""Up to which entropy a client answers by itself: fixed, or learnt from what it sees, which are no labels.

The rules that learn are stochastic approximation (Robbins and Monro 1951, "A stochastic approximation method"; for the
share of errors of a predictor: Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", Eq. 2).
After a request e_n rises by step * (1 - share) if something undesired has happened, else it falls by step * share. So
it rests where the thing happens to `share` of the client's requests, and follows where that moves. Whatever the
requests are, the share of T of them is off by at most highest / (step * T), unless e_n has been at one of its ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence


class Rule(ABC):
    """What decides how sure a client must be."""

    @abstractmethod
    def threshold(self, client: int) -> float:
        """e_n: a request whose entropy (nats) is below is answered on the device."""

    def learn(self, client: int, offloaded: bool, latency_s: float) -> None:  # noqa: B027 - a rule need not learn
        """What a client can see of a request that has been answered: whether by the server, and after how long."""


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

    def learn(self, client: int, offloaded: bool, latency_s: float) -> None:
        """Whether it was offloaded."""
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

    def learn(self, client: int, offloaded: bool, latency_s: float) -> None:
        """Whether it took too long."""
        self._move(client, latency_s > self.budget_s)
