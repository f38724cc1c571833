"""What the page of a repriced run says of before and after: a title, a sentence, a table, and what does not hold."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.report.display import duration, listed, plural
from sfl_sim.report.results import of_each
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.targets import factor

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.load import Run

ARROW = "\u00a0→ "
MAX_TOLD = 4
TIMES = ["before_s", "after_s", "to_accuracy_before_s"]
NOTE = (
    "Medians over seeds; one that does not reach the target counts as infinitely late. Before: the system "
    "configuration in which the run was trained. After: the changed one. Where clients would be served in another "
    "order, or training would go on for more rounds, what is learned is not known without training."
)


def changes(run: Run) -> str:
    """The settings that were changed: clients.network.scale 1 → 4; empty of runs that were not repriced."""
    source = run.manifest.get("repriced_from") or {}
    told = [[key, *(text.removesuffix(".0") for text in texts)] for key, texts in source.get("changes", {}).items()]
    return ", ".join(f"{key} {was}{ARROW}{now}" for key, was, now in told)


def verdicts(frames: Frames) -> pd.DataFrame:
    """One row per variant and seed of a repriced run: `reason` (null if what it learned holds), times before and after.

    `to_accuracy_before_s` and `time_to_accuracy_s` are those to the target.
    """
    labels = {(variant.run.folder, variant.name): variant.label for variant in frames.variants}
    found = [
        verdict | {"variant": labels[run.folder, verdict["variant"]]}
        for run in frames.runs
        for verdict in run.verdicts
        if (run.folder, verdict["variant"]) in labels
    ]
    summary = frames.summary[["variant", "seed", "time_to_accuracy_s"]]
    table = pd.DataFrame(found, columns=["variant", "seed", "reason", *TIMES]).merge(summary, how="left")
    return table.astype(dict.fromkeys([*TIMES, "time_to_accuracy_s"], float))


def before_and_after(frames: Frames) -> list[Markup]:
    """Say in a sentence how the simulated time of each variant changes; nothing of runs that were not repriced."""
    if not any(run.verdicts for run in frames.runs):
        return []
    told = [
        variant.html + f" from {duration(before_s)} to {duration(after_s)}"
        for variant, before_s, after_s in _times(frames)
    ]
    if len(told) > MAX_TOLD:
        told[MAX_TOLD - 1 :] = [Markup("{} more below").format(len(told) - MAX_TOLD + 1)]
    said = "; ".join(filter(None, map(changes, frames.runs)))
    return [escape(f"With {said or 'the changed system configuration'}, simulated time changes: ") + listed(told) + "."]


def _times(frames: Frames) -> list[tuple[Variant, float, float]]:
    """The variants with their median seconds before and after."""
    middle = verdicts(frames).groupby("variant")[["before_s", "after_s"]].median().dropna()
    return [(v, *middle.loc[v.label]) for v in frames.variants if v.label in middle.index]


def repriced_table(frames: Frames) -> Table | None:
    """Tabulate times before and after, and what is known of learning; None for runs that were not repriced."""
    if not any(run.verdicts for run in frames.runs):
        return None
    rows = []
    for variant, seeds in of_each(verdicts(frames), frames.variants):
        if seeds.empty:
            continue
        before_s, after_s = seeds[["before_s", "after_s"]].median()
        holds = seeds["reason"].isna()
        after_target_s = seeds["time_to_accuracy_s"]
        after_target_s = after_target_s.mask(after_target_s.isna() & holds, inf)
        to_target = [seeds["to_accuracy_before_s"].fillna(inf).median(), after_target_s.median(skipna=False)]
        rows.append(
            [
                Cell(variant.html, plural(len(seeds), "seed")),
                Cell(_known(before_s) + ARROW + _known(after_s)),
                Cell(factor(before_s / after_s) if before_s > 0 and after_s > 0 else "–"),
                Cell(ARROW.join(map(_known, to_target)) if any(map(isfinite, to_target)) else "–"),
                Cell("holds" if holds.all() else "must be trained", f"holds with {holds.sum()} of {len(seeds)}"),
            ]
        )
    titles = ["Variant", "Simulated time", "Times as fast", "Time to target", "What it learned"]
    return Table(titles, rows, title="Before and after", note=NOTE, words=titles[-1:])


def _known(seconds: float) -> str:
    return duration(seconds) if isfinite(seconds) else "–"


def repriced_warnings(run: Run) -> list[str]:
    """Sentences on a run whose times are not of the system configuration in which it was trained."""
    source = run.manifest.get("repriced_from")
    if source is None:
        return []
    texts = [
        f"repriced from {source['folder']}. Times are those of the system configuration below, in which "
        "nothing was trained; accuracies are those of that run."
    ]
    for name in dict.fromkeys(verdict["variant"] for verdict in run.verdicts):
        doubts = [verdict for verdict in run.verdicts if verdict["variant"] == name and verdict["reason"] is not None]
        if doubts:
            more = f", and {plural(len(doubts) - 1, 'more seed')}" if doubts[1:] else ""
            texts.append(f"{name} (seed {doubts[0]['seed']}{more}) {_doubt(doubts[0])}")
    return texts


def _doubt(verdict: dict[str, Any]) -> str:
    if not verdict["rounds"]:
        return f"is left out: {verdict['reason']}."
    held = f" What it learned holds for {plural(verdict['valid_rounds'], 'round')}." if verdict["valid_rounds"] else ""
    return f"must be trained with this system configuration to know what it learns: {verdict['reason']}.{held}"
