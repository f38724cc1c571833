"""Panels on clients: which cut each class of devices would prefer, and what a cut costs a client beside time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup
from plotly.colors import sample_colorscale

from sfl_sim.metrics.survival import ALIKE
from sfl_sim.report import display, figures, style
from sfl_sim.report.pages.whatif_figures import add_line, canvas, dressed, wide
from sfl_sim.report.panel import Panel
from sfl_sim.report.whatif_load import CLIENT_PARTS, where_drawn

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.whatif_load import WhatIf

BAR_PX = 56
EVERYONE = style.Named(Markup("the most of any client"), style.INK, "dash")
MEAN = style.Named(Markup("mean of all clients"), style.INK, "dash")
UNKNOWN_POWER = Markup(" No power of the devices is known (<code>clients.power</code>), so there is no energy.")
CLASSES = Markup(
    "For each class of devices, the time that a client of the class spends on computing, sending, "
    "queueing, being served and receiving, without the straggler wait, by {noun}. Stars mark the best "
    "{noun} of each class (means over clients and seeds)."
)


def class_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on what classes of devices prefer, if there are several classes."""
    shown, axis = whatif.drawn, whatif.along
    if whatif.clients["group"].nunique() < 2 or not shown:
        return []
    drawn = []
    for one in shown:
        best = whatif.best(one)
        own, there = "own time by " + axis.noun, "the round at " + axis.said(best) + ", the best for all"
        drawn.append((whatif.heading(one, own), preferences(whatif, one)))
        drawn.append((whatif.heading(one, there), spent(whatif, one, best)))
    caption = CLASSES.format(noun=axis.noun) + where_drawn(whatif.others)
    return [Panel("The best choice for each class of devices", caption, drawn, columns=2)]


def cost_panels(whatif: WhatIf) -> list[Panel]:
    """List the panel on memory and energy of a client, for the first series: methods differ little in them."""
    shown, axis = whatif.drawn, whatif.along
    if not shown:
        return []
    here = whatif.here(whatif.middle, shown[0])
    quantities = {
        "client_memory_bytes": ("Memory", memory, " How much memory training takes is not known."),
        "client_joule": ("Energy", energy, UNKNOWN_POWER),
    }
    drawn, caption = [], Markup("What a client needs in addition to time.")
    for column, (name, draw, unknown) in quantities.items():
        numbers = here[column].dropna()
        if numbers.empty:
            caption += unknown
        elif numbers.max() > (1 + ALIKE) * numbers.min():  # else there is nothing to see
            drawn.append((f"{name} by " + axis.noun, draw(whatif, shown[0])))
        else:
            caption += f" {name} does not depend on " + axis.noun + "."
    caption += where_drawn(whatif.others) + (" Of " + shown[0].html + "." if len(whatif.series) > 1 else "")
    return [Panel("What it costs a client", caption, drawn, columns=2)]


def classes(whatif: WhatIf) -> list[style.Named]:
    """The classes of devices, the slowest first, in colours of a ramp."""
    slowest_first = whatif.clients.groupby("group")["macs_per_s"].median().sort_values().index
    colours = sample_colorscale("Plasma", np.linspace(0.08, 0.78, max(len(slowest_first), 2)))
    return [style.Named(Markup(name), colour, "solid") for name, colour in zip(slowest_first, colours, strict=False)]


def by_class(whatif: WhatIf, series: style.Named, columns: list[str]) -> pd.DataFrame:
    """Means over clients and seeds in the scenario's own system: rows by class and index of the first axis."""
    rows = whatif.here(whatif.clients, series)
    return rows.groupby(["group", whatif.along.column])[columns].mean()


def own_times(whatif: WhatIf, series: style.Named) -> pd.DataFrame:
    """Seconds of a round in which a client of the class is not waiting for others: index of the first axis by class."""
    return by_class(whatif, series, CLIENT_PARTS).sum(axis="columns", min_count=1).unstack("group").dropna(how="all")


def preferences(whatif: WhatIf, series: style.Named) -> go.Figure:
    """Draw the own time of each class, without waiting for others, along the axis; stars mark the best of each."""
    times_s = own_times(whatif, series)
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


def memory(whatif: WhatIf, series: style.Named) -> go.Figure:
    """The memory that training takes of a client, for each value of the axis: the most, and by class if they differ."""
    most = whatif.here(whatif.middle, series).set_index(whatif.along.column)["client_memory_bytes"]
    unit, unit_bytes = display.data_unit(most.max())
    return _costs(whatif, series, most / unit_bytes, "memory_bytes", unit_bytes, EVERYONE, ("client memory", unit))


def energy(whatif: WhatIf, series: style.Named) -> go.Figure:
    """The energy that a client spends in a round, for each value of the axis: the mean, and by class."""
    mean = whatif.here(whatif.middle, series).set_index(whatif.along.column)["client_joule"]
    size, unit = (1e3, "kJ") if mean.median() >= 2e3 else (1.0, "J")
    return _costs(whatif, series, mean / size, "joule", size, MEAN, ("energy of a client and round", unit))


def _costs(
    whatif: WhatIf,
    series: style.Named,
    overall: pd.Series,
    column: str,
    size: float,
    of_all: style.Named,
    title: tuple[str, str],
) -> go.Figure:
    figure = canvas(whatif.along)
    costs = by_class(whatif, series, [column])[column].unstack("group") / size
    if not np.allclose(costs.min(axis="columns"), costs.max(axis="columns"), equal_nan=True):
        for one in classes(whatif):
            if one.label in costs:
                add_line(figure, whatif.along, costs[one.label].dropna(), one, title[1], starred=False)
    add_line(figure, whatif.along, overall.dropna(), of_all, title[1], starred=False)
    return dressed(whatif, figure, f"{title[0]} ({title[1]})")
