"""What a what-if found, as a page and as a table for the terminal: where to cut the model, and what it costs."""

from __future__ import annotations

import html
from itertools import count
from string import Template
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sfl_sim.report.display import duration, plural
from sfl_sim.report.page import asset, machine, panel_html, paragraphs, settings, write_page
from sfl_sim.report.whatif_load import load_whatif
from sfl_sim.report.whatif_panels import whatif_panels
from sfl_sim.report.whatif_words import best_in_each_world, headline, slower, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.whatif_load import WhatIf


def write_whatif(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim whatif` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no what-if, or the page cannot be written.
    """
    whatif = load_whatif(folder)
    title = html.escape(whatif.name)
    figure_ids = (f"figure-{number}" for number in count(1))
    body = Template(asset("whatif.html")).substitute(
        title=title,
        about=_about(whatif),
        headline=paragraphs(headline(whatif), "headline"),
        warnings=paragraphs(warnings(whatif), "warning"),
        panels="\n".join(panel_html(panel, figure_ids) for panel in whatif_panels(whatif)),
        rounds=plural(whatif.about["rounds"], "round") if whatif.about["rounds"] else "all rounds",
        settings=settings(whatif.name, whatif.scenario_text),
        machine=machine(whatif.name, whatif.manifest),
    )
    return write_page(title, body, out)


def _about(whatif: WhatIf) -> str:
    grid = " × ".join(
        plural(len(axis.values), "cut") if axis.is_cut else f"{plural(len(axis.values), 'value')} of {axis.noun}"
        for axis in whatif.axes
    )
    evaluated, wall_s = whatif.about["evaluated"], whatif.about["wall_s"]
    how = ", ".join(f"{number:,} by {name}" for name, number in evaluated.items() if number)
    return (
        f"{grid}, {plural(len(whatif.series), 'variant')}, {plural(whatif.n_seeds, 'seed')}: "
        f"{plural(len(whatif.points), 'point')} in {duration(wall_s)} ({how}). Timing-only: nothing was trained"
    )


def whatif_in_terminal(folder: Path) -> Table:
    """One row per series and value of the other axes: the best cut, its round, and what the scenario's own costs."""
    whatif = load_whatif(folder)
    axis = whatif.along
    about = f"Medians over {plural(whatif.n_seeds, 'seed')}." if whatif.n_seeds > 1 else None
    table = Table(box=None, header_style="bold", pad_edge=False, caption=about, caption_justify="left")
    several = len(whatif.series) > 1
    titles = [*(["Variant"] if several else []), *(other.noun.capitalize() for other in whatif.others)]
    for title in titles:
        table.add_column(title)
    for title in (f"Best {axis.noun}", "Round", *([] if axis.base is None else [f"{axis.names[axis.base]} instead"])):
        table.add_column(html.unescape(title), no_wrap=True, justify="right")
    for series, world, own, best in best_in_each_world(whatif):
        where = [other.names[index] for other, index in zip(whatif.others, world, strict=True)]
        cells = [*([series.label] if several else []), *where, axis.names[best[axis.column]], duration(best["round_s"])]
        cells += [] if axis.base is None else [slower(own, axis, axis.base)]
        table.add_row(*(Text(html.unescape(cell)) for cell in cells))
    return table
