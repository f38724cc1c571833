"""Repricing: a stored run walked again in another system, into a folder of its own with a report like any run's."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import headline, way_to
from sfl_sim.runs.interrupts import uninterrupted
from sfl_sim.runs.news import Began, Ended, Notify
from sfl_sim.runs.trial import Settings, summary_of
from sfl_sim.scenario.concerns import CONCERNS, NOT_LEARNED, differences
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import Overrides, Variant, digest, load
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.store.files import read_manifest
from sfl_sim.store.folder import RunFolder
from sfl_sim.store.trial import TrialWriter
from sfl_sim.studies.launch import Outcome, folder_of, launch
from sfl_sim.studies.retrace import Recorded, Retracing, Unwalkable, records_of
from sfl_sim.studies.targets import target_figures
from sfl_sim.studies.train import check, planned, write_pages
from sfl_sim.studies.trained import TrainedRun

OF_TRAINING = ("weights_digest", "executor", "threads", "peak_graphs")
"""Keys of the summary that are taken from the trained run if it ends with the same round."""
OF_SYSTEM = frozenset({Concern.SYSTEM, Concern.ORDER})
"""Concerns that may change."""


@dataclass(frozen=True)
class Repriced:
    """A variant with a seed of a stored run, in another system.

    Attributes:
        rounds: as in rounds.parquet; results of training are null from the first round on that would have to be
            trained again. They end before a round in which the method reads a number that only training can give.
        ops: all operations (`OP_DTYPE`).
        reason: why it would have to be trained, and from which round on; None if all its results of training hold.
        stopped: why training ends early there; None if it does not.
    """

    rounds: pd.DataFrame
    ops: NDArray[np.void]
    reason: str | None
    stopped: str | None

    @property
    def valid(self) -> bool:
        """True if all its results of training hold."""
        return self.reason is None


def reprice_trial(recorded: Recorded, variant: Variant, scenario: Scenario) -> Repriced:
    """Walk the record of a variant with a seed in the system of `scenario`.

    Raises ScenarioError if `scenario` is another training than `variant`, or if the record cannot be walked again
    (`Unwalkable`).
    """
    check_same_training(variant, scenario)
    retracing = Retracing(recorded, variant.scenario, scenario)
    rounds = list(retracing.rounds())
    table = pd.DataFrame([round.row for round in rounds]) if rounds else recorded.rounds[:0]
    ops = np.concatenate([np.empty(0, OP_DTYPE), *(round.ops for round in rounds)])
    return Repriced(table, ops, retracing.reason, retracing.stopped)


def check_same_training(variant: Variant, scenario: Scenario) -> None:
    """Check that `scenario` differs from that of `variant` in its system alone; otherwise raises ScenarioError."""
    for key, (_, wanted) in differences(variant.scenario, scenario, NOT_LEARNED | OF_SYSTEM).items():
        problem = "is not part of the system configuration alone: it decides what is learned, which must be trained"
        of_system = sorted(each for each in CONCERNS if CONCERNS[each] in OF_SYSTEM and not key.startswith(each))
        raise ScenarioError(problem, key=key, found=wanted, allowed=of_system)


@dataclass(frozen=True)
class Verdict:
    """The result of one variant with one seed.

    Attributes:
        rounds: number of rounds whose times are known; without any, it is left out.
        valid_rounds: number of rounds before the first one that would have to be trained.
        reason: why it would have to be trained, or cannot be walked again; None if all results of training hold.
        before_s, after_s: simulated seconds at the end of those rounds; None without any.
        to_accuracy_before_s: seconds of the recorded run to the target; None without one, or if it was not reached.
    """

    variant: str
    seed: int
    rounds: int = 0
    valid_rounds: int = 0
    reason: str | None = None
    before_s: float | None = None
    after_s: float | None = None
    to_accuracy_before_s: float | None = None


class Repricing:
    """The run in a folder, after `key=value` overrides of its system.

    Attributes:
        study: the study in the other system.

    Raises ScenarioError if there is no run, no override or none that changes anything, or if one is not part of the
    system configuration alone.
    """

    def __init__(self, folder: Path, overrides: Overrides) -> None:
        run = TrainedRun(folder, "run")
        stored = records_of(run)
        if not overrides:
            raise ScenarioError("are missing: without one the system is the same", key="overrides (--set)")
        self.folder, self.digest, self.recorded = folder, run.digest, run.variants
        keys = [(was.name, was.scenario.seed) for was in self.recorded]
        self.finished = {number: stored[key] for number, key in enumerate(keys) if key in stored}
        self.study = load(folder / "scenario.yaml", overrides)
        if [each.name for each in self.study.variants] != [each.name for each in self.recorded]:
            problem = "can change the system configuration of variants, but not the list of variants"
            raise ScenarioError(problem, key="grid", file="--set")
        for was, variant in zip(self.recorded, self.study.variants, strict=True):
            with variant.places.locating():
                check_same_training(was, variant.scenario)
        if [each.scenario for each in self.study.variants] == [was.scenario for was in self.recorded]:
            raise ScenarioError("change nothing: every value is that of the run", key="overrides (--set)")
        self.notes = check(self.study, settings=Settings(timing_only=True))
        if (status := read_manifest(folder).get("status")) != "complete":
            self.notes.append(f"the run that is repriced is {status}: what it lacks is missing here, too")

    @property
    def changes(self) -> dict[str, list[str]]:
        """Both values of every key that some variant has changed, as text; of variants that differ, the last's."""
        pairs = zip(self.recorded, self.study.variants, strict=True)
        changed = [differences(was.scenario, variant.scenario, NOT_LEARNED) for was, variant in pairs]
        return {key: list(map(str, values)) for each in changed for key, values in each.items()}

    def run(self, out: Path | None, notify: Notify) -> Outcome:
        """Walk all trials into the folder `out` (default: `reports/<name>-repriced`, or the next free number).

        Trials of which the run has no finished round are left out.

        Raises ScenarioError if no trial can be walked again.
        """
        study = self.study
        identity = f"{digest(study)}-repriced-{self.digest}"
        folder = RunFolder(folder_of(study, out, identity, "-repriced"), identity)
        verdicts: list[Verdict] = []

        trained = {n: each.rounds.assign(accuracy=each.rounds.get("accuracy")) for n, each in self.finished.items()}
        before = target_figures(study, {n: (each.summary, trained[n]) for n, each in self.finished.items()})

        def work() -> None:
            notify(planned(study))
            for number, recorded in self.finished.items():
                variant = study.variants[number]
                trial = TrialWriter(folder.trial_folder(number), variant.name, variant.scenario.seed)
                retracing = Retracing(recorded, self.recorded[number].scenario, variant.scenario)
                verdicts.append(_walk(number, retracing, variant, trial, before[number]["time_to_accuracy_s"], notify))
            if not any(verdict.rounds for verdict in verdicts):
                raise ScenarioError(f"nothing is left of it: {verdicts[0].reason}", key="run", found=str(self.folder))

        def join() -> dict[str, Any]:
            closed = folder.closed().items()
            after = {n: before[n] | way_to(before[n]["target_accuracy"], rounds) for n, (_, rounds) in closed}
            folder.join(study.name, after)
            source = {"folder": str(self.folder.resolve()), "scenario": self.digest, "changes": self.changes}
            return {"repriced_from": source, "repriced": [asdict(verdict) for verdict in verdicts],
                    "notes": self.notes}  # fmt: skip

        return launch(
            study, Settings(timing_only=True), folder, work=work, join=join, page=partial(write_pages, notify=notify)
        )


def _walk(
    number: int, retracing: Retracing, variant: Variant, trial: TrialWriter, target_s: float | None, notify: Notify
) -> Verdict:
    """Walk a recorded trial, which took `target_s` to its target, into another; that is closed if it has any rounds."""
    notify(Began(number))
    trial.add_tables({"layers": retracing.experiment.layers()})
    recorded = retracing.recorded
    try:
        for round in retracing.rounds():
            trial.add_round(round.row, round.labels, round.ops, clients=round.clients, joule=round.joule)
            notify(Ended(number, round))
    except Unwalkable as error:
        return Verdict(trial.variant, trial.seed, reason=error.problem, to_accuracy_before_s=target_s)
    rounds, valid, reason = trial.rounds, retracing.valid_rounds, retracing.reason
    if rounds.empty:
        return Verdict(trial.variant, trial.seed, reason=reason, to_accuracy_before_s=target_s)
    summary = summary_of(variant, trial, retracing.experiment, retracing.stopped)
    if reason is not None:
        unknown = {key: None for key in ("stopped", "metrics") if key in summary}
        summary |= headline(rounds[:0], trial.labels) | unknown
    elif len(rounds) == len(recorded.rounds):
        summary |= {key: recorded.summary.get(key) for key in OF_TRAINING}
    with uninterrupted():
        experiment = retracing.experiment
        trial.add_tables({"clients": experiment.clients(), **experiment.walk.participation.tables()})
        trial.close(summary)
    before_s, after_s = (float(table["ended_s"].iloc[len(rounds) - 1]) for table in (recorded.rounds, rounds))
    return Verdict(trial.variant, trial.seed, len(rounds), valid, reason, before_s, after_s, target_s)
