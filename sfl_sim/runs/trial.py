"""Runs a trial of a study, which is one variant with one seed, and stores its results in its folder."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from textwrap import shorten
from traceback import format_exception
from typing import Any

import pandas as pd
import torch

from sfl_sim.engine.checkpointing import CheckpointWriter, ResumePoint, StoredRound, resume_points
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.walk import Round
from sfl_sim.errors import OutputError, ScenarioError, own_place
from sfl_sim.metrics.exit_metrics import HEADLINE
from sfl_sim.metrics.rounds import absence_costs
from sfl_sim.metrics.scores import LAST_ROUNDS, VALIDATION, headline, last_medians
from sfl_sim.runs.cache_key import trial_key
from sfl_sim.runs.interrupts import uninterrupted
from sfl_sim.runs.news import Began, Counted, Ended, Notify, Warned
from sfl_sim.scenario.data import RhoOod
from sfl_sim.scenario.load import Variant
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.checkpoints import Checkpoints
from sfl_sim.store.columns import BREAKDOWN
from sfl_sim.store.files import MODEL, kept_name, writing
from sfl_sim.store.trial import Failure, TrialWriter, clear, rounds_of, write_failure
from sfl_sim.training.hardware import PRECISIONS, free, keep_freed_memory, pick_device, threads_for
from sfl_sim.training.process import own_process
from sfl_sim.training.replay import CheckpointMismatch


@dataclass(frozen=True)
class Settings:
    """Settings of the execution of a study: none changes the simulation; the first two and `threads` change bits.

    A further setting that trades bits for speed, `train.precision`, is a key of the scenario.

    Attributes:
        timing_only: walk the timeline without training.
        device: `auto`, `cpu`, `cuda`, ...
        jobs: trials run side by side in processes; with Ray, those that share a GPU; None: as many as pay
            (`backends.usual_jobs`).
        threads: intra-op threads that a trial may use; results differ in the last bits with their number, so it does
            not depend on `jobs`.
        resume: keep the trials that an interrupted run of the same scenario has finished, and go on with others from
            their last checkpoint.
        reuse: take the trials that other runs in reports/, or beside this one, have finished.
        backend: `local`, or `ray` for the nodes of a Ray cluster; `live` if every node of the system is a process.
        address: of the cluster: `auto` or `ray://...`; None starts Ray on this machine.

    Raises ScenarioError for a number of jobs or threads that is no whole number above 0.
    """

    timing_only: bool = False
    device: str = "auto"
    jobs: int | None = 1
    threads: int = torch.get_num_threads()
    resume: bool = False
    reuse: bool = False
    backend: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        for key in ("jobs", "threads"):
            number = getattr(self, key)
            is_count = isinstance(number, Integral) and not isinstance(number, bool)
            if number is not None and not (is_count and number >= 1):
                raise ScenarioError("must be a whole number above 0", key=key, found=number)

    @property
    def meaning(self) -> str:
        """The settings that decide the bits of a result, as text."""
        if self.timing_only:
            return "timing"
        live = "live-" if self.backend == "live" else ""
        return f"{live}{pick_device(self.device).type}-{self.threads}-threads"


MAX_ERROR = 500
"""Maximum of characters of an error in one line; the traceback has all of it."""
Make = Callable[[Scenario, torch.device | None], Experiment]


def attempt(
    number: int, variant: Variant, folder: Path, settings: Settings, notify: Notify, make: Make = Experiment
) -> None:
    """Run a variant with a seed into its folder; if it fails, the folder says why, and others can go on.

    Args:
        make: makes the experiment.

    Raises OutputError if the folder cannot be written any more; what it contains stays.
    """
    if not settings.resume:
        shutil.rmtree(folder, ignore_errors=True)
    clear(folder)
    try:
        with own_process(), writing(folder.parents[1]):
            _Trial(number, variant, folder, settings, notify, make).run()
    except OutputError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may end the program, too
        failure = failure_of(variant, error, rounds_of(folder) + 1)  # on its way out it has kept its whole rounds
        write_failure(folder, failure, "".join(format_exception(error)))


def failure_of(variant: Variant, error: BaseException, round: int | None = None) -> Failure:
    """Return the record of a variant with a seed that failed, with the error in one line."""
    where = own_place(error)
    most = max(0, MAX_ERROR - len(where))
    message = shorten(f"{type(error).__name__}: {error}", most, placeholder=" …").removesuffix(":")
    return Failure(variant.name, variant.scenario.seed, round, message + where)


@dataclass
class _Trial:
    """A variant with a seed that runs into its folder."""

    number: int
    variant: Variant
    folder: Path
    settings: Settings
    notify: Notify
    make: Make
    stopped: str | None = None
    """Why the rounds that have been written are all."""
    best: float = -math.inf
    """Best score on validation samples in the rounds that have been written."""

    def __post_init__(self) -> None:
        # before files and code can change under what is computed
        self.key = trial_key(self.variant.scenario, self.settings.meaning, pixels=not self.settings.timing_only)

    def warn(self, problem: str) -> None:
        self.notify(Warned(self.number, problem))

    def run(self) -> None:
        """Run from the latest usable checkpoint, or from the beginning."""
        for resume in resume_points(Checkpoints(self.folder), self.key, self.warn):
            try:
                self._run_from(resume)
            except CheckpointMismatch as error:
                self.warn(f"{resume and resume.checkpoint.folder} is not used: {error}")
            else:
                return

    def _run_from(self, resume: ResumePoint | None) -> None:
        """Run from a checkpoint, or from the beginning; whole rounds are kept, also if it fails.

        Raises CheckpointMismatch if the run cannot go on from `resume`.
        """
        n_known, self.best = len(resume.rounds) if resume else 0, -math.inf
        self.notify(Began(self.number, n_known))
        experiment = self._experiment()
        trial = TrialWriter(self.folder, self.variant.name, self.variant.scenario.seed)
        trial.add_tables({"layers": experiment.layers()})
        rounds = experiment.rounds(resume)
        writer = self._checkpoint_writer(experiment, resume)
        try:
            while (round := next(rounds, None)) is not None:
                with uninterrupted():
                    self._write_round(round, experiment, trial, n_known, writer)
        except Exception as error:
            if experiment.is_walking and not isinstance(error, CheckpointMismatch):
                raise CheckpointMismatch(f"the walk up to it fails: {type(error).__name__}: {error}") from error
            raise
        finally:
            with uninterrupted():
                if not (trial.rounds.empty or experiment.is_walking):
                    self._close(trial, experiment)
        if writer:
            writer.checkpoints.remove()

    def _experiment(self) -> Experiment:
        """Return the experiment, which this process is made ready to compute."""
        settings, scenario = self.settings, self.variant.scenario
        experiment = self.make(scenario, None if settings.timing_only else pick_device(settings.device))
        if not settings.timing_only:
            keep_freed_memory()
        torch.set_num_threads(threads_for(experiment.batch_macs, settings.threads))
        PRECISIONS[scenario.train.precision].activate()
        if experiment.meter:
            experiment.meter.tell = lambda what, done, total: self.notify(
                Counted(what, "epoch", done, total, trial=self.number)
            )
        return experiment

    def _checkpoint_writer(self, experiment: Experiment, resume: ResumePoint | None) -> CheckpointWriter | None:
        """Return the writer of checkpoints; None by the clock alone, which begins anew, and on a cluster's nodes, which
        keep no files.
        """
        if not experiment.memory or self.settings.backend != "local":
            return None
        store, figures = Checkpoints(self.folder), experiment.figures
        return CheckpointWriter(store, self.key, experiment.memory, figures=figures, resume=resume, warn=self.warn)

    def _write_round(
        self, round: Round, experiment: Experiment, trial: TrialWriter, n_known: int, writer: CheckpointWriter | None
    ) -> None:
        trial.add_round(
            round.row, round.labels, round.ops, clients=round.clients, cuts=round.cuts, confusion=round.confusion,
            joule=round.joule, leakage=round.leakage,
        )  # fmt: skip
        trial.add_tables(round.final)
        self.stopped = round.stopped
        number, keep = round.row["round"], self.variant.scenario.report.keep
        self.notify(Ended(self.number, round, is_new=number > n_known))
        is_last = round.stopped or number == self.variant.scenario.train.rounds
        score = round.row.get(VALIDATION)
        if is_best := score is not None and score > self.best:
            self.best = float(score)
        is_kept = is_best if keep == "best" else isinstance(keep, int) and number % keep == 0 and not is_last
        if is_kept and number > n_known:
            self._store_model(kept_name(number if keep != "best" else keep), trial, experiment)
        if writer and not is_last and writer.rounds < number:
            writer.after_round(StoredRound(round.row, round.labels, round.confusion, round.leakage))

    def _close(self, trial: TrialWriter, experiment: Experiment) -> None:
        """Write what belongs to the whole run so far; its last word is the summary."""
        free(len(experiment.shares))
        trial.add_tables({"clients": experiment.clients(), **experiment.histories()})
        self._store_model(MODEL, trial, experiment)
        trial.close({"key": self.key} | summary_of(self.variant, trial, experiment, self.stopped))

    def _store_model(self, name: str, trial: TrialWriter, experiment: Experiment) -> None:
        """Store the global model after the last round so far, and how to ask it, if the run trains."""
        if experiment.device is not None:
            about = {"variant": trial.variant, "seed": trial.seed, "round": len(trial.rounds)}
            about |= {"replicas": experiment.replicas()}
            adapters = experiment.adapters()
            about |= {"adapters": adapters} if adapters else {}
            trial.add_weights(experiment.weights(), {**about, **experiment.dataset.preparation}, name)


def summary_of(variant: Variant, trial: TrialWriter, experiment: Experiment, stopped: str | None) -> dict[str, Any]:
    """Return a trial's part of summary.json, without the figures that need the whole run.

    Args:
        stopped: why training has ended early; None if it has not.
    """
    scenario, rounds, metrics = variant.scenario, trial.rounds, list(variant.scenario.report.metrics)
    last_rounds = 1 if stopped else LAST_ROUNDS
    return {
        "name": variant.name,
        "method": scenario.method.name,
        "method_options": experiment.method.options.model_dump(mode="json"),
        "seed": scenario.seed,
        "rounds": len(rounds),
        **({} if experiment.dataset.goal.scores_labels else {"goal": experiment.dataset.goal.value}),
        **({} if experiment.stopping is None else {"stopped": stopped}),
        "simulated_s": float(rounds["ended_s"].iloc[-1]),
        **headline(rounds, trial.labels, last_rounds),
        **({"metrics": last_medians(rounds, metrics, last_rounds)} if metrics else {}),
        **_last(rounds, HEADLINE),
        "rho": scenario.data.test.rho if isinstance(scenario.data.test, RhoOod) else None,
        "bytes_up": int(rounds["bytes_up"].sum()),
        "bytes_down": int(rounds["bytes_down"].sum()),
        "timeline_digest": experiment.timeline_digest,
        "weights_digest": experiment.weights_digest(),
        "breakdown_s": {name: float(rounds[f"{name}_s"].sum()) for name in BREAKDOWN},
        "joule": None if experiment.joule is None else float(experiment.joule.sum()),
        **_absence(rounds.assign(variant=variant.name, seed=scenario.seed)),
        "server_model_bytes": experiment.server_model_bytes,
        "executor": experiment.executor.name,
        "threads": torch.get_num_threads(),
        "peak_graphs": experiment.graphs.peak if experiment.device else None,
    }


def _absence(rounds: pd.DataFrame) -> dict[str, float]:
    """Return what clients that go away have cost the run; nothing if none may."""
    if "present" not in rounds:
        return {}
    (costs,) = absence_costs(rounds).to_dict("records")
    lost = {name: float(costs[name]) for name in ("idle_s", "lost_share", "lost_device_s")}
    return lost | {"lost_bytes": int(costs["lost_bytes"])}


def _last(rounds: pd.DataFrame, columns: Sequence[str]) -> dict[str, float | None]:
    """Return the values of the last round's row; None for those that are missing."""
    values = rounds.reindex(columns=list(columns)).astype(float).iloc[-1].dropna()
    return {column: values.get(column) for column in columns}
