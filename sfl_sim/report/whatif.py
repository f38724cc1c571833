"""The page on a what-if, and its table for the terminal: where to cut the model, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from sfl_sim.report.display import duration, plural
from sfl_sim.report.html_page import write_page
from sfl_sim.report.whatif_load import load_whatif
from sfl_sim.report.whatif_panels import whatif_panels
from sfl_sim.report.whatif_words import best_in_terminal, headline, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table as TerminalTable

    from sfl_sim.report.whatif_load import WhatIf


def write_whatif(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim whatif` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no what-if, or the page cannot be written.
    """
    whatif = load_whatif(folder)
    return write_page(
        out,
        "whatif",
        title=whatif.name,
        about=_about(whatif),
        headlines=headline(whatif),
        warnings=warnings(whatif),
        panels=whatif_panels(whatif),
        rounds=plural(whatif.about["rounds"], "round") if whatif.about["rounds"] else "all rounds",
        whatif=whatif,
    )


def _about(whatif: WhatIf) -> Markup:
    grid = [
        escape(plural(len(axis.values), "cut"))
        if axis.is_cut
        else plural(len(axis.values), "value") + " of " + axis.noun
        for axis in whatif.axes
    ]
    evaluated, wall_s = whatif.about["evaluated"], whatif.about["wall_s"]
    how = ", ".join(f"{number:,} by {name}" for name, number in evaluated.items() if number)
    return Markup(" × ").join(grid) + (
        f", {plural(len(whatif.series), 'variant')}, {plural(whatif.n_seeds, 'seed')}: "
        f"{plural(len(whatif.points), 'point')} in {duration(wall_s)} ({how}). Timing-only: nothing was trained"
    )


def whatif_in_terminal(folder: Path) -> TerminalTable:
    """One row per series and value of the other axes: the best cut, its round, and what the scenario's own costs."""
    return best_in_terminal(load_whatif(folder)).in_terminal()
