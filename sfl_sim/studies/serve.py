"""A served study: requests to what every variant with every seed has trained, cell by cell; tables and a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.engine.trial import Settings, uninterrupted
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.grid import names_without, points
from sfl_sim.scenario.load import Study, Variant, digest, dump_study, served, training
from sfl_sim.scenario.serving import Serving
from sfl_sim.store import RunFolder, free_folder, write_served
from sfl_sim.studies.serve_answers import Answers, Watch, answers_of
from sfl_sim.studies.served_fleet import ServedFleet
from sfl_sim.studies.train import Outcome, check_limits, fill, manifest

RATE = "serving.arrivals.rate_per_s"

Notify = Callable[[str, int, int], None]
"""Called with which cell is being served, the requests that have come there, and how many will."""


class ServedStudy:
    """A study whose variants are to be served. Those that are trained alike share a fleet.

    Args:
        study: what is trained, and how it is served.
        settings: of the training; with `timing_only` there is none.

    Raises ScenarioError for whatever in it cannot be used, before anything is trained.
    """

    def __init__(self, study: Study, settings: Settings) -> None:
        check_limits(study)
        self.study = served(study)
        self.settings = settings
        self.training = training(self.study)
        _refuse_what_is_idle(self.study)
        self._fleets: dict[tuple[str, int], ServedFleet] = {}
        for variant in self.study.variants:
            try:
                self.fleet(self.trained(variant)).check(_serving(variant), settings.timing_only)
            except ScenarioError as error:
                raise variant.places.located(error) from error

    def trained(self, variant: Variant) -> Variant:
        """The variant of the training whose models it serves."""
        scenario = variant.scenario.model_copy(update={"serving": Serving()})
        return next(trained for trained in self.training.variants if trained.scenario == scenario)

    def fleet(self, trained: Variant) -> ServedFleet:
        """With what `trained` deploys."""
        key = trained.name, trained.scenario.seed
        if key not in self._fleets:
            self._fleets[key] = ServedFleet(trained.scenario)
        return self._fleets[key]

    def answers(self, run: Path | None, watch: Watch) -> Answers | None:
        """What the models answer: those of the folder `run`, or as `answers_of` finds them; None if timing-only."""
        if self.settings.timing_only:
            if run:
                raise ScenarioError("is of no use to a timing-only serving", key="--run", found=str(run))
            return None
        return answers_of(self.training, run, self.settings, watch)

    def serve(self, answers: Answers | None, out: Path | None, notify: Notify) -> Outcome:
        """Serve all cells into the folder `out` (default: `reports/<name>-serving`, or the next free number).

        Cells that an interrupted serving of the same answers has finished are kept.
        """
        study = self.study
        drawn_from = pd.concat([answers.of(each).answers for each in self.training.variants]) if answers else None
        identity = f"{digest(study)}-served-{answers.digest if answers else 'timing'}"
        place = out or free_folder(Path("reports"), f"{study.name}-serving", identity)
        folder = RunFolder(place, identity, resume=True)
        series = names_without(list(points(study.base.grid)), study.base.method.name, lambda key: key == RATE)
        began_s = time.monotonic()

        def work() -> None:
            for number, variant in enumerate(study.variants):
                cell = folder.cell_folder(number)
                if not (cell / "summary.json").exists():
                    self._serve_cell(variant, series[number // study.base.repeats], answers, cell, notify)

        def join(status: str) -> None:
            about = manifest(study, self.settings, status, began_s) | {"run": str(answers.folder) if answers else None}
            staged = folder.join_serving(study.name, dump_study(study), about, drawn_from)
            from sfl_sim.report.serving import write_serving  # plotly is imported when the first cell has been served

            write_serving(staged, staged / "serving.html")

        return fill(folder, work, join)

    def _serve_cell(self, variant: Variant, series: str, answers: Answers | None, place: Path, notify: Notify) -> None:
        seed, trained = variant.scenario.seed, self.trained(variant)
        fleet = self.fleet(trained)
        model, known = answers.of(trained) if answers else (None, None)
        name = f"{variant.name} (seed {seed})" if self.study.base.repeats > 1 else variant.name
        requests, found = fleet.serve(_serving(variant), known, lambda done, total: notify(name, done, total))
        same: dict[str, Any] = {"variant": variant.name, "seed": seed}
        with uninterrupted():
            write_served(
                place,
                requests.assign(**same)[[*same, *requests]],
                fleet.table.assign(**same)[[*same, *fleet.table]],
                same | {"series": series, "trained": model} | found,
            )


def _refuse_what_is_idle(study: Study) -> None:
    """Refuse settings of which no variant makes use; where variants are compared, some may not."""
    every = [_serving(variant) for variant in study.variants]
    ranked, batched = any(s.queue == "priority" for s in every), any(s.batch.max_size > 1 for s in every)
    for serving in every:
        wait_s = serving.batch.max_wait_s
        if serving.priorities and not ranked:
            error = ScenarioError(
                "has no effect where queue is fcfs", key="serving.priorities", found=serving.priorities
            )
            raise study.located(error)
        if wait_s and not batched:
            error = ScenarioError("has no effect where max_size is 1", key="serving.batch.max_wait_s", found=wait_s)
            raise study.located(error)


def _serving(variant: Variant) -> Serving:
    assert variant.scenario.serving
    return variant.scenario.serving
