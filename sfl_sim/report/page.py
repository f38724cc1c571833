"""The page of a run, or of several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import figures, gantt, labels, round_view
from sfl_sim.report.comparison import compare, machine_in_words, settings_in_words, values_table
from sfl_sim.report.display import plural
from sfl_sim.report.exits import exit_panels
from sfl_sim.report.frames import merge
from sfl_sim.report.frontier import frontier_panels
from sfl_sim.report.gantt import gantt_panel
from sfl_sim.report.headline import headline, warnings
from sfl_sim.report.html_page import write_page
from sfl_sim.report.labels import label_panels
from sfl_sim.report.learning import accuracy_panels
from sfl_sim.report.load import load
from sfl_sim.report.method_panels import replay_panels, staleness_panels
from sfl_sim.report.participation import participation_panels
from sfl_sim.report.partition import holdings_panels
from sfl_sim.report.results import paper_table, results_table
from sfl_sim.report.round_time import breakdown_panel, path_panel
from sfl_sim.report.round_view import queue_panels, round_views
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.world import cut_panels, fleet_panel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sfl_sim.report.frames import Frames
    from sfl_sim.report.html_page import Panel

MAX_OPEN_ROWS = 8
"""A table of differences that is longer than this has to be opened."""


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report on one run, or on several side by side, to the file `out` and return its path.

    Raises:
        ScenarioError: a folder holds no complete run, or the page cannot be written.
    """
    frames = merge([load(folder) for folder in dict.fromkeys(runs)])
    paper = paper_table(frames)
    return write_page(
        out,
        "run",
        title=frames.title,
        about=_about(frames),
        headlines=headline(frames),
        warnings=warnings(frames),
        panels=panels(frames),
        comparison=_comparison(frames),
        results=[results_table(frames), *([paper] if paper else [])],
        runs=frames.runs,
        digests=_digests(frames),
        last_rounds=LAST_ROUNDS,
        curve_points=figures.MAX_POINTS,
        heat_rounds=labels.MAX_ROUNDS,
        queue_points=round_view.MAX_POINTS,
        gantt_ops=gantt.MAX_OPS,
        gantt_clients=gantt.MAX_CLIENTS,
        drawn_variants=round_view.MAX_VARIANTS,
    )


def panels(frames: Frames) -> list[Panel]:
    """List the sections of the page in reading order: what was learned, what it cost, one round in detail, the world.

    New figures are entered here: the docstring of `sfl_sim.report` shows how. A function `..._panels` returns an empty
    list for runs without its data.
    """
    views = round_views(frames)
    return [
        *learned_panels(frames),
        breakdown_panel(frames),
        *participation_panels(frames),
        *staleness_panels(frames),
        *replay_panels(frames),
        *queue_panels(frames, views),
        gantt_panel(frames, views),
        path_panel(frames, views),
        *cut_panels(frames),
        *holdings_panels(frames),
        fleet_panel(frames),
    ]


def learned_panels(frames: Frames) -> list[Panel]:
    """List the sections on accuracy, forgetting and their costs; none if nothing was trained."""
    if frames.timing_only:
        return []
    return [*accuracy_panels(frames), *exit_panels(frames), *label_panels(frames), *frontier_panels(frames)]


def _about(frames: Frames) -> str:
    dates = dict.fromkeys(str(run.manifest.get("created", "?"))[:10] for run in frames.runs)
    variants, seeds = plural(len(frames.variants), "variant"), plural(frames.summary["seed"].nunique(), "seed")
    return f"{variants}, {seeds}, run on {', '.join(dates)}"


def _comparison(frames: Frames) -> dict[str, Any]:
    """Describe for the template in what several runs differ; empty for one run."""
    if len(frames.runs) == 1:
        return {}
    found = compare(frames.runs)
    values = {key: texts for part in found.settings.values() for key, texts in part.items()}
    told = {"settings": settings_in_words(found), "warns": bool(found.others)}
    told["values"] = values_table(found, values) if values else None
    told["values_open"] = len(values) <= MAX_OPEN_ROWS
    told["machine"] = machine_in_words(found) if found.machine else None
    told["machine_values"] = values_table(found, found.machine)
    return told


def _digests(frames: Frames) -> Table:
    digests = ["timeline_digest", "weights_digest"]
    rows = [
        [Cell(Markup(row["variant"])), Cell(str(row["seed"])), *(_digest(row[name]) for name in digests)]
        for row in frames.summary.to_dict("records")
    ]
    return Table(["Variant", "Seed", "Timeline", "Weights"], rows)


def _digest(text: object) -> Cell:
    return Cell(Markup("<code>{}</code>").format(text) if isinstance(text, str) else "–")
