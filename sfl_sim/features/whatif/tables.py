"""The tables of a what-if study (docs/output.md), from the answers to its points."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.build.registry import find_method
from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.metrics.scores import LAST_ROUNDS, score_of, way_to
from sfl_sim.models.network import Network
from sfl_sim.scenario.concerns import Aside, values_except
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.scenario.vary import Axis, Point
from sfl_sim.store.reading import as_stored
from sfl_sim.studies.points import Question, TimedPoint
from sfl_sim.studies.reprice import Repriced, reprice_trial
from sfl_sim.studies.retrace import records_of
from sfl_sim.studies.trained import NOT_TRAINING, TrainedRun
from sfl_sim.studies.walk import Walker, memory_bytes

ASIDE: Aside = {*NOT_TRAINING, Concern.ORDER, "train.rounds"}
"""Keys in which a training run may differ from a point whose accuracy it shows."""
NOT_OF_THE_NETWORK = frozenset({"model.cut", "clients", "server", "method", "seed", "data.partition", "data.test"})


def identity(point: Point, axes: Sequence[Axis]) -> dict[str, Any]:
    """Return the columns that identify a row's point: series, seed, and the value on every axis."""
    values = {axis.key: as_stored(axis.values)[index] for axis, index in zip(axes, point.indices, strict=True)}
    return {"series": point.series, "seed": point.variant.scenario.seed, **values}


class _Memory:
    """Memory that clients need to train their parts; every network is built once."""

    def __init__(self) -> None:
        self._networks: dict[str, Network] = {}

    def needed_bytes(self, scenario: Scenario, layers: int) -> int:
        """Return the bytes that a client with the first `layers` layers needs."""
        trains_part1 = find_method(scenario.method.name).trains_part1
        values = json.dumps([trains_part1, values_except(scenario, NOT_OF_THE_NETWORK)])
        if values not in self._networks:
            self._networks[values] = Walker(scenario).experiment.method.task.network
        return memory_bytes(scenario, self._networks[values], layers)


def point_tables(found: Iterable[TimedPoint], axes: Sequence[Axis]) -> dict[str, pd.DataFrame]:
    """Make the tables `points`, one row per point and seed, and `clients`, one row per point, seed and client."""
    memory, found = _Memory(), list(found)
    identities = pd.DataFrame([identity(one.point, axes) for one in found])
    needed = [
        {layers: memory.needed_bytes(one.point.variant.scenario, layers) for layers in set(one.held)} for one in found
    ]
    points = [{**one.figures, "client_memory_bytes": max(of.values())} for one, of in zip(found, needed, strict=True)]
    clients = pd.concat([one.clients for one in found], ignore_index=True)
    clients["memory_bytes"] = [of[layers] for one, of in zip(found, needed, strict=True) for layers in one.held]
    of_clients = identities.loc[identities.index.repeat([len(one.clients) for one in found])].reset_index(drop=True)
    return {
        "points": _beside(identities, pd.DataFrame(points)).astype({"cut": "Int64"}),
        "clients": _beside(of_clients, clients),
    }


def _beside(identities: pd.DataFrame, figures: pd.DataFrame) -> pd.DataFrame:
    """Join columns; an identity is named by keys of the scenario, such as `method`, which may vary."""
    return identities.join(figures.drop(columns=identities.columns, errors="ignore"))


def overlay_table(question: Question, runs: Sequence[Path]) -> pd.DataFrame:
    """Return a row per point and seed whose model a run in the folders `runs` trained (docs/output.md).

    The results of training in another order of service are unknown: accuracy and time are missing there.

    Raises ScenarioError if a folder holds no run, or none of the points was trained there.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        with blamed_on(run):
            found = list(_of_run(question, run))
        if not found:
            problem = "has trained no configuration of this what-if: it differs in more than system, policy and cut"
            raise ScenarioError(problem, key="--run", found=str(run))
        rows += found
    # A variant is repriced for the points of others, too: a point that was trained itself needs no such answer.
    table, at = pd.DataFrame(rows), ["series", "seed", *(axis.key for axis in question.axes)]
    return table.sort_values("valid", ascending=False, kind="stable").drop_duplicates(at).sort_index(ignore_index=True)


def _of_run(question: Question, folder: Path) -> Iterator[dict[str, Any]]:
    learned = [_what_is_learned(point.variant.scenario, question.network) for point in question.points]
    run = TrainedRun(folder)
    records = records_of(run)
    for stored in run.variants:
        trained = _what_is_learned(stored.scenario, question.network)
        recorded = records.get((stored.name, stored.scenario.seed))
        for point, wanted in zip(question.points, learned, strict=True):
            scenario = point.variant.scenario
            if recorded and trained == wanted:
                repriced = reprice_trial(recorded, stored, _there(stored.scenario, scenario))
                target = scenario.report.target_accuracy or stored.scenario.report.target_accuracy
                told = _told(repriced, target if isinstance(target, float) else None)
                yield {**identity(point, question.axes), "run": folder.name, "trained": stored.name, **told}


def _what_is_learned(scenario: Scenario, network: Network) -> dict[str, Any]:
    """Return the keys that decide the trained model; a cut at a layer of `network` is given by the layer's index."""
    keys, cut = values_except(scenario, ASIDE), scenario.model.cut
    if not isinstance(cut, ClientCuts):
        with suppress(ScenarioError):
            keys["model.cut"] = network.cut_at(cut)
    return keys


def _there(trained: Scenario, point: Scenario) -> Scenario:
    """Return the trained scenario in the system of a point."""
    return trained.model_copy(update={"clients": point.clients, "server": point.server, "servers": point.servers})


def _told(repriced: Repriced, target_accuracy: float | None) -> dict[str, Any]:
    rounds, is_known = repriced.rounds, repriced.valid
    last = rounds[score_of(rounds)].astype(float).tail(1 if repriced.stopped else LAST_ROUNDS)
    return {
        "accuracy": float(last.median()) if is_known else None,
        **way_to(target_accuracy, rounds if is_known else rounds[:0]),
        "valid": is_known,
        "reason": repriced.reason,
    }
