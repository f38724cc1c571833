"""The page on what the cut gives away: leakage against time, accuracy and forgetting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.report import figures, style
from sfl_sim.report.about import setup_in_words, warnings
from sfl_sim.report.display import data_size, duration, percent, plural, points, time_unit
from sfl_sim.report.frames import merge
from sfl_sim.report.html_page import write_page
from sfl_sim.report.load import TABLES, flat, load
from sfl_sim.report.pages.costs import any_of
from sfl_sim.report.panel import Panel
from sfl_sim.report.privacy_pictures import galleries
from sfl_sim.report.table import Cell, Column, Table
from sfl_sim.report.targets import TIME, accuracy, time_compared, time_in_words
from sfl_sim.scenario import grid
from sfl_sim.store.reading import file_of, read_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import plotly.graph_objects as go
    from rich.table import Table as TerminalTable

    from sfl_sim.report.frames import Frames, Variant

CUT = "model.cut"
MEASURES = {"ssim": "SSIM", "token_accuracy": "Tokens read", "psnr": "PSNR (dB)"}
"""What tells how well samples are drawn, the most telling first; the more, the more leaks."""
FIGURES = {
    "inversion ssim": "ssim", "inversion token_accuracy": "token_accuracy", "inversion psnr": "psnr",
    "dependence dcor2_unbiased": "dcor2", "dependence dcor": "dcor", "clusters accuracy": "clusters",
    "nearest accuracy": "nearest", "norm auc": "norm", "commonest label accuracy": "commonest",
}  # fmt: skip
"""Column of each figure by attack and metric."""
FRONT = "on the front"


@dataclass(frozen=True)
class PrivacyResults:
    """What the variants of a run give away.

    Attributes:
        frames: the run.
        aim: the accuracy to which `time_s` leads; None if it is the time of a round.
        figures: one row per variant and seed: the summary, the depth of the cut, and after the last round the columns
            of `FIGURES`, of a variant with several cuts where most leaks.
        table: the rows of leakage.parquet on all clients together in the last round, with the variants' labels.
        pictures: reconstructions.parquet, likewise.
        series: name and look of what variants have in common that differ in their cut alone, by variant.
    """

    frames: Frames
    aim: float | None
    figures: pd.DataFrame
    table: pd.DataFrame
    pictures: pd.DataFrame
    series: dict[str, style.Named]

    @cached_property
    def measure(self) -> str:
        """The column of `MEASURES` that is known; empty without inversion."""
        return next((column for column in MEASURES if self.figures[column].notna().any()), "")

    @cached_property
    def middle(self) -> pd.DataFrame:
        """One row per variant: medians over seeds, and `best`: whether the variant is on the Pareto front."""
        numbers = ["cut", "time_s", "accuracy", "performance_gap", *MEASURES, "clusters", "commonest", "dcor2"]
        middle = self.figures.groupby("variant")[numbers].median().loc[[v.label for v in self.frames.variants]]
        if not self.measure:
            return middle.assign(best=False)
        costs = middle["time_s"], 1 - middle["accuracy"], middle[self.measure]
        known = np.isfinite(middle["time_s"]) & middle[self.measure].notna()
        return middle.assign(best=non_dominated(*costs) & known)

    def of(self, series: style.Named) -> pd.DataFrame:
        """The medians of the variants of a series with one cut each, from the shallowest to the deepest."""
        labels = [label for label, own in self.series.items() if own == series]
        return self.middle.loc[labels].dropna(subset="cut").sort_values("cut")

    def name(self, variant: Variant) -> Markup:
        """The variant's name beside the mark of its series."""
        series = self.series[variant.label]
        return style.Named(variant.label, series.colour, series.dash).html

    @cached_property
    def all_series(self) -> list[style.Named]:
        """The series, in the order of their first variants."""
        return list(dict.fromkeys(self.series.values()))

    @cached_property
    def layers(self) -> dict[int, str]:
        """The names of the layers, by their number."""
        layers = self.frames.layers.drop_duplicates("layer")
        return dict(zip(layers["layer"].astype(int), layers["name"].astype(str), strict=True))

    def known_without(self, attack: str, measure: str) -> float:
        """Give what is drawn without any network before the cut; NaN if that was not tried."""
        rows = self.table.query("cut == 0 and attack == @attack and metric == @measure")
        return float(rows["value"].median())


def load_results(folder: Path) -> PrivacyResults:
    """Read what the variants of the run in `folder` give away. Raises ScenarioError if nobody has measured it."""
    frames = merge([load(folder)])
    table, pictures = (read_table(folder, TABLES[name]) for name in ("leakage", "reconstructions"))
    if file_of(folder, TABLES["leakage"]) is None:
        raise ScenarioError(
            "has no leakage.parquet: report.leakage asks for it, in a run that trains",
            key="SCENARIO",
            found=str(folder),
        )
    if table.empty:
        raise ScenarioError(f"{folder} has nothing to report: no attack has given a number")
    labels = {variant.name: variant.label for variant in frames.variants}
    table, pictures = (
        each.assign(variant=each["variant"].map(labels)) if len(each) else each for each in (table, pictures)
    )
    is_last = table["round"] == table.groupby(["variant", "seed"])["round"].transform("max")
    last = table[is_last & (table["client"] == -1)]
    attacked = last[last["cut"] > 0]
    attacked = attacked.assign(column=(attacked["attack"] + " " + attacked["metric"]).map(FIGURES))
    found = attacked.pivot_table("value", ["variant", "seed"], "column", "max").reindex(columns=list(FIGURES.values()))
    cuts = attacked.groupby(["variant", "seed"])["cut"].agg(lambda own: own.iloc[0] if own.nunique() == 1 else np.nan)
    aim, time_s = time_compared(frames)
    summary = frames.summary.assign(time_s=time_s)
    summary = summary.merge(found.assign(cut=cuts), how="left", left_on=["variant", "seed"], right_index=True)
    summary = summary.assign(round_bytes=(summary["bytes_up"] + summary["bytes_down"]) / summary["rounds"])
    return PrivacyResults(frames, aim, summary, last, pictures, _series(frames))


def _series(frames: Frames) -> dict[str, style.Named]:
    """Give variants that differ in their cut alone one name and look."""
    scenario = frames.runs[0].scenario
    every, method = list(grid.points(scenario.get("grid") or {})), flat(scenario).get("method.name", "")
    without = grid.names_without(every, method, lambda key: key == CUT)
    common = dict(zip(grid.names(every, method), without, strict=True))
    names = {variant.label: common.get(variant.name, variant.name) for variant in frames.variants}
    looks = {name: style.Named(escape(name), **style.look(i)) for i, name in enumerate(dict.fromkeys(names.values()))}
    return {label: looks[name] for label, name in names.items()}


def write_privacy(folder: Path, out: Path) -> Path:
    """Write the page on the run in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: nothing was measured, or the page cannot be written.
    """
    results = load_results(folder)
    return write_page(
        out,
        "privacy",
        title=results.frames.title,
        kind="privacy",
        about=f"{plural(len(results.frames.variants), 'variant')}, {plural(results.frames.n_seeds, 'seed')}",
        setup=setup_in_words(list(results.frames.runs[0].settings.values())),
        headlines=headline(results),
        warnings=warnings(results.frames),
        galleries=galleries(results),
        panels=panels(results),
        runs=results.frames.runs,
    )


def privacy_in_terminal(folder: Path) -> TerminalTable:
    """Tabulate what each variant of the run in `folder` gives away, and at which price."""
    results = load_results(folder)
    wanted = TIME.key, "time_s", "accuracy", results.measure, "clusters"
    return _table(results, [column for column in _columns(results) if column.key in wanted]).in_terminal()


def headline(results: PrivacyResults) -> list[Markup]:
    """Say what is drawn at the shallowest and at the deepest cut, which variants to choose, and what labels tell."""
    return [*_drawn(results), *_choice(results), *_labels(results)]


def _drawn(results: PrivacyResults) -> list[Markup]:
    values = results.middle[results.measure].dropna().to_dict() if results.measure else {}
    told = sorted((v for v in results.frames.variants if v.label in values), key=lambda v: -values[v.label])
    if not told:
        return []
    text, mean = partial(_read, results.measure), results.known_without("mean", results.measure)
    scale = f" (equal images: 1; their mean image: {text(mean)})" if results.measure == "ssim" else ""
    sentence = Markup("A server that reconstructs what clients hold sees most with {}: {} {}{}").format(
        results.name(told[0]), MEASURES[results.measure].removesuffix(" (dB)"), text(values[told[0].label]), scale
    )
    if len(told) == 1:
        return [sentence + "."]
    return [
        sentence + Markup("; it sees least with {}: {}.").format(results.name(told[-1]), text(values[told[-1].label]))
    ]


def _choice(results: PrivacyResults) -> list[Markup]:
    best = results.middle["best"]
    if best.sum() in (0, len(best)):
        return []
    names = [results.name(variant) for variant in results.frames.variants if best[variant.label]]
    return [
        escape(f"To trade {time_in_words(results.aim)}, accuracy and leakage against each other, choose ")
        + any_of(names)
        + ": every other variant is at best as good as one of these in all three."
    ]


def _labels(results: PrivacyResults) -> list[Markup]:
    told = results.figures["clusters"].dropna()
    if told.empty:
        return []
    least, most, chance = told.min(), told.max(), results.figures["commonest"].median()
    share = percent(most, 0) if percent(least, 0) == percent(most, 0) else f"{percent(least, 0)} to {percent(most, 0)}"
    heard = bool(results.table["labels_sent"].any())
    note = (
        " Here labels travel with what goes up, so this is what one learns who only hears what comes down."
        if heard
        else ""
    )
    return [
        escape(
            f"The gradients that come back give {share} of the labels away to one who sorts them by direction; "
            f"always naming the commonest label is right for {percent(chance, 0)}.{note}"
        )
    ]


def _read(column: str, number: float) -> str:
    return percent(number, 0) if column == "token_accuracy" else f"{number:.{1 if column == 'psnr' else 2}f}"


def panels(results: PrivacyResults) -> list[Panel]:
    """List the sections of the page below the pictures."""
    front = " Ringed points are on the Pareto front of time, accuracy and reconstruction: none is better in all three."
    caption = f"Each point is a variant: its medians over {plural(results.frames.n_seeds, 'seed')}." + front * bool(
        results.measure
    )
    if results.middle["cut"].isna().any():
        caption += " Variants whose clients have different cuts are in the table alone."
    return [
        Panel("Cut by cut", caption, by_cut(results), columns=2, tables=[_table(results, _columns(results))]),
        *_over_rounds(results),
    ]


def by_cut(results: PrivacyResults) -> list[tuple[str, go.Figure]]:
    """Draw time, accuracy, performance gap and leakage against the cut, a line for each series."""
    finite = results.middle["time_s"].replace(np.inf, np.nan)
    unit, unit_s = time_unit(finite.max())
    drawn = [
        (
            time_in_words(results.aim).capitalize(),
            _against_cut(results, finite / unit_s, f"simulated time ({unit})", f"%{{y:.3~g}} {unit}"),
        ),
        ("Accuracy", _against_cut(results, 100 * results.middle["accuracy"], "accuracy (%)", "%{y:.1f} %")),
        (
            "Performance gap",
            _against_cut(results, 100 * results.middle["performance_gap"], "gap (points)", "%{y:.1f} points"),
        ),
    ]
    if not results.measure:
        return drawn
    scale = 100 if results.measure == "token_accuracy" else 1
    title = {"ssim": "SSIM (1: equal)", "psnr": "PSNR (dB)", "token_accuracy": "tokens read (%)"}[results.measure]
    figure = _against_cut(results, scale * results.middle[results.measure], title, "%{y:.3~g}")
    for attack, name in (("mean", "mean image"), ("inversion", "without a network")):
        level = scale * results.known_without(attack, results.measure)
        if np.isfinite(level):
            name = name.replace("mean image", "most frequent token") if results.measure == "token_accuracy" else name
            figures.level(figure, level, annotation={"text": name, "font": {"color": style.MUTED, "size": 12}})
    return [*drawn, ("What the server can reconstruct", figure)]


def _against_cut(results: PrivacyResults, values: pd.Series, title: str, hover: str) -> go.Figure:
    figure = figures.canvas(300)
    cuts = sorted(results.middle["cut"].dropna().astype(int).unique())
    for series in results.all_series:
        own = results.of(series)
        mark = {"color": series.colour, "symbol": series.symbol, "size": 8}
        figures.lines(figure, series, own["cut"].map(cuts.index), values[own.index], f"{hover}<extra></extra>",
                      mode="lines+markers", marker=mark)  # fmt: skip
    best = results.middle[results.middle["best"] & results.middle["cut"].notna()]
    figure.add_scatter(
        x=best["cut"].map(cuts.index).to_numpy(), y=values[best.index].to_numpy(), mode="markers", showlegend=False,
        hoverinfo="skip", marker={"symbol": "circle-open", "size": 17, "color": style.INK, "line": {"width": 1.8}},
    )  # fmt: skip
    names = [f"{cut} {results.layers.get(cut, '')}".strip() for cut in cuts]
    shown = figures.some(range(len(cuts)), 12)
    figure.update_xaxes(title="cut after layer", tickvals=shown, ticktext=[names[place] for place in shown],
                        range=[-0.4, len(cuts) - 0.6])  # fmt: skip
    return figure.update_yaxes(title=title, rangemode="tozero")


def _over_rounds(results: PrivacyResults) -> list[Panel]:
    """What leaks after each round that was measured, if there are several."""
    folder = results.frames.runs[0].folder
    table, measure = read_table(folder, TABLES["leakage"]), results.measure
    rows = table.query("client == -1 and cut > 0 and attack == 'inversion' and metric == @measure")
    if rows["round"].nunique() < 2:
        return []
    figure = figures.canvas(330)
    for variant in results.frames.drawn.variants:
        curve = rows[rows["variant"] == variant.name].groupby("round")["value"].median()
        figures.lines(figure, variant, curve.index, curve, "%{y:.3~g} after round %{x}", mode="lines+markers")
    figure.update_xaxes(figures.round_axis(int(rows["round"].max()))).update_yaxes(title=MEASURES[measure])
    return [Panel("While the model learns", "What the server reconstructs with the model of a round.", [("", figure)])]


def _columns(results: PrivacyResults) -> list[Column]:
    """List the columns of the table: the price, then what leaks."""
    aimed = results.aim is not None and replace(TIME, title=f"Time to {accuracy(results.aim)}")
    columns = [
        aimed or Column("Time of a round", "time_s", duration),
        Column("Bytes of a round", "round_bytes", data_size),
        Column("Accuracy", "accuracy", percent, more_is_better=True),
        Column("PG (points)", "performance_gap", points),
        *(Column(name, column, partial(_read, column)) for column, name in MEASURES.items()),
        Column("dCor², unbiased", "dcor2", "{:.2f}".format),
        Column("dCor, biased", "dcor", "{:.2f}".format, more_is_better=None),
        Column("Labels by clusters", "clusters", partial(percent, digits=0)),
        Column("by nearest", "nearest", partial(percent, digits=0)),
        Column("by norm (AUC)", "norm", "{:.2f}".format),
    ]
    return [column for column in columns if results.figures[column.key].notna().any()]


def _table(results: PrivacyResults, columns: Sequence[Column]) -> Table:
    rows, seeds = [], dict(list(results.figures.groupby("variant")))
    for variant in results.frames.variants:
        about = FRONT if results.middle.loc[variant.label, "best"] else ""
        rows.append([Cell(results.name(variant), about), *(column.cell(seeds[variant.label]) for column in columns)])
    note = "Medians over seeds, ± standard deviation; the best of each column is shaded: of leakage, the least."
    return Table(["Variant", *(column.title for column in columns)], rows, note=note)
