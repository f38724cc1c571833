"""Search for the best assignment of cuts to clients: exhaustive, or by a heuristic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = tuple[int, ...]
"""Index of every client's cut in the list of cuts."""
DEADLINES = 40
ROUNDING = 1e-9


class Tried(NamedTuple):
    """An assignment and its times: seconds of the mean round, and (clients,) seconds until each client was done."""

    columns: Columns
    round_s: float
    done_s: Floats

    def beats(self, other: Tried) -> bool:
        """Return True if its rounds are shorter by more than rounding."""
        return self.round_s < (1 - ROUNDING) * other.round_s


Walk = Callable[[Columns], Tried]


def exhaustive(begin: Tried, n_cuts: int, walk: Walk) -> Tried:
    """Return the best of all assignments; `begin` if none is better."""
    every = map(walk, itertools.product(range(n_cuts), repeat=len(begin.columns)))
    best = min(every, key=lambda tried: tried.round_s)
    return best if best.beats(begin) else begin


class Heuristic:
    """A sweep over deadlines, then a local search; the result is no worse than the beginning.

    For a deadline, every client takes the cut with the least work for the server, of the cuts at which it would meet
    the deadline if it had the server for itself; if there are none, its fastest. The best assignment of the sweep is
    then changed client by client, as long as that helps: the client that is done last gets its next faster cut, or the
    client with the most work for the server its next cut with less of it, of the client's Pareto-optimal cuts.

    Args:
        alone_s, server_s: (clients, cuts) seconds of a client in a round if it is alone, and of them at the server.
        walk: times an assignment.
        budget: maximum of assignments to try, each of them once.
    """

    def __init__(self, alone_s: Floats, server_s: Floats, walk: Walk, budget: int) -> None:
        self._alone_s = alone_s
        self._server_s = server_s
        self._walk = walk
        self._budget = budget
        self._seen: set[Columns] = set()
        self._worth_it = ~_beaten(alone_s, server_s)
        self._lighter_first = np.lexsort((alone_s, server_s), axis=1)

    @property
    def n_tried(self) -> int:
        """Number of assignments tried, the first included."""
        return len(self._seen)

    def improve(self, begin: Tried) -> Tried:
        """Return the best that the budget finds."""
        self._seen.add(begin.columns)
        best = self._best(begin, map(self._in_time, self._deadlines_s(begin.round_s)))
        while True:
            better = self._best(best, self._changed(best), first=True)
            if better is best:
                return best
            best = better

    def _best(self, best: Tried, candidates: Iterator[Columns], first: bool = False) -> Tried:
        """Return the best of `best` and those of the candidates that are new; or the `first` that is better."""
        for columns in candidates:
            if columns in self._seen:
                continue
            if len(self._seen) > self._budget:
                break
            self._seen.add(columns)
            tried = self._walk(columns)
            if tried.beats(best):
                best = tried
                if first:
                    break
        return best

    def _deadlines_s(self, longest_s: float) -> Floats:
        """Return deadlines, evenly among the clients' times at some cut, from the slowest client's minimum on."""
        shortest_s = self._alone_s.min(axis=1).max()
        steps_s = np.unique(self._alone_s)
        steps_s = steps_s[(steps_s >= shortest_s) & (steps_s <= max(shortest_s, longest_s))]
        chosen = np.linspace(0, len(steps_s) - 1, min(DEADLINES, len(steps_s))).round().astype(int)
        return np.asarray(steps_s[chosen])

    def _in_time(self, deadline_s: float) -> Columns:
        meets = np.take_along_axis(self._alone_s, self._lighter_first, axis=1) <= deadline_s
        lightest = self._lighter_first[np.arange(len(meets)), meets.argmax(axis=1)]
        return tuple(np.where(meets.any(axis=1), lightest, self._alone_s.argmin(axis=1)).tolist())

    def _changed(self, tried: Tried) -> Iterator[Columns]:
        """Yield assignments with another cut for one client, the most promising first."""
        server_s = self._server_s[np.arange(len(tried.columns)), tried.columns]
        for wanted, clients in ((self._alone_s, np.argsort(-tried.done_s)), (self._server_s, np.argsort(-server_s))):
            for c in clients.tolist():
                less = np.flatnonzero(self._worth_it[c] & (wanted[c] < wanted[c, tried.columns[c]]))
                if len(less):
                    column = int(less[wanted[c, less].argmax()])
                    yield (*tried.columns[:c], column, *tried.columns[c + 1 :])


def _beaten(alone_s: Floats, server_s: Floats) -> NDArray[np.bool_]:
    """Mark, as (clients, cuts), the cuts to which another cut of the client is no worse in both and better in one."""
    no_worse = (alone_s[:, None] <= alone_s[:, :, None]) & (server_s[:, None] <= server_s[:, :, None])
    better = (alone_s[:, None] < alone_s[:, :, None]) | (server_s[:, None] < server_s[:, :, None])
    return np.asarray((no_worse & better).any(axis=2))
