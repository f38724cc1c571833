"""Figures: what other servers would make of a round, at the best point of the scenario's own world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.report import display, style
from sfl_sim.report.serving_latency import wide_axis
from sfl_sim.report.whatif_load import ALIKE

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.whatif_load import WhatIf

HEIGHT_PX = 300


def by_speedup(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round against the server's speed-up, with its own number of workers."""
    own = sweep(whatif, "speedup")
    figure = _drawn(whatif, own.assign(x=own["speedup"]), "speedup")
    return figure.update_xaxes(wide_axis(own["speedup"].min(), own["speedup"].max()), title="server speed-up")


def by_workers(whatif: WhatIf) -> go.Figure:
    """Median seconds of a round against the number of workers, beside each other, at the server's own speed-up."""
    own = sweep(whatif, "workers")
    numbers = np.unique(own["workers"])
    figure = _drawn(whatif, own.assign(x=np.searchsorted(numbers, own["workers"])), "workers")
    texts = ["unlimited" if np.isinf(number) else f"{number:g}" for number in numbers]
    return figure.update_xaxes(title="workers of the server", tickvals=list(range(len(numbers))), ticktext=texts)


def in_words(whatif: WhatIf) -> str:
    """What the fastest server that was tried would save of the first series' round."""
    own = sweep(whatif, "speedup")
    own = own[own["series"] == own["series"].iloc[0]]
    here, fastest = own[own["own"]], own.loc[own["speedup"].idxmax()]
    if here.empty or fastest["speedup"] <= here["speedup"].iloc[0]:
        return ""
    saved = 1 - fastest["round_s"] / here["round_s"].iloc[0]
    share = display.percent(saved, 0) if saved >= ALIKE else f"less than {display.percent(ALIKE, 0)}"
    return f"One {fastest['speedup'] / here['speedup'].iloc[0]:.3g} times as fast would save {share} of the round."


def sweep(whatif: WhatIf, column: str) -> pd.DataFrame:
    """One row per series and value of `column`, speedup or workers, the other one being the scenario's own.

    `round_s` is the median over seeds, and `own` whether it is the scenario's own server.
    """
    server = whatif.server
    alike = {name: _equal(server[name], server[f"scenario_{name}"]) for name in ("speedup", "workers")}
    rows = server.assign(own=alike[column])[alike["workers" if column == "speedup" else "speedup"]]
    return rows.groupby(["series", column], as_index=False).agg({"round_s": "median", "own": "first"})


def _equal(one: pd.Series, other: pd.Series) -> pd.Series:
    return pd.Series(np.isclose(one, other, rtol=1e-6), index=one.index)


def _drawn(whatif: WhatIf, rows: pd.DataFrame, column: str) -> go.Figure:
    unit, unit_s = display.time_unit(rows["round_s"].max())
    figure = style.canvas(HEIGHT_PX)
    for series in whatif.series:
        own = rows[rows["series"] == series.label]
        figure.add_scatter(
            x=own["x"].to_numpy(), y=(own["round_s"] / unit_s).to_numpy(), mode="lines+markers", name=series.label,
            line={"color": series.colour, "dash": series.dash, "width": 2}, text=own[column].map("{:g}".format),
            showlegend=len(whatif.series) > 1, marker={"color": series.colour, "size": 6},
            hovertemplate=f"%{{y:.3~g}} {unit} with %{{text}}<extra></extra>",
        )  # fmt: skip
        here = own[own["own"]]
        figure.add_scatter(
            x=here["x"].to_numpy(), y=(here["round_s"] / unit_s).to_numpy(), mode="markers", hoverinfo="skip",
            showlegend=False, marker={"color": "#FFFFFF", "size": 12, "line": {"color": series.colour, "width": 3}},
        )  # fmt: skip
    return figure.update_yaxes(title=f"time of a round ({unit})", rangemode="tozero")
