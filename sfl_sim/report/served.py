"""What serving gave as a table for the terminal; the page shows all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
from rich.table import Table

from sfl_sim.report.display import duration, percent

if TYPE_CHECKING:
    from pathlib import Path


def served_in_terminal(folder: Path) -> Table:
    """One row per variant of the served study in `folder`, named without its rate: medians over seeds."""
    cells = pd.DataFrame(json.loads((folder / "serving.json").read_text())["cells"])
    run = json.loads((folder / "manifest.json").read_text())["run"]
    numbers = ["rate_per_s", "p50_s", "p95_s", "offload_probability", "accuracy", "falls_behind"]
    medians = cells.astype(dict.fromkeys(numbers, float)).groupby(["variant", "series"], sort=False)[numbers].median()
    rows = medians.reset_index().to_dict("records")
    about = [f"Answers of {run}."] if run else []
    if cells["seed"].nunique() > 1:
        about.append("Medians over seeds.")
    if any(row["falls_behind"] >= 0.5 for row in rows):
        about.append("* falls behind: requests come faster than they are answered.")
    if any(pd.isna(row["falls_behind"]) for row in rows):
        about.append("? too few requests to tell whether it falls behind.")
    table = Table(box=None, header_style="bold", pad_edge=False, caption="\n".join(about), caption_justify="left")
    table.add_column("Variant")
    for title in ("Requests/s", "p50", "p95", "Offloaded", "Accuracy"):
        table.add_column(title, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(
            row["series"],
            f"{row['rate_per_s']:.4g}",
            duration(row["p50_s"]),
            duration(row["p95_s"]) + _mark(row["falls_behind"]),
            percent(row["offload_probability"]),
            percent(row["accuracy"]) if pd.notna(row["accuracy"]) else "–",
        )
    return table


def _mark(falls_behind: float) -> str:
    if pd.isna(falls_behind):
        return "?"
    return "*" if falls_behind >= 0.5 else ""
