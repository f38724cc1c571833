"""The main study: trains every trial of a scenario x its grid x its seeds, and reports."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from sfl_sim.build.checks import check_effects, check_unused
from sfl_sim.build.network import check_can_train, starting
from sfl_sim.build.setup import forget, setup_of
from sfl_sim.engine.choices import check_untrained, find_choice
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.first_step import first_step
from sfl_sim.runs.backends import check_backend, crowd, run_trials
from sfl_sim.runs.cache_key import names_own_code, trial_key
from sfl_sim.runs.news import Counted, Notify, Planned, Reused, Warned, optional, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import Study, Variant, digest, training
from sfl_sim.store.earlier import Wanted, runs_beside, take
from sfl_sim.store.files import damaged, read_manifest
from sfl_sim.store.folder import RunFolder, keys_of
from sfl_sim.studies.bottlenecks import speedups
from sfl_sim.studies.launch import Outcome, TrialsFailed, folder_of, launch
from sfl_sim.studies.notes import notes
from sfl_sim.studies.targets import references, target_figures
from sfl_sim.training.hardware import pick_device

MAX_TITLES = 200
"""Number of characters of the variants' names after a note on some of them."""
STEPS_S = 1.0
"""Seconds that the first steps of all variants may take before a run, so that nobody waits for them."""


def check(
    study: Study, device: torch.device | None = None, settings: Settings | None = None, *, steps_s: float = 0.0
) -> list[str]:
    """Build every variant without running it, so that a mistake in the last one shows before the first trains.

    With a `device` for training, check that it can compute them; unless they are for timing only, check that initial
    weights are there. Also take the first steps of variants that are likely to take up to `steps_s` in all. Gives what
    is to be noted (`notes`), each once, and of which variants if not of all. Raises ScenarioError.
    """
    study = training(study)
    settings = settings or Settings()
    noted: dict[str, list[str]] = {}
    stepped: set[str] = set()
    for variant in study.variants:
        with variant.places.locating():
            if device is not None:
                check_can_train(variant.scenario.model, device)
                setup_of(variant.scenario, pixels=True)  # which an experiment without a device does not need
            experiment = Experiment(variant.scenario, device=None)
            if variant.scenario.serving or variant.scenario.report.representations:
                experiment.method.deployed(0)
            if device is not None:
                experiment.check_device(device)
                experiment.method.task.network.check_lending(device)
            if (init := variant.scenario.model.init) and not settings.timing_only:
                starting(experiment.method.task.network, init)
            for note in notes(experiment, trained=not settings.timing_only):
                noted.setdefault(str(variant.places.located(note)), []).append(study.title(variant))
            if device is not None and device.type == "cpu" and (crowded := crowd(experiment.batch_macs, settings)):
                noted.setdefault(crowded, []).append(study.title(variant))
            if steps_s and variant.name not in stepped:  # seeds differ in numbers alone
                stepped.add(variant.name)
                steps_s = first_step(experiment, device or pick_device("auto"), steps_s)
    check_unused(study)
    check_effects(study.points)
    references(study)
    of_all = len(study.variants)
    return [
        text if len(titles) == of_all else f"{text}, in {shorten(', '.join(titles), MAX_TITLES)}"
        for text, titles in noted.items()
    ]


RunTrials = Callable[[Mapping[int, Variant], RunFolder, Settings, Notify], None]


def run_study(
    study: Study, out: Path | None, settings: Settings, notify: Notify, trials: RunTrials = run_trials
) -> Outcome:
    """Run all trials of `study` into the folder `out` (default: `reports/<name>`, or the next free number).

    An interrupted or failed study keeps the rounds that were finished. `trials` runs those with these numbers. Raises
    ScenarioError for bad input before any training, and TrialsFailed after the finished trials have been published.
    """
    study, device = training(study), pick_device(settings.device)
    if trials is run_trials:
        check_backend(settings)
    if settings.timing_only:
        for variant in study.variants:
            with variant.places.locating():
                check_untrained(find_choice(variant.scenario.clients.choice))
    identity = f"{digest(study)}-{settings.meaning}"
    path = folder_of(study, out, identity)
    complete = {"scenario": identity, "status": "complete"}.items() <= read_manifest(path).items()
    steps_s = 0.0 if settings.timing_only or (settings.resume and complete) else STEPS_S
    noted = check(study, None if settings.timing_only else device, settings, steps_s=steps_s)
    keys = [
        trial_key(variant.scenario, settings.meaning, pixels=not settings.timing_only) for variant in study.variants
    ]
    if settings.resume and complete and keys_of(path) == keys and not damaged(path):
        return Outcome(path, "complete")
    folder = RunFolder(path, identity, resume=settings.resume)

    def work() -> None:
        for problem in noted:
            notify(Warned(None, problem))
        usual = Path("reports", study.name)
        why = f"{usual} is of another scenario or other settings" if not out and path != usual else ""
        if settings.resume and folder.is_new:
            notify(Warned(None, f"nothing to resume: a new run begins in {path}{why and ', since ' + why}"))
        elif why:
            notify(Warned(None, f"{why} (`sfl-sim list runs`): this run goes to {path}"))
        if folder.is_restarted:
            hint = "" if settings.backend == "live" else "; --resume would have gone on with it"
            notify(Warned(None, f"an interrupted run in {path} begins anew{hint}"))
        notify(planned(study, "measured" if settings.backend == "live" else "simulated"))
        if settings.timing_only and any(variant.scenario.report.leakage for variant in study.variants):
            notify(Warned(None, "report.leakage: nothing is trained, so nothing is attacked"))
        for number, names in folder.damaged.items():
            notify(Warned(number, f"it is run again, since {', '.join(names)} is not what was written"))
        kept = {
            n: path
            for n, (v, key) in enumerate(zip(study.variants, keys, strict=True))
            if folder.finished(n, {"name": v.name, "key": key}, v.scenario.train.rounds)
        }
        if settings.reuse:
            kept |= _taken(study, keys, folder, without=kept)
        for number, run in kept.items():
            notify(Reused(number, run))
        trials({n: v for n, v in enumerate(study.variants) if n not in kept}, folder, settings, notify)
        if failures := folder.failures():
            again = "the same command" if settings.backend == "live" else "--resume"
            error = TrialsFailed(list(failures), len(study.variants), again)
            for traceback in failures.values():
                error.add_note(traceback)
            raise error
        with optional("speedups.parquet", notify):
            table = speedups(study, folder.closed())
            if len(table):
                table.to_parquet(folder.staging / "speedups.parquet", index=False)
        forget()  # data and fleet of a million clients take as much memory as the page

    def join() -> dict[str, Any]:
        folder.join(study.name, target_figures(study, folder.closed()))
        return {"failed": list(map(asdict, folder.failures())), "notes": noted}

    return launch(study, settings, folder, work=work, join=join, page=partial(write_pages, notify=notify))


def planned(study: Study, clock: str = "simulated") -> Planned:
    """Return the news that the trials of a study are about to run, by this clock."""
    return Planned([(study.title(variant), variant.scenario.train.rounds) for variant in study.variants], clock)


def write_pages(folder: Path, notify: Notify = silent) -> None:
    """Write the report on the run in a folder; what cannot be made is left out."""
    from sfl_sim.report.html_page import Parts  # plotly is imported when the first round has long begun
    from sfl_sim.report.pages.run import write_report

    parts = Parts(
        Exception,
        warn=lambda sentence: notify(Warned(None, sentence)),
        count=lambda done, total: notify(Counted("writing the report", "section", done, total)),
    )
    with optional("report.html", notify):
        write_report([folder], folder / "report.html", parts)
    if (folder / "leakage.parquet").exists():
        from sfl_sim.report.pages.privacy import write_privacy

        with optional("privacy.html", notify):
            write_privacy(folder, folder / "privacy.html")


def _taken(study: Study, keys: Sequence[str], folder: RunFolder, without: Container[int]) -> dict[int, Path]:
    """Take the trials that other runs have finished; gives the run of each by the trial's number.

    Trials with a user's own code are not taken: a key does not cover everything that it may read.
    """
    wanted = {
        n: Wanted(key, variant.scenario.train.rounds, variant.name, folder.trial_folder(n))
        for n, (variant, key) in enumerate(zip(study.variants, keys, strict=True))
        if n not in without and not names_own_code(variant.scenario)
    }
    return take(wanted, runs_beside(folder.out))
