"""Assignments of cuts to clients: a heuristic that tries them, and a lower bound for the rounds of all of them."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.engine.walk import WalkedRound
from sfl_sim.metrics.breakdown import by_client
from sfl_sim.store import places
from sfl_sim.studies.points import OWN
from sfl_sim.studies.walk import Walked
from sfl_sim.system.links import BITS_PER_BYTE, RateTrace

Floats = NDArray[np.float64]
RoundKind = tuple[tuple[int, ...], bool]
"""Kind of a round: its participants, and True for setup and finish instead of a round."""
BOUND_ROUNDING = 1e-6


class OwnTime(NamedTuple):
    """Time that the participants of one kind of round need in it, by themselves.

    Attributes:
        n_rounds: number of such rounds.
        alone_s: (participants, ...) seconds on their devices and links and at the server, without waiting there.
        own_s: (participants, ...) the same with links at their best rate.
        server_s: (participants, ...) seconds of their jobs at the server.
    """

    n_rounds: int
    alone_s: Floats
    own_s: Floats
    server_s: Floats


def needs(walked: Walked) -> dict[RoundKind, OwnTime]:
    """Return needs by kind of round; if rounds of one kind differ, the minimum over them."""
    found: dict[RoundKind, list[OwnTime]] = {}
    for each in walked.rounds:
        found.setdefault((each.clients, each.is_aside), []).append(_need(each, walked))
    return {kind: _least(several) for kind, several in found.items()}


def _least(several: Sequence[OwnTime]) -> OwnTime:
    _, *seconds = zip(*several, strict=True)
    return OwnTime(sum(need.n_rounds for need in several), *(np.min(each, axis=0) for each in seconds))


def _need(each: WalkedRound, walked: Walked) -> OwnTime:
    fleet, who = walked.fleet, list(each.clients)
    ops = each.ops[each.ops["client"] != places.NOBODY]
    n, client = len(fleet.devices), ops["client"]
    took_s = ops["ended_s"] - np.maximum(ops["started_s"], each.started_s)
    spared_s = np.zeros(n)
    for place, links in ((places.UPLINK, fleet.uplinks), (places.DOWNLINK, fleet.downlinks)):
        rows = places.at(ops["node"], place)
        best_bps = np.array([_best_bps(link) for link in links])
        best_s = BITS_PER_BYTE * ops["bytes"] / best_bps[client] + np.array(fleet.latency_s)[client]
        spared_s += np.bincount(client[rows], np.maximum(0, took_s - best_s)[rows], n)
    spent = by_client(each.ops, who, each.started_s, each.ended_s)
    alone_s: Floats = np.sum([spent[name] for name in OWN if name != "queue"], axis=0)
    at_server = places.at(ops["node"], places.SERVER)
    server_s = np.bincount(client[at_server], took_s[at_server], n).astype(float)
    return OwnTime(each.n_rounds, alone_s, alone_s - spared_s[who], server_s[who])


def _best_bps(link: RateTrace) -> float:
    pattern = link.pattern
    return link.mean_bps * (max(pattern.rates_bps) / pattern.mean_bps if pattern else 1.0)


class Bound:
    """Needs of clients at each of several cuts, and the bound for the rounds of any assignment of these cuts.

    It assumes that the operations of a client in a round depend on its own cut alone; `agrees` checks that in a walk.

    Args:
        by_cut: result of `needs` for a walk at each cut, which all clients share there.
        rounds: number of rounds.
        workers: number of server workers.

    Attributes:
        alone_s, server_s: (clients, cuts) as in `OwnTime`, in a client's mean round; 0 without any.
    """

    def __init__(
        self, by_cut: Sequence[Mapping[RoundKind, OwnTime]], rounds: int, workers: float, n_clients: int
    ) -> None:
        self._rounds = rounds
        self._workers = workers
        self._kinds = {
            kind: OwnTime(
                min(found[kind].n_rounds for found in by_cut),
                np.stack([found[kind].alone_s for found in by_cut], axis=1),
                np.stack([found[kind].own_s for found in by_cut], axis=1),
                np.stack([found[kind].server_s for found in by_cut], axis=1),
            )
            for kind in by_cut[0]
            if all(kind in found for found in by_cut)
        }
        self.alone_s, self.server_s = np.zeros((2, n_clients, len(by_cut)))
        taken = np.zeros((n_clients, 1))
        for (participants, is_aside), need in self._kinds.items():
            if not is_aside:
                who = list(participants)
                taken[who] += need.n_rounds
                self.alone_s[who] += need.n_rounds * need.alone_s
                self.server_s[who] += need.n_rounds * need.server_s
        self.alone_s /= np.maximum(taken, 1)
        self.server_s /= np.maximum(taken, 1)

    @property
    def round_s(self) -> float:
        """Lower bound in seconds for the mean round of any assignment and any order of service.

        Say client c, cut at k, needs own[c, k] seconds in a round, server[c, k] of them at the server, and an
        assignment k_c makes the round take T seconds. The operations of c are sequential, so own[c, k_c] <= T for all
        c. Server[c, k_c] is thus not less than s(c, T), the least of the server[c, k] with own[c, k] <= T. No more than
        `workers` jobs are served at once, so sum_c s(c, T) <= workers * T. The least T that satisfies both is the
        bound. It is no less than max_c min_k own[c, k] and than sum_c min_k server[c, k] / workers, each of which
        leaves out one half. Participants do not depend on the cuts, so bounds of rounds add up.
        """
        return sum(need.n_rounds * _least_s(need, self._workers) for need in self._kinds.values()) / self._rounds

    def agrees(self, found: Mapping[RoundKind, OwnTime], columns: Sequence[int]) -> bool:
        """Return True if no client needed less in a walk than expected; `columns` are the indices of their cuts."""
        for kind, need in self._kinds.items():
            if kind not in found or found[kind].n_rounds < need.n_rounds:
                return False
            at = np.arange(len(kind[0])), np.array(columns)[list(kind[0])]
            for was_s, expected_s in ((found[kind].own_s, need.own_s[at]), (found[kind].server_s, need.server_s[at])):
                if (was_s < (1 - BOUND_ROUNDING) * expected_s).any():
                    return False
        return True


def _least_s(need: OwnTime, workers: float) -> float:
    """Find the least T of `Bound.round_s`: the work left at the server falls in steps while T rises."""
    if not need.own_s.size:
        return 0.0
    steps_s = np.unique(need.own_s)
    steps_s = steps_s[steps_s >= need.own_s.min(axis=1).max()]

    def served_s(until_s: float) -> float:
        """Return the server's minimum seconds if every client needs no longer than `until_s`."""
        return float(np.where(need.own_s <= until_s, need.server_s, np.inf).min(axis=1).sum()) / workers

    enough = bisect_left(steps_s, True, key=lambda until_s: served_s(until_s) <= until_s)
    candidates_s = [*steps_s[enough : enough + 1], *map(served_s, steps_s[max(0, enough - 1) : enough])]
    return float(min(candidates_s))


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


CutWalk = Callable[[Columns], Tried]


def exhaustive(begin: Tried, n_cuts: int, walk: CutWalk) -> Tried:
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

    def __init__(self, alone_s: Floats, server_s: Floats, walk: CutWalk, budget: int) -> None:
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
