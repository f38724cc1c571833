"""Trials that earlier runs have finished: found by their keys, and copied from the tables of those runs."""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sfl_sim.errors import ScenarioError
from sfl_sim.store.files import MODEL, damaged, models_of, read_json, read_manifest, seal, write_json
from sfl_sim.store.tables import TrialKey, of_trials, split_by_trial
from sfl_sim.store.trial import SUMMARY, is_whole

Finished = tuple[Mapping[str, Any], Path | None]
"""A finished trial of an earlier run: its summary there, and the file of its model, if one was trained."""


@dataclass(frozen=True)
class Wanted:
    """A trial to be taken from an earlier run: its key, its rounds, its new name and its new folder."""

    key: str
    rounds: int
    variant: str
    place: Path


def runs_beside(*places: Path) -> Iterator[Path]:
    """List the folders of runs in reports/ and beside `places`, except unfinished ones."""
    for parent in dict.fromkeys([Path("reports"), *(place.parent for place in places)]):
        if parent.is_dir():
            runs = sorted(path.parent for path in parent.glob(f"*/{SUMMARY}"))
            yield from (run for run in runs if read_manifest(run).get("status") != "running")


def no_run(folder: Path, key: str, problem: str = "is not the folder of a run") -> ScenarioError:
    """Return the error for a folder that holds no run, with the runs in reports/ and beside it."""
    known = [str(run) for run in runs_beside(folder)]
    return ScenarioError(f"{problem} (see `sfl-sim list runs`)", key=key, found=str(folder), allowed=known or None)


def take(wanted: Mapping[int, Wanted], runs: Iterable[Path]) -> dict[int, Path]:
    """Copy the wanted trials that one of the `runs` has finished; gives the run of each by the trial's number.

    A run that cannot be read, or whose files are not what was written, is skipped.
    """
    taken: dict[int, Path] = {}
    for run in runs:
        by_key = {summary["key"]: (summary, model) for summary, model in _finished(run)}
        here = {
            number: by_key[trial.key]
            for number, trial in wanted.items()
            if number not in taken and trial.key in by_key and is_whole(by_key[trial.key][0], trial.rounds)
        }
        if not here or damaged(run):
            continue
        try:
            _copy(run, [(finished, wanted[number]) for number, finished in here.items()])
        except (OSError, KeyError, pa.ArrowInvalid):  # damaged, or written anew at this moment
            for number in here:
                shutil.rmtree(wanted[number].place, ignore_errors=True)
        else:
            taken |= dict.fromkeys(here, run)
    return taken


def _finished(run: Path) -> Iterator[Finished]:
    """Generate the trials of a run that have a key and a name, except those whose model is missing."""
    models = models_of(run)
    variants = read_json(run / SUMMARY).get("variants")
    for summary in variants if isinstance(variants, list) else []:
        named = {"key": str, "name": str, "seed": int}
        if not isinstance(summary, dict) or not all(isinstance(summary.get(k), kind) for k, kind in named.items()):
            continue
        model = models.get((summary["name"], summary["seed"]))
        if summary.get("weights_digest") is None or (model is not None and model.is_file()):
            yield summary, model


def _copy(run: Path, trials: list[tuple[Finished, Wanted]]) -> None:
    """Copy and close trials from one run's tables."""
    for _, trial in trials:
        shutil.rmtree(trial.place, ignore_errors=True)
        trial.place.mkdir(parents=True)
    for table, is_of_all in of_trials("run").items():
        if (source := run / f"{table}.parquet").exists() or is_of_all:
            targets: dict[TrialKey, list[tuple[Path, str]]] = {}
            for (summary, _), trial in trials:
                copies = targets.setdefault((summary["name"], summary["seed"]), [])
                copies.append((trial.place / source.name, trial.variant))
            split_by_trial(source, targets, to_all=is_of_all)
    for (summary, model), trial in trials:
        if model:
            for kept in (model, *model.parent.glob(f"{model.stem}-*.safetensors")):
                copy = trial.place / kept.name.replace(model.stem, MODEL)
                shutil.copyfile(kept, copy)
                write_json(copy.with_suffix(".json"), read_json(kept.with_suffix(".json")) | {"variant": trial.variant})
        write_json(trial.place / SUMMARY, {**summary, "name": trial.variant})
        seal(trial.place, "*")
