"""Who is there when a round begins, who is drawn to take part in it, and who gets lost."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.dropouts import spent_by
from sfl_sim.ops import Flow, present
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.dropouts import Dropout
from sfl_sim.store.columns import LOSS_COLUMNS, PRESENCE_COLUMNS
from sfl_sim.system.presence import Presence


def check_survival(scenario: Scenario, method: Method) -> None:
    """Refuse to lose clients where a round needs all of them to its end, and deadlines where none waits for any."""
    availability, name = scenario.clients.availability, scenario.method.name
    if availability is None:
        return
    key, lost = "clients.availability.lost", availability.lost
    if lost != "wait" and not method.survives:
        problem = f"{name} cannot go on without a client that it has lost"
        raise ScenarioError(problem, key=key, found=lost, allowed=["wait"])
    if lost == "deadline" and not method.knows_deadlines:
        problem = f"no deadline can end a round of {name}"
        raise ScenarioError(problem, key=key, found=lost, allowed=["drop", "wait"])


def round_size(participation: float, n_clients: int) -> int:
    """How many of `n_clients` take part in a round: that share of them, rounded, and one at least."""
    return max(1, int(participation * n_clients + 0.5))


class Participation:
    """Draws the participants of one round after another, and keeps account.

    Args:
        clock: tells who is there, and who got lost.
        clients: all, in cyclic order.
        participation: share of them that takes part in a round; fewer if fewer are there.
        is_kept: whether anybody can be away, or be too late.
    """

    def __init__(self, clock: Clock, clients: Sequence[int], participation: float, seed: int, is_kept: bool) -> None:
        self.clock = clock
        self.clients = clients
        self.size = round_size(participation, len(clients))
        self.seed = seed
        self.is_kept = is_kept
        self.losses: list[Dropout] = []
        self._row: dict[str, int] = {}

    def begin(self, round: int) -> list[int]:
        """The round's participants in cyclic order, drawn of those who are there; time passes until somebody is."""
        if not self.is_kept:
            return self.drawn(round, self.clients)
        there = self.clock.run(lambda: _who_is_there(self.clients), round)
        self._row = {"present": len(there)}
        return self.drawn(round, there)

    def drawn(self, round: int, there: Sequence[int]) -> list[int]:
        """A draw without replacement."""
        n = len(there)
        if n <= self.size:
            return list(there)
        chosen = stream(self.seed, "participants", round).choice(n, self.size, replace=False)
        return [there[i] for i in sorted(chosen)]

    def end(self, ops: NDArray[np.void]) -> dict[str, float]:
        """What the round's row says of it: how many were `present`, how many of them got `lost`, and what these had
        spent by then (`lost_device_s`, `lost_link_s`, `lost_bytes`).

        Args:
            ops: the round's operations (`OP_DTYPE`).
        """
        if not self.is_kept:
            return {}
        losses = self.clock.events.records.take_dropouts()
        self.losses += losses
        lost = {loss.client for loss in losses}
        spent = spent_by(ops, lost, self._presence)
        told = {f"lost_{what}": much for what, much in spent._asdict().items()}
        return self._row | {"lost": len(lost)} | told

    def tables(self) -> dict[str, pd.DataFrame]:
        """`losses`: one row per operation that was lost. `presence`: one row per client and stay, until now."""
        presence = self._presence
        if not self.is_kept:
            return {}
        rows = [{**loss._asdict(), "returned_s": self._returned_s(loss)} for loss in self.losses]
        tables = {"losses": pd.DataFrame(rows, columns=LOSS_COLUMNS)}
        if presence is not None:
            stays = [
                {"client": client, "from_s": from_s, "until_s": until_s}
                for client, there in enumerate(presence)
                for from_s, until_s in there.intervals(0.0, self.clock.now_s)
            ]
            tables["presence"] = pd.DataFrame(stays, columns=PRESENCE_COLUMNS)
        return tables

    @property
    def _presence(self) -> Sequence[Presence] | None:
        """When each client is there; None if always."""
        return self.clock.events.prices.fleet.presence

    def _returned_s(self, loss: Dropout) -> float:
        presence = self._presence
        again_s = loss.lost_s if presence is None else presence[loss.client].again_s(loss.lost_s)
        return nan if again_s == inf else again_s


def _who_is_there(clients: Sequence[int]) -> Flow:
    there: Any = yield present(clients)
    return there
