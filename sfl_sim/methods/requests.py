"""Requests of a fleet in use: the device answers if its exit is confident, otherwise the server does.

A client's device runs its layers and its exit h_n. If the entropy of what h_n answers is below the threshold e_n, that
is the answer; else the features go to the server, and its answer comes back (docs/methods/exit_metrics.md#rule).

Thresholds are fixed, or learned without labels by stochastic approximation (Robbins and Monro 1951, "A stochastic
approximation method"; Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", Eq. 2). For each
request e_n rises by step * (1 - share) if something undesired happens, and else falls by step * share. So it settles
where that happens to `share` of the client's requests, and follows when they change. For any sequence of T requests,
the share is off by at most highest / (step * T), unless e_n has been at one of its ends. No rule waits for an answer,
so all of them also hold under overload: `OffloadRate` learns when the device decides, `LatencyBudget` at the latest
when the budget has passed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import LABEL_BYTES
from sfl_sim.ops import SERVER, Event, Flow, State, Step, Value, Work, occur, on, send, start, wait
from sfl_sim.training.deployed import Deployed


class EarlyExit:
    """The flows of requests, which are answered on their client's device if its exit is confident enough.

    Operations have the request's number as their `step`. Requests whose models at the server begin with the same
    replica can be answered as one batch.

    Args:
        deployed: every client's model.
        entropies: (R,) nats, of the exit's softmax for each request, in order of arrival.
        rule: the thresholds e_n: a request exits iff its entropy is below. Without a model, with entropies drawn
            uniformly from [0, 1), e_n is the probability of an exit.

    Attributes:
        offloaded: (R,) bool, whether a request was; of those decided so far.
        thresholds: (R,) that were in force; NaN where nothing has been decided.
    """

    def __init__(self, deployed: Sequence[Deployed], entropies: NDArray[np.floating], rule: Rule) -> None:
        self.rule = rule
        self.entropies = entropies
        self.offloaded = np.zeros(len(entropies), dtype=bool)
        self.thresholds = np.full(len(entropies), np.nan)
        self._models = [
            (
                Infer("exit", each.device_work, "features", each.feature_bytes),
                each.front[0],
                Infer("answer", each.server_work, "answer", LABEL_BYTES),
                each.back[0] if each.back else each.front[0],
            )
            for each in deployed
        ]

    def request(self, number: int, client: int) -> Flow:
        """Answer request `number` (from 0), which arrives at `client`; where the rule has a budget, judge it, too."""
        if self.rule.budget_s == math.inf:
            yield from self._answer(number, client)
            return
        answered = Event(f"the answer to request {number}")
        yield start(self._answer(number, client, answered))
        in_time = yield wait([answered], self.rule.budget_s)
        self.rule.judged(client, in_time)

    def _answer(self, number: int, client: int, answered: Event | None = None) -> Flow:
        device, front, server, back = self._models[client]
        features = yield on(client, device, front, Value("request", samples=1, step=number))
        threshold = self.thresholds[number] = self.rule.threshold(client)
        self.offloaded[number] = offloaded = not self.entropies[number] < threshold  # nor is NaN below
        self.rule.decided(client, offloaded)
        if offloaded:
            features = yield send(features, client, SERVER)
            answer = yield on(SERVER, server, back, features)
            yield send(answer, SERVER, client)
        if answered:
            yield occur(answered)


class Rule(ABC):
    """The thresholds e_n of all clients.

    Attributes:
        budget_s: how long after its arrival a request is judged that has not been answered; infinity if none is judged.
    """

    budget_s = math.inf

    @abstractmethod
    def threshold(self, client: int) -> float:
        """Give e_n: a request whose entropy (nats) is below is answered on the device."""

    def decided(self, client: int, offloaded: bool) -> None:  # noqa: B027 - a rule need not learn
        """Note the decision of a client's device on a request."""

    def judged(self, client: int, in_time: bool) -> None:  # noqa: B027
        """Note that a client's request has been answered, or that `budget_s` has passed before."""


class Fixed(Rule):
    """Fixed thresholds (N,), one for each client."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def threshold(self, client: int) -> float:
        """Give the client's threshold."""
        return self.values[client]


class _Tracking(Rule):
    """Keeps the share of requests with an undesired outcome at an aim.

    Args:
        share: of a client's requests.
        start: the threshold of all clients at first.
        step: how far one request can move it: a large step follows the load quickly, a small one varies less.
        highest: the highest threshold; the lowest is 0. Should be the largest entropy there is: while the aim is out of
            reach, a higher threshold would only take longer to come back.
    """

    def __init__(self, share: float, start: float, step: float, highest: float) -> None:
        self.share = share
        self.step = step
        self.highest = highest
        self._values: dict[int, float] = defaultdict(lambda: start)

    def threshold(self, client: int) -> float:
        """Give the present threshold."""
        return self._values[client]

    def _move(self, client: int, happened: bool) -> None:
        moved = self._values[client] + self.step * (happened - self.share)
        self._values[client] = min(max(moved, 0.0), self.highest)


class OffloadRate(_Tracking):
    """Lets a client offload the given share of its requests: e_n is a running quantile of its entropies."""

    def decided(self, client: int, offloaded: bool) -> None:
        """Learn from whether it is offloaded."""
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
        """Learn from whether it is late."""
        self._move(client, not in_time)


class Infer(Step):
    """Forward pass whose answer is known beforehand: it only takes time, and gives a value of `size_bytes`."""

    def __init__(self, name: str, work: Work, gives: str, size_bytes: int) -> None:
        self.name = name
        self._work = work
        self._gives = gives
        self._size_bytes = size_bytes

    def work(self, state: State, data: Value) -> Work:
        """Give the fixed work."""
        return self._work

    def out(self, state: State, data: Value) -> Value:
        """Make the value that is sent on."""
        return Value(self._gives, self._size_bytes, 1, data.step)

    def run(self, state: State, data: Value) -> None:
        """Compute nothing: the answer is known."""


def draw_rows(owners: NDArray[np.integer], clients: NDArray[np.integer], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw for each request a test sample of its client, as a row of the table of answers, each equally likely.

    Args:
        owners: (T,) the client whose test set a row of the table is of.
        clients: (R,) those of the requests.
        rng: draws with replacement.

    Returns:
        (R,) numbers of rows of the table.

    Raises:
        ScenarioError: a client that has requests has no row.
    """
    counts = np.bincount(owners, minlength=int(clients.max(initial=-1)) + 1)
    if not counts[clients].all():
        lacking = clients[counts[clients] == 0][0]
        raise ScenarioError(f"client {lacking} has requests, but no test samples to draw them from", key="data.test")
    begins = np.cumsum(counts) - counts
    rows: NDArray[np.int64] = np.argsort(owners, kind="stable")[begins[clients] + rng.integers(counts[clients])]
    return rows
