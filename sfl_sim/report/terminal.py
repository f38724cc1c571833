"""The results of a run as a table for the terminal: the report's most telling columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table

from sfl_sim.report.frames import merge
from sfl_sim.report.load import load
from sfl_sim.report.results import columns_for, medians

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = {"accuracy", "performance_gap", "time_to_accuracy_s", "rounds_to_accuracy", "simulated_s"}
"""What fits into 80 columns; the report shows all."""


def results_in_terminal(folder: Path) -> Table:
    """One row per variant, medians over seeds, of the stored run in `folder`."""
    frames = merge([load(folder)])
    middle = medians(frames)
    columns = [column for column in columns_for(frames) if column.key in SHOWN]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Variant", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right")
    for variant in frames.variants:
        values = [float(middle[column.key][variant.label]) for column in columns]
        texts = [column.text(v) if math.isfinite(v) else "–" for column, v in zip(columns, values, strict=True)]
        table.add_row(variant.name, *texts)
    return table
