"""Walk through the rounds of a method: setup, then for each round choose participants and run it, then finish."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.build.clock import round_size
from sfl_sim.build.setup import Setup
from sfl_sim.engine.choices import KEY, find_choice
from sfl_sim.engine.participation import Participation
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.busy import busy
from sfl_sim.metrics.energy import client_joule, op_joule
from sfl_sim.ops import Flow
from sfl_sim.sim.clock import Clock
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.presence import Presence

NO_OPS = np.zeros(0, OP_DTYPE)


class WalkedRound(NamedTuple):
    """A round as the clock has walked it; or the setup before all rounds, or the finish after them.

    Attributes:
        clients: its participants; of setup and finish, those of the round that they belong to.
        ops: the operations that have ended in it (`OP_DTYPE`).
        n_rounds: number of rounds that it stands for. They differ only in their start.
        is_aside: True for setup and finish.
        under_way: the operations that go on into the next round, as rows that end with this one.
        parts: setup, round and finish, if setup or finish belong to it; otherwise empty.
    """

    number: int
    clients: tuple[int, ...]
    started_s: float
    ended_s: float
    ops: NDArray[np.void]
    n_rounds: int = 1
    is_aside: bool = False
    under_way: NDArray[np.void] = NO_OPS
    parts: tuple[WalkedRound, ...] = ()

    @property
    def busy(self) -> NDArray[np.void]:
        """Its operations, and those that are under way at its end."""
        return np.concatenate([self.ops, self.under_way]) if len(self.under_way) else self.ops

    @property
    def own_ops(self) -> NDArray[np.void]:
        """Its operations without those of setup and finish."""
        return np.concatenate([NO_OPS, *(part.ops for part in self.parts or [self] if not part.is_aside)])

    def client_joule(self, fleet: Fleet) -> NDArray[np.float64] | None:
        """Compute the joules (C,) that every client spends in it; None if the power of the clients is unknown."""
        power, joule = fleet.power, np.zeros(len(fleet.macs_per_s))
        if power is None:
            return None
        for part in self.parts or [self]:
            ops, presence = part.busy, part._presence(fleet)
            joule += client_joule(
                ops, power, part.clients, started_s=part.started_s, ended_s=part.ended_s, presence=presence
            )
        return joule

    def op_joule(self, fleet: Fleet) -> NDArray[np.float64] | None:
        """Compute the joules (operations,) of each of its operations; None if the power of the clients is unknown."""
        parts, power = self.parts or [self], fleet.power
        if power is None:
            return None
        return np.concatenate([op_joule(part.ops, power, part._presence(fleet)) for part in parts])

    def _presence(self, fleet: Fleet) -> Sequence[Presence] | None:
        return None if self.is_aside else fleet.presence  # in setup and finish all clients are present


def joined(parts: Sequence[WalkedRound]) -> WalkedRound:
    """Join setup, round and finish to one round."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    ops = np.concatenate([part.ops for part in parts])
    return last._replace(started_s=first.started_s, ops=ops, is_aside=False, parts=tuple(parts))


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
        row: its row of rounds.parquet.
        labels: its rows of labels.parquet.
        ops: its operations (`OP_DTYPE`).
        confusion: its rows of confusion.parquet; None if the scenario asks for none.
        leakage: its rows of leakage.parquet; None if the scenario asks for none.
        final: tables of the trained models by name, with the last round.
        joule: (operations,) energy that each operation takes from its client's battery; None if unknown.
        clients: its participants.
        cuts: the last layer that each of them holds before its cut; empty without a cut.
        stopped: why training ends early with it; None if it does not.
    """

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    ops: NDArray[np.void]
    confusion: pd.DataFrame | None = None
    leakage: pd.DataFrame | None = None
    final: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    joule: NDArray[np.float64] | None = None
    clients: Sequence[int] = ()
    cuts: Sequence[int] = ()
    stopped: str | None = None


DIFFERENT = "rounds of the same clients may differ"
SETUP, FINISH = "setup", "finish"
"""Names of the flows that run once, before the first round and after the last."""


LONGEST_S = 2.0**43
"""Simulated time, of 279,000 years, from which on a clock with 53 bits does not tell milliseconds apart."""


def check_time(now_s: float) -> None:
    """Check that the clock still tells one instant from the next; otherwise raises ScenarioError."""
    if not now_s < LONGEST_S:
        problem = f"devices, links or server are too slow: simulated time has come to {now_s:.3g} s"
        raise ScenarioError(problem, allowed=f"less than {LONGEST_S:.3g} s")


class Walk:
    """The rounds of a method, in the system and by the executor of a clock.

    Args:
        method: the method that runs; change it by `replace_method`.
        clock: runs the method's flows.
        first: number of the first round walked; in those before it, only the participants are chosen.
        started_s: start of that round.

    Attributes:
        participation: draws participants, and records presence and dropouts.
        on_begin: called with the number and the participants of each round that begins.
    """

    def __init__(self, setup: Setup, method: Method, clock: Clock, *, first: int = 1, started_s: float = 0.0) -> None:
        clients = setup.scenario.clients
        self.setup = setup
        self.method = method
        self.clock = clock
        self.participation = Participation(
            clock,
            setup.cyclic,
            round_size(clients.participation, len(setup.cyclic)) + clients.overcommit,
            find_choice(clients.choice),
            self._expected_s,
            setup.scenario.seed,
            is_tracked=clients.availability is not None or clock.events.dropouts.are_ever_possible,
        )
        self.on_begin: list[Callable[[int, Sequence[int]], object]] = []
        self._chosen: dict[int, Sequence[int]] = {}
        self._before: list[WalkedRound] = []
        self._first = first
        self._started_s = started_s

    def _expected_s(self, client: int) -> float:
        """Estimate the seconds that a client needs for its samples in a round."""
        task = self.method.task
        return task.sample_s(client) * task.data.n_batches(client) * task.data.size(client)

    def elsewhere(self, clock: Clock) -> Walk:
        """Make a walk of the same method in another system, with the participants that have been chosen here."""
        walk = Walk(self.setup, self.method, clock)
        walk._chosen = self._chosen
        return walk

    def replace_method(self, method: Method) -> None:
        """Use another method object from now on."""
        self.method = method
        self._chosen = {}

    @property
    def _last(self) -> int:
        return self.setup.scenario.train.rounds

    def rounds(self) -> Iterator[WalkedRound]:
        """Run the rounds one after another; setup is a part of the first, finish of the last."""
        if self._first > 1:
            self._come_to_the_first()
        else:
            self.set_up()
        for number in range(self._first, self._last + 1):
            yield self.round(number, self.choose(number))

    def set_up(self) -> None:
        """Run what comes before the first round. If anything happens, it becomes a part of the next round."""
        setup = self._run(1, (), SETUP, self.method.prepare)
        self._before = [setup] if len(setup.ops) else []

    def choose(self, number: int) -> Sequence[int]:
        """Choose the participants of a round, in cyclic order; waits until a client is present."""
        return self._choose(number, self.participation.begin(number))

    def _choose(self, number: int, clients: Sequence[int]) -> Sequence[int]:
        """Choose the participants of a round from `clients`.

        The method is asked once for each round, even if there are several walks: it may count whom it has chosen.
        """
        if number not in self._chosen:
            self._chosen[number] = self.method.choose(number, clients)
        return self._chosen[number]

    def round(self, number: int, clients: Sequence[int]) -> WalkedRound:
        """Run one round with these participants."""
        for begin in self.on_begin:
            begin(number, clients)
        method = self.method
        parts = [self._run(number, clients, tuple(clients), partial(method.round, number, clients))]
        if number == self._last:
            parts.append(self.finish(number))
        parts, self._before = [*self._before, *parts], []
        took_part = tuple(method.took_part(clients))
        walked = joined([part._replace(clients=took_part) for part in parts])
        self.participation.learn(number, clients, walked.started_s, walked.ops)
        if method.looks_at_times:
            method.task.seen.learn(number, *busy(walked.ops))
        return walked

    def finish(self, number: int) -> WalkedRound:
        """Run what follows the last round."""
        return self._run(number, (), FINISH, self.method.finish)

    @property
    def is_regular(self) -> bool:
        """True if all rounds of the same clients issue the same operations."""
        task = self.method.task
        return self.method.regular and not task.round_cuts and task.data.lengths is None

    def _run(self, number: int, clients: Sequence[int], what: Hashable, flow: Callable[[], Flow]) -> WalkedRound:
        """Run one flow.

        Args:
            what: a name for it; equal for flows with the same operations.
        """
        clock, is_aside = self.clock, what in (SETUP, FINISH)
        if clock.events.executor.computes:
            clock.refuse("steps that train run in its order")
        elif not self.is_regular:
            clock.refuse(DIFFERENT)
        started_s = clock.now_s
        clock.run(flow, number, like=what, in_round=not is_aside)
        clock.events.executor.finish()
        check_time(clock.now_s)
        ops, under_way = clock.events.take_rows(), clock.events.under_way()
        return WalkedRound(
            number, tuple(clients), started_s, clock.now_s, ops=ops, is_aside=is_aside, under_way=under_way
        )

    def _come_to_the_first(self) -> None:
        """Skip the rounds before the first. Participants are chosen for them, as if every client were present: a
        method may count whom it has chosen. Raises ScenarioError if the choice may depend on the rounds before.
        """
        clock, everybody = self.clock, self.setup.cyclic
        if not self.participation.choose.is_random:
            raise ScenarioError("depends on the rounds before", key=KEY, found=self.participation.choose.name)
        clock.run(self.method.prepare, 1, in_round=False)
        for number in range(1, self._first):
            self._choose(number, self.participation.draw(number, everybody))
        clock.events.take_rows()
        clock.events.skip(NO_OPS, self._started_s)
