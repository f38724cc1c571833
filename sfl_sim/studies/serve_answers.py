"""What trained models answer to their test sets: in a run that is there, or that is made now."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sfl_sim.engine.cache_key import code_version, names_own_code
from sfl_sim.engine.trial import Notify, Settings
from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.scenario.load import Study, Variant, load
from sfl_sim.scenario.relevance import ASIDE, COMPUTING, WORLD, without
from sfl_sim.store import read_manifest
from sfl_sim.studies.train import run_study

Watch = Callable[[Study], AbstractContextManager[Notify]]
"""Shows a study while it runs."""


class Answered(NamedTuple):
    """One variant with one seed of a stored run: its name there, and its rows of answers.parquet."""

    name: str
    answers: pd.DataFrame


class Answers:
    """The answers of a stored run.

    Args:
        folder: the run's.
        aside: keys and sections in which its scenario may differ from the one whose answers are asked for.

    Attributes:
        digest: of the run.

    Raises ScenarioError if the folder holds no run with answers.
    """

    def __init__(self, folder: Path, aside: Set[str] = ASIDE | WORLD | COMPUTING) -> None:
        self.folder = folder
        self.aside = aside
        self.digest = read_manifest(folder).get("scenario")
        if self.digest is None or not (folder / "summary.json").exists():
            raise ScenarioError("is not the folder of a run", key="--run", found=str(folder))
        if not (folder / "answers.parquet").exists():
            problem = "has no answers.parquet: nothing was trained there, or nothing that can be served"
            raise ScenarioError(problem, key="--run", found=str(folder))
        self._study = load(folder / "scenario.yaml")
        with blamed_on(folder):
            summaries = json.loads((folder / "summary.json").read_text())["variants"]
            self._rounds = {(found["name"], found["seed"]): int(found["rounds"]) for found in summaries}

    def of(self, trained: Variant) -> Answered:
        """Those of the variant that was trained as `trained` says.

        Raises ScenarioError if there is none, or if it was not trained to its end.
        """
        wanted = without(trained.scenario, self.aside)
        stored = min(self._study.variants, key=lambda variant: len(self._differences(wanted, variant)))
        for key, there in self._differences(wanted, stored).items():
            problem = f"{self.folder} has no model that was trained so, but one with {there!r}"
            raise trained.places.located(ScenarioError(problem, key=key, found=wanted.get(key)))
        seed, rounds = stored.scenario.seed, stored.scenario.train.rounds
        done = self._rounds.get((stored.name, seed), 0)
        rows = [("variant", "==", stored.name), ("seed", "==", seed)]
        with blamed_on(self.folder):
            answers = pd.read_parquet(self.folder / "answers.parquet", filters=rows)
        if done < rounds or answers.empty:
            problem = f"has no answers of {stored.name} (seed {seed}), trained for {done} of {rounds} rounds"
            raise ScenarioError(problem, key="--run", found=str(self.folder))
        return Answered(stored.name, answers)

    def _differences(self, wanted: Mapping[str, Any], stored: Variant) -> dict[str, Any]:
        """The keys in which the stored variant was trained differently, and what it says there."""
        there = without(stored.scenario, self.aside)
        return {key: there.get(key) for key in {**wanted, **there} if wanted.get(key) != there.get(key)}


def answers_of(training: Study, run: Path | None, settings: Settings, watch: Watch) -> Answers:
    """The answers of what is trained in `training`: of the folder `run`, else of a run in reports/ that has trained it.

    If there is none, or if what trained it may have been other code, sfl-sim's or a user's own, it is trained now, as
    far as it has to be, which `watch` shows. Raises KeyboardInterrupt if that is interrupted.
    """
    if run:
        return Answers(run)
    name = glob.escape(training.name)
    folders = [*Path("reports").glob(name), *sorted(Path("reports").glob(f"{name}-[0-9]*"))]
    own = any(names_own_code(variant.scenario) for variant in training.variants)
    for folder in folders:
        if own or read_manifest(folder).get("code") != code_version():
            continue
        try:
            found = Answers(folder, ASIDE)
            for variant in training.variants:
                found.of(variant)
        except ScenarioError:
            continue
        return found
    with watch(training) as notify:
        outcome = run_study(training, None, replace(settings, resume=not own), notify)
    if outcome.status != "complete":
        raise KeyboardInterrupt
    return Answers(outcome.folder)
