"""Folders of runs, servings and what-ifs side by side: when each was written, what differs; and the page with links."""

import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import SCORES
from sfl_sim.report import PAGES
from sfl_sim.report.comparison import differing, short_text
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.load import ABOUT, flat
from sfl_sim.report.panel import Cell, Table
from sfl_sim.scenario import yaml_text
from sfl_sim.store.files import read_json, read_manifest
from sfl_sim.store.trial import SUMMARY

MAX_NAMED, MAX_LETTERS = 3, 30
"""Number of differences that are named, and of letters of a value."""
COMPUTED = "timing_only", "device", "threads"
"""Keys of the manifest in which runs of a scenario differ that have different folders."""
STATES = {"complete": "finished", "running": "not finished"}
"""What is said of a status of the manifest; of others, the status."""


class StoredRun(NamedTuple):
    """A folder of `stored_runs`.

    Attributes:
        name: its path below the folder of all.
        when: when it was written last, in local time.
        state: finished, interrupted or failed; or not finished: it is under way, or was killed.
        differs: what differs from the folder before it, as `key before → now`; empty if it is the first of its name.
        wall_s: seconds that it took to compute; None if it does not tell.
    """

    name: str
    when: datetime
    state: str
    differs: str
    wall_s: float | None


def stored_runs(reports: Path) -> list[StoredRun]:
    """Return the folders below `reports`, by name, and those of a name (`mine`, `mine-2`, ...) by their time."""
    paths = [path for inside in ("", "[!.]*/") for path in reports.glob(f"[!.]*/{inside}manifest.json")]  # benchmarks'
    manifests = {path.parent.relative_to(reports).as_posix(): read_manifest(path.parent) for path in paths}
    times = {name: _written(reports / name, manifest) for name, manifest in manifests.items()}
    in_turn = sorted(manifests, key=lambda name: (_unnumbered(name), times[name], len(name), name))
    runs = []
    for _, names in groupby(in_turn, _unnumbered):
        before: Mapping[str, Any] = {}
        for name in names:
            now, status = _settings(reports / name, manifests[name]), str(manifests[name].get("status"))
            differs = _in_short(before, now) if before and now else ""
            wall_s = manifests[name].get("wall_s")
            runs.append(StoredRun(name, times[name], STATES.get(status, status), differs, wall_s))
            before = now or before
    return runs


def _unnumbered(name: str) -> str:
    return re.sub(r"(-\d+)?(\.partial)?$", "", name)


def _written(folder: Path, manifest: Mapping[str, Any]) -> datetime:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(manifest.get("created")).astimezone()  # type: ignore[arg-type]
    return datetime.fromtimestamp((folder / "manifest.json").stat().st_mtime).astimezone()


def _settings(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked, by dotted key; empty if the folder does not tell."""
    try:
        scenario, _ = yaml_text.read(folder / "scenario.yaml")
    except ScenarioError:
        return {}
    axes = {f"--vary {axis['key']}": axis["values"] for axis in read_json(folder / ABOUT["whatif"]).get("axes", [])}
    return flat(scenario) | axes | {key: manifest[key] for key in COMPUTED if key in manifest}


def _in_short(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    unknown = {key for key in COMPUTED if key not in before or key not in now}  # of a run that is not finished
    changes = differing(sorted({**before, **now}.keys() - unknown), [before, now])
    named = [f"{key} {' → '.join(short_text(text, MAX_LETTERS) for text in texts)}" for key, texts in changes.items()]
    more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
    return "; ".join(named[:MAX_NAMED] + more) or "nothing"


def write_run_list(reports: Path, out: Path) -> Path:
    """Write the page to the file `out` and return its path; its links are relative, so that both can be moved together.

    Raises ScenarioError if the page cannot be written.
    """
    from sfl_sim.report.html_page import write_page  # plotly takes a while

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
    if math.isinf(best):
        return Cell("")
    return Cell(percent(best) if column == SCORES[0] else f"{column} {best:.3f}", name, number=best)
