"""Walk through the rounds of an experiment in order: setup, then choose and round for each number, then finish."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.engine.participation import Participation
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.energy import client_joule, op_joule
from sfl_sim.ops import Flow
from sfl_sim.sim.array_clock import Turns
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.trace import NotPlannable
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.power import Power
from sfl_sim.system.presence import Presence
from sfl_sim.training.timing import Timing

if TYPE_CHECKING:
    from sfl_sim.engine.experiment import Experiment

DIFFERENT = "rounds of the same clients may differ"
NO_OPS = np.zeros(0, OP_DTYPE)
SETUP, FINISH = "setup", "finish"
"""Names of the flows that run once, before the first round and after the last."""


LONGEST_S = 2.0**43
"""Simulated time, of 279,000 years, from which on a clock with 53 bits does not tell milliseconds apart."""


class WalkedRound(NamedTuple):
    """A round, or the setup before or the finish after all rounds.

    Attributes:
        clients: participants of the round that it is, or belongs to.
        ops: the operations that have ended in it (`OP_DTYPE`).
        n_rounds: number of rounds that it stands for, which differ only in their start.
        is_aside: True for setup and finish.
        under_way: the operations that go on into the next round, as rows that end with this one.
        parts: setup, round and finish, where setup or finish belong to it; empty if it is all one.
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

    def client_joule(self, power: Power, presence: Sequence[Presence] | None) -> NDArray[np.float64]:
        """Compute the joules (C,) that every client spends in it; in setup and finish all clients are present."""
        parts = [
            client_joule(part.busy, power, part.clients, part.started_s, part.ended_s, part._there(presence))
            for part in self.parts or [self]
        ]
        joule: NDArray[np.float64] = np.sum(parts, axis=0)
        return joule

    def op_joule(self, power: Power, presence: Sequence[Presence] | None) -> NDArray[np.float64]:
        """Compute the joules (operations,) of each of its operations."""
        return np.concatenate([op_joule(part.ops, power, part._there(presence)) for part in self.parts or [self]])

    def _there(self, presence: Sequence[Presence] | None) -> Sequence[Presence] | None:
        return None if self.is_aside else presence


def joined(parts: Sequence[WalkedRound]) -> WalkedRound:
    """Join setup, round and finish to one round."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    ops = np.concatenate([part.ops for part in parts])
    return last._replace(started_s=first.started_s, ops=ops, is_aside=False, parts=tuple(parts))


def _check_time(now_s: float) -> None:
    """Check that the clock still tells one instant from the next; otherwise raises ScenarioError."""
    if not now_s < LONGEST_S:
        problem = f"devices, links or server are too slow: simulated time has come to {now_s:.3g} s"
        raise ScenarioError(problem, allowed=f"less than {LONGEST_S:.3g} s")


class Walk:
    """The rounds of an experiment, in the system and by the executor of a clock.

    Args:
        experiment: gives the method.
        clock: runs the method's flows.
        first: number of the first round walked; in those before it, only the participants are chosen.
        started_s: start of that round.

    Attributes:
        participation: draws participants, and records presence and dropouts.
        on_begin: called with the number and the participants of each round that begins.
    """

    def __init__(self, experiment: Experiment, clock: Clock, first: int = 1, started_s: float = 0.0) -> None:
        clients = experiment.scenario.clients
        self.experiment = experiment
        self.clock = clock
        self.participation = Participation(
            clock,
            experiment.cyclic,
            clients.participation,
            experiment.scenario.seed,
            is_tracked=clients.availability is not None,
        )
        self.on_begin: list[Callable[[int, Sequence[int]], object]] = []
        self._before: list[WalkedRound] = []
        self._first = first
        self._started_s = started_s

    @property
    def _last(self) -> int:
        return self.experiment.scenario.train.rounds

    def rounds(self) -> Iterator[WalkedRound]:
        """Run the rounds one after another; setup is a part of the first, finish of the last."""
        if self._first > 1:
            self._come_to_the_first()
        else:
            self.set_up()
        for number in range(self._first, self._last + 1):
            yield self.round(number, self.choose(number))

    def set_up(self) -> None:
        """Run what comes before the first round; a part of the round that is run next, unless nothing happens."""
        setup = self._run(1, (), SETUP, self.experiment.method.prepare)
        self._before = [setup] if len(setup.ops) else []

    def choose(self, number: int) -> Sequence[int]:
        """Choose the participants of a round, in cyclic order; waits until a client is present."""
        return self.experiment.choose(number, self.participation.begin(number))

    def round(self, number: int, clients: Sequence[int]) -> WalkedRound:
        """Run one round with these participants."""
        for begin in self.on_begin:
            begin(number, clients)
        method = self.experiment.method
        parts = [self._run(number, clients, tuple(clients), partial(method.round, number, clients))]
        if number == self._last:
            parts.append(self.finish(number))
        parts, self._before = [*self._before, *parts], []
        took_part = tuple(method.took_part(clients))
        return joined([part._replace(clients=took_part) for part in parts])

    def finish(self, number: int) -> WalkedRound:
        """Run what follows the last round."""
        return self._run(number, (), FINISH, self.experiment.method.finish)

    @property
    def _is_regular(self) -> bool:
        """True if all rounds of the same clients issue the same operations."""
        method = self.experiment.method
        return method.regular and not method.task.round_cuts

    def _run(self, number: int, clients: Sequence[int], what: Hashable, flow: Callable[[], Flow]) -> WalkedRound:
        """Run one flow; `what` is equal for flows with the same operations."""
        clock, is_aside = self.clock, what in (SETUP, FINISH)
        if not isinstance(clock.events.executor, Timing):
            clock.refuse("steps that train run in its order")
        elif not self._is_regular:
            clock.refuse(DIFFERENT)
        started_s = clock.now_s
        clock.run(flow, number, like=what, in_round=not is_aside)
        clock.events.executor.finish()
        _check_time(clock.now_s)
        ops, under_way = clock.events.take_rows(), clock.events.under_way()
        return WalkedRound(number, tuple(clients), started_s, clock.now_s, ops, 1, is_aside, under_way)

    def alike(self) -> list[WalkedRound]:
        """Give all rounds by the array clock, equal rounds as one, and setup and finish apart from them.

        Rounds with the same operations, whose clients are served in the same sequence, take equally long if no duration
        depends on its start, except for rounding. Otherwise each round is walked.

        Raises NotPlannable if the rounds need the event clock.
        """
        clock = self.clock
        if not self._is_regular:
            raise NotPlannable(DIFFERENT)
        found: dict[tuple[Hashable, int | Sequence[Turns]], WalkedRound] = {}
        method = self.experiment.method

        def walk(number: int, clients: tuple[int, ...], what: Hashable, flow: Callable[[], Flow]) -> None:
            plan = clock.plan(flow, what, what not in (SETUP, FINISH))
            turns = plan.turns(number)
            key = what, turns if clock.is_steady else number
            if key in found:
                found[key] = found[key]._replace(n_rounds=found[key].n_rounds + 1)
                return
            began_s = clock.now_s
            ops, ended_s = plan.run(began_s, number, turns)
            _check_time(ended_s)
            clock.events.skip(NO_OPS, ended_s)
            if len(ops):
                found[key] = WalkedRound(number, clients, began_s, ended_s, ops, is_aside=what in (SETUP, FINISH))

        walk(1, (), SETUP, method.prepare)
        for number in range(1, self._last + 1):
            clients = tuple(self.choose(number))
            if number == 1:
                found = {key: setup._replace(clients=clients) for key, setup in found.items()}
            walk(number, clients, clients, partial(method.round, number, clients))
        walk(self._last, clients, FINISH, method.finish)
        return list(found.values())

    def _come_to_the_first(self) -> None:
        """Choose participants for the skipped rounds, with every client present: a method may count its choices."""
        experiment, clock = self.experiment, self.clock
        clock.run(experiment.method.prepare, 1, in_round=False)
        for number in range(1, self._first):
            experiment.choose(number, self.participation.drawn(number, experiment.cyclic))
        clock.events.take_rows()
        clock.events.skip(NO_OPS, self._started_s)
