"""Cut policies: they choose the cut of each client before a round, from what rounds that have ended have shown.

A policy is a function `(known, clients) -> {client: cut}`; a client that it leaves out keeps its cut. It is first asked
before the second round, since nothing has been seen before. To add one, write it and enter it in `CUT_POLICIES`, or
name it in the scenario as `model: {cut: {by: "my_package.my_module:my_policy", values: [1, 2, 3]}}`. A complete
example, one layer for slow devices:

    >>> def shallow_if_slow(known, clients):
    ...     return {c: known.cuts[0 if known.seen.macs_per_s(c) < 1e9 else -1] for c in clients}
    >>> seen = ObservedTimes()
    >>> seen.learn(1, {0: (2.0, 1e9, 0.5, 1e6, 0.5, 1e6), 1: (1.0, 1e9, 0.5, 1e6, 0.5, 1e6)}, server=(1e9, 0.1))
    >>> costs = {cut: CutCost(1e6 * cut, 1e7, 1e5 / cut, 1e5 / cut, 1e4 * cut) for cut in (1, 2, 3)}
    >>> known = PolicyInput(costs, seen, held={}, begins=1, samples=lambda c: 100, batches=lambda c: 10)
    >>> shallow_if_slow(known, [0, 1])
    {0: 1, 1: 3}

Sources: docs/models.md#cuts-that-follow-from-times.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sfl_sim.knowledge import Known, knows
from sfl_sim.methods.seen import ClientRound, ObservedTimes

STAYS = 0.1
"""Share of its time that a client must save, so that its cut changes."""
CURIOSITY = 0.5
"""Weight of what is not known yet in the bandit's choice."""


class CutCost(NamedTuple):
    """What a cut costs: of a sample, the MACs of both passes and the bytes; and those of a model that is sent."""

    client_macs: float
    server_macs: float
    up_bytes: float
    down_bytes: float
    model_bytes: float


@dataclass(frozen=True)
class PolicyInput:
    """What a policy may know.

    Attributes:
        costs: what each allowed cut costs.
        seen: durations of rounds that have ended.
        held: of each client, its cut in the rounds in which it was not lost.
        begins: the cut with which clients begin.
        samples, batches: give how many a client has in a round.
    """

    costs: Mapping[int, CutCost]
    seen: ObservedTimes
    held: Mapping[int, Mapping[int, int]]
    begins: int
    samples: Callable[[int], int]
    batches: Callable[[int], int]

    @property
    def cuts(self) -> list[int]:
        """The allowed cuts, the shallowest first."""
        return sorted(self.costs)

    def cut(self, c: int) -> int:
        """Give the cut that a client has had last."""
        by_round = self.held.get(c)
        return by_round[max(by_round)] if by_round else self.begins

    def server_s(self, c: int, cut: int) -> float:
        """Estimate the seconds for which a worker of the server trains with a client in a round."""
        return self.samples(c) * self.costs[cut].server_macs * self._each(self.seen.server_macs_per_s)

    def round_s(self, c: int, cut: int) -> float:
        """Estimate the seconds of a client's round: alone, and in the queue for as long as it has waited."""
        return self.alone_s(c, cut) + self.batches(c) * (self.seen.queue_s(c) or 0)

    def alone_s(self, c: int, cut: int) -> float:
        """Estimate them without a queue: device, links with models, and server, one after another."""
        cost, n, seen = self.costs[cut], self.samples(c), self.seen
        device_s = n * cost.client_macs * self._each(seen.macs_per_s(c))
        up_s = 8 * (n * cost.up_bytes + cost.model_bytes) * self._each(seen.up_bps(c))
        down_s = 8 * (n * cost.down_bytes + cost.model_bytes) * self._each(seen.down_bps(c))
        return device_s + up_s + down_s + self.server_s(c, cut)

    @staticmethod
    def _each(rate: float | None) -> float:
        """Seconds of one unit; none if what has the rate has never been busy."""
        return 1 / rate if rate else 0.0


CutPolicy = Callable[[PolicyInput, Sequence[int]], Mapping[int, int]]


@knows(Known.ROUNDS)
def greedy(known: PolicyInput, clients: Sequence[int]) -> dict[int, int]:
    """Choose for each client the cut with which its own round is shortest, if it saves a tenth of its time."""
    return {c: _shortest(known, c, known.round_s) for c in clients}


@knows(Known.ROUNDS)
def makespan(known: PolicyInput, clients: Sequence[int]) -> dict[int, int]:
    """Choose for each client its shortest round without a queue; then, if the server is slower, take work from it.

    As long as the server works for longer than any client needs, the client that is done first with its next deeper cut
    gets it, if the round becomes shorter. A queue is what the others' cuts make it, so that what was seen of it is left
    out.
    """
    cuts = {c: _shortest(known, c, known.alone_s) for c in clients}

    def clients_s(cuts: Mapping[int, int]) -> float:
        return max(known.alone_s(c, cut) for c, cut in cuts.items())

    def work_s(cuts: Mapping[int, int]) -> float:
        return sum(known.server_s(c, cut) for c, cut in cuts.items()) / known.seen.workers

    while work_s(cuts) > clients_s(cuts):
        deeper = {c: min(above) for c, cut in cuts.items() if (above := [more for more in known.cuts if more > cut])}
        if not deeper:
            break
        first = min(deeper, key=lambda c: known.alone_s(c, deeper[c]))
        other = cuts | {first: deeper[first]}
        if max(work_s(other), clients_s(other)) >= max(work_s(cuts), clients_s(cuts)):
            break
        cuts = other
    return cuts


def _shortest(known: PolicyInput, c: int, time_s: Callable[[int, int], float]) -> int:
    best, old = min(known.cuts, key=lambda cut: (time_s(c, cut), -cut)), known.cut(c)
    return best if time_s(c, best) < (1 - STAYS) * time_s(c, old) else old


@knows(Known.ROUNDS)
def median(known: PolicyInput, clients: Sequence[int]) -> dict[int, int]:
    """Choose for each client the cut whose time is nearest to the median over all clients and cuts (S2FL)."""
    times_s = {c: {cut: known.round_s(c, cut) for cut in known.cuts} for c in clients}
    middle_s = statistics.median(time_s for of_client in times_s.values() for time_s in of_client.values())
    return {c: min(of, key=lambda cut: abs(of[cut] - middle_s)) for c, of in times_s.items()}


@knows(Known.ROUNDS)
def bandit(known: PolicyInput, clients: Sequence[int]) -> dict[int, int]:
    """Try each cut once with each client, the fastest by estimate first; then prefer what was fast or tried seldom.

    UCB1 of the seconds of a client's rounds: a cut's mean, less half the range of all means times sqrt(ln N / n), where
    the client has had this cut in n of N rounds.
    """
    return {c: _arm(known, c) for c in clients}


def _arm(known: PolicyInput, c: int) -> int:
    tried: dict[int, list[float]] = {}
    for round, cut in known.held.get(c, {}).items():
        tried.setdefault(cut, []).append(_lasted_s(known.seen.rounds[c][round]))
    new = [cut for cut in known.cuts if cut not in tried]
    if new:
        return min(new, key=lambda cut: (known.round_s(c, cut), -cut))
    means = {cut: sum(times_s) / len(times_s) for cut, times_s in tried.items()}
    span, n = max(means.values()) - min(means.values()), sum(map(len, tried.values()))

    def promise_s(cut: int) -> float:
        return means[cut] - CURIOSITY * span * math.sqrt(math.log(n) / len(tried[cut]))

    return min(known.cuts, key=lambda cut: (promise_s(cut), -cut))


def _lasted_s(visit: ClientRound) -> float:
    return visit.device_s + visit.up_s + visit.down_s + visit.queue_s + visit.server_s


CUT_POLICIES: dict[str, CutPolicy] = {policy.__name__: policy for policy in (greedy, makespan, median, bandit)}
