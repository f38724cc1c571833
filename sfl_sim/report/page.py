"""Put the report together: one HTML file that opens offline."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import chain, count
from string import Template
from typing import TYPE_CHECKING, Any

from plotly.offline import get_plotlyjs

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import curves, gantt, labels, queueing, round_view, style
from sfl_sim.report.comparison import compare, machine_in_words, settings_in_words, values_table
from sfl_sim.report.display import plural
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.headline import headline, warnings
from sfl_sim.report.load import flat, load
from sfl_sim.report.panel import Panel
from sfl_sim.report.panels import panels
from sfl_sim.report.results import paper_table, results_table

if TYPE_CHECKING:
    from pathlib import Path

    import plotly.graph_objects as go

PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}
MAX_OPEN_ROWS = 8
"""A table of differences that is longer than this has to be opened."""
PAPER = (
    '<p class="caption">Per round the median over seeds, then median ± standard deviation over the last '
    f"{LAST_ROUNDS} rounds, as Hydra's tables seem to be made. The ± tells how restless that median is, and not how "
    "far the seeds lie apart.</p>"
)


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report on one run, or on several side by side, to the file `out` and return its path.

    Raises:
        ScenarioError: a folder holds no complete run, or the page cannot be written.
    """
    frames = merge([load(folder) for folder in dict.fromkeys(runs)])
    figure_ids = (f"figure-{number}" for number in count(1))
    title = html.escape(" · ".join(dict.fromkeys(run.name for run in frames.runs)))
    body = Template(asset("page.html")).substitute(
        title=title,
        about=_about(frames),
        headline=paragraphs(headline(frames), "headline"),
        warnings=paragraphs(warnings(frames), "warning"),
        comparison=_comparison(frames),
        table=_scrolling(results_table(frames)),
        paper_table=_paper(frames),
        panels="\n".join(panel_html(panel, figure_ids) for panel in panels(frames)),
        settings="\n".join(settings(run.name, run.scenario_text) for run in frames.runs),
        digests=_scrolling(_digests(frames)),
        manifests="\n".join(machine(run.name, run.manifest) for run in frames.runs),
        last_rounds=LAST_ROUNDS,
        curve_points=curves.MAX_POINTS,
        heat_rounds=labels.MAX_ROUNDS,
        queue_points=queueing.MAX_POINTS,
        gantt_ops=gantt.MAX_OPS,
        gantt_clients=gantt.MAX_CLIENTS,
        drawn_variants=round_view.MAX_VARIANTS,
    )
    return write_page(title, body, out)


def write_page(title: str, body: str, out: Path) -> Path:
    """Write HTML between the head and the foot that all pages share, to the file `out`, and return its path.

    Raises:
        ScenarioError: the page cannot be written.
    """
    page = Template(asset("frame.html")).substitute(
        title=title, body=body, css=asset("page.css"), script=asset("page.js"), plotly=get_plotlyjs()
    )
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # a link in a run that somebody sent would be followed
        part.write_text(page, encoding="utf-8")
        part.replace(out)  # an earlier page stays whole until the new one is
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ScenarioError(f"cannot be written: {error.strerror}", key="report", found=str(out)) from error
    return out


def asset(name: str) -> str:
    """The text of a file beside this one."""
    return files("sfl_sim.report").joinpath(name).read_text(encoding="utf-8")


def _paper(frames: Frames) -> str:
    table = paper_table(frames)
    return _details("As the paper counts", PAPER + _scrolling(table)) if table else ""


def _scrolling(table: str) -> str:
    """A table that scrolls sideways by itself where the page is too narrow for it."""
    return f'<div class="scroll">{table}</div>' if table else ""


def _about(frames: Frames) -> str:
    dates = dict.fromkeys(html.escape(str(run.manifest.get("created", "?"))[:10]) for run in frames.runs)
    variants, seeds = (
        plural(len(frames.variants), "variant"),
        plural(frames.summary["seed"].nunique(), "seed"),
    )
    return f"{variants}, {seeds}, run on {', '.join(dates)}"


def _comparison(frames: Frames) -> str:
    """In what several runs differ: a warning if it is more than what is compared."""
    if len(frames.runs) == 1:
        return ""
    found = compare(frames.runs)
    values = {key: texts for part in found.settings.values() for key, texts in part.items()}
    told = paragraphs([settings_in_words(found)], "warning" if found.others else "caption")
    if values:
        told += _details("Values by run", _scrolling(values_table(found, values)), is_open=len(values) <= MAX_OPEN_ROWS)
    if found.machine:
        told += paragraphs([machine_in_words(found)], "caption")
        told += _details("Values by run", _scrolling(values_table(found, found.machine)))
    return told


def paragraphs(sentences: Sequence[str], css_class: str) -> str:
    """HTML sentences as a paragraph each."""
    return "\n".join(f'<p class="{css_class}">{sentence}</p>' for sentence in sentences)


def panel_html(panel: Panel, figure_ids: Iterator[str]) -> str:
    """The section of a panel; its figures take the next ids."""
    figures = "\n".join(
        f"<figure><h3>{heading}</h3>{_plot(figure, next(figure_ids))}</figure>" for heading, figure in panel.figures
    )
    return (
        f'<section>\n<h2>{panel.title}</h2>\n<p class="caption">{panel.caption}</p>\n'
        f"{_legend(figure for _, figure in panel.figures)}"
        f'<div class="figures" style="--columns: {panel.columns}">\n{figures}\n</div>\n'
        f"{_scrolling(panel.table)}</section>"
    )


def _legend(figures: Iterable[go.Figure]) -> str:
    """One legend for all `figures`, made from their traces. Unlike Plotly's own, it takes no room from plots."""
    traces: dict[str, Any] = {}
    for trace in chain.from_iterable(figure.data for figure in figures):
        if trace.name and trace.showlegend is not False:
            traces.setdefault(trace.name, trace)
    items = "".join(f"<li>{_mark(trace)}{name}</li>" for name, trace in traces.items())
    return f'<ul class="legend">{items}</ul>' if items else ""


def _mark(trace: Any) -> str:
    """The look of a trace: a glyph for marks, a border for bars and lines."""
    if trace.type == "bar":
        return f'<i style="border-top: 10px solid {trace.marker.color}"></i>'
    if "lines" not in trace.mode:
        return f'<i style="color: {trace.marker.color}">{style.GLYPHS[trace.marker.symbol]}</i>'
    dash = {"dash": "dashed", "dot": "dotted"}.get(trace.line.dash, "solid")
    return f'<i style="border-top: {trace.line.width}px {dash} {trace.line.color}"></i>'


def _plot(figure: go.Figure, div_id: str) -> str:
    figure.update_layout(showlegend=False)
    return str(figure.to_html(config=PLOT_CONFIG, include_plotlyjs=False, full_html=False, div_id=div_id))


def settings(name: str, scenario_yaml: str) -> str:
    """A scenario as HTML, to be opened."""
    return _details(f"{html.escape(name)}: scenario.yaml", f"<pre>{html.escape(scenario_yaml)}</pre>")


def machine(name: str, manifest: Mapping[str, Any]) -> str:
    """How and where something was done, as HTML, to be opened."""
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{html.escape(str(value))}</td></tr>"
        for key, value in flat(manifest).items()
    )
    return _details(f"{html.escape(name)}: machine and versions", _scrolling(f"<table>{rows}</table>"))


def _details(summary: str, body: str, *, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{body}</details>"


def _digests(frames: Frames) -> str:
    rows = "".join(
        f"<tr><td>{row['variant']}</td><td>{row['seed']}</td><td>{_digest(row['timeline_digest'])}</td>"
        f"<td>{_digest(row['weights_digest'])}</td></tr>"
        for row in frames.summary.to_dict("records")
    )
    return (
        "<table><thead><tr><th>Variant</th><th>Seed</th><th>Timeline</th><th>Weights</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _digest(text: object) -> str:
    return f"<code>{html.escape(text)}</code>" if isinstance(text, str) else "–"
