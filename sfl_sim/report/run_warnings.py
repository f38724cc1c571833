"""Warnings at the top of pages: what a reader must know of the runs before believing what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sfl_sim.report.display import plural
from sfl_sim.report.frames import titles
from sfl_sim.report.repriced import repriced_warnings
from sfl_sim.store import changed_files

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames
    from sfl_sim.report.load import Run

MAX_ALIKE = 5
ADAPTIVE = ("window_ratio", "clp", "printed")
"""Rules of KoReA-SFL by which the proportion of replay follows the gradient norm."""


def warnings(frames: Frames) -> list[str]:
    """The sentences on all runs, each once, with the names of its runs before it."""
    told: dict[str, list[str]] = {}
    for run, title in zip(frames.runs, titles(frames.runs), strict=True):
        for text in _warnings(run):
            told.setdefault(text, []).append(title or run.name)
    return [f"{', '.join(names)}: {text}" for text, names in told.items()]


def _warnings(run: Run) -> list[str]:
    texts = [*repriced_warnings(run), *_unfinished(run)]
    if changed := changed_files(run.folder):
        texts.append(f"{', '.join(changed)} is not what the run has written, by its SHA256SUMS: figures may be wrong.")
    texts += _first(_unheld(run), "more seeds leave labels without a holder; clients.parquet has all.")
    texts += _first(_stopped(run), "more stopped early; summary.json says why.")
    diverged = run.rounds[run.rounds["accuracy"].notna() & ~np.isfinite(run.rounds["loss"].astype(float))]
    found = [
        f"{variant} with seed {seed} diverged in round {rounds['round'].min()}. Its loss is no longer a "
        "number, and its accuracy is that of guessing; a smaller learning rate may help."
        for (variant, seed), rounds in diverged.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more diverged; rounds.parquet has the losses of all.")
    skipped = run.rounds[run.rounds["skipped"] > 0]
    found = [
        f"{variant} with seed {seed} left out {plural(rounds['skipped'].sum(), 'update')} with gradients that were "
        f"no finite numbers, the first in round {rounds['round'].min()} (train.on_nan: skip); a smaller learning "
        "rate may help."
        for (variant, seed), rounds in skipped.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more left out updates; rounds.parquet has their numbers.")
    if run.rounds["accuracy"].isna().all() and "repriced_from" not in run.manifest:
        texts.append(
            "timing-only. Nothing was trained, so there is no accuracy; time and bytes are those of a training run"
            f"{_unread(run)}."
        )
    return texts


def _unheld(run: Run) -> list[str]:
    """Sentences on the labels of which no client holds a training sample."""
    names = run.labels.drop_duplicates("label").set_index("label")["label_name"]
    found: dict[tuple[Any, str], str] = {}
    for (variant, seed), clients in run.clients.dropna(subset="label_samples").groupby(["variant", "seed"], sort=False):
        absent = np.flatnonzero(np.sum(list(clients["label_samples"]), axis=0) == 0)
        if len(absent):
            told = ", ".join(str(names.get(label, label)) for label in absent)
            found.setdefault(
                (seed, told), f"no client of {variant} with seed {seed} holds a training sample of {told}."
            )
    return list(found.values())


def _stopped(run: Run) -> list[str]:
    """Sentences on training that has ended before its last round, as the scenario asked."""
    return [
        f"{trial['variant']} with seed {trial['seed']} stopped after {plural(trial['rounds'], 'round')}: "
        f"{trial['stopped']}. Its accuracy and performance gap are those of its last round."
        for trial in run.summary.to_dict("records")
        if isinstance(trial["stopped"], str)
    ]


def _first(texts: list[str], more: str) -> list[str]:
    """Give the first `MAX_ALIKE` texts that say the same of different runs, and the number of those left out."""
    n_more = len(texts) - MAX_ALIKE
    return [*texts[:MAX_ALIKE], f"{n_more:,} {more}"] if n_more > 0 else texts


def _unfinished(run: Run) -> list[str]:
    """Sentences on what is missing of a run that was interrupted, and on variants that failed."""
    status, failed = run.manifest.get("status"), run.manifest.get("failed") or []
    texts = []
    if status != "complete" and not (status == "failed" and failed):
        planned = " or ".join(dict.fromkeys(str(own.get("train.rounds", "?")) for own in run.settings.values()))
        texts.append(
            f"{status} after round {run.rounds['round'].max()} of {planned}. What follows is what was stored "
            "until then; variants and seeds may have reached different rounds."
        )
    found = []
    for one in failed:
        mine = (run.rounds["variant"] == one["variant"]) & (run.rounds["seed"] == one["seed"])
        what = f"What follows has its first {plural(mine.sum(), 'round')}." if mine.any() else "It is not shown."
        found.append(f"{one['variant']} with seed {one['seed']} failed: {one['error']}. {what}")
    return texts + _first(found, "more failed; manifest.json lists them all.")


def _unread(run: Run) -> str:
    """Say, as the end of a sentence, what differs where replay was to follow a norm that was not measured."""
    options = [one for one in run.summary["method_options"] if isinstance(one, dict)]
    p0 = {f"{one['p0']:g}" for one in options if one.get("proportion") in ADAPTIVE}
    if not p0:
        return ""
    return (
        f", except that the proportion of replay stays at p0 = {' or '.join(sorted(p0))}, since its rule "
        "reads a gradient norm that is known only after training"
    )
