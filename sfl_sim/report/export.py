"""Files of a page for other programs: tidy tables, and figures for a paper."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.report.display import plural
from sfl_sim.report.frames import merge, titles
from sfl_sim.report.load import SUMMARY_NUMBERS, load
from sfl_sim.report.results import TO_TARGET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfl_sim.report.load import Run

TABLES, FIGURES = ("csv", "parquet"), ("svg", "pdf")
"""Formats."""
STORED = ["rounds", "labels", "confusion", "clients", "layers", "representations"]
"""Tables that are given as they are stored."""
FIRST = ["run", "variant", "seed"]


@dataclass(frozen=True)
class Exported:
    """Folder and names of exported files."""

    folder: Path
    tables: list[str]
    figures: list[str]

    def __str__(self) -> str:
        return f"{self.folder}: {plural(len(self.tables), 'table')}, {plural(len(self.figures), 'figure')}"


def export_runs(folders: Sequence[Path], out: Path, formats: Sequence[str]) -> Exported:
    """Write tables and figures of stored runs, joined, into the folder `out`: all of them, or nothing.

    Args:
        folders: of the runs.
        out: may hold other files already.
        formats: of `TABLES` and `FIGURES`; each may be several with commas between them.

    Raises:
        ScenarioError: there is no such format, a folder holds no complete run, there is nothing to draw figures with,
            or `out` cannot be written, or holds tables of a run that would be lost.
    """
    chosen = dict.fromkeys(word.strip() for text in formats for word in text.split(","))
    for word in chosen:
        if word not in TABLES + FIGURES:
            raise ScenarioError("unknown format", key="--format", found=word, allowed=TABLES + FIGURES)
    if "parquet" in chosen and (out / "manifest.json").exists():
        raise ScenarioError("holds a run, whose own tables have these names", key="--export", found=str(out))
    runs = [load(folder) for folder in dict.fromkeys(folders)]
    with TemporaryDirectory() as place:
        staging = Path(place)
        if drawn := [word for word in FIGURES if word in chosen]:
            from sfl_sim.report.paper import draw  # plotly takes a while

            draw(merge(runs), staging, drawn)
        figures = _names(staging)
        for name, table in tables(runs).items():
            if "csv" in chosen:
                table.to_csv(staging / f"{name}.csv", index=False)
            if "parquet" in chosen:
                table.to_parquet(staging / f"{name}.parquet", index=False)
        written = _names(staging)
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name in written:
                (out / name).unlink(missing_ok=True)  # a link would be followed
                shutil.copyfile(staging / name, out / name)
        except OSError as error:
            raise ScenarioError(f"cannot be written: {error.strerror}", key="--export", found=str(out)) from error
    return Exported(out, [name for name in written if name not in figures], figures)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tables(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Give everything but the operations as tidy tables of all runs, without columns that no run knows."""
    seeds = _joined(runs, "summary")
    seeds["method_options"] = seeds["method_options"].map(json.dumps, na_action="ignore")
    found = {"results": _results(seeds), "seeds": seeds} | {name: _joined(runs, name) for name in STORED}
    found["holdings"] = _holdings(found["clients"])
    found["clients"] = found["clients"].drop(columns="label_samples")
    return {name: table.dropna(axis="columns", how="all") for name, table in found.items() if len(table)}


def _joined(runs: Sequence[Run], name: str) -> pd.DataFrame:
    told: list[pd.DataFrame] = [
        getattr(run, name).assign(run=title or run.name) for run, title in zip(runs, titles(runs), strict=True)
    ]
    table = pd.concat([part for part in told if len(part)] or told, ignore_index=True)
    return table[[*FIRST, *(column for column in table if column not in FIRST)]]


def _results(seeds: pd.DataFrame) -> pd.DataFrame:
    """One row per variant: the median and the standard deviation over seeds of every number.

    As on the page, a seed that does not reach the target counts as infinitely late, and an infinite median is unknown.
    """
    variants = seeds.groupby(FIRST[:2], sort=False)
    late = seeds.fillna(dict.fromkeys(TO_TARGET, np.inf)).groupby(FIRST[:2], sort=False)
    middle = late[SUMMARY_NUMBERS].median().replace(np.inf, np.nan)
    spread = variants[SUMMARY_NUMBERS].std()
    numbers = {
        f"{column}_{word}": values[column]
        for column in SUMMARY_NUMBERS
        for word, values in (("median", middle), ("sd", spread))
    }
    about = variants.agg(
        method=("method", "first"), seeds=("seed", "size"), seeds_to_accuracy=("rounds_to_accuracy", "count")
    )
    return about.assign(**numbers).reset_index()


def _holdings(clients: pd.DataFrame) -> pd.DataFrame:
    """One row per client and label: how many training samples of it the client holds."""
    told = clients.dropna(subset="label_samples")
    rows = (
        told[[*FIRST, "client", "label_samples"]].explode("label_samples").rename(columns={"label_samples": "samples"})
    )
    rows.insert(len(FIRST) + 1, "label", rows.groupby([*FIRST, "client"]).cumcount())
    return rows.astype({"samples": int}).reset_index(drop=True)
