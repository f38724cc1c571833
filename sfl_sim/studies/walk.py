"""Walks through the rounds of a scenario by the clock alone, in one system after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sfl_sim.engine.build import build_clock, build_world
from sfl_sim.engine.estimate import SecondsPerSample
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.walk import Walk, WalkedRound
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Plans
from sfl_sim.sim.trace import NotPlannable
from sfl_sim.studies.recut import recut
from sfl_sim.system.fleet import Fleet

RECURSION, EVENT_LOOP = "recursion", "event loop"


class Walked(NamedTuple):
    """Timed rounds of a scenario in one system.

    Attributes:
        rounds: the rounds; by `RECURSION`, equal rounds are one, and setup and finish are apart.
        how: the clock, `RECURSION` or `EVENT_LOOP`.
    """

    fleet: Fleet
    rounds: list[WalkedRound]
    how: str


class Walker:
    """Walks scenarios that differ only in their system: the operations of their flows are planned once.

    Times are those of a run, up to rounding where equal rounds are walked as one.

    Args:
        scenario: one of them, without grid.

    Raises ScenarioError if the scenario cannot be used.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.experiment = Experiment(scenario, device=None)
        self._walked = self.experiment
        self._cuts: Sequence[int] | None = None
        self._plans: Plans = {}

    @property
    def follows_the_world(self) -> bool:
        """True if the method has asked for its clients' speeds, so that its operations in other systems are unknown."""
        asked = self._walked.method.task.sample_s
        return isinstance(asked, SecondsPerSample) and asked.asked

    def recut(self, cuts: Sequence[int]) -> None:
        """Let client c hold the layers 1 to `cuts[c]` from now on, instead of the scenario's cut.

        Raises ScenarioError if the method does not allow these cuts.
        """
        recut(self.experiment, cuts)
        self._cuts = cuts
        self._plans.clear()

    def walk(self, scenario: Scenario) -> Walked:
        """Walk all rounds of `scenario`, which differs in its system alone.

        Raises ScenarioError if the scenario cannot be used.
        """
        experiment, scenario = self.experiment, expand(scenario)
        fleet = build_world(scenario, len(experiment.shares))
        # Who is there depends on the system's times, and so does what a method has chosen.
        if fleet.presence is not None:
            method = experiment.method
            experiment.replace_method(type(method)(method.task, method.options))
            self._plans.clear()
        clock = build_clock(scenario, fleet, experiment.executor, experiment.counts, plans=self._plans)
        try:
            return Walked(fleet, Walk(experiment, clock).alike(), RECURSION)
        except NotPlannable:
            self._walked = experiment = Experiment(scenario, device=None)
        if self._cuts is not None:
            recut(experiment, self._cuts)
        return Walked(fleet, list(experiment.walk.rounds()), EVENT_LOOP)
