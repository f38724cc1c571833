"""The results of a run as a table for the terminal: the report's most telling columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report.display import plural
from sfl_sim.report.frames import merge
from sfl_sim.report.load import load
from sfl_sim.report.results import columns_for
from sfl_sim.report.way import TIME, aims

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = {
    "accuracy": "Accuracy",
    "performance_gap": "PG (points)",
    TIME.key: TIME.title,
    "simulated_s": "Simulated time",
}
"""What fits into 80 columns, with short titles; the report shows all."""


def results_in_terminal(folder: Path) -> Table:
    """One row per variant of the stored run in `folder`: medians over seeds, and below them their spread."""
    frames = merge([load(folder)])
    known = [*columns_for(frames), *([TIME] if any(aim.target for aim in aims(frames)) else [])]
    by_key = {column.key: column for column in known}
    columns = [by_key[key] for key in SHOWN if key in by_key]
    about = [] if frames.timing_only else [f"Accuracy and PG: medians of the last {LAST_ROUNDS} rounds."]
    if frames.summary["seed"].nunique() > 1:
        about.append("Over seeds: median ± standard deviation.")
    table = Table(box=None, header_style="bold", pad_edge=False, caption="\n".join(about), caption_justify="left")
    table.add_column("Variant", no_wrap=True)
    for column in columns:
        table.add_column(SHOWN[column.key], no_wrap=True, justify="right")
    for variant in frames.variants:
        seeds = frames.summary[frames.summary["variant"] == variant.label]
        cells = [(cell.text, cell.below) for cell in (column.cell(seeds) for column in columns)]
        number = plural(len(seeds), "seed") if len(seeds) > 1 else ""
        table.add_row(*(_two_lines(*cell) for cell in [(variant.name, number), *cells]))
    return table


def _two_lines(text: str, below: str) -> Text:
    return Text.assemble(text, ("\n" + below, "dim") if below else "")
