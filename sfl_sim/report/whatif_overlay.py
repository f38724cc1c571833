"""Panel on trained runs: the time to the target at each cut, and accuracy against the time of a round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from sfl_sim.report import display, figures, style
from sfl_sim.report.display import NBSP, duration, percent, tenths
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.targets import accuracy
from sfl_sim.report.whatif_load import where_drawn

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.whatif_load import WhatIf

HEIGHT_PX, ROW_PX = 320, 40
TITLES = ["A round", "Accuracy reached", f"Rounds to{NBSP}target", f"Time to{NBSP}target", "Valid"]
NUMBERS = ["accuracy", "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s"]
OVERLAY = Markup(
    "Accuracies of stored runs, with the times of this what-if. The left figure has the simulated time "
    "to {goal}, with the accuracy reached at the end; the right one has that accuracy against the time "
    "of a round (medians over seeds). A configuration where clients would be served in another order, "
    "or training would go on for more rounds, must be trained: its accuracy is not known."
)


def overlay_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on points that were trained, if a run was asked for them."""
    if whatif.overlay is None:
        return []
    targets = whatif.overlay["target_accuracy"].dropna().unique()
    goal = f"{accuracy(targets[0])} accuracy" if len(targets) == 1 else "the target"
    points = trained(whatif).sort_values([axis.column for axis in whatif.others], kind="stable")
    own = whatif.here(points)
    drawn = []
    if len(own):
        drawn = [
            (f"Time to {goal}", time_to_target(whatif)),
            ("Accuracy against the time of a round", accuracy_by_round(whatif)),
        ]
    tables = [trained_table(whatif, own)]
    if len(own) < len(points):
        tables.append(trained_table(whatif, points.drop(own.index), "At other values"))
    caption = OVERLAY.format(goal=goal) + where_drawn(whatif.others)
    return [Panel("Configurations that were trained", caption, drawn, 2, tables)]


def trained(whatif: WhatIf) -> pd.DataFrame:
    """One row per trained point: medians over seeds, infinite where the target is not reached, and `round_s`.

    `valid` is whether all seeds are, and `reason` one of those given.
    """
    assert whatif.overlay is not None
    at = ["series", *(axis.column for axis in whatif.axes)]
    known = whatif.overlay.astype(dict.fromkeys(NUMBERS, float)).fillna(
        {"rounds_to_accuracy": math.inf, "time_to_accuracy_s": math.inf}
    )
    reasons = known["reason"].fillna("").astype(str).where(~known["valid"].astype(bool), "")
    found = known.assign(reason=reasons).groupby(at, as_index=False)
    points = found.agg({**dict.fromkeys(NUMBERS, "median"), "valid": "all", "reason": "max"})
    return points.merge(whatif.middle[[*at, "round_s"]], on=at)


def first_to_target(whatif: WhatIf) -> list[Markup]:
    """A sentence on which of the trained points of the scenario's own system reaches the target first."""
    if whatif.overlay is None:
        return []
    here = whatif.here(trained(whatif))
    reached = here[here["valid"] & np.isfinite(here["time_to_accuracy_s"])]
    sentences = []
    for point in reached.nsmallest(1, "time_to_accuracy_s").to_dict("records"):
        whose = " of " + Markup(point["series"]) if len(whatif.series) > 1 else ""
        target, after = accuracy(point["target_accuracy"]), duration(point["time_to_accuracy_s"])
        sentence = Markup("Of what was trained, {}{} is the first to reach {} accuracy, after {}.")
        sentences.append(sentence.format(whatif.along.said(point[whatif.along.column]), whose, target, after))
    return sentences


def time_to_target(whatif: WhatIf) -> go.Figure:
    """Simulated time to the target at the trained points of the scenario's own system."""
    here = whatif.here(trained(whatif))
    values = sorted(here[whatif.along.column].unique())
    unit, unit_s = display.time_unit(_longest_s(here))
    figure = figures.canvas(90 + ROW_PX * max(len(values), 3))
    for series in whatif.series:
        own = here[here["series"] == series.label]
        reached = own["valid"] & np.isfinite(own["time_to_accuracy_s"])
        ends = [f" {percent(share)}" for share in own["accuracy"]]
        figures.marks(
            figure, series, own["time_to_accuracy_s"].where(reached, 0) / unit_s,
            [values.index(index) for index in own[whatif.along.column]],
            f"%{{x:.3~g}} {unit}, ends at%{{text}}<extra></extra>", mode="markers+text",
            marker={"opacity": reached.astype(float).to_numpy()},
            text=np.select([reached, own["valid"]], [ends, "not reached"], "must be trained"),
            textposition="middle right", textfont={"size": 12, "color": style.MUTED},
            cliponaxis=False, showlegend=False,
        )  # fmt: skip
    figure.update_xaxes(title=f"time to the target ({unit})", range=[0, 1.2 * _longest_s(here) / unit_s])
    return figure.update_yaxes(
        range=[len(values) - 0.4, -0.6],
        tickvals=list(range(len(values))),
        ticks="",
        ticktext=[whatif.along.names[index] for index in values],
        title=whatif.along.title,
    )


def _longest_s(points: pd.DataFrame) -> float:
    reached = points.loc[points["valid"] & np.isfinite(points["time_to_accuracy_s"]), "time_to_accuracy_s"]
    return float(reached.max()) if len(reached) else 1.0


def accuracy_by_round(whatif: WhatIf) -> go.Figure:
    """Accuracy reached against the time of a round in the scenario's own system, a mark for each valid point."""
    here = whatif.here(trained(whatif))
    unit, unit_s = display.time_unit(here["round_s"].median())
    figure = figures.canvas(HEIGHT_PX)
    for series in whatif.series:
        own = here[(here["series"] == series.label) & here["valid"]]
        figures.marks(
            figure, series, own["round_s"] / unit_s, 100 * own["accuracy"],
            f"%{{text}}: %{{y:.1f}} %, a round takes %{{x:.3~g}} {unit}<extra></extra>", mode="markers+text",
            text=[whatif.along.names[i] for i in own[whatif.along.column]], textposition="top center",
            cliponaxis=False, showlegend=False,
        )  # fmt: skip
        figure.add_scatter(  # for the legend, which knows one colour a name
            x=[None], y=[None], mode="markers", name=series.label, showlegend=len(whatif.series) > 1,
            marker={"symbol": series.symbol, "color": series.colour},
        )  # fmt: skip
    figure.update_yaxes(title="accuracy reached (%)")
    scale = figures.wide_axis(here["round_s"].min() / unit_s, here["round_s"].max() / unit_s)
    return figure.update_xaxes(scale, title=f"time of a round ({unit})")


def trained_table(whatif: WhatIf, points: pd.DataFrame, folded: str = "") -> Table:
    """One row per trained point, folded under a title if one is given; a reason instead of times if no longer valid."""
    found = []
    for point in points.to_dict("records"):
        below = [axis.said(point[axis.column]) for axis in whatif.others]
        below += [Markup(point["series"])] if len(whatif.series) > 1 else []
        heading = Cell(whatif.along.said(point[whatif.along.column]), Markup(" · ").join(below))
        cells = [heading, Cell(duration(point["round_s"])), Cell(percent(point["accuracy"]) if point["valid"] else "–")]
        if not point["valid"]:
            cells += [Cell("–"), Cell("–"), Cell("must be trained", point["reason"])]
        elif math.isinf(point["time_to_accuracy_s"]):
            late = Cell("not reached" if point["target_accuracy"] > 0 else "–")
            cells += [late, late, Cell("yes")]
        else:
            times = tenths(point["rounds_to_accuracy"]), duration(point["time_to_accuracy_s"])
            cells += [*map(Cell, times), Cell("yes")]
        found.append(cells)
    return Table([whatif.along.noun.capitalize(), *TITLES], found, folded, folded=bool(folded))
