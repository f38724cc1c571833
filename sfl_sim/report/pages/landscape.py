"""The page on loss landscapes: what models lose along a line and on a plane of random directions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sfl_sim.metrics.geometry import TOLERATED_RISE, rise
from sfl_sim.report import figures, style
from sfl_sim.report.about import setup_in_words, warnings
from sfl_sim.report.display import over_seeds, plural
from sfl_sim.report.figures import MAX_NARROW_BANDS
from sfl_sim.report.frames import Frames, ShownVariant
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Compared, Sentence, lead
from sfl_sim.report.panel import Declared, Drawing, Table, at_most, by_variant, columns_of

Slices = Sequence[tuple[ShownVariant, pd.DataFrame]]
"""The points of each variant."""

UNDERTRAINED = 0.5
"""A model whose loss is more than this share of that of guessing has learned little."""
MAX_RISE = 3.0
"""Largest rise in the figure, so that one steep variant does not press the others flat."""
LEVELS = 16
DIGITS = (1, 1.5, 2, 3, 5, 7)
MAX_TICKS = 7


def write_landscape(frames: Frames, points: pd.DataFrame, out: Path) -> Path:
    """Write the page to the file `out` and return its path.

    Args:
        points: rows of landscape.parquet.

    Raises ScenarioError if the page cannot be written.
    """
    lines, planes = (
        [(variant, _of(variant, rows)) for variant in frames.variants]
        for rows in (points[points["slice"] == "line"], points[points["slice"] == "plane"])
    )
    doubtful = undertrained(frames, lines)
    return write_page(
        out, "landscape", title=frames.title, kind="loss landscape",
        about=f"around the models of the last round; loss on {plural(points['samples'].max(), 'test sample')}",
        setup=setup_in_words([own for run in frames.runs for own in run.settings.values()]),
        headlines=headline([(variant, points) for variant, points in lines if variant.label not in doubtful]),
        warnings=[*warnings(frames), *doubtful.values()], panels=[*line_panels(lines), *plane_panels(planes)],
        length=f"{points['alpha'].max() - points['alpha'].min():g}",
    )  # fmt: skip


def headline(lines: Slices) -> list[Sentence]:
    """Say which minimum is the widest."""
    widths = {variant.label: _models(points)["width"] for variant, points in lines}
    names = {variant.label: variant.html for variant, _ in lines}
    compared = Compared("width of the minimum", "largest", partial(_width, lines), more_is_better=True)
    return lead(compared, widths, names)


def undertrained(frames: Frames, lines: Slices) -> dict[str, str]:
    """Warn, by label, of each variant that has learned so little that its width means nothing."""
    last = frames.layers.sort_values("layer").groupby("variant")["out_shape"].last()
    answers = pd.to_numeric(last.str.split("x").str[-1], errors="coerce").clip(lower=1)  # labels or tokens
    texts = {}
    for variant, points in lines:
        loss, guessing = _models(points)["loss"].median(), math.log(answers.get(variant.label, 1))
        if loss > UNDERTRAINED * guessing > 0:
            name = variant.label.unescape()
            texts[str(variant.label)] = (
                f"{name} is hardly trained: its loss is {loss:.2f}, and that of guessing {guessing:.2f}. A "
                "model that has learned little has little to lose: its width does not tell how good its minimum is, "
                "and the sentences above leave it out."
            )
    return texts


def _of(variant: ShownVariant, points: pd.DataFrame) -> pd.DataFrame:
    return points[(points["run"] == str(variant.run.folder)) & (points["variant"] == variant.name)]


def width_table(lines: Slices) -> Table:
    """Loss and accuracy of the models, and the width of their minima."""
    # No width is shaded as the best: what has learned little has a wide one.
    *columns, width = columns_of("landscape", "loss", "accuracy", "width")
    bounded = replace(width, text=partial(_width, lines))
    return by_variant([*columns, bounded], [(variant, _models(points)) for variant, points in lines])


def _width(lines: Slices, found: float) -> str:
    """A width as it reads: that of a minimum which is wider than the line is only known to be as wide as the line."""
    whole = max(float(np.ptp(points["alpha"])) for _, points in lines)
    return f"{'≥ ' if found >= whole else ''}{found:.2f}"


def rise_along(lines: Slices) -> go.Figure:
    """Draw the rise of the loss over the model's own against the distance from it: median ± over seeds."""
    figure = figures.canvas(330)
    lowest, highest = 0.0, TOLERATED_RISE
    for variant, points in lines:
        curve = over_seeds(points.assign(rise=rise(points)), "alpha", ["rise"])
        lowest, highest = min(lowest, curve["rise_low"].min()), max(highest, curve["rise_high"].max())
        if len(lines) <= MAX_NARROW_BANDS:
            figures.band(figure, variant, curve["rise_low"], curve["rise_high"], curve.index.to_series())
        figures.lines(figure, variant, curve.index, curve["rise"], "%{y:.3f} at %{x:.2f}", mode="lines")
    label = {"text": "ln 2", "font": {"color": style.MUTED, "size": 12}}
    figures.level(figure, TOLERATED_RISE, annotation=label, annotation_position="top")
    figure.update_yaxes(title="loss − loss of the model", range=[lowest - 0.1, min(highest + 0.1, MAX_RISE)])
    return figure.update_xaxes(title="distance from the model")


def accuracy_along(lines: Slices) -> go.Figure:
    """Accuracy against the distance from the model: median ± over seeds."""
    figure = figures.curves(lines, "alpha", "accuracy", "%{y:.1f} % at %{x:.2f}")
    figure.update_yaxes(title="accuracy (%)", rangemode="tozero")
    return figure.update_xaxes(title="distance from the model")


def line_words(lines: Slices) -> dict[str, str]:
    """Explain lines and bands."""
    n_seeds = max(points["seed"].nunique() for _, points in lines)
    return {"drawn": figures.over_seeds(n_seeds, len(lines) <= MAX_NARROW_BANDS)}


line_panels: Declared[Slices] = Declared(
    "Along a random direction",
    "The model is in the middle. The slower its loss rises and its accuracy falls on both sides, the flatter is its "
    "minimum. Its width is how much of the line lies below the dotted one ({drawn}).",
    {"Rise of the loss": rise_along, "Accuracy": accuracy_along},
    words=line_words,
    tables=lambda lines: [width_table(lines)],
    columns=2,
)


def contours(planes: Slices) -> list[Drawing]:
    """The loss on each plane from above, in logarithmic colours that are the same for all."""
    logs = [_log(points["loss"]) for _, points in planes]
    low, high = pd.concat(logs).agg(["min", "max"])
    return [
        (variant.html, partial(contour, points, log, low, high))
        for (variant, points), log in zip(planes, logs, strict=True)
    ]


def contour(points: pd.DataFrame, log: pd.Series, low: float, high: float) -> go.Figure:
    """The loss on one plane, whose logarithms are `log`; colours are those of the range from `low` to `high`."""
    figure = figures.canvas(330)
    grid = points.assign(log=log).pivot(index="beta", columns="alpha", values=["log", "loss", "accuracy"])
    ticks = _ticks(low, high)
    figure.add_contour(
        x=grid["log"].columns.to_numpy(), y=grid.index.to_numpy(), z=grid["log"].to_numpy(),
        zmin=low, zmax=high, colorscale=style.LOSS_SCALE, line={"width": 0.6, "color": "#FFFFFF"},
        contours={"start": low, "end": high, "size": (high - low) / LEVELS or 1},
        customdata=np.dstack([grid["loss"], 100 * grid["accuracy"]]),
        hovertemplate="loss %{customdata[0]:.3g}, accuracy %{customdata[1]:.1f} %<extra></extra>",
        colorbar=figures.colour_bar() | {
            "title": {"text": "loss"}, "tickvals": [math.log(tick) for tick in ticks],
            "ticktext": [f"{tick:g}" for tick in ticks],
        },
    )  # fmt: skip
    figure.add_scatter(
        x=[0], y=[0], mode="markers", hoverinfo="skip", showlegend=False,
        marker={"symbol": "cross-thin", "size": 12, "line": {"color": style.DOT, "width": 2.5}},
    )  # fmt: skip
    figure.update_xaxes(title="first direction", showgrid=False, constrain="domain")
    figure.update_yaxes(title="second direction", showgrid=False, scaleanchor="x", constrain="domain")
    return figure


plane_panels: Declared[Slices] = Declared(
    "On a plane of two random directions",
    "The planes from above, with the model at the cross. Neighbouring contours differ by a constant factor of loss and "
    "have the same colours in all figures: the wider apart they are, the flatter is the minimum (first seed; dark is a "
    "low loss).",
    contours,
    columns=at_most(3),
)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers whose logarithms lie in the range: so many digits of a decade that there are not too many."""
    for digits in (DIGITS, DIGITS[::2], DIGITS[::3], DIGITS[:1]):
        ticks = [digit * 10.0**power for power in range(-9, 15) for digit in digits]
        ticks = [tick for tick in ticks if low <= math.log(tick) <= high]
        if len(ticks) <= MAX_TICKS:
            break
    return ticks


def _log(loss: pd.Series) -> pd.Series:
    """The logarithm; NaN for what is no number, where the model is too far off to be computed."""
    return loss.where((loss > 0) & np.isfinite(loss)).map(math.log)


def _models(line: pd.DataFrame) -> pd.DataFrame:
    """One row per seed: loss and accuracy of the model itself, and the width of its minimum."""
    return line[line["alpha"] == 0].set_index("seed")
