"""A what-if study: times a scenario's rounds, by the clock alone, at every combination of keys that vary."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.build.checks import check_effects, check_unused
from sfl_sim.build.network import unpriced
from sfl_sim.errors import ScenarioError
from sfl_sim.features.whatif.draws import draws_table
from sfl_sim.features.whatif.page import write_whatif
from sfl_sim.features.whatif.tables import overlay_table, point_tables
from sfl_sim.runs.news import Counted, Notify, Warned, optional
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import Study, digest, training
from sfl_sim.scenario.vary import Axis
from sfl_sim.store import RunFolder
from sfl_sim.studies.launch import Outcome, launch, place_of
from sfl_sim.studies.points import ImpossiblePoint, Question, TimedPoint, evaluate
from sfl_sim.system.network import scaled_trace


def run_whatif(
    study: Study,
    axes: Sequence[Axis],
    out: Path | None,
    jobs: int,
    notify: Notify,
    runs: Sequence[Path] = (),
    draws: int = 0,
) -> Outcome:
    """Time all points of a question into the folder `out` (default: `reports/<name>-whatif`, or the next free number).

    Args:
        jobs: processes side by side.
        runs: folders of training runs, whose accuracies are shown where a point's model was trained.
        draws: number of systems, drawn from the stated errors of prices and profiles, in which all points are timed
            again.

    Interrupted, it keeps the points that were done; with several `jobs`, those of cuts that were done in all systems.
    After an error it keeps nothing.

    Raises ScenarioError for bad input.
    """
    began_s = time.monotonic()
    settings = Settings(timing_only=True, jobs=jobs)
    if draws < 0 or draws == 1:
        raise ScenarioError("must be 0, or 2 and more", key="draws", found=draws)
    study = training(study)
    check_unused(study)
    question = Question.of(study, axes)
    check_effects([point.variant for point in question.points])
    told = {"overlay": overlay_table(question, runs)} if runs else {}
    varied = [(axis.key, axis.values) for axis in question.axes]
    asked = json.dumps([*varied, *map(str, runs), *([draws] if draws else [])])
    identity = f"{digest(study)}-whatif-{blake2b(asked.encode(), digest_size=8).hexdigest()}"
    folder = RunFolder(place_of(study, out, identity, "-whatif"), identity)
    found: list[TimedPoint] = []

    def work() -> str:
        for noted in (unpriced(question.network), scaled_trace(study.base.clients.network)):
            if noted:
                notify(Warned(None, str(noted)))
        try:
            _collect(question, jobs, notify, found)
            if draws:
                told["draws"] = draws_table(
                    found,
                    question.axes,
                    draws,
                    jobs,
                    lambda done, total: notify(Counted("uncertainty", "point", done, total)),
                )
        except KeyboardInterrupt:
            if not found:
                raise
            return "interrupted"
        return "complete"

    def join() -> dict[str, Any]:
        _write(folder.staging, question, found, told, time.monotonic() - began_s)
        return {}

    def page(place: Path) -> None:
        with optional("whatif.html", notify):
            write_whatif(place, place / "whatif.html")

    return launch(study, settings, folder, work=work, join=join, page=page)


def _write(
    place: Path, question: Question, found: list[TimedPoint], more: Mapping[str, pd.DataFrame], wall_s: float
) -> None:
    """Write the tables and their description into the folder `place`."""
    tables = {**point_tables(found, question.axes), "layers": question.walker.experiment.layers(), **more}
    for name, table in tables.items():
        table.to_parquet(place / f"{name}.parquet", index=False)
    rounds = {one.point.variant.scenario.train.rounds for one in found}
    about = {
        "scenario": question.study.name,
        "axes": question.describe(),
        "series": list(tables["points"]["series"].unique()),
        "target_accuracy": _target(more),
        "evaluated": dict(Counter(one.figures["how"] for one in found)),
        "wall_s": round(wall_s, 3),
        "rounds": rounds.pop() if len(rounds) == 1 else None,
    }
    (place / "whatif.json").write_text(json.dumps(about, indent=2) + "\n")


def _target(told: Mapping[str, pd.DataFrame]) -> float | None:
    """Return the target accuracy of the training runs; None if they have none, or different ones."""
    asked = set(told["overlay"]["target_accuracy"].dropna()) if "overlay" in told else set()
    return asked.pop() if len(asked) == 1 else None


def _collect(question: Question, jobs: int, notify: Notify, found: list[TimedPoint]) -> None:
    """Add the times of the points' rounds to `found`, in the order of the points."""
    points = question.points
    order = {point.key: number for number, point in enumerate(points)}
    refused: list[ImpossiblePoint] = []
    try:
        for done, answer in enumerate(evaluate(points, jobs), start=1):
            if isinstance(answer, TimedPoint):
                found.append(answer)
            elif question.forgiving:
                refused.append(answer)
            else:
                raise answer.error
            notify(Counted("what if", "point", done, len(points)))
    finally:
        found.sort(key=lambda one: order[one.point.key])
    if not found:
        raise refused[0].error
