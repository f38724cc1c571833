"""Points of a what-if study, walked one after another or side by side in processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sfl_sim.engine.build import server_workers
from sfl_sim.engine.processes import end_with_parent, given_to_processes
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.concerns import NOT_LEARNED, without
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.own_code import Forbidden, Permission, permitted
from sfl_sim.scenario.presets import PRESETS
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.vary import Point
from sfl_sim.studies.walk import Walker
from sfl_sim.studies.whatif_measures import Measured

NOT_STRUCTURE = NOT_LEARNED | {Concern.SYSTEM, Concern.ORDER, Concern.COMPUTING}
"""Concerns that change the times of operations, but not the operations: points that differ in them share a walker."""


@dataclass(frozen=True)
class Found:
    """Times of a point's rounds.

    Attributes:
        figures: of the average round: `Measured.figures`, method, the clients' common cut (None without one), how.
        clients: one row per client: `Measured.clients` and its cut (missing where the model is not split, or where the
            cut changes from round to round).
        held: how many layers each client holds at most.
    """

    point: Point
    figures: dict[str, Any]
    clients: pd.DataFrame
    held: Sequence[int]


@dataclass(frozen=True)
class Refused:
    """A point that is impossible, such as a cut that leaves no work for the server."""

    point: Point
    error: ScenarioError


Answer = Found | Refused


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
            for future in as_completed([pool.submit(_walk_apart, group, given) for group in groups.values()]):
                yield from future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _structure(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios with the same operations; a preset stands for more than an order."""
    aside = NOT_STRUCTURE - {Concern.ORDER} if scenario.server.order in PRESETS else NOT_STRUCTURE
    operations = scenario.server.include_model_exchange, scenario.data.root  # which take time; where other data may lie
    return json.dumps([without(scenario, aside), operations], sort_keys=True)


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
            yield Refused(point, point.variant.places.located(error))


def _found(point: Point, walker: Walker) -> Found:
    scenario = point.variant.scenario
    walked = walker.walk(scenario)
    measured = Measured(walked, scenario.train.rounds)
    cuts = list(walker.experiment.clients()["cut"])
    same = len(set(cuts)) == 1 and not pd.isna(cuts[0])
    clients = measured.clients().assign(cut=pd.array(cuts, dtype="Int64"))
    figures = {
        "method": scenario.method.name,
        "cut": cuts[0] if same else None,
        **measured.figures(server_workers(scenario)),
        "client_joule": clients["joule"].mean(),
        "how": walked.how,
    }
    task = walker.experiment.method.task
    return Found(point, figures, clients, task.cuts or [len(task.network)] * len(cuts))
