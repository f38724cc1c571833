"""Panels of a what-if on clients, on what survives uncertainty, and on points that were trained."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup
from plotly.colors import sample_colorscale

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import NBSP, capitalised, duration, percent, plural, tenths
from sfl_sim.report.pages.whatif_figures import add_line, canvas, dressed, placed, wide
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.report.targets import accuracy
from sfl_sim.report.whatif_load import CLIENT_PARTS, where_drawn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import plotly.graph_objects as go

    from sfl_sim.report.panel import Drawing
    from sfl_sim.report.whatif_load import WhatIf

# Clients

BAR_PX = 56
COSTS = {
    "client_memory_bytes": (
        "Memory",
        "client memory",
        style.Named(Markup("the most of any client"), style.INK, "dash"),
        Markup(" How much memory training takes is not known."),
    ),
    "client_joule": (
        "Energy",
        "energy of a client and round",
        style.Named(Markup("mean of all clients"), style.INK, "dash"),
        Markup(" No power of the devices is known (<code>clients.power</code>), so there is no energy."),
    ),
}
"""What a client needs: its name, what is drawn of it, whose line stands for all, and what is said if it is unknown."""


def class_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on what classes of devices prefer, if there are several classes."""
    shown, noun = whatif.drawn, whatif.along.noun
    if whatif.clients["group"].nunique() < 2 or not shown:
        return []
    drawings: list[Drawing] = []
    for one in shown:
        best = whatif.best(one)
        there = "the round at " + whatif.along.said(best) + ", the best for all"
        drawings.append((whatif.heading(one, "own time by " + noun), partial(preferences, whatif, one)))
        drawings.append((whatif.heading(one, there), partial(spent, whatif, one, best)))
    caption = Markup(
        "For each class of devices, the time that a client of the class spends on computing, sending, queueing, being "
        "served and receiving, without the straggler wait, by {noun}. Stars mark the best {noun} of each class (means "
        "over clients and seeds)."
    ).format(noun=noun)
    title = "The best choice for each class of devices"
    return [Panel(title, caption + where_drawn(whatif.others), drawings, columns=2)]


def cost_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on memory and energy of a client, for the first series: methods differ little in them."""
    shown, axis = whatif.drawn, whatif.along
    if not shown:
        return []
    here = whatif.here(whatif.middle, shown[0])
    drawings: list[Drawing] = []
    caption = Markup("What a client needs in addition to time.")
    for column, (name, _, _, unknown) in COSTS.items():
        numbers = here[column].dropna()
        if numbers.empty:
            caption += unknown
        elif numbers.max() > (1 + ALIKE) * numbers.min():  # else there is nothing to see
            drawings.append((f"{name} by " + axis.noun, partial(client_cost, whatif, shown[0], column)))
        else:
            caption += f" {name} does not depend on " + axis.noun + "."
    caption += where_drawn(whatif.others) + (" Of " + shown[0].html + "." if len(whatif.series) > 1 else "")
    return [Panel("What it costs a client", caption, drawings, columns=2)]


def classes(whatif: WhatIf) -> list[style.Named]:
    """The classes of devices, the slowest first, in colours of a ramp."""
    slowest_first = whatif.clients.groupby("group")["macs_per_s"].median().sort_values().index
    colours = sample_colorscale("Plasma", np.linspace(0.08, 0.78, max(len(slowest_first), 2)))
    return [style.Named(Markup(name), colour, "solid") for name, colour in zip(slowest_first, colours, strict=False)]


def by_class(whatif: WhatIf, series: style.Named, *columns: str) -> pd.DataFrame:
    """The sum of the columns in the scenario's own system, mean over clients and seeds: index of the axis by class."""
    means = whatif.here(whatif.clients, series).groupby(["group", whatif.along.column])[list(columns)].mean()
    return means.sum(axis="columns", min_count=1).unstack("group").dropna(how="all")


def preferences(whatif: WhatIf, series: style.Named) -> go.Figure:
    """Draw the own time of each class, without waiting for others, along the axis; stars mark the best of each."""
    times_s = by_class(whatif, series, *CLIENT_PARTS)
    unit, unit_s = display.time_unit(times_s.median().min())
    figure = canvas(whatif.along)
    for one in classes(whatif):
        if one.label in times_s:
            add_line(figure, whatif.along, times_s[one.label].dropna() / unit_s, one, unit)
    return wide(whatif, figure, f"own time in a round ({unit})", [times_s[name] / unit_s for name in times_s])


def spent(whatif: WhatIf, series: style.Named, at: int) -> go.Figure:
    """Draw where the time of each class goes at one value of the axis, a stacked bar for each class."""
    rows = whatif.here(whatif.clients, series)
    rows = rows[rows[whatif.along.column] == at]
    means = rows.groupby("group")[[*CLIENT_PARTS, "rest_s"]].mean()
    parts = means.loc[[one.label for one in classes(whatif) if one.label in means.index]]
    slowest_s = rows[CLIENT_PARTS].sum(axis="columns").groupby(rows["group"]).max()
    own_s = parts[CLIENT_PARTS].sum(axis="columns")
    parts = parts.rename(columns=lambda column: "barrier" if column == "rest_s" else column.removesuffix("_s"))
    bars = {}
    for name, seconds in zip(map(str, parts.index), parts.to_dict("records"), strict=True):
        mean, most = display.duration(own_s[name]), display.duration(slowest_s[name])
        bars[f"<b>{name}</b>: {mean} of its own, at most {most}"] = pd.Series(seconds)
    return figures.bars(bars, "time of a round", "round", BAR_PX)


def client_cost(whatif: WhatIf, series: style.Named, column: str) -> go.Figure:
    """What a client needs for each value of the axis: a line over all clients, and one for each class if they differ.

    Of memory it is the most of any client, of energy the mean.
    """
    _, what, of_all, _ = COSTS[column]
    overall = whatif.here(whatif.middle, series).set_index(whatif.along.column)[column]
    if column == "client_joule":
        unit, size = ("kJ", 1e3) if overall.median() >= 2e3 else ("J", 1.0)
    else:
        unit, size = display.data_unit(overall.max())
    figure, costs = canvas(whatif.along), by_class(whatif, series, column.removeprefix("client_")) / size
    if not np.allclose(costs.min(axis="columns"), costs.max(axis="columns"), equal_nan=True):
        for one in classes(whatif):
            if one.label in costs:
                add_line(figure, whatif.along, costs[one.label].dropna(), one, unit, starred=False)
    add_line(figure, whatif.along, (overall / size).dropna(), of_all, unit, starred=False)
    return dressed(whatif, figure, f"{what} ({unit})")


# What survives uncertainty

TITLE = "Does it survive what is not known?"
ROW = 0.7
"""Part of a row that marks of several series take."""
MAX_ROWS = 5
"""Largest number of points of each system that the table shows."""


def draw_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on the draws, if there are any."""
    if whatif.draws.empty:
        return []
    caption = Markup(
        "All configurations in the same {}. Rates of devices and links, the training factor, the times of this network "
        "on devices and server, and how links vary come from their stated errors. Marks are medians, lines hold 80 % "
        "of the draws. First is the fastest of a system, and who is within {} of it."
    ).format(_draws(whatif), percent(ALIKE, 0))
    drawings = [("Time of a round", partial(intervals, whatif)), ("How often first", partial(firsts, whatif))]
    return [Panel(TITLE, caption + where_drawn(whatif.others), drawings, 2, [survivors(whatif)])]


def verdict(whatif: WhatIf) -> list[Markup]:
    """A sentence on how often the first of the scenario's own system comes first in the draws, and who else does."""
    here = whatif.here(whatif.survival) if len(whatif.draws) else whatif.draws
    if len(here) < 2:
        return []
    ours = here.nsmallest(1, "round_s")
    (first,), (other,) = ours.to_dict("records"), here.drop(ours.index).nlargest(1, "first").to_dict("records")
    told = Markup("In {} of {} from the errors of prices and profiles, {} is the first or as good; {} is in {}.")
    share, next_share = percent(first["first"], 0), percent(other["first"], 0)
    return [told.format(share, _draws(whatif), _said(whatif, first), _said(whatif, other), next_share)]


def _draws(whatif: WhatIf) -> str:
    return plural(whatif.draws["draw"].nunique(), "drawn system")


def _said(whatif: WhatIf, point: Mapping[Any, Any]) -> Markup:
    said = whatif.along.said(point[whatif.along.column])
    return said if len(whatif.series) == 1 else Markup(point["series"]) + " with " + said


def intervals(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round over the draws in the scenario's own system, with lines that hold 80 % of them."""
    here = whatif.here(whatif.survival)
    unit, unit_s = display.time_unit(here["median_s"].median())
    figure, error = canvas(whatif.along), "error_y" if whatif.along.is_numeric else "error_x"
    for series in whatif.drawn:
        own = here[here["series"] == series.label]
        above, below = (own["high_s"] - own["median_s"]) / unit_s, (own["median_s"] - own["low_s"]) / unit_s
        spread = {error: {"array": above, "arrayminus": below, "color": series.colour, "thickness": 1.5, "width": 0}}
        at = _beside(whatif, series, own, own["median_s"] / unit_s)
        hover = f"%{{{error[-1]}:.3~g}} {unit}<extra></extra>"
        figures.marks(figure, series, **at, hover=hover, showlegend=len(whatif.drawn) > 1, **spread)
    return wide(whatif, figure, f"time of a round ({unit})", [here["low_s"] / unit_s, here["high_s"] / unit_s])


def firsts(whatif: WhatIf) -> go.Figure:
    """Share of the draws in which each point of the scenario's own system comes first."""
    here = whatif.here(whatif.survival)
    figure, axis = canvas(whatif.along), "y" if whatif.along.is_numeric else "x"
    for series in whatif.drawn:
        own = here[here["series"] == series.label]
        at = _beside(whatif, series, own, 100 * own["first"])
        figures.marks(figure, series, **at, hover=f"%{{{axis}:.0f}} %<extra></extra>", showlegend=False)
    return dressed(whatif, figure, "share of the draws (%)", most=104)


def _beside(whatif: WhatIf, series: style.Named, own: pd.DataFrame, numbers: pd.Series) -> dict[str, np.ndarray]:
    """Place numbers as `placed`, those of several series in the row of a named value beside each other."""
    at = placed(whatif.along, own[whatif.along.column], numbers)
    if not whatif.along.is_numeric:
        at["y"] = at["y"] + ROW * ((whatif.drawn.index(series) + 0.5) / len(whatif.drawn) - 0.5)
    return at


def survivors(whatif: WhatIf) -> Table:
    """Tabulate for each system the points that come first most often, and its first without any draw."""
    rows, left_out = [], 0
    for _, own in whatif.survival.groupby("contest", sort=False):
        ranked = own.sort_values(["first", "median_s"], ascending=[False, True], kind="stable")
        often = (ranked["first"] > 0) & (np.arange(len(ranked)) < MAX_ROWS)
        is_shown = often | (ranked["round_s"] == ranked["round_s"].min())
        rows += [_row(whatif, point) for point in ranked[is_shown].to_dict("records")]
        left_out += int((~is_shown).sum())
    titles = [capitalised(whatif.along.noun), "As priced", "Median", "80 % of draws", "First in"]
    more = f", without {plural(left_out, 'configuration')} that come first less often or never" if left_out else ""
    return Table(titles, rows, note=f"{capitalised(Markup(_draws(whatif)))}{more}.", words=titles[:1])


def _row(whatif: WhatIf, point: Mapping[Any, Any]) -> list[Cell]:
    below = [axis.said(point[axis.column]) for axis in whatif.others]
    below += [Markup(point["series"])] if len(whatif.series) > 1 else []
    between = f"{duration(point['low_s'])} to {duration(point['high_s'])}"
    told = [duration(point["round_s"]), duration(point["median_s"]), between, percent(point["first"], 0)]
    return [Cell(whatif.along.said(point[whatif.along.column]), Markup(" · ").join(below)), *map(Cell, told)]


# Points that were trained

HEIGHT_PX, ROW_PX = 320, 40
TITLES = ["A round", "Accuracy reached", f"Rounds to{NBSP}target", f"Time to{NBSP}target", "Valid"]
NUMBERS = ["accuracy", "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s"]


def overlay_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on points that were trained, if a run was asked for them."""
    if whatif.overlay is None:
        return []
    targets = whatif.overlay["target_accuracy"].dropna().unique()
    goal = f"{accuracy(targets[0])} accuracy" if len(targets) == 1 else "the target"
    points = trained(whatif).sort_values([axis.column for axis in whatif.others], kind="stable")
    own = whatif.here(points)
    drawings = [
        (f"Time to {goal}", partial(time_to_target, whatif)),
        ("Accuracy against the time of a round", partial(accuracy_by_round, whatif)),
    ]
    tables = [trained_table(whatif, own)]
    if len(own) < len(points):
        tables.append(trained_table(whatif, points.drop(own.index), "At other values"))
    caption = Markup(
        "Accuracies of stored runs, with the times of this what-if. The left figure has the simulated time to {}, with "
        "the accuracy reached at the end; the right one has that accuracy against the time of a round (medians over "
        "seeds). A configuration where clients would be served in another order, or training would go on for more "
        "rounds, must be trained: its accuracy is not known."
    ).format(goal)
    shown = drawings if len(own) else []
    return [Panel("Configurations that were trained", caption + where_drawn(whatif.others), shown, 2, tables)]


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
        look = {"symbol": series.symbol, "color": series.colour}  # the legend knows one colour a name
        figures.entry(figure, series.label, look, showlegend=len(whatif.series) > 1)
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
