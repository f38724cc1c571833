"""What a reader must know before believing a page: what is missing, what diverged, what was not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sfl_sim.report.display import plural

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames
    from sfl_sim.report.load import Run

MAX_FAILURES = 5
ADAPTIVE = ("window_ratio", "clp", "printed")
"""Rules of KoReA-SFL by which the proportion of replay follows the gradient norm."""


def warnings(frames: Frames) -> list[str]:
    """The sentences on all runs, with the name of its run before each."""
    return [f"{run.name}: {text}" for run in frames.runs for text in _warnings(run)]


def _warnings(run: Run) -> list[str]:
    texts = [*_repriced(run), *_unfinished(run)]
    diverged = run.rounds[run.rounds["accuracy"].notna() & ~np.isfinite(run.rounds["loss"].astype(float))]
    for (variant, seed), rounds in diverged.groupby(["variant", "seed"], sort=False):
        texts.append(
            f"{variant} with seed {seed} diverged in round {rounds['round'].min()}. Its loss is no number any more, "
            "and its accuracy that of guessing; a smaller learning rate may help."
        )
    skipped = run.rounds[run.rounds["skipped"] > 0]
    for (variant, seed), rounds in skipped.groupby(["variant", "seed"], sort=False):
        texts.append(
            f"{variant} with seed {seed} left out {plural(rounds['skipped'].sum(), 'update')} with gradients that were "
            f"no finite numbers, the first in round {rounds['round'].min()} (train.on_nan: skip); a smaller learning "
            "rate may help."
        )
    if run.rounds["accuracy"].isna().all() and "repriced_from" not in run.manifest:
        texts.append(
            "timing-only. Nothing was trained, so there is no accuracy; time and bytes are those of a training run"
            f"{_unread(run)}."
        )
    return texts


def _repriced(run: Run) -> list[str]:
    """Sentences on a run whose times are not of the world where it was trained."""
    source = run.manifest.get("repriced_from")
    if source is None:
        return []
    texts = [
        f"repriced from {source['folder']}. Times are those of the world below, in which nothing was trained; what was "
        "learned was learned there."
    ]
    doubtful: dict[str, list[dict[str, Any]]] = {}
    for verdict in run.manifest["repriced"]:
        if verdict["reason"] is not None:
            doubtful.setdefault(verdict["variant"], []).append(verdict)
    for variant, (first, *others) in doubtful.items():
        more = f", and {plural(len(others), 'more seed')}" if others else ""
        texts.append(f"{variant} (seed {first['seed']}{more}) {_doubt(first)}")
    return texts


def _doubt(verdict: dict[str, Any]) -> str:
    if not verdict["rounds"]:
        return f"is left out: {verdict['reason']}."
    held = f" What it learned holds for {plural(verdict['valid_rounds'], 'round')}." if verdict["valid_rounds"] else ""
    return f"must be trained in this world to know what it learns: {verdict['reason']}.{held}"


def _unfinished(run: Run) -> list[str]:
    """Sentences on what is missing of a run that was interrupted, and on variants that failed."""
    status, failed = run.manifest.get("status"), run.manifest.get("failed") or []
    texts = []
    if status != "complete" and not (status == "failed" and failed):
        planned = (run.scenario.get("train") or {}).get("rounds", "?")
        texts.append(
            f"{status} after round {run.rounds['round'].max()} of {planned}. What follows is what was stored until "
            "then; variants and seeds may have come to different rounds."
        )
    for one in failed[:MAX_FAILURES]:
        mine = (run.rounds["variant"] == one["variant"]) & (run.rounds["seed"] == one["seed"])
        what = f"What follows has its first {plural(mine.sum(), 'round')}." if mine.any() else "It is not shown."
        texts.append(f"{one['variant']} with seed {one['seed']} failed: {one['error']}. {what}")
    if len(failed) > MAX_FAILURES:
        texts.append(f"{len(failed) - MAX_FAILURES} more failed; manifest.json lists them all.")
    return texts


def _unread(run: Run) -> str:
    """What differs where a proportion of replay was to follow a norm that nobody measured, as the end of a sentence."""
    options = [one for one in run.summary["method_options"] if isinstance(one, dict)]
    p0 = {f"{one['p0']:g}" for one in options if one.get("proportion") in ADAPTIVE}
    if not p0:
        return ""
    return (
        f", except that the proportion of replay stays at p0 = {' or '.join(sorted(p0))}, since its rule reads a "
        "gradient norm that only training knows"
    )
