"""Walk through the rounds of an experiment in order: setup, then choose and round for each number, then finish."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.engine.participation import Participation
from sfl_sim.errors import ScenarioError
from sfl_sim.ops import Flow
from sfl_sim.sim.array_clock import Turns
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.trace import NotPlannable
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.training.timing import Timing

if TYPE_CHECKING:
    from sfl_sim.engine.experiment import Experiment

DIFFERENT = "rounds of the same clients may differ"
SETUP, FINISH = "setup", "finish"
"""Names of the flows that run once, before the first round and after the last."""


LONGEST_S = 2.0**43
"""Simulated time, of 279,000 years, from which on a clock with 53 bits does not tell milliseconds apart."""


class WalkedRound(NamedTuple):
    """A round, or the setup before or the finish after all rounds.

    Attributes:
        clients: participants of the round that it is, or belongs to.
        ops: its operations (`OP_DTYPE`).
        times: number of rounds that it stands for, which differ only in their start.
        is_aside: True for setup and finish.
    """

    number: int
    clients: tuple[int, ...]
    started_s: float
    ended_s: float
    ops: NDArray[np.void]
    times: int = 1
    is_aside: bool = False


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
            clock, experiment.cyclic, clients.participation, experiment.scenario.seed,
            is_tracked=clients.availability is not None,
        )  # fmt: skip
        self.on_begin: list[Callable[[int, Sequence[int]], object]] = []
        self._first = first
        self._started_s = started_s

    @property
    def _last(self) -> int:
        return self.experiment.scenario.train.rounds

    def rounds(self) -> Iterator[WalkedRound]:
        """Run the rounds one after another; setup is a part of the first, finish of the last."""
        if self._first > 1:
            self._come_to_the_first()
        for number in range(self._first, self._last + 1):
            yield self.round(number, self.choose(number))

    def choose(self, number: int) -> Sequence[int]:
        """Choose the participants of a round, in cyclic order; waits until a client is present."""
        return self.experiment.choose(number, self.participation.begin(number))

    def round(self, number: int, clients: Sequence[int]) -> WalkedRound:
        """Run one round with these participants."""
        for begin in self.on_begin:
            begin(number, clients)
        method, clock = self.experiment.method, self.clock
        started_s = clock.now_s
        ops = self._run(number, self._flows(number, clients))
        return WalkedRound(number, tuple(method.took_part(clients)), started_s, clock.now_s, ops)

    def finish(self, number: int) -> NDArray[np.void]:
        """Run what follows the last round, after one that was not expected to be the last; gives its operations."""
        return self._run(number, [(FINISH, self.experiment.method.finish)])

    @property
    def _is_regular(self) -> bool:
        """True if all rounds of the same clients issue the same operations."""
        method = self.experiment.method
        return method.regular and not method.task.round_cuts

    def _run(self, number: int, flows: Iterable[tuple[Hashable, Callable[[], Flow]]]) -> NDArray[np.void]:
        """Run flows one after another, and give their operations."""
        clock = self.clock
        if not isinstance(clock.events.executor, Timing):
            clock.refuse("steps that train run in its order")
        elif not self._is_regular:
            clock.refuse(DIFFERENT)
        for what, flow in flows:
            clock.run(flow, number, like=what, in_round=what not in (SETUP, FINISH))
        clock.events.executor.finish()
        _check_time(clock.now_s)
        return clock.events.take_rows()

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
        for number in range(1, self._last + 1):
            clients = tuple(self.choose(number))
            for what, flow in self._flows(number, clients):
                plan = clock.plan(flow, what, what not in (SETUP, FINISH))
                turns = plan.turns(number)
                key = what, turns if clock.is_steady else number
                if key in found:
                    found[key] = found[key]._replace(times=found[key].times + 1)
                    continue
                began_s = clock.now_s
                ops, ended_s = plan.run(began_s, number, turns)
                _check_time(ended_s)
                clock.events.skip(ops[:0], ended_s)
                if len(ops):
                    found[key] = WalkedRound(number, clients, began_s, ended_s, ops, is_aside=what in (SETUP, FINISH))
        return list(found.values())

    def _flows(self, number: int, clients: Sequence[int]) -> Iterator[tuple[Hashable, Callable[[], Flow]]]:
        """Generate the flows of a round in order, each with a key that is equal for flows with the same operations."""
        method = self.experiment.method
        if number == 1:
            yield SETUP, method.prepare
        yield tuple(clients), partial(method.round, number, clients)
        if number == self._last:
            yield FINISH, method.finish

    def _come_to_the_first(self) -> None:
        """Choose participants for the skipped rounds, with every client present: a method may count its choices."""
        experiment, clock = self.experiment, self.clock
        for number in range(1, self._first):
            experiment.choose(number, self.participation.drawn(number, experiment.cyclic))
        clock.run(experiment.method.prepare, 1, in_round=False)
        clock.events.take_rows()
        clock.events.skip(np.zeros(0, dtype=OP_DTYPE), self._started_s)
