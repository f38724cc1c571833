"""Where runs were trained: the time to the target at each cut, and the accuracy reached beside the time of a round."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.report import display, style
from sfl_sim.report.display import NBSP, duration, escaped, percent, tenths
from sfl_sim.report.serving_latency import wide_axis
from sfl_sim.report.table import Cell

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.whatif_load import WhatIf

HEIGHT_PX, ROW_PX = 320, 40
TITLES = ["A round", "Accuracy reached", f"Rounds to{NBSP}target", f"Time to{NBSP}target", "Valid"]
NUMBERS = ["accuracy", "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s"]


def trained(whatif: WhatIf) -> pd.DataFrame:
    """One row per trained point: medians over seeds, infinite where the target is not reached, and `round_s`.

    `valid` is whether all seeds are, and `reason`, escaped, one of those given.
    """
    assert whatif.overlay is not None
    at = ["series", *(axis.column for axis in whatif.axes)]
    known = whatif.overlay.astype(dict.fromkeys(NUMBERS, float)).fillna(
        {"rounds_to_accuracy": math.inf, "time_to_accuracy_s": math.inf}
    )
    reasons = known["reason"].fillna("").astype(str).where(~known["valid"].astype(bool), "")
    found = known.assign(reason=reasons.map(escaped)).groupby(at, as_index=False)
    points = found.agg({**dict.fromkeys(NUMBERS, "median"), "valid": "all", "reason": "max"})
    return points.merge(whatif.middle[[*at, "round_s"]], on=at)


def first_to_target(whatif: WhatIf) -> list[str]:
    """An HTML sentence on which of the trained points of the scenario's own world reaches the target first."""
    if whatif.overlay is None:
        return []
    here = whatif.here(trained(whatif))
    reached = here[here["valid"] & np.isfinite(here["time_to_accuracy_s"])]
    sentences = []
    for point in reached.nsmallest(1, "time_to_accuracy_s").to_dict("records"):
        whose = f" of {point['series']}" if len(whatif.series) > 1 else ""
        sentences.append(
            f"Of what was trained, {whatif.along.said(point[whatif.along.column])}{whose} is the first to reach "
            f"{percent(point['target_accuracy'], 0)} accuracy, after {duration(point['time_to_accuracy_s'])}."
        )
    return sentences


def time_to_target(whatif: WhatIf) -> go.Figure:
    """Simulated time to the target at the trained points of the scenario's own world; hollow is no longer valid."""
    here = whatif.here(trained(whatif))
    values = sorted(here[whatif.along.column].unique())
    unit, unit_s = display.time_unit(_longest_s(here))
    figure = style.canvas(90 + ROW_PX * max(len(values), 3))
    for series in whatif.series:
        own = here[here["series"] == series.label]
        reached = np.isfinite(own["time_to_accuracy_s"])
        ends = [f" {percent(share)}" for share in own["accuracy"]]
        figure.add_scatter(
            x=(own["time_to_accuracy_s"].where(reached, 0) / unit_s).to_numpy(),
            y=[values.index(index) for index in own[whatif.along.column]],
            mode="markers+text", marker={**_marker(series, own), "opacity": reached.astype(float).to_numpy()},
            text=np.where(reached, ends, "not reached"), textposition="middle right",
            textfont={"size": 12, "color": style.MUTED}, cliponaxis=False, showlegend=False,
            hovertemplate=f"%{{x:.3~g}} {unit}, ends at%{{text}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title=f"time to the target ({unit})", range=[0, 1.2 * _longest_s(here) / unit_s])
    return figure.update_yaxes(
        range=[len(values) - 0.4, -0.6], tickvals=list(range(len(values))), ticks="",
        ticktext=[whatif.along.names[index] for index in values], title=whatif.along.title,
    )  # fmt: skip


def _longest_s(points: pd.DataFrame) -> float:
    reached = points.loc[np.isfinite(points["time_to_accuracy_s"]), "time_to_accuracy_s"]
    return float(reached.max()) if len(reached) else 1.0


def accuracy_by_round(whatif: WhatIf) -> go.Figure:
    """Accuracy reached against the time of a round in the scenario's own world, a mark for each trained point."""
    here = whatif.here(trained(whatif))
    unit, unit_s = display.time_unit(here["round_s"].median())
    figure = style.canvas(HEIGHT_PX)
    for series in whatif.series:
        own = here[here["series"] == series.label]
        figure.add_scatter(
            x=(own["round_s"] / unit_s).to_numpy(), y=(100 * own["accuracy"]).to_numpy(), mode="markers+text",
            text=[whatif.along.names[i] for i in own[whatif.along.column]], textposition="top center",
            cliponaxis=False, marker=_marker(series, own), showlegend=False,
            hovertemplate=f"%{{text}}: %{{y:.1f}} %, a round takes %{{x:.3~g}} {unit}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(  # for the legend, which knows one colour a name
            x=[None], y=[None], mode="markers", name=series.label, showlegend=len(whatif.series) > 1,
            marker={"symbol": series.symbol, "color": series.colour},
        )  # fmt: skip
    figure.update_yaxes(title="accuracy reached (%)")
    scale = wide_axis(here["round_s"].min() / unit_s, here["round_s"].max() / unit_s)
    return figure.update_xaxes(scale, title=f"time of a round ({unit})")


def _marker(series: style.Named, rows: pd.DataFrame) -> dict[str, object]:
    return {
        "symbol": series.symbol, "size": 11, "line": {"color": series.colour, "width": 2},
        "color": np.where(rows["valid"], series.colour, "#FFFFFF"),
    }  # fmt: skip


def rows(whatif: WhatIf, points: pd.DataFrame) -> list[tuple[str, list[Cell]]]:
    """For a table: one row per trained point; what is no longer valid has its reason instead of times."""
    found = []
    for point in points.to_dict("records"):
        below = [axis.said(point[axis.column]) for axis in whatif.others]
        below += [point["series"]] if len(whatif.series) > 1 else []
        heading = f"{whatif.along.said(point[whatif.along.column])}<small>{' · '.join(below)}</small>"
        cells = [Cell(duration(point["round_s"])), Cell(percent(point["accuracy"]))]
        if not point["valid"]:
            cells += [Cell("–"), Cell("–"), Cell("must be trained", html.unescape(point["reason"]))]
        elif math.isinf(point["time_to_accuracy_s"]):
            late = Cell("not reached" if point["target_accuracy"] > 0 else "–")
            cells += [late, late, Cell("yes")]
        else:
            times = tenths(point["rounds_to_accuracy"]), duration(point["time_to_accuracy_s"])
            cells += [*map(Cell, times), Cell("yes")]
        found.append((heading, cells))
    return found
