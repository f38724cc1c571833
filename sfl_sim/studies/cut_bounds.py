"""Lower bound for the rounds of all assignments of cuts, from the times that clients need without waiting."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.engine.walk import WalkedRound
from sfl_sim.metrics.breakdown import by_client
from sfl_sim.studies.walk import Walked
from sfl_sim.studies.whatif_measures import OWN
from sfl_sim.system.links import BITS_PER_BYTE, RateTrace

Floats = NDArray[np.float64]
Kind = tuple[tuple[int, ...], bool]
"""Kind of a round: its participants, and True for setup and finish instead of a round."""
ROUNDING = 1e-6


class Need(NamedTuple):
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


def needs(walked: Walked) -> dict[Kind, Need]:
    """Return needs by kind of round; if rounds of one kind differ, the minimum over them."""
    found: dict[Kind, list[Need]] = {}
    for each in walked.rounds:
        found.setdefault((each.clients, each.is_aside), []).append(_need(each, walked))
    return {kind: _least(several) for kind, several in found.items()}


def _least(several: Sequence[Need]) -> Need:
    _, *seconds = zip(*several, strict=True)
    return Need(sum(need.n_rounds for need in several), *(np.min(each, axis=0) for each in seconds))


def _need(each: WalkedRound, walked: Walked) -> Need:
    fleet, who = walked.fleet, list(each.clients)
    ops = each.ops[each.ops["client"] >= 0]
    n, client = len(fleet.devices), ops["client"]
    took_s = ops["ended_s"] - np.maximum(ops["started_s"], each.started_s)
    spared_s = np.zeros(n)
    for node, links in ((b"uplink", fleet.uplinks), (b"downlink", fleet.downlinks)):
        rows = ops["node"] == node
        best_bps = np.array([_best_bps(link) for link in links])
        best_s = BITS_PER_BYTE * ops["bytes"] / best_bps[client] + np.array(fleet.latency_s)[client]
        spared_s += np.bincount(client[rows], np.maximum(0, took_s - best_s)[rows], n)
    spent = by_client(each.ops, who, each.started_s, each.ended_s)
    alone_s: Floats = np.sum([spent[name] for name in OWN if name != "queue"], axis=0)
    at_server = ops["node"] == b"server"
    server_s = np.bincount(client[at_server], took_s[at_server], n).astype(float)
    return Need(each.n_rounds, alone_s, alone_s - spared_s[who], server_s[who])


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
        alone_s, server_s: (clients, cuts) as in `Need`, in the mean round in which a client takes part; 0 without any.
    """

    def __init__(self, by_cut: Sequence[Mapping[Kind, Need]], rounds: int, workers: float, n_clients: int) -> None:
        self._rounds = rounds
        self._workers = workers
        self._kinds = {
            kind: Need(
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

    def agrees(self, found: Mapping[Kind, Need], columns: Sequence[int]) -> bool:
        """Return True if no client needed less in a walk than expected; `columns` are the indices of their cuts."""
        for kind, need in self._kinds.items():
            if kind not in found or found[kind].n_rounds < need.n_rounds:
                return False
            at = np.arange(len(kind[0])), np.array(columns)[list(kind[0])]
            for was_s, expected_s in ((found[kind].own_s, need.own_s[at]), (found[kind].server_s, need.server_s[at])):
                if (was_s < (1 - ROUNDING) * expected_s).any():
                    return False
        return True


def _least_s(need: Need, workers: float) -> float:
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
