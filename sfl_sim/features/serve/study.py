"""Serving study: requests to the trained models of every variant with every seed, trial by trial; tables and a page.

The models' answers come from a stored run, or from a run that is made first.
"""

import glob
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sfl_sim.build.checks import check_effects, check_unused
from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.features.serve.fleet import ServedFleet
from sfl_sim.runs.cache_key import named_files, names_own_code, trial_key
from sfl_sim.runs.interrupts import uninterrupted
from sfl_sim.runs.news import Counted, Notify, optional
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.concerns import NOT_LEARNED, Aside
from sfl_sim.scenario.grid import names_without, points
from sfl_sim.scenario.load import Study, Variant, digest, served, training
from sfl_sim.scenario.serving import Serving
from sfl_sim.store.folder import RunFolder, is_begun
from sfl_sim.store.reading import file_of, read_table
from sfl_sim.store.schema import tables
from sfl_sim.store.trial import is_whole, write_served
from sfl_sim.studies.launch import Outcome, folder_of, launch
from sfl_sim.studies.train import run_study
from sfl_sim.studies.trained import NOT_TRAINING, TrainedRun

ANSWERS = tables("run")["answers"]
RATE = "serving.arrivals.rate_per_s"


class Answered(NamedTuple):
    """Answers of one variant with one seed of a stored run: its name there, and its rows of answers.parquet."""

    name: str
    answers: pd.DataFrame


class ServedAnswers:
    """The answers of a stored run to the clients' test sets.

    Args:
        folder: the run's.
        aside: in what its scenario may differ from the one whose answers are asked for.

    Attributes:
        digest: identity of the run: the digest of its scenario, a dash, and `Settings.meaning`.

    Raises ScenarioError if the folder holds no run with answers.
    """

    def __init__(self, folder: Path, aside: Aside = NOT_TRAINING) -> None:
        self.folder = folder
        self._run = TrainedRun(folder)
        self._aside = aside
        self.digest = self._run.digest
        if file_of(folder, ANSWERS) is None:
            problem = "has no answers.parquet: nothing was trained there, or nothing that can be served"
            raise ScenarioError(problem, key="--run", found=str(folder))

    def of(self, trained: Variant) -> Answered:
        """Return those of the variant that was trained as `trained` says.

        Raises ScenarioError if there is none, or if it was not trained to its end.
        """
        stored, differs = self._run.nearest(trained.scenario, self._aside)
        for key, (there, wanted) in differs.items():
            problem = f"{self.folder} has no model that was trained so, but one with {there!r}"
            raise trained.places.located(ScenarioError(problem, key=key, found=wanted))
        seed, rounds = stored.scenario.seed, stored.scenario.train.rounds
        with blamed_on(self.folder):
            summary = self._run.summary_of(stored) or {"rounds": 0}
            answers = read_table(self.folder, ANSWERS, variant=stored.name, seed=seed)
        if not is_whole(summary, rounds) or answers.empty:
            done = f"{summary['rounds']} of {rounds} rounds"
            problem = f"has no answers of {stored.name} (seed {seed}), trained for {done}"
            raise ScenarioError(problem, key="--run", found=str(self.folder))
        return Answered(stored.name, answers)

    def are_up_to_date(self, trained: Variant) -> bool:
        """Return True if training this variant now would give the same: by this code, from files with equal content."""
        stored, _ = self._run.nearest(trained.scenario, self._aside)
        key = trial_key(stored.scenario, str(self.digest).partition("-")[2])
        return bool((self._run.summary_of(stored) or {}).get("key") == key)


def answers_of(training: Study, run: Path | None, settings: Settings, notify: Notify) -> ServedAnswers:
    """Return the answers of the models of `training`: from the folder `run`, else from a run in reports/ that has them.

    If there is none, or if it was trained by other code or from other data or files, or perhaps by other code of a
    user's own, it is trained now, as far as it has to be. Raises KeyboardInterrupt if that is interrupted.
    """
    if run:
        return ServedAnswers(run)
    name = glob.escape(training.name)
    own = any(names_own_code(variant.scenario) for variant in training.variants)
    folders = [] if own else [*Path("reports").glob(name), *sorted(Path("reports").glob(f"{name}-[0-9]*"))]
    for folder in folders:
        try:
            answers = ServedAnswers(folder, NOT_LEARNED)
            for variant in training.variants:
                answers.of(variant)
            if all(map(answers.are_up_to_date, training.variants)):
                return answers
        except ScenarioError:
            continue
    outcome = run_study(training, None, replace(settings, resume=is_begun(Path("reports", training.name))), notify)
    return ServedAnswers(outcome.ended())


class ServedStudy:
    """A study whose variants are served. Variants with equal training share a fleet.

    Args:
        study: what is trained, and how it is served.
        settings: of the training; with `timing_only` there is none.

    Raises ScenarioError if it cannot be used, before any training.
    """

    def __init__(self, study: Study, settings: Settings) -> None:
        self.study = served(study)
        self.settings = settings
        self.training = training(self.study)
        check_unused(self.training)
        check_effects(self.study.variants)
        self._fleets: dict[tuple[str, int], ServedFleet] = {}
        for variant in self.study.variants:
            with variant.places.locating():
                self.fleet(self.trained(variant)).check(_serving(variant), settings.timing_only)

    def trained(self, variant: Variant) -> Variant:
        """Return the variant of the training whose models `variant` serves."""
        scenario = variant.scenario.model_copy(update={"serving": Serving()})
        return next(trained for trained in self.training.variants if trained.scenario == scenario)

    def fleet(self, trained: Variant) -> ServedFleet:
        """Return the fleet with what `trained` deploys."""
        if _key(trained) not in self._fleets:
            self._fleets[_key(trained)] = ServedFleet(trained.scenario)
        return self._fleets[_key(trained)]

    def run(self, run: Path | None, out: Path | None, notify: Notify) -> Outcome:
        """Serve all trials into the folder `out` (default: `reports/<name>-serving`, or the next free number).

        Trials that an interrupted serving of the same answers has finished are kept.

        Args:
            run: the folder of the run to serve; None to find it as `answers_of` does.
        """
        study = self.study
        answers = None if self.settings.timing_only else answers_of(self.training, run, self.settings, notify)
        if run and answers is None:
            raise ScenarioError("is of no use to a timing-only serving", key="--run", found=str(run))
        known = {_key(trained): answers.of(trained) for trained in self.training.variants} if answers else {}
        served_from = f"served-{answers.digest if answers else 'timing'}"
        identity = f"{digest(study)}-{served_from}"
        keys = [
            trial_key(self.trained(v).scenario, f"{served_from}{_meaning(_serving(v))}", pixels=answers is not None)
            for v in study.variants
        ]
        series = names_without(list(points(study.base.grid)), study.base.method.name, lambda key: key == RATE)
        folder = RunFolder(folder_of(study, out, identity, "-serving"), identity, resume=True)

        def work() -> None:
            for number, variant in enumerate(study.variants):
                about = {"variant": variant.name, "seed": variant.scenario.seed, "key": keys[number],
                         "series": series[number // study.base.repeats]}  # fmt: skip
                if not folder.finished(number, about):
                    answered = known.get(_key(self.trained(variant)))
                    self._serve(variant, about, answered, folder.trial_folder(number), notify)

        def join() -> dict[str, Any]:
            # Variants that differ only in their system are served by the same stored one.
            once = {(each.name, seed): each.answers for (_, seed), each in known.items()}
            folder.join_serving(study.name, pd.concat(once.values()) if once else None)
            return {"run": str(answers.folder) if answers else None}

        def page(staged: Path) -> None:
            # Plotly is imported when the first trial has been served.
            from sfl_sim.features.serve.page import write_serving

            with optional("serving.html", notify):
                write_serving(staged, staged / "serving.html")

        return launch(study, self.settings, folder, work=work, join=join, page=page)

    def _serve(
        self, variant: Variant, about: Mapping[str, Any], answered: Answered | None, folder: Path, notify: Notify
    ) -> None:
        """Serve one variant with one seed into `folder`, with `about` in its summary."""
        fleet, title = self.fleet(self.trained(variant)), self.study.title(variant)
        model, answers = answered or (None, None)
        requests, found = fleet.serve(
            _serving(variant), answers, lambda done, total: notify(Counted(title, "request", done, total))
        )
        same = {column: about[column] for column in ("variant", "seed")}
        with uninterrupted():
            write_served(
                folder,
                requests.assign(**same)[[*same, *requests]],
                fleet.table.assign(**same)[[*same, *fleet.table]],
                {**about, "trained": model, **found},
            )


def _key(variant: Variant) -> tuple[str, int]:
    return variant.name, variant.scenario.seed


def _meaning(serving: Serving) -> str:
    """Return a text that is equal for servings with equal settings and files of equal content."""
    return f"{serving.model_dump_json()}{named_files(serving.model_dump())}"


def _serving(variant: Variant) -> Serving:
    assert variant.scenario.serving
    return variant.scenario.serving
