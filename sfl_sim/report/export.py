"""Files of a page for other programs: tidy tables, and figures for a paper, one file each and as wide as a column."""

import html
import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sfl_sim.errors import ScenarioError
from sfl_sim.report.display import plural
from sfl_sim.report.frames import Frames, merge, titles
from sfl_sim.report.load import IN_MEMORY, SUMMARY_NUMBERS, Run, load_unchanged
from sfl_sim.report.pages.servers import graph_of
from sfl_sim.report.pages.system import SAME
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import TO_TARGET, aims, results_table
from sfl_sim.store.files import as_file_names

TABLES, FIGURES, GRAPHS = ("csv", "parquet", "tex"), ("svg", "pdf", "png"), ("graphml", "json")
"""Formats: of tables, of figures, and of each variant's network as a graph (networkx's GraphML and node-link JSON)."""
STORED = [name for name in IN_MEMORY if name != "summary"]
"""Tables that are given as they are stored."""
FIRST = ["run", "variant", "seed"]


@dataclass(frozen=True)
class Exported:
    """Folder and names of exported files."""

    folder: Path
    tables: list[str]
    figures: list[str]
    graphs: list[str]

    def __str__(self) -> str:
        counts = [plural(len(self.tables), "table"), plural(len(self.figures), "figure")]
        return f"{self.folder}: {', '.join(counts + [plural(len(self.graphs), 'graph')] * bool(self.graphs))}"


def export_runs(folders: Sequence[Path], out: Path, formats: Sequence[str]) -> Exported:
    """Write tables and figures of stored runs, joined, into the folder `out`: all of them, or nothing.

    Args:
        folders: of the runs.
        out: may hold other files already.
        formats: of `TABLES`, `FIGURES` and `GRAPHS`.

    Raises ScenarioError if there is no such format, a folder holds no complete run, there is nothing to draw figures
    with, or `out` cannot be written, or holds tables of a run that would be lost.
    """
    chosen = dict.fromkeys(formats)
    for word in chosen:
        if word not in TABLES + FIGURES + GRAPHS:
            raise ScenarioError("unknown format", key="--format", found=word, allowed=TABLES + FIGURES + GRAPHS)
    if "parquet" in chosen and (out / "manifest.json").exists():
        raise ScenarioError("holds a run, whose own tables have these names", key="--export", found=str(out))
    runs = [load_unchanged(folder) for folder in dict.fromkeys(folders)]
    with TemporaryDirectory() as folder:
        staging = Path(folder)
        if drawn := [word for word in FIGURES if word in chosen]:
            draw(merge(runs), staging, drawn)
        figures = _names(staging)
        for name, table in tables(runs).items():
            if "csv" in chosen:
                table.to_csv(staging / f"{name}.csv", index=False)
            if "parquet" in chosen:
                table.to_parquet(staging / f"{name}.parquet", index=False)
        if "tex" in chosen:
            (staging / "results.tex").write_text(results_table(merge(runs)).in_latex(), encoding="utf-8")
        if forms := [word for word in GRAPHS if word in chosen]:
            _write_graphs(merge(runs), staging, forms)
        graphs = [name for name in _names(staging) if name.startswith("network_") and name not in figures]
        written = _names(staging)
        try:
            out.mkdir(parents=True, exist_ok=True)
            for name in written:
                (out / name).unlink(missing_ok=True)  # a link would be followed
                shutil.copyfile(staging / name, out / name)
        except OSError as error:
            raise ScenarioError(f"cannot be written: {error.strerror}", key="--export", found=str(out)) from error
    return Exported(out, [name for name in written if name not in {*figures, *graphs}], figures, graphs)


def _write_graphs(frames: Frames, folder: Path, formats: Sequence[str]) -> None:
    """Write the network of every variant, first seed, into `folder`, in every format."""
    names = as_file_names(f"network_{variant.name}" for variant in frames.variants)  # which runs may share
    for variant, name in zip(frames.variants, names, strict=True):
        graph = graph_of(frames, variant)
        if "graphml" in formats:
            nx.write_graphml(graph, folder / f"{name}.graphml")
        if "json" in formats:
            (folder / f"{name}.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges"), indent=1))


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


# Figures for a paper

FONT = "Arial, Helvetica, Liberation Sans, sans-serif"
PAPER_PT, PAGE_PX = 8, 13
SCALE = PAPER_PT / 72 * 96 / PAGE_PX
"""Figures are laid out as on the page and then scaled, so that its text has the usual size on paper."""
SHARP = {"png": 300 / 96}
"""By how much formats have more pixels than figures on a page: 300 in an inch."""
SINGLE_IN, DOUBLE_IN = 3.4, 7.0
"""Widths of one column and of two in most journals."""
LEGEND_PX, LETTERS, MARK_PX, ROW_PX = 12, 50, 48, 18
"""Of a legend: size of its text, longest line in letters, room beside a text, and height of a row."""
LETTER = 0.55
"""Width of a letter on average, in heights."""
GAP_PX = 8
"""Room around everything."""


class ForPaper(NamedTuple):
    """A figure that is ready for paper, and the name of its file without an ending."""

    name: str
    figure: go.Figure


def draw(frames: Frames, folder: Path, formats: Sequence[str]) -> None:
    """Write every figure of the page into `folder`, in every format.

    Raises ScenarioError if kaleido is missing or too old, or there is no browser that it could draw with.
    """
    import plotly.io  # it takes a while, and tables do without

    from sfl_sim.report.pages.run import panels

    try:
        found = f"kaleido {version('kaleido')}"
    except PackageNotFoundError:
        found = "no kaleido"
    if not (re.match(r"kaleido [1-9]", found) and hasattr(plotly.io, "write_images")):
        raise ScenarioError(
            "figures need kaleido 1 and plotly 6.1 or newer: pip install 'sfl-sim[figures]'",
            key="--format",
            found=f"{found}, plotly {version('plotly')}",
        )
    targets = [aim.name for aim in aims(frames)]
    todo = [(drawing, form) for drawing in drawings(panels(frames), targets) for form in formats]
    layouts = [drawing.figure.layout for drawing, _ in todo]
    try:
        plotly.io.write_images(
            fig=[drawing.figure for drawing, _ in todo], scale=[SCALE * SHARP.get(form, 1) for _, form in todo],
            file=[folder / f"{drawing.name}.{form}" for drawing, form in todo],
            width=[layout.width for layout in layouts], height=[layout.height for layout in layouts],
        )  # fmt: skip
    except RuntimeError as error:  # both of plotly's own and of the browser's
        raise ScenarioError(
            "figures are drawn by Google Chrome or Chromium, and none could be started: install one, set BROWSER_PATH, "
            "or run plotly_get_chrome",
            key="--format",
        ) from error


def drawings(shown: Sequence[Panel], targets: Sequence[str] = ()) -> Iterator[ForPaper]:
    """Every figure with a name of its own, in which no target stands."""
    figures = [(panel, *figure) for panel in shown for figure in panel.figures]
    names = as_file_names(file_name(panel.title, heading, targets) for panel, heading, _ in figures)
    for (panel, _, figure), name in zip(figures, names, strict=True):
        yield ForPaper(name, for_paper(figure, DOUBLE_IN if panel.columns == 1 else SINGLE_IN))


def file_name(title: str, heading: str, targets: Sequence[str] = ()) -> str:
    """Words of the panel and of the variant, or else of the heading: nothing that depends on a target or a result."""
    variant = re.search("<b>(.*?)</b>", heading)
    about = "" if heading.startswith(SAME) else heading.partition(":")[0]
    words = [title, variant[1] if variant else about]
    for target in targets:
        words = [html.unescape(text).replace(target, "target") for text in words]
    panel, figure = (re.sub(r"[^a-z0-9]+", "-", html.unescape(text).lower()).strip("-") for text in words)
    return figure if figure.startswith(panel) else f"{panel}-{figure}".rstrip("-")


def for_paper(figure: go.Figure, width_in: float) -> go.Figure:
    """Give a figure of the page, on white, `width_in` inches wide, with a legend below its plots.

    It has no title: a paper has captions, and the file's name says what it shows.
    """
    width_px = round(width_in * 96 / SCALE)
    first: dict[str, Any] = {}
    for trace in figure.data:
        if trace.name and trace.showlegend is not False:
            trace.showlegend = first.setdefault(trace.name, trace) is trace
    names = [textwrap.wrap(name, LETTERS, break_long_words=False, break_on_hyphens=False) for name in first]
    for trace, lines in zip(first.values(), names, strict=True):
        trace.name = "<br>".join(lines)
    text_px = max((len(html.unescape(line)) for lines in names for line in lines), default=0) * LEGEND_PX * LETTER
    rows = math.ceil(len(names) / max(1, width_px // (text_px + MARK_PX))) * max(map(len, names), default=0)
    has_subtitles = any(note.yref == "paper" for note in figure.layout.annotations)
    above_px = figure.layout.margin.t if has_subtitles else GAP_PX
    figure.update_layout(
        width=width_px, height=figure.layout.height - figure.layout.margin.t + above_px + PAGE_PX + rows * ROW_PX,
        paper_bgcolor="white", plot_bgcolor="white", font_family=FONT, showlegend=bool(names),
        margin={"t": above_px, "b": 2 * GAP_PX, "l": 2 * GAP_PX, "r": 2 * GAP_PX},
        legend={
            "orientation": "h", "font_size": LEGEND_PX, "entrywidth": text_px, "traceorder": "normal",
            "maxheight": 0.9, "yref": "container", "y": 0, "yanchor": "bottom",
        },
    )  # fmt: skip
    figure.update_xaxes(title_font_size=PAGE_PX).update_yaxes(title_font_size=PAGE_PX)
    for axis in figure.select_xaxes(lambda axis: axis.title.text):
        axis.title.text += "<br>"  # or else Plotly leaves no room for what hangs below a line of letters
    return figure
