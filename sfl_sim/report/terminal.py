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

SHOWN = {"accuracy": "Accuracy", "performance_gap": "PG (points)", "time_to_accuracy_s": "", "simulated_s": ""}
"""What fits into 80 columns, with short titles; the report shows all."""


def results_in_terminal(folder: Path) -> Table:
    """One row per variant, medians over seeds, of the stored run in `folder`."""
    frames = merge([load(folder)])
    middle = medians(frames)
    columns = [column for column in columns_for(frames) if column.key in SHOWN]
    caption = None if frames.timing_only else "Accuracy and PG: medians of the last five rounds."
    table = Table(box=None, header_style="bold", pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("Variant", no_wrap=True)
    for column in columns:
        table.add_column(SHOWN[column.key] or column.title, no_wrap=True, justify="right")
    for variant in frames.variants:
        values = [float(middle[column.key][variant.label]) for column in columns]
        texts = [column.text(v) if math.isfinite(v) else "–" for column, v in zip(columns, values, strict=True)]
        table.add_row(variant.name, *texts)
    return table
