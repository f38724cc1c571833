"""What training runs tell of the points of a what-if study: the time to an accuracy, in each point's own world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.metrics.accuracy import LAST_ROUNDS, way_to
from sfl_sim.models.network import Network
from sfl_sim.scenario.load import Study, load
from sfl_sim.scenario.relevance import ASIDE, COMPUTING, ORDER, WORLD, without
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.store import read_manifest
from sfl_sim.studies.reprice import Repriced, reprice_cell
from sfl_sim.studies.whatif_question import Question
from sfl_sim.studies.whatif_tables import place

ELSEWHERE = ASIDE | COMPUTING | WORLD | ORDER | {"train.rounds"}
"""Keys in which a training run may differ from a point that it tells the accuracy of."""


def trained_study(run: Path) -> Study:
    """The scenario of a stored run.

    Raises ScenarioError if the folder holds none.
    """
    if "scenario" not in read_manifest(run) or not (run / "rounds.parquet").exists():
        raise ScenarioError("is not the folder of a run", key="--run", found=str(run))
    return load(run / "scenario.yaml")


def overlay_table(question: Question, runs: Sequence[Path]) -> pd.DataFrame:
    """One row per point and seed of which a run in the folders `runs` trained the model (docs/output.md).

    What would be learned in another order of service is not known: accuracy and time are missing there.

    Raises ScenarioError if a folder holds no run, or none of the points was trained there.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        with blamed_on(run):
            found = list(_of_run(question, run))
        if not found:
            problem = "has trained no point of this question: it differs in more than the world, the order and the cut"
            raise ScenarioError(problem, key="--run", found=str(run))
        rows += found
    return pd.DataFrame(rows)


def _of_run(question: Question, run: Path) -> Iterator[dict[str, Any]]:
    learned = [_what_is_learned(point.variant.scenario, question.network) for point in question.points]
    for stored in trained_study(run).variants:
        trained = _what_is_learned(stored.scenario, question.network)
        for point, wanted in zip(question.points, learned, strict=True):
            scenario = point.variant.scenario
            if trained == wanted:
                repriced = reprice_cell(run, stored, _there(stored.scenario, scenario))
                target = scenario.report.target_accuracy or stored.scenario.report.target_accuracy
                told = _told(repriced, target if isinstance(target, float) else None)
                yield {**place(point), "run": run.name, "trained": stored.name, **told}


def _what_is_learned(scenario: Scenario, network: Network) -> dict[str, Any]:
    """The keys that decide it; the cut, if it is a layer of `network`, by its index, whatever it is called."""
    keys, cut = without(scenario, ELSEWHERE), scenario.model.cut
    if not isinstance(cut, ClientCuts):
        with suppress(ScenarioError):
            keys["model.cut"] = network.cut_at(cut)
    return keys


def _there(trained: Scenario, point: Scenario) -> Scenario:
    """What was trained, in the world of a point."""
    return trained.model_copy(update={"clients": point.clients, "server": point.server})


def _told(repriced: Repriced, target_accuracy: float | None) -> dict[str, Any]:
    rounds, is_known = repriced.rounds, repriced.valid
    last = rounds["accuracy"].astype(float).tail(LAST_ROUNDS)
    return {
        "accuracy": float(last.median()) if is_known else None,
        **way_to(target_accuracy, rounds if is_known else rounds[:0]),
        "valid": is_known, "reason": repriced.reason,
    }  # fmt: skip
