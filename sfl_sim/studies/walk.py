"""What the rounds of a scenario take, by the clock alone, in one world after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfl_sim.engine.build import build_simulator, build_world
from sfl_sim.engine.estimate import SecondsPerSample
from sfl_sim.engine.experiment import Experiment
from sfl_sim.ops import Flow
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.array_clock import Turns
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.fast_path import Plan, TimedPlan, stages
from sfl_sim.sim.trace import Unforeseen, trace
from sfl_sim.studies.recut import recut
from sfl_sim.system.fleet import Fleet

RECURSION, EVENT_LOOP = "recursion", "event loop"


class Piece(NamedTuple):
    """A round, or what happens once before or after all of them, and how often it happens just so.

    Attributes:
        ops: its operations (`OP_DTYPE`).
        participants: of the round that it is, or belongs to.
        times: how many rounds are alike.
        is_aside: whether it is no round, but what happens once.
    """

    ops: NDArray[np.void]
    participants: tuple[int, ...]
    started_s: float
    ended_s: float
    times: int
    is_aside: bool = False


class Walked(NamedTuple):
    """All rounds of a scenario in one world.

    Attributes:
        pieces: the rounds; those that are alike but for the time when they begin are one.
        how: whether by `RECURSION` or by the `EVENT_LOOP`.
    """

    fleet: Fleet
    pieces: list[Piece]
    how: str


class _Planned(NamedTuple):
    """What `Piece` says, before it is walked, and the sequences in which clients are served in it.

    Attributes:
        numbers: of the rounds that are alike.
    """

    plan: TimedPlan
    turns: Sequence[Turns]
    participants: tuple[int, ...]
    numbers: list[int]
    is_aside: bool = False


class Walker:
    """Walks scenarios that differ in nothing but their world: what their flows issue is found out once.

    Rounds that issue the same operations, and whose clients are served in the same sequence, take equally long where no
    rate varies. So they are walked once: their times are those of a run, but for when they begin and for rounding.
    Where rates vary, every round is walked, and times are those of a run.

    Args:
        scenario: one of them, without grid.

    Raises ScenarioError for whatever in the scenario cannot be used.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.experiment = Experiment(scenario, device=None)
        self._walked = self.experiment
        self._cuts: Sequence[int] | None = None
        self._plans: dict[object, Plan | None] = {}
        self._chosen: dict[int, tuple[int, ...]] = {}
        self._refused = not self.experiment.method.regular or bool(self.experiment.method.task.round_cuts)

    @property
    def follows_the_world(self) -> bool:
        """Whether the method has asked how fast its clients are: what it does elsewhere is not known."""
        asked = self._walked.method.task.sample_s
        return isinstance(asked, SecondsPerSample) and asked.asked

    def recut(self, cuts: Sequence[int]) -> None:
        """From now on client c holds the layers 1 to `cuts[c]`, whatever the scenario says.

        Raises ScenarioError if the method does not take such cuts.
        """
        recut(self.experiment, cuts)
        self._cuts = cuts
        self._plans.clear()
        self._chosen.clear()
        self._refused = not self.experiment.method.regular

    def walk(self, scenario: Scenario) -> Walked:
        """All rounds of `scenario`, which differs in its world alone.

        Raises ScenarioError for whatever in it cannot be used.
        """
        experiment, scenario = self.experiment, expand(scenario)
        fleet = build_world(scenario, len(experiment.shares))
        simulator = build_simulator(scenario, fleet, experiment.executor, experiment.counts)
        if simulator.prices.foreseeable and not self._refused:
            try:
                return Walked(fleet, list(self._foreseen(simulator)), RECURSION)
            except Unforeseen:
                pass
        self._walked = experiment = Experiment(scenario, device=None)
        if self._cuts is not None:
            recut(experiment, self._cuts)
        return Walked(fleet, list(_by_event_loop(experiment)), EVENT_LOOP)

    def _foreseen(self, simulator: Simulator) -> Iterator[Piece]:
        experiment, method = self.experiment, self.experiment.method
        last = experiment.scenario.train.rounds
        for number in range(1, last + 1):  # once: a method may count whom it has chosen
            if number not in self._chosen:
                self._chosen[number] = tuple(method.choose(number, experiment.participants(number)))
        planned = [
            *self._once("setup", method.setup(), 1, simulator),
            *self._rounds(simulator),
            *self._once("finish", method.finish(), last, simulator),
        ]
        now_s = 0.0
        for plan, turns, who, numbers, is_aside in planned:
            began_s = now_s
            ops, now_s = plan.run(began_s, numbers[0], turns)
            yield Piece(ops, who, began_s, now_s, len(numbers), is_aside)

    def _rounds(self, simulator: Simulator) -> Iterator[_Planned]:
        timed: dict[tuple[int, ...], TimedPlan] = {}
        alike: dict[object, _Planned] = {}
        is_steady = simulator.prices.steady
        for number, who in self._chosen.items():
            if who not in timed:
                plan = self._plan(who, self.experiment.method.round(number, who), simulator)
                if plan is None:
                    raise Unforeseen("nothing happens")
                timed[who] = TimedPlan(plan, simulator)
            turns = tuple(timed[who].turns(number))
            like = (who, turns) if is_steady else number
            alike.setdefault(like, _Planned(timed[who], turns, who, [])).numbers.append(number)
        yield from alike.values()

    def _once(self, name: str, flow: Flow, number: int, simulator: Simulator) -> Iterator[_Planned]:
        """What happens once, before the first or after the last round, as a part of which it counts."""
        plan = self._plan(name, flow, simulator)
        if plan:
            timed = TimedPlan(plan, simulator)
            yield _Planned(timed, timed.turns(number), self._chosen[number], [number], is_aside=True)

    def _plan(self, like: object, flow: Flow, simulator: Simulator) -> Plan | None:
        """What `flow` issues, as any flow that is `like` it; None if nothing."""
        if like not in self._plans:
            try:
                found = stages(trace(flow, simulator.prices))
            except Unforeseen:
                self._refused = True
                raise
            self._plans[like] = Plan(found) if found else None
        return self._plans[like]


def _by_event_loop(experiment: Experiment) -> Iterator[Piece]:
    simulator, method = experiment.simulator, experiment.method
    for number in range(1, experiment.scenario.train.rounds + 1):
        clients = experiment.begin_round(number)
        started_s = simulator.now_s
        experiment.run_round(number, clients)
        clients = list(method.took_part(clients))
        yield Piece(simulator.take_rows(), tuple(clients), started_s, simulator.now_s, 1)
