"""Studies in which keys vary: the question that spreads points, the walk through each, and attacks at all of them."""

from __future__ import annotations

import json
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.build.clock import server_workers
from sfl_sim.build.registry import find_method, method_options
from sfl_sim.engine.round_tables import device_groups
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.breakdown import by_client, traffic
from sfl_sim.models.network import Network
from sfl_sim.runs.backends import KILLED, POLL_S, given_to_processes
from sfl_sim.runs.interrupts import end_with_parent, shielded, uninterrupted
from sfl_sim.scenario.concerns import NOT_LEARNED, values_except
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import Study, Variant, changed, extended, training
from sfl_sim.scenario.own_code import Forbidden, Permission, permitted
from sfl_sim.scenario.presets import ORDER_PRESETS
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.scenario.vary import ALL, OPTION, Axis, Point, spread
from sfl_sim.store import places
from sfl_sim.store.columns import BREAKDOWN
from sfl_sim.studies.walk import Walked, Walker

CUT = "model.cut"
MODEL = ("model", "model.name", "model.factory", "model.path")


@dataclass(frozen=True)
class Question:
    """A scenario and the keys that vary.

    Attributes:
        forgiving: True if impossible points are left out, because the user has not named them (`ALL`).
    """

    study: Study
    axes: tuple[Axis, ...]
    forgiving: bool = False

    @classmethod
    def of(cls, study: Study, axes: Sequence[Axis]) -> Question:
        """Return the question with `ALL` replaced by the possible values.

        Raises ScenarioError for axes that do not fit the scenario.
        """
        if not axes:
            raise ScenarioError("nothing varies", allowed=f"{OPTION} {CUT}=all, for instance", file=OPTION)
        question = cls(study, tuple(axes))
        return cls(study, tuple(map(question._closed, axes)), any(axis.is_open for axis in axes))

    def _closed(self, axis: Axis) -> Axis:
        if not axis.is_open:
            return axis
        if not self.has_one_model:
            raise ScenarioError("has other cuts in other models: list them", key=CUT, found=ALL, file=OPTION)
        if not self.walker.experiment.method.is_split:
            name = self.study.variants[0].scenario.method.name
            raise ScenarioError(f"{name} is not split", key=CUT, found=ALL, file=OPTION)
        return replace(axis, values=tuple(range(1, len(self.network))))

    @property
    def has_one_model(self) -> bool:
        """True if the layers are the same at all points."""
        used = [variant.scenario.model for variant in self.study.variants]
        models = {(model.name, model.factory, model.path) for model in used}
        return len(models) == 1 and not any(axis.key in MODEL for axis in self.axes)

    @cached_property
    def walker(self) -> Walker:
        """Walker of the scenario as it is."""
        variant = self.study.variants[0]
        with variant.places.locating():
            return Walker(variant.scenario)

    @property
    def network(self) -> Network:
        """Network of the scenario as it is."""
        return self.walker.experiment.method.task.network

    @cached_property
    def points(self) -> list[Point]:
        """The points, in the order of the tables."""
        return list(spread(self.study, self.axes))

    def describe(self) -> list[dict[str, Any]]:
        """Return the axes as in whatif.json."""
        return [
            {"key": axis.key, "values": list(axis.values), "names": [self._name(axis.key, v) for v in axis.values],
             "base": self.base(axis)}
            for axis in self.axes
        ]  # fmt: skip

    def base(self, axis: Axis) -> int | None:
        """Return the index of the scenario's own value; None if it is not among the values."""
        own = self.study.base
        for index, value in enumerate(axis.values):
            if self._is_layer(axis.key, value) and not isinstance(own.model.cut, ClientCuts):
                if self.network.cut_at(value) == self.network.cut_at(own.model.cut):
                    return index
            elif changed(own, {axis.key: value}, self.study.variants[0].places) == own:
                return index
        return None

    def _is_layer(self, key: str, value: Any) -> bool:
        """Return True if the value means a layer that has one name at all points."""
        return key == CUT and not isinstance(value, dict) and self.has_one_model

    def _name(self, key: str, value: Any) -> str:
        if self._is_layer(key, value):
            return self.network.layers[self.network.cut_at(value) - 1].name
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


OWN = ("device", "uplink", "queue", "server", "downlink")
"""Places where a client spends time by itself; in the rest of a round it waits for others."""


class RoundFigures:
    """Measures of the average round of `walked`.

    Args:
        rounds: how many there are.
    """

    def __init__(self, walked: Walked, rounds: int) -> None:
        self.fleet = walked.fleet
        self.rounds = rounds
        self.round_s = walked.simulated_s / rounds
        self._idle_s = walked.idle_s / rounds
        self._walked = walked.rounds
        self._spent = [by_client(one.busy, one.clients, one.started_s, one.ended_s) for one in walked.rounds]

    def figures(self, workers: Callable[[str], float]) -> dict[str, Any]:
        """Give its duration, its breakdown for the average participant, its traffic, and the busiest server's load.

        Args:
            workers: gives the number of workers of a server, by its name.
        """
        seconds = dict.fromkeys(BREAKDOWN, 0.0) | {"idle": self._idle_s}
        moved: dict[str, float] = defaultdict(float, bytes_up=0.0, bytes_down=0.0)
        busy_s: dict[str, float] = defaultdict(float)
        for each, spent in zip(self._walked, self._spent, strict=True):
            weight = each.n_rounds / self.rounds
            for name, of_each_s in spent.items():
                seconds[name] += weight * float(of_each_s.mean())
            for name, size_bytes in traffic(each.ops).items():
                moved[name] += weight * size_bytes
            jobs = each.ops[places.at_servers(each.ops["node"])]
            for name in np.unique(jobs["node"]):
                own = jobs[jobs["node"] == name]
                busy_s[name.decode()] += weight * float((own["ended_s"] - own["started_s"]).sum())
        busy = [of_each_s / (workers(name) * self.round_s) for name, of_each_s in busy_s.items() if self.round_s]
        return {
            "round_s": self.round_s,
            **{f"{name}_s": spent_s for name, spent_s in seconds.items()},
            **moved,
            "server_busy": max(busy, default=0.0) if busy and np.isfinite(max(map(workers, busy_s))) else None,
        }

    def clients(self) -> pd.DataFrame:
        """Make a table of the clients: device, group, rates, and time and energy by place in an average round.

        Averages are over the rounds in which a client takes part; NaN if it never does, and for energy without power.
        """
        n = len(self.fleet.macs_per_s)
        seconds = {name: np.zeros(n) for name in (*OWN, "rest")}
        rounds, joule = np.zeros(n), np.full(n, np.nan if self.fleet.power is None else 0.0)
        for each, spent in zip(self._walked, self._spent, strict=True):
            who = np.asarray(each.clients)
            rounds[who] += 0 if each.is_aside else each.n_rounds
            for name, of_each_s in spent.items():
                seconds[name if name in OWN else "rest"][who] += each.n_rounds * of_each_s
            if (spent_joule := each.client_joule(self.fleet)) is not None:
                joule += each.n_rounds * spent_joule
        rounds[rounds == 0] = np.nan
        return pd.DataFrame(
            {
                "client": np.arange(n), "device": self.fleet.devices, "group": device_groups(self.fleet),
                "macs_per_s": self.fleet.macs_per_s, "uplink_bps": self.fleet.uplinks.mean_bps,
                "downlink_bps": self.fleet.downlinks.mean_bps,
                **{f"{name}_s": spent_s / rounds for name, spent_s in seconds.items()}, "joule": joule / rounds,
            }
        )  # fmt: skip


NOT_STRUCTURE = NOT_LEARNED | {Concern.SYSTEM, Concern.ORDER, Concern.COMPUTING}
"""Concerns that change the times of operations, but not the operations: points that differ in them share a walker."""


@dataclass(frozen=True)
class TimedPoint:
    """Times of a point's rounds.

    Attributes:
        figures: of the average round: `RoundFigures.figures`, method, the clients' common cut (None without one), how.
        clients: one row per client: `RoundFigures.clients` and its cut (missing where the model is not split, or where
            the cut changes from round to round).
        held: how many layers each client holds at most.
    """

    point: Point
    figures: dict[str, Any]
    clients: pd.DataFrame
    held: Sequence[int]


@dataclass(frozen=True)
class ImpossiblePoint:
    """A point that is impossible, such as a cut that leaves no work for the server."""

    point: Point
    error: ScenarioError


Answer = TimedPoint | ImpossiblePoint


def evaluate(points: Sequence[Point], jobs: int = 1) -> Iterator[Answer]:
    """Generate an answer to every point, in the order of completion; several `jobs` run in as many processes."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(_structure(point.variant.scenario), []).append(point)
    if jobs == 1:
        for group in groups.values():
            yield from _walk(group)
        return
    given = given_to_processes(point.variant.scenario for point in points)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        try:
            with shielded():  # the processes get no signals: we end them
                running = {pool.submit(_walk_apart, group, given) for group in groups.values()}
            while running:
                with uninterrupted():  # or else a future might stay locked
                    done, running = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        except BaseException as error:
            for process in [*pool._processes.values()]:  # of points under way nothing is kept
                process.kill()
            if pool._broken:  # which a submit that meets it half closed tells as an OSError
                raise RuntimeError(f"a helper of --jobs does not answer: {KILLED}") from error
            raise


def _structure(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios with the same operations; a preset stands for more than an order."""
    aside = NOT_STRUCTURE - {Concern.ORDER} if scenario.server.order in ORDER_PRESETS else NOT_STRUCTURE
    operations = scenario.server.include_model_exchange, scenario.data.root  # which take time; where other data may lie
    return json.dumps([values_except(scenario, aside), operations], sort_keys=True)


def _walk_apart(points: list[Point], given: Permission) -> list[Answer]:
    with permitted(given):
        return list(_walk(points))


def _walk(points: Sequence[Point]) -> Iterator[Answer]:
    walker = None
    for point in points:
        scenario = point.variant.scenario
        try:
            if walker is None or walker.follows_the_world:
                walker = Walker(scenario)
            yield _found(point, walker)
        except Forbidden as error:
            raise point.variant.places.located(error) from error
        except ScenarioError as error:
            yield ImpossiblePoint(point, point.variant.places.located(error))


def _found(point: Point, walker: Walker) -> TimedPoint:
    scenario = point.variant.scenario
    walked = walker.walk(scenario)
    measured = RoundFigures(walked, scenario.train.rounds)
    task = walker.experiment.method.task
    cuts: Sequence[int] = () if task.round_cuts else task.cuts
    clients = measured.clients()
    clients["cut"] = pd.Series(cuts, dtype="Int64").reindex(clients.index)
    figures = {
        "method": scenario.method.name,
        "cut": cuts[0] if len(set(cuts)) == 1 else None,
        **measured.figures(partial(server_workers, scenario)),
        "client_joule": clients["joule"].mean(),
        "how": walked.how,
    }
    return TimedPoint(point, figures, clients, task.cuts or [len(task.network)] * len(clients))


def attacked(study: Study, axes: Sequence[Axis]) -> Study:
    """Return the study with the values of `axes` in its grid, and with attacks, usual ones unless it asks for some.

    Its name says what it is. Raises ScenarioError for axes that do not fit the scenario, and if no method has a cut.
    """
    study = training(study)
    layer: dict[str, object] = {"name": f"{study.name}-privacy"}
    if axes:
        closed = Question.of(study, axes).axes
        list(spread(study, closed))  # which refuses keys that the grid sets
        own = study.base.grid
        parts = [own] if isinstance(own, Mapping) else own or [{}]
        layer["grid"] = [{**part, **{axis.key: list(axis.values) for axis in closed}} for part in parts]
    if all(variant.scenario.report.leakage is None for variant in study.variants):
        layer["report.leakage"] = {}
    plan = extended(study, layer)
    if not any(_splits(variant) for variant in plan.variants):
        problem = "has no cut between clients and server here, so there is nothing to attack"
        raise study.located(ScenarioError(problem, key="method.name", found=plan.variants[0].scenario.method.name))
    return plan


def _splits(variant: Variant) -> bool:
    """True if the variant's method has a cut, as its options say."""
    kind = find_method(variant.scenario.method.name)
    with variant.places.locating():
        return kind.has("is_split", method_options(kind, variant.scenario))
