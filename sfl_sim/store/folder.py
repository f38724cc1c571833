"""Folder of a run: opened beside its place, filled trial by trial, joined, published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.store.checkpoints import CHECKPOINTS
from sfl_sim.store.files import read_json, read_manifest, write_json
from sfl_sim.store.lock import Lock
from sfl_sim.store.tables import SERVING_TABLES, TABLES, are_whole, concatenate
from sfl_sim.store.trial import FAILURE, SUMMARY, TRACEBACK, Failure, read_failure

TRIALS = "cells"
"""Name of the folder of the trials while a run is under way."""


class RunFolder:
    """The folder of a run.

    Args:
        out: its final place.
        digest: digest of the scenario and settings; a folder with another digest is a different run.
        resume: keep the trials that an interrupted or killed run of this scenario has finished.

    Raises ScenarioError if another run or file is there, or another process is writing there.
    """

    def __init__(self, out: Path, digest: str, *, resume: bool = False) -> None:
        self.out = out
        self.digest = digest
        if not out.name:
            raise ScenarioError("a run needs a folder of its own", key="--out", found=str(out))
        self.staging = _staging(out)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(out)
            try:
                self._open(resume)
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise ScenarioError(f"cannot write there: {error.strerror}", key="--out", found=str(out)) from error

    def _open(self, resume: bool) -> None:
        for folder in (self.out, self.staging):
            self._refuse_others(folder)
        if not resume:
            shutil.rmtree(self.staging, ignore_errors=True)
        elif self.out.exists() and not self.staging.exists() and read_manifest(self.out).get("status") != "complete":
            self.out.rename(self.staging)
        self._refuse_links()
        self.staging.mkdir(exist_ok=True)
        write_json(self.staging / "manifest.json", {"scenario": self.digest, "status": "running"})

    def _refuse_others(self, folder: Path) -> None:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise ScenarioError("is a file; a run needs a folder", key="--out", found=str(folder))
        manifest = read_manifest(folder)
        if any(folder.iterdir()) and manifest.get("scenario") != self.digest:
            raise ScenarioError(
                "the folder holds something else than a run of this scenario with these settings; choose another",
                key="--out", found=str(folder),
            )  # fmt: skip

    def _refuse_links(self) -> None:
        """Check that there are no links in the staging folder: sfl-sim makes none, but a run may come from others."""
        for path in (self.staging, *self.staging.rglob("*")):
            if path.is_symlink():
                raise ScenarioError("is a link, which no run has made: remove it", key="--out", found=str(path))

    def finished(self, number: int, rounds: int, key: str | None = None) -> bool:
        """Return True if trial `number` has been closed with all its rounds, can be read, and has the `key`."""
        trial = self.trial_folder(number)
        summary = read_json(trial / SUMMARY)
        is_closed = summary.get("rounds") == rounds and summary.get("key") == key and not (trial / FAILURE).exists()
        return is_closed and are_whole(trial)

    def trial_folder(self, number: int) -> Path:
        """Return the folder of trial `number` while the run is under way."""
        return self.staging / TRIALS / f"{number:04d}"

    def closed(self) -> dict[int, tuple[dict[str, Any], pd.DataFrame]]:
        """Return the summary and the rounds of every closed trial, by its number."""
        return {
            int(trial.name): (json.loads((trial / SUMMARY).read_text()), pd.read_parquet(trial / "rounds.parquet"))
            for trial in self._closed()
        }

    def failures(self) -> dict[Failure, str]:
        """Return the failures of trials, in their order, with the traceback of each."""
        trials = sorted(path.parent for path in self.staging.glob(f"{TRIALS}/*/{FAILURE}"))
        return {failure: (trial / TRACEBACK).read_text() for trial in trials if (failure := read_failure(trial))}

    @property
    def has_trials(self) -> bool:
        """True if a trial has been closed."""
        return any(self._closed())

    def _closed(self) -> list[Path]:
        return sorted(path.parent for path in self.staging.glob(f"{TRIALS}/*/{SUMMARY}"))

    def join(self, name: str, additions: Mapping[int, Mapping[str, Any]]) -> None:
        """Join the closed trials into the run's tables, in the staging folder.

        `additions` to the summaries, by the number of the trial, are what only the whole run can tell.
        """
        trials = self._join_tables(TABLES)
        variants = [
            json.loads((trial / SUMMARY).read_text()) | dict(additions.get(int(trial.name), {})) for trial in trials
        ]
        write_json(self.staging / "summary.json", {"scenario": name, "variants": variants})
        checkpoints = self.staging / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        for trial in trials:
            for path in trial.glob("checkpoint.*"):
                shutil.copyfile(path, checkpoints / f"{trial.name}{path.suffix}")

    def join_serving(self, name: str, answers: pd.DataFrame | None) -> None:
        """Join the closed trials of served fleets; the `answers` that they drew from are stored beside their tables."""
        trials = [json.loads((trial / SUMMARY).read_text()) for trial in self._join_tables(SERVING_TABLES)]
        if answers is not None:
            answers.to_parquet(self.staging / "answers.parquet", index=False)
        write_json(self.staging / "serving.json", {"scenario": name, "cells": trials})

    def _join_tables(self, tables: Sequence[str]) -> list[Path]:
        """Join these tables of the closed trials, and return the trials' folders."""
        trials = self._closed()
        for table in tables:
            parts = [trial / f"{table}.parquet" for trial in trials]
            concatenate([part for part in parts if part.exists()], self.staging / f"{table}.parquet")
        return trials

    def describe(self, scenario_yaml: str, manifest: Mapping[str, Any]) -> None:
        """Write the scenario and the manifest beside the tables."""
        (self.staging / "scenario.yaml").write_text(scenario_yaml)
        write_json(self.staging / "manifest.json", {"scenario": self.digest, **manifest})

    def publish(self) -> Path:
        """Move the joined run to its place; an interrupted one does not replace a complete one. Gives the folder."""
        interrupted = read_manifest(self.staging)["status"] != "complete"
        if interrupted and self.out.exists() and read_manifest(self.out).get("status") == "complete":
            self.release()
            return self.staging
        if not interrupted:  # otherwise `resume` wants them
            shutil.rmtree(self.staging / TRIALS, ignore_errors=True)
        old = self.out.with_name(f".{self.out.name}.replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self.out.exists():
            self.out.rename(old)
        self.staging.rename(self.out)
        shutil.rmtree(old, ignore_errors=True)
        self.release()
        return self.out

    def discard(self) -> None:
        """Remove the staging folder, unless it contains checkpoints from which the run can be resumed."""
        if not any(self.staging.glob(f"{TRIALS}/*/{CHECKPOINTS}/*/")):
            shutil.rmtree(self.staging, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Release the lock: other processes may write there from now on."""
        self._lock.release()


def free_folder(parent: Path, name: str, digest: str) -> Path:
    """Return `parent/name`, or `name-2`, `name-3`, ... if different runs are there, finished or not."""
    candidate, number = parent / name, 1
    while any(_is_anothers(place, digest) for place in (candidate, _staging(candidate))):
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate


def _staging(out: Path) -> Path:
    """Return the folder of a run while it is under way."""
    return out.with_name(out.name + ".partial")


def _is_anothers(folder: Path, digest: str) -> bool:
    return folder.exists() and any(folder.iterdir()) and read_manifest(folder).get("scenario") != digest


def keys_of(folder: Path) -> list[str | None]:
    """Return the keys of the trials that a run has joined, in their order."""
    return [summary.get("key") for summary in read_json(folder / SUMMARY).get("variants", [])]
