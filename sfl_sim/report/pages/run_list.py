"""The page that lists the runs below a folder, with a link to the page of each."""

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from urllib.parse import quote

from markupsafe import Markup

from sfl_sim.metrics.scores import SCORES
from sfl_sim.report import PAGES
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.html_page import write_page
from sfl_sim.report.panel import Cell, Table
from sfl_sim.report.stored_runs import stored_runs
from sfl_sim.store.files import read_json
from sfl_sim.store.trial import SUMMARY


def write_run_list(reports: Path, out: Path) -> Path:
    """Write the page to the file `out` and return its path; its links are relative, so that both can be moved together.

    Raises ScenarioError if the page cannot be written.
    """
    runs = stored_runs(reports)
    columns: dict[str, list[Cell]] = {
        "Run": [_linked(reports / run.name, run.name, out) for run in runs],
        "Written": [Cell(f"{run.when:%Y-%m-%d %H:%M}", number=run.when.timestamp()) for run in runs],
        "State": [Cell(run.state) for run in runs],
        "Best variant": [_best(reports / run.name) for run in runs],
        "Computed in": [_seconds(run.wall_s) for run in runs],
        "Differs from the one before": [Cell(run.differs) for run in runs],
    }
    words = ["State", "Differs from the one before"]
    columns |= {title: _in_order(columns[title]) for title in ("Run", *words)}
    table = Table([*columns], [*zip(*columns.values(), strict=True)], words=words)
    name = reports.resolve().name
    return write_page(
        out, "run_list", title=name, kind="list of runs", about=plural(len(runs), "run"), table=table, plotly=""
    )


def _in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Give words the places in their alphabet as numbers, so that the page sorts by them."""
    places = {text: place for place, text in enumerate(sorted({cell.text for cell in cells}))}
    return [cell._replace(number=places[cell.text]) for cell in cells]


def _seconds(wall_s: float | None) -> Cell:
    return Cell("") if wall_s is None else Cell(duration(wall_s), number=wall_s)


def _linked(folder: Path, name: str, out: Path) -> Cell:
    page = next((folder / page for page in PAGES if (folder / page).is_file()), None)
    if page is None:
        return Cell(name)
    address = quote(Path(os.path.relpath(page.resolve(), out.resolve().parent)).as_posix())
    return Cell(Markup('<a href="{}">{}</a>').format(address, name))


def _best(folder: Path) -> Cell:
    """Return the highest first score of a variant, its median over seeds, with the variant's name below."""
    trials = read_json(folder / SUMMARY).get("variants", [])
    column = next((name for name in SCORES for trial in trials if trial.get(name) is not None), None)
    if column is None:
        return Cell("")
    of_each: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        of_each[str(trial["name"])].append(-math.inf if trial.get(column) is None else trial[column])
    name, scores = max(of_each.items(), key=lambda each: median(each[1]))
    best = median(scores)
    return Cell(percent(best) if column == SCORES[0] else f"{column} {best:.3f}", name, number=best)
