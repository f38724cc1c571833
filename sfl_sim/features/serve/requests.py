"""Requests of a fleet in use: the device answers if its exit is confident, otherwise the server does.

A client's device runs its layers and its exit h_n. If the entropy of what h_n answers is below the threshold e_n, that
is the answer; else the features go to the server, and its answer comes back (docs/methods/exit_metrics.md#rule).

Thresholds are fixed, or learned without labels by stochastic approximation (Robbins and Monro 1951, "A stochastic
approximation method"; Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift", Eq. 2). For each
request e_n rises by step * (1 - share) if something undesired happens, and else falls by step * share. So it settles
where that happens to `share` of the client's requests, and follows when they change. For any sequence of T requests,
the share is off by at most highest / (step * T), unless e_n has been at one of its ends. No rule waits for an answer,
so all of them also hold under overload: a share that is offloaded is learned when the device decides, a latency budget
at the latest when it has passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
        thresholds: those of the clients. Without a model, with entropies drawn uniformly from [0, 1), they are
            probabilities of an exit.

    Attributes:
        offloaded: (R,) bool, whether a request was; of those decided so far.
        in_force: (R,) the threshold of each; NaN where nothing has been decided.
    """

    def __init__(self, deployed: Sequence[Deployed], entropies: NDArray[np.floating], thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self.entropies = entropies
        self.offloaded = np.zeros(len(entropies), dtype=bool)
        self.in_force = np.full(len(entropies), np.nan)
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
        """Answer request `number` (from 0), which arrives at `client`; learn from it whether it was undesired."""
        budget_s = self.thresholds.budget_s
        if budget_s == math.inf:
            yield from self._answer(number, client)
            return
        answered = Event(f"the answer to request {number}")
        yield start(self._answer(number, client, answered))
        in_time = yield wait([answered], budget_s)
        self.thresholds.learn(client, not in_time)

    def _answer(self, number: int, client: int, answered: Event | None = None) -> Flow:
        device, front, server, back = self._models[client]
        features = yield on(client, device, front, Value("request", samples=1, step=number))
        threshold = self.in_force[number] = self.thresholds.values[client]
        self.offloaded[number] = offloaded = not self.entropies[number] < threshold  # nor is NaN below
        if not answered:
            self.thresholds.learn(client, offloaded)
        if offloaded:
            features = yield send(features, client, SERVER)
            answer = yield on(SERVER, server, back, features)
            yield send(answer, SERVER, client)
        if answered:
            yield occur(answered)


@dataclass
class Thresholds:
    """The thresholds e_n of all clients, fixed or learned.

    Attributes:
        values: (N,) nats; a request exits iff its entropy is below that of its client.
        step: how far one request can move a threshold: a large step follows the load quickly, a small one varies less.
            0: they are fixed.
        share: of a client's requests that may be undesired.
        highest: the highest threshold; the lowest is 0. Should be the largest entropy there is: while the share is out
            of reach, a higher threshold would only take longer to come back.
        budget_s: infinity: a request that is offloaded is undesired, and e_n is a running quantile of its client's
            entropies. Else one that is not answered so many seconds after its arrival is, and a client offloads as much
            as it can: where offloading never takes so long, e_n ends at 0, and the server answers everything; where not
            even the device is fast enough, it ends at `highest`.
    """

    values: list[float]
    step: float = 0.0
    share: float = 0.0
    highest: float = math.inf
    budget_s: float = math.inf

    def learn(self, client: int, undesired: bool) -> None:
        """Move the threshold of a client after one of its requests."""
        if self.step:
            moved = self.values[client] + self.step * (undesired - self.share)
            self.values[client] = min(max(moved, 0.0), self.highest)


class Infer(Step):
    """Forward pass whose answer is known beforehand: it only takes time, and gives a value of `size_bytes`."""

    def __init__(self, name: str, work: Work, gives: str, size_bytes: int) -> None:
        self.name = name
        self._work = work
        self._gives = gives
        self._size_bytes = size_bytes

    def work(self, state: State, data: Value) -> Work:
        return self._work

    def out(self, state: State, data: Value) -> Value:
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

    Raises ScenarioError if a client that has requests has no row.
    """
    counts = np.bincount(owners, minlength=int(clients.max(initial=-1)) + 1)
    if not counts[clients].all():
        lacking = clients[counts[clients] == 0][0]
        raise ScenarioError(f"client {lacking} has requests, but no test samples to draw them from", key="data.test")
    begins = np.cumsum(counts) - counts
    rows: NDArray[np.int64] = np.argsort(owners, kind="stable")[begins[clients] + rng.integers(counts[clients])]
    return rows
