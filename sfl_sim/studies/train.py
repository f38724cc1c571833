"""A study is a scenario x its grid x its seeds: run every cell, join what they give, report, publish."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sfl_sim.engine.cache_key import cell_key, code_version
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.processes import check_backend, run_cells
from sfl_sim.engine.trial import Notify, Settings, Taken, uninterrupted
from sfl_sim.errors import OutputError, ScenarioError
from sfl_sim.scenario.load import Study, digest, dump_study
from sfl_sim.store import Failure, RunFolder, Wanted, free_folder, keys_of, read_manifest, runs_beside, take, writing
from sfl_sim.studies.targets import references, ways
from sfl_sim.training.hardware import keep_freed_memory, pick_device

MAX_NUMBER = 2**31


@dataclass(frozen=True)
class Outcome:
    """Where a run lies, and whether it is `complete`, `interrupted` or `failed`."""

    folder: Path
    status: str


class CellsFailed(RuntimeError):
    """Some variants, with some seeds, failed; the others did not. Says which was the first, and why, in one line.

    Attributes:
        outcome: what there is, once it has been published.
    """

    def __init__(self, failures: Sequence[Failure], n_cells: int) -> None:
        first, *others = failures
        more = f", and {len(others)} more" if others else ""
        super().__init__(
            f"{len(failures)} of {n_cells} runs failed: {first.variant} (seed {first.seed}): {first}{more}"
        )
        self.outcome: Outcome | None = None

    def __str__(self) -> str:
        where = f"; the others are in {self.outcome.folder}, and --resume tries again" if self.outcome else ""
        return super().__str__() + where


def check(study: Study, device: torch.device | None = None) -> None:
    """Compose every variant without running it, so that a mistake in the last one shows before the first trains.

    With a `device` that is to train, refuse what it cannot compute.
    """
    for variant in study.variants:
        try:
            experiment = Experiment(variant.scenario, device=None)
            if variant.scenario.serving or variant.scenario.report.representations:
                experiment.method.deployed(0)
            if device is not None:
                experiment.check_device(device)
        except ScenarioError as error:
            raise variant.places.located(error) from error
    references(study)


def run_study(study: Study, out: Path | None, settings: Settings, notify: Notify) -> Outcome:
    """Run all cells of `study` into the folder `out` (default: `reports/<name>`, or the next free number).

    An interrupted or failed study keeps the rounds that were finished. Raises ScenarioError for bad input before any
    training, and CellsFailed after what there is has been published.
    """
    device = pick_device(settings.device)
    check_limits(study)
    check_backend(settings)
    check_checkpoints(study, settings)
    check(study, None if settings.timing_only else device)
    identity = f"{digest(study)}-{settings.meaning}"
    keys = [cell_key(variant.scenario, settings.meaning) for variant in study.variants]
    place = out or free_folder(Path("reports"), study.name, identity)
    complete = {"scenario": identity, "status": "complete"}.items() <= read_manifest(place).items()
    if settings.resume and complete and keys_of(place) == keys:
        return Outcome(place, "complete")
    folder = RunFolder(place, identity, resume=settings.resume)
    began_s = time.monotonic()
    helping = pd.DataFrame()

    def train() -> None:
        nonlocal helping
        kept = dict.fromkeys(
            (n for n, v in enumerate(study.variants) if folder.finished(n, v.scenario.train.rounds, keys[n])), place
        )
        if settings.reuse:
            kept |= _taken(study, keys, folder, without=kept)
        for number, run in kept.items():
            notify(number, Taken(run))
        run_cells({n: v for n, v in enumerate(study.variants) if n not in kept}, folder, settings, notify)
        if failures := folder.failures():
            error = CellsFailed(list(failures), len(study.variants))
            for traceback in failures.values():
                error.add_note(traceback)
            raise error
        from sfl_sim.studies.bottlenecks import retimed  # with it comes plotly, as below

        helping = retimed(study, folder.closed())

    def join(status: str) -> None:
        about = manifest(study, settings, status, began_s) | {"failed": list(map(asdict, folder.failures()))}
        staged = folder.join(study.name, dump_study(study), about, ways(study, folder.closed()))
        from sfl_sim.report.page import write_report  # plotly is imported when the first round has long begun
        from sfl_sim.report.perfetto import write_trace

        if len(helping):
            helping.to_parquet(staged / "retimed.parquet", index=False)
        write_trace(staged)
        write_report([staged], staged / "report.html")

    return fill(folder, train, join)


def _taken(study: Study, keys: Sequence[str | None], folder: RunFolder, without: Container[int]) -> dict[int, Path]:
    """Take the cells that other runs have finished; gives the run of each by the cell's number."""
    wanted = {
        n: Wanted(key, variant.scenario.train.rounds, variant.name, folder.cell_folder(n))
        for n, (variant, key) in enumerate(zip(study.variants, keys, strict=True))
        if key is not None and n not in without
    }
    return take(wanted, runs_beside(folder.out))


def fill(folder: RunFolder, work: Callable[[], None], join: Callable[[str], None]) -> Outcome:
    """Do the `work` of all cells, `join` what they left, given the status, and publish the folder.

    If the work is interrupted or fails, what is finished is published nevertheless, and nothing is left if nothing is.
    Raises OutputError if nothing more can be written; what is there then stays beside the folder's place.
    """
    status, failure = "complete", None
    try:
        with writing(folder.staging):
            work()
    except KeyboardInterrupt:
        status = "interrupted"
    except OutputError:
        folder.release()
        raise
    except Exception as error:
        status, failure = "failed", error
    if status != "complete" and not any(folder.staging.glob("cells/*/summary.json")):
        folder.discard()
        if failure:
            raise failure
        raise KeyboardInterrupt
    try:
        with uninterrupted(), writing(folder.staging):
            join(status)
            outcome = Outcome(folder.publish(), status)
    finally:
        folder.release()
    if isinstance(failure, CellsFailed):
        failure.outcome = outcome
    if failure:
        raise failure
    return outcome


def check_limits(study: Study) -> None:
    """Refuse seeds and rounds that are no whole numbers of 32 bits."""
    for key, number in [("seed", study.base.seed + study.base.repeats), ("train.rounds", study.base.train.rounds)]:
        if number > MAX_NUMBER:
            raise study.located(ScenarioError("is too large", key=key, allowed=f"less than {MAX_NUMBER}"))


def check_checkpoints(study: Study, settings: Settings) -> None:
    """Refuse checkpoints within rounds where steps wait for others, or snapshots are under way."""
    if settings.checkpoint_jobs is None:
        return
    for train, snapshots in ((v.scenario.train, v.scenario.report.snapshots) for v in study.variants):
        if train.executor != "eager" or snapshots is not None:
            found = "report.snapshots" if snapshots else f"train.executor {train.executor}"
            problem = "a run cannot be stored within a round"
            raise ScenarioError(problem, key="--checkpoint-jobs", found=found, allowed="eager, without snapshots")


def manifest(study: Study, settings: Settings, status: str, began_s: float) -> dict[str, Any]:
    """How and where it was done, for whoever finds the folder."""
    packages = ["sfl-sim", "torch", "torchvision", "numpy", "simpy", "pandas", "pyarrow", "plotly"]
    return {
        "status": status,
        "code": code_version(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(time.monotonic() - began_s, 3),
        "variants": len(study.variants),
        "computing": {
            key: list(dict.fromkeys(getattr(v.scenario.train, key) for v in study.variants))
            for key in ("executor", "precision", "compile", "max_graphs")
        },
        "keeps_freed_memory": keep_freed_memory(),
        **asdict(settings),
        "device": "none" if settings.timing_only else str(pick_device(settings.device)),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:  # run from a checkout that is not installed
        return "not installed"
