"""Limit on the clients that hold the autograd graph of a forward pass until its gradient comes back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from sfl_sim.models.replica import Weights


class Graphs:
    """The replicas that hold an autograd graph, at most `limit` at once: a bound on memory.

    Measured with float32 and batch 64 at a shallow cut, the graph of one client takes 76 MB (mobilenet_v1) to 456 MB
    (mobilenet_v2). Beyond the limit a replica keeps only its input, and its backward pass runs the forward pass again:
    the same numbers to the bit, for one more forward pass on this machine. Of the 92 MB that a waiting client of
    mobilenet_v1 takes, weights and messages included, 20 are left. Simulated time does not change: each simulated
    device holds its own graph.

    Attributes:
        limit: of graphs held at once; the one of the step that is just being computed comes on top.
        peak: the most graphs that were held at once.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = math.inf if limit is None else limit
        self.peak = 0
        self._holders: WeakSet[Weights] = WeakSet()  # weak: a client that is lost takes its graph along

    def admit(self, weights: Weights) -> bool:
        """Return True if `weights` may hold a graph; it then counts as a holder until its `release` or its end."""
        if weights not in self._holders and len(self._holders) >= self.limit:
            return False
        self._holders.add(weights)
        self.peak = max(self.peak, len(self._holders))
        return True

    def __contains__(self, weights: Weights) -> bool:
        """Return True if it holds a graph."""
        return weights in self._holders

    def release(self, weights: Weights) -> None:
        """The graph has been used."""
        self._holders.discard(weights)
