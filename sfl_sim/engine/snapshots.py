"""Snapshots: evaluations of the global model within a round, as if the round ended now (docs/methods/metrics.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import pandas as pd

from sfl_sim.build.build import burst_of, check_rounds
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, Method
from sfl_sim.metrics.accuracy import confusion_table
from sfl_sim.ops import On
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Clock
from sfl_sim.training.alternatives import Model
from sfl_sim.training.evaluate import Evaluation
from sfl_sim.training.steps import Train


class Snapshots:
    """Confusion matrices within the rounds that `report.snapshots` names; they change neither training nor time.

    Args:
        scenario: a scenario that asks for snapshots.
        method: the method that trains.
        evaluate: evaluates a model on the global test set.
        clock: gives the simulated time.
        after: number of the last round without snapshots.
    """

    def __init__(
        self, scenario: Scenario, method: Method, evaluate: Callable[[Model], Evaluation], clock: Clock, after: int = 0
    ) -> None:
        assert scenario.report.snapshots is not None
        self.wanted = scenario.report.snapshots
        self.burst = burst_of(scenario.server)
        self.method = method
        self.evaluate = evaluate
        self.clock = clock
        self.after = after
        self._round = self._every = self._jobs = 0
        self._tables: list[pd.DataFrame] = []

    def begin(self, round: int, clients: Sequence[int]) -> None:
        """Begin a round with a snapshot, if wanted; sets the interval: in cyclic order usually one label's turn."""
        self._round, self._jobs, self._tables = round, 0, []
        at_once = self.method.data.n_batches(clients[0]) if self.burst == inf else int(self.burst)
        every = self.wanted.every or max(1, at_once * len(clients) // len(self.method.task.label_names))
        self._every = every if round > self.after and round in self.wanted.rounds else 0
        if self._every:
            self._look(self.method.model())

    def after_job(self, op: On) -> None:
        """Take a snapshot whenever the server has begun as many training jobs as the interval says."""
        if self._every and op.step.name == Train.name:
            self._jobs += 1
            if self._jobs % self._every == 0:
                self._look(self.method.current())

    def take(self) -> pd.DataFrame | None:
        """Give the round's rows of confusion.parquet; None without snapshots."""
        return pd.concat(self._tables) if self._tables else None

    def _look(self, model: Model) -> None:
        confusion = self.evaluate(model).confusion
        assert confusion is not None, "token targets have no confusion matrix"
        table = confusion_table(confusion)
        self._tables.append(table.assign(round=self._round, job=self._jobs, time_s=self.clock.now_s))


def check_snapshots(scenario: Scenario, method: Method) -> None:
    """Check that the scenario's snapshots can be taken; otherwise raises ScenarioError."""
    wanted = scenario.report.snapshots
    if wanted is None:
        return
    name = scenario.method.name
    if scenario.servers:
        raise ScenarioError("look into one server, and cannot be taken of several", key="report.snapshots")
    if type(method).current is Method.current:
        able = [one for one, kind in METHODS.items() if kind.current is not Method.current]
        raise ScenarioError(f"{name} cannot be asked within a round", key="report.snapshots", allowed=able)
    check_rounds(scenario, "report.snapshots.rounds", wanted.rounds)
