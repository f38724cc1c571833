"""A request from its arrival to its answer, on the device or at the server, as a flow."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from sfl_sim.methods.exit_thresholds import Rule
from sfl_sim.ops import SERVER, Event, Flow, State, Value, Work, occur, on, send, start, wait
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.steps import LABEL_BYTES


class Infer:
    """A forward pass whose answers are known beforehand: it only takes time, and gives something of a size."""

    aggregates = False

    def __init__(self, name: str, work: Work, gives: str, size_bytes: int) -> None:
        self.name = name
        self._work = work
        self._gives = gives
        self._size_bytes = size_bytes

    def work(self, state: State, data: Value) -> Work:
        """As given."""
        return self._work

    def out(self, state: State, data: Value) -> Value:
        """What is sent on."""
        return Value(self._gives, self._size_bytes, 1, data.step)

    def run(self, state: State, data: Value) -> None:
        """Nothing."""


class EarlyExit:
    """Answers each request on its client's device if the exit there is sure enough, and else at the server.

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
        """Request `number` (from 0), which comes at `client`."""
        return self._answer(number, client) if self.rule.budget_s == inf else self._judge(number, client)

    def _judge(self, number: int, client: int) -> Flow:
        """Answers, and tells the rule whether that is in time: as soon as it is known."""
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
