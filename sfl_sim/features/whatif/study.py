"""A what-if study: times a scenario's rounds, by the clock alone, at every combination of keys that vary."""

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
from sfl_sim.store.folder import RunFolder
from sfl_sim.studies.launch import Outcome, folder_of, launch
from sfl_sim.studies.notes import of_calls
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
    more = {"overlay": overlay_table(question, runs)} if runs else {}
    about = unpriced(question.network), scaled_trace(study.base.clients.network)
    notes = [str(noted) for noted in [*about, *of_calls(question.walker.experiment)] if noted]
    varied = [(axis.key, axis.values) for axis in question.axes]
    asked = json.dumps([*varied, *map(str, runs), *([draws] if draws else [])])
    identity = f"{digest(study)}-whatif-{blake2b(asked.encode(), digest_size=8).hexdigest()}"
    folder = RunFolder(folder_of(study, out, identity, "-whatif"), identity)
    timed: list[TimedPoint] = []

    def count(done: int, total: int) -> None:
        notify(Counted("uncertainty", "point", done, total))

    def work() -> str:
        for noted in notes:
            notify(Warned(None, noted))
        try:
            _collect(question, jobs, notify, timed)
            if draws:
                more["draws"] = draws_table(timed, question.axes, draws, jobs, count)
        except KeyboardInterrupt:
            if not timed:
                raise
            return "interrupted"
        return "complete"

    def join() -> dict[str, Any]:
        _write(folder.staging, question, timed, more, time.monotonic() - began_s)
        return {"notes": notes}

    def page(staged: Path) -> None:
        with optional("whatif.html", notify):
            write_whatif(staged, staged / "whatif.html")

    return launch(study, settings, folder, work=work, join=join, page=page)


def _write(
    folder: Path, question: Question, timed: list[TimedPoint], more: Mapping[str, pd.DataFrame], wall_s: float
) -> None:
    tables = {**point_tables(timed, question.axes), "layers": question.walker.experiment.layers(), **more}
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    rounds = {point.point.variant.scenario.train.rounds for point in timed}
    about = {
        "scenario": question.study.name,
        "axes": question.describe(),
        "series": list(tables["points"]["series"].unique()),
        "target_accuracy": _target(more),
        "evaluated": dict(Counter(point.figures["how"] for point in timed)),
        "wall_s": round(wall_s, 3),
        "rounds": rounds.pop() if len(rounds) == 1 else None,
    }
    (folder / "whatif.json").write_text(json.dumps(about, indent=2) + "\n")


def _target(tables: Mapping[str, pd.DataFrame]) -> float | None:
    """Return the target accuracy of the training runs; None if they have none, or different ones."""
    targets = set(tables["overlay"]["target_accuracy"].dropna()) if "overlay" in tables else set()
    return targets.pop() if len(targets) == 1 else None


def _collect(question: Question, jobs: int, notify: Notify, timed: list[TimedPoint]) -> None:
    """Add the times of the points' rounds to `timed`, in the order of the points."""
    points = question.points
    order = {point.key: number for number, point in enumerate(points)}
    refused: list[ImpossiblePoint] = []
    try:
        for done, answer in enumerate(evaluate(points, jobs), start=1):
            if isinstance(answer, TimedPoint):
                timed.append(answer)
            elif question.forgiving:
                refused.append(answer)
            else:
                raise answer.error
            notify(Counted("what if", "point", done, len(points)))
    finally:
        timed.sort(key=lambda answer: order[answer.point.key])
    if not timed:
        raise refused[0].error
