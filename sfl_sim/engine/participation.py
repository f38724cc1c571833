"""Participation in rounds: presence of clients at the beginning, the draw of participants, and dropouts."""

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.build.clock import round_size
from sfl_sim.engine.choices import KEY, Candidates, Chooser, check_untrained
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.rounds import spent_by
from sfl_sim.ops import Flow, present
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.dropouts import Dropout
from sfl_sim.system.presence import Presence

MAX_STAYS, MAX_STAYS_A_CLIENT = 10_000_000, 10_000
"""Stays of clients in a run, in all and on average per client, beyond which listing them takes too long."""


def check_participation(scenario: Scenario, method: Method, n_clients: int) -> None:
    """Check that clients can be chosen, lost and overtaken with this method as the scenario says; or ScenarioError."""
    availability, name = scenario.clients.availability, scenario.method.name
    size = round_size(scenario.clients.participation, n_clients)
    if (choice := scenario.clients.choice) and size >= n_clients:
        raise ScenarioError("has no effect where all clients take part", key=KEY, found=choice.kind)
    if n := scenario.clients.overcommit:
        key = "clients.overcommit"
        if size + n > n_clients:
            problem = f"asks more clients than there are: {size} of {n_clients} take part"
            raise ScenarioError(problem, key=key, found=n, allowed=f"at most {n_clients - size}")
        if not (method.survives and method.waits_for_all):
            problem = f"{name} nowhere waits for all clients of a round, so that it could go on without the last ones"
            raise ScenarioError(problem, key=key, found=n, allowed=[0])
        if scenario.clients.network.shared is not None:
            raise ScenarioError("cannot be given together with clients.network.shared", key=key, found=n, allowed=[0])
    if availability is None:
        return
    key, lost = "clients.availability.lost", availability.lost
    if lost != "wait" and not method.survives:
        problem = f"{name} cannot go on without a client that has dropped out"
        raise ScenarioError(problem, key=key, found=lost, allowed=["wait"])
    if lost == "deadline" and not method.knows_deadlines:
        problem = f"no deadline can end a round of {name}"
        raise ScenarioError(problem, key=key, found=lost, allowed=["drop", "wait"])


class Participation:
    """Chooses the participants of one round after another, and records presence and dropouts.

    Args:
        clock: the clock, which knows the present clients and the dropouts.
        clients: all clients in cyclic order.
        size: number of clients that are asked in a round; fewer if fewer are present.
        choose: chooses them.
        expected_s: see `Candidates`.
        is_tracked: True if clients can be away or too late, so that there is something to record.

    Attributes:
        utility_of: gives a client's utility after a round; None where nothing is trained.
    """

    def __init__(
        self,
        clock: Clock,
        clients: Sequence[int],
        size: int,
        choose: Chooser,
        expected_s: Callable[[int], float],
        seed: int,
        is_tracked: bool,
    ) -> None:
        self.clock = clock
        self.clients = clients
        self.size = size
        self.choose = choose
        self.expected_s = expected_s
        self.seed = seed
        self.is_tracked = is_tracked
        self.utility_of: Callable[[int], float] | None = None
        self.dropouts: list[Dropout] = []
        self._row: dict[str, int] = {}
        n = max(clients) + 1
        self._took_s, self._utility = np.full(n, nan), np.full(n, nan)
        self._last_round = np.zeros(n, dtype=np.int64)
        self._is_new = np.full(n, fill_value=True)
        self._gains: list[float] = []

    def begins_s(self) -> float:
        """Give the instant at which the next round can begin: now, or when the first client comes back."""
        now_s = self.clock.now_s
        return now_s if self._presence is None else min(presence.again_s(now_s) for presence in self._presence)

    def begin(self, round: int) -> list[int]:
        """Choose the participants from the present clients, in cyclic order; waits until a client is present."""
        if not self.is_tracked:
            return self.draw(round, self.clients)
        clients = self.clock.run(lambda: _who_is_there(self.clients), round)
        self._row = {"present": len(clients)}
        return self.draw(round, clients)

    def draw(self, round: int, clients: Sequence[int]) -> list[int]:
        """Choose from `clients`; all of them if they are few."""
        if len(clients) <= self.size:
            return list(clients)
        rng = stream(self.seed, "participants", round)
        past = (self._took_s, self._last_round, self._gains, self._is_new)
        return list(self.choose(Candidates(clients, self.size, self.expected_s, round, rng, *past), self._utility))

    def learn(self, round: int, clients: Sequence[int], started_s: float, ops: NDArray[np.void]) -> None:
        """Note how long the participants of a round took, and their utilities, for later choices.

        Args:
            ops: the round's operations (`OP_DTYPE`).
        """
        if self.choose.is_random:
            return
        self._is_new[list(clients)] = False
        lost = {dropout.client for dropout in self.clock.events.records.dropouts if dropout.round == round}
        ended_s = np.full(len(self._took_s), nan)
        np.fmax.at(ended_s, ops["client"][ops["client"] >= 0], ops["ended_s"][ops["client"] >= 0])
        # A server that is down may have served nobody: its clients have done nothing.
        stayed = [client for client in clients if client not in lost and not np.isnan(ended_s[client])]
        self._took_s[stayed] = ended_s[stayed] - started_s
        self._last_round[stayed] = round
        if self.utility_of is None:
            check_untrained(self.choose)
        elif self.choose.asks_training:
            self._utility[stayed] = [self.utility_of(client) for client in stayed]
            self._gains.append(float(self._utility[stayed].sum()))

    def end(self, clients: Sequence[int], ops: NDArray[np.void]) -> dict[str, float]:
        """Give columns of the round's row: the number of clients `present` and of participants `lost`, and what the
        lost ones had spent by then (`lost_device_s`, `lost_link_s`, `lost_bytes`).

        Args:
            clients: the participants; others, such as assistants, may have been lost as well.
            ops: the round's operations (`OP_DTYPE`), without setup and finish.
        """
        if not self.is_tracked:
            return {}
        self._check_stays()
        lost_now = self.clock.events.records.take_dropouts()
        self.dropouts += lost_now
        lost = {dropout.client: dropout.lost_s for dropout in lost_now if dropout.client in clients}
        spent = spent_by(ops, lost, self._presence)
        columns = {f"lost_{what}": much for what, much in spent._asdict().items()}
        return self._row | {"lost": len(lost)} | columns

    def tables(self) -> dict[str, pd.DataFrame]:
        """Make the tables `dropouts` (one row per lost operation) and `presence` (one row per client and stay)."""
        presence = self._presence
        if not self.is_tracked:
            return {}
        rows = [{**dropout._asdict(), "returned_s": self._returned_s(dropout)} for dropout in self.dropouts]
        tables = {"dropouts": pd.DataFrame(rows)}
        if presence is not None and self._n_stays <= self._max_stays:
            stays = [np.array(of_client.intervals(0.0, self.clock.now_s)).reshape(-1, 2) for of_client in presence]
            clients = np.repeat(np.arange(len(stays)), [len(intervals) for intervals in stays])
            from_s, until_s = np.concatenate(stays).T
            tables["presence"] = pd.DataFrame({"client": clients, "from_s": from_s, "until_s": until_s})
        return tables

    def _check_stays(self) -> None:
        """Check that the stays until now can be listed; otherwise raises ScenarioError."""
        if self._n_stays > self._max_stays:
            now_s = self.clock.now_s
            raise ScenarioError(
                f"stays are too short for a run that takes {now_s:.6g} s and more: {self._n_stays:.3g} would be listed",
                key=Presence.key,
                allowed=f"{MAX_STAYS:,}, or {MAX_STAYS_A_CLIENT:,} a client",
            )

    @property
    def _n_stays(self) -> float:
        """The number of stays until now."""
        return sum(presence.stays_by(self.clock.now_s) for presence in self._presence or ())

    @property
    def _max_stays(self) -> int:
        """How many stays the tables may list."""
        return max(MAX_STAYS, MAX_STAYS_A_CLIENT * len(self._presence or ()))

    @property
    def _presence(self) -> Sequence[Presence] | None:
        """Presence of each client; None if all are always present."""
        return self.clock.events.prices.fleet.presence

    def _returned_s(self, loss: Dropout) -> float:
        presence = self._presence
        again_s = loss.lost_s if presence is None else presence[loss.client].again_s(loss.lost_s)
        return nan if again_s == inf else again_s


def _who_is_there(clients: Sequence[int]) -> Flow:
    present_clients: Any = yield present(clients)
    return present_clients
