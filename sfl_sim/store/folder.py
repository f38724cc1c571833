"""Folder of a run: opened beside its place, filled trial by trial, joined, published."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.store.checkpoints import CHECKPOINTS
from sfl_sim.store.files import (
    MODEL,
    SUMS,
    contents,
    damaged,
    read_json,
    read_manifest,
    remove,
    seal,
    settle,
    write_json,
)
from sfl_sim.store.lock import Lock
from sfl_sim.store.tables import concatenate, of_trials
from sfl_sim.store.trial import FAILURE, SUMMARY, TRACEBACK, Failure, clear, is_whole, read_failure

TRIALS = "trials"
"""Name of the folder of the trials while a run is under way."""
AT_FIRST = {"manifest.json", "manifest.json.part"}
"""Names of the first files of a run, which a kill may have left before they were whole."""
SEALED = "*.parquet", "*.json", "*.yaml", "checkpoints/*"
"""Files of a run that have checksums: all but the pages, which may be written again."""


class RunFolder:
    """The folder of a run.

    Args:
        out: its final place.
        digest: digest of the scenario and settings; a folder with another digest is a different run.
        resume: keep the trials that an interrupted or killed run of this scenario has finished.

    Attributes:
        is_new: True if nothing was there.
        is_restarted: True if an interrupted or killed run was there that was not to be resumed.
        damaged: names of the files, by the number of their trial, for which a trial that was closed has to run again.

    Raises ScenarioError if another run or file is there, or another process is writing there.
    """

    def __init__(self, out: Path, digest: str, *, resume: bool = False) -> None:
        self.out = out
        self.digest = digest
        self.damaged: dict[int, list[str]] = {}
        if not out.name:
            raise ScenarioError("a run needs a folder of its own", key="--out", found=str(out))
        self.staging = _staging(out)
        try:
            _refuse_link(out)
            str(out).encode()  # tables and pages that name it are UTF-8
            out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(out)
            try:
                self._open(resume)
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise ScenarioError(f"cannot write there: {error.strerror}", key="--out", found=str(out)) from error
        except UnicodeEncodeError as error:
            raise ScenarioError("is not UTF-8 text", key="--out", found=str(out)) from error

    def _open(self, resume: bool) -> None:
        if not self.out.exists() and read_manifest(self._old_results).get("scenario") == self.digest:
            self._old_results.rename(self.out)  # killed between the two moves of `publish`
        self.is_new = not (self.out.exists() or self.staging.exists())
        for folder in (self.out, self.staging):
            self._refuse_others(folder)
        _refuse_link(self.staging)
        is_whole = not self.out.exists() or read_manifest(self.out).get("status") == "complete"
        self.is_restarted = not resume and (self.staging.exists() or not is_whole)
        self._remove_what_is_discarded(not resume)
        if resume and not (is_whole or self.staging.exists()):
            self.out.rename(self.staging)
        for path in self.staging.rglob("*"):
            _refuse_link(path)
        self.staging.mkdir(exist_ok=True)
        write_json(self.staging / "manifest.json", {"scenario": self.digest, "status": "running"})
        settle(self.out.parent)
        for trial in self._closed():
            if names := damaged(trial):
                self.damaged[int(trial.name)] = names
                clear(trial)

    @property
    def _old_results(self) -> Path:
        """Folder of the results of an earlier run while they are replaced."""
        return self.out.with_name(f".{self.out.name}.replaced")

    def _remove_what_is_discarded(self, staging: bool) -> None:
        """Remove what a kill has left of a discarded folder, and discard the one of a run that was under way, if asked.

        It gets another name first: what a kill leaves of it must not be taken for a run.
        """
        discarded = self.out.with_name(f".{self.out.name}.discarded")
        remove(discarded)
        if staging and self.staging.exists():
            self.staging.rename(discarded)
            remove(discarded)

    def _refuse_others(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ScenarioError("is a file; a run needs a folder", key="--out", found=str(folder))
        if _holds_another_run(folder, self.digest):
            raise ScenarioError(
                "the folder holds something else than a run of this scenario with these settings; choose another",
                key="--out",
                found=str(folder),
            )

    def finished(self, number: int, summary: Mapping[str, Any], rounds: int | None = None) -> bool:
        """Return True if trial `number` has been closed with these entries in its summary, and has not failed.

        Args:
            number: of the trial.
            summary: the entries.
            rounds: number of its rounds, unless it has stopped as its scenario says; None: any.
        """
        trial = self.trial_folder(number)
        stored = read_json(trial / SUMMARY)
        is_it = all(key in stored and stored[key] == value for key, value in summary.items())
        return is_it and (rounds is None or is_whole(stored, rounds)) and not (trial / FAILURE).exists()

    def trial_folder(self, number: int) -> Path:
        """Return the folder of trial `number` while the run is under way."""
        return self.staging / TRIALS / f"{number:04d}"

    def closed(self) -> dict[int, tuple[dict[str, Any], pd.DataFrame]]:
        """Return the summary and the rounds of every closed trial, by its number."""
        return {
            int(trial.name): (contents(trial / SUMMARY), pd.read_parquet(trial / "rounds.parquet"))
            for trial in self._closed()
        }

    def failures(self) -> dict[Failure, str]:
        """Return the failures of trials, in their order, with the traceback of each."""
        trials = sorted(path.parent for path in self.staging.glob(f"{TRIALS}/*/{FAILURE}"))
        return {
            failure: (trial / TRACEBACK).read_text(encoding="utf-8")
            for trial in trials
            if (failure := read_failure(trial))
        }

    @property
    def has_trials(self) -> bool:
        """True if a trial has been closed."""
        return any(self._closed())

    def _closed(self) -> list[Path]:
        paths = self.staging.glob(f"{TRIALS}/*/{SUMMARY}")
        return sorted(path.parent for path in paths if path.parent.name.isdecimal())

    def join(self, name: str, additions: Mapping[int, Mapping[str, Any]]) -> None:
        """Join the closed trials into the run's tables, in the staging folder.

        `additions` to the summaries, by the number of the trial, are what only the whole run can tell.
        """
        trials = self._join_tables(of_trials("run"))
        variants = [contents(trial / SUMMARY) | dict(additions.get(int(trial.name), {})) for trial in trials]
        write_json(self.staging / "summary.json", {"scenario": name, "variants": variants})
        checkpoints = self.staging / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        for trial in trials:
            for path in trial.glob(f"{MODEL}*.*"):
                shutil.copyfile(path, checkpoints / path.name.replace(MODEL, trial.name))

    def join_serving(self, name: str, answers: pd.DataFrame | None) -> None:
        """Join the closed trials of served fleets; the `answers` that they drew from are stored beside their tables."""
        trials = [contents(trial / SUMMARY) for trial in self._join_tables(of_trials("serving"))]
        if answers is not None:
            answers.to_parquet(self.staging / "answers.parquet", index=False)
        write_json(self.staging / "serving.json", {"scenario": name, "trials": trials})

    def _join_tables(self, tables: Iterable[str]) -> list[Path]:
        """Join these tables of the closed trials, and return the trials' folders."""
        trials = self._closed()
        for table in tables:
            parts = [trial / f"{table}.parquet" for trial in trials]
            concatenate([part for part in parts if part.exists()], self.staging / f"{table}.parquet")
        return trials

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest and the checksums beside the tables."""
        write_json(self.staging / "manifest.json", {"scenario": self.digest, **manifest})
        seal(self.staging, *SEALED)

    def publish(self) -> Path:
        """Move the joined run to its place; an interrupted one does not replace a complete one. Gives the folder."""
        interrupted = read_manifest(self.staging)["status"] != "complete"
        if interrupted and self.out.exists() and read_manifest(self.out).get("status") == "complete":
            self.release()
            return self.staging
        remove(self._old_results)
        if self.out.exists():
            self.out.rename(self._old_results)
        self.staging.rename(self.out)
        settle(self.out.parent)
        if not interrupted:  # otherwise `resume` wants them
            remove(self.out / TRIALS)
        remove(self._old_results)
        self.release()
        return self.out

    def discard(self) -> None:
        """Remove the staging folder, unless it contains checkpoints from which the run can be resumed."""
        if not any(self.staging.glob(f"{TRIALS}/*/{CHECKPOINTS}/*/")):
            remove(self.staging)
        self.release()

    def release(self) -> None:
        """Release the lock: other processes may write there from now on."""
        self._lock.release()


def free_folder(parent: Path, name: str, digest: str) -> Path:
    """Return `parent/name`, or `name-2`, `name-3`, ... if different runs are there, finished or not."""
    candidate, number = parent / name, 1
    while any(_holds_another_run(folder, digest) for folder in (candidate, _staging(candidate))):
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate


def is_begun(out: Path) -> bool:
    """Return True if a run is in the folder: finished, interrupted, or killed."""
    return out.exists() or _staging(out).exists()


def _staging(out: Path) -> Path:
    """Return the folder of a run while it is under way."""
    return out.with_name(out.name + ".partial")


def _holds_another_run(folder: Path, digest: str) -> bool:
    """Return True if something else than the run with this digest is there."""
    if not folder.is_dir():
        return folder.exists()
    scenario = read_manifest(folder).get("scenario")
    return not {path.name for path in folder.iterdir()} <= AT_FIRST if scenario is None else bool(scenario != digest)


def _refuse_link(path: Path) -> None:
    """Raise ScenarioError if `path` is a link: sfl-sim makes none in a run, but a run may come from somebody else."""
    if path.is_symlink():
        raise ScenarioError("is a link, which no run has made: remove it", key="--out", found=str(path))


def changed_files(run: Path) -> list[str]:
    """Return the names of a run's files that are not what was written; none of a run without checksums."""
    return [name for name in damaged(run) if name != SUMS]


def check_unchanged(run: Path, key: str) -> None:
    """Raise ScenarioError, with this `key`, if a file of a run is not what was written."""
    if names := changed_files(run):
        problem = (
            f"{', '.join(names)} is not what the run has written, by its {SUMS}; delete that to use it all the same"
        )
        raise ScenarioError(problem, key=key, found=str(run))


def keys_of(folder: Path) -> list[str]:
    """Return the keys of the trials that a run has joined, in their order."""
    return [summary.get("key") for summary in read_json(folder / SUMMARY).get("variants", [])]
