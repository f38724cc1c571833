"""Panel on the time that less forgetting costs: the performance gap of each variant against its time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.report import display, figures, style
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import columns_for
from sfl_sim.report.targets import TIME, common_target, time_compared, time_in_words

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.results import Numbers

MIN_VARIANTS, MAX_NAMED = 3, 8
TOLD = ["accuracy", "performance_gap", "simulated_s"]
PALE = 0.45
MARGIN, LEAST_MARGIN_POINTS = 0.07, 1.0
"""Room between the marks and the frame: a share of what they span, and at least so much."""
FRONT = (
    "The best corner is the lower left. The line is the Pareto front: along it, less forgetting costs "
    "more time. A variant is drawn pale if another one is at least as good in both{late}. The gap is "
    "that of the last {rounds} rounds{when}. Large marks are medians over seeds with ± standard "
    "deviation; small marks are single seeds. Clients differ from seed to seed, so the times of single "
    "seeds, and their ±, are divided by how slow the seed is for the average variant."
)


@dataclass(frozen=True)
class Frontier:
    """Places of the variants between time and forgetting.

    Attributes:
        aim: the accuracy to which `time_s` leads; None if it is the time of a round.
        seeds: one row per variant and seed: variant, seed, time_s (infinite if the target is not reached), gap in
            points, and `paced_s`: the time divided by the pace of the seed.
        middle: medians of time_s and gap by variant, and `best`: whether the variant is on the Pareto front.
    """

    aim: float | None
    seeds: pd.DataFrame
    middle: pd.DataFrame

    @property
    def cost(self) -> str:
        """What `time_s` is, in words."""
        return time_in_words(self.aim)

    @property
    def anyone_late(self) -> bool:
        """True if a seed does not reach the target."""
        return bool(np.isinf(self.seeds["time_s"]).any())

    @property
    def told_by_seeds(self) -> str:
        """How many seeds with all variants have the same front, as the end of a sentence; empty if all have."""
        of_all = set(self.middle.index[self.middle["best"]])
        whole = [rows for _, rows in self.seeds.groupby("seed") if len(rows) == len(self.middle)]
        fronts = [set(rows.loc[_on_front(rows), "variant"]) for rows in whole]
        agreeing = fronts.count(of_all)
        told = f" (by medians; {agreeing} of {len(fronts)} seeds alone say the same)"
        return "" if agreeing == len(fronts) else told


def frontier(frames: Frames) -> Frontier | None:
    """The variants between time and forgetting; None for fewer than three whose forgetting is known."""
    known = frames.summary.dropna(subset="performance_gap")
    aim, time_s = time_compared(frames)
    seeds = known[["variant", "seed"]].assign(time_s=time_s, gap=100 * known["performance_gap"])
    seeds["paced_s"] = seeds["time_s"] / _pace(known)
    middle = seeds.groupby("variant")[["time_s", "gap"]].median()
    if len(middle) < MIN_VARIANTS:
        return None
    return Frontier(aim, seeds, middle.assign(best=_on_front(middle)))


def _on_front(places: pd.DataFrame) -> pd.Series[bool]:
    """Whether no other of the places is at least as good in time and gap, and better in one of them."""
    read_s = places["time_s"].map(lambda time_s: float(f"{time_s:.3g}"))  # what reads the same is the same
    on_front: pd.Series[bool] = np.isfinite(read_s) & non_dominated(read_s, places["gap"])
    return on_front


def _pace(summary: pd.DataFrame) -> pd.Series:
    """Compute for each row how slow a round of its seed is for the average variant: a factor, 1 in a typical seed.

    Variants share the clients of a seed. Divided by it, times spread only as far as the variants answer differently to
    these clients, or as learning takes more or fewer rounds.
    """
    round_s = summary["simulated_s"] / summary["rounds"]
    slowness = round_s / round_s.groupby(summary["variant"]).transform("median")
    return slowness.groupby(summary["seed"]).transform("mean")


def frontier_panels(frames: Frames) -> list[Panel]:
    """The panel on the front; none for fewer than three variants whose forgetting is known."""
    found = frontier(frames)
    if found is None:
        return []
    when = "" if found.aim is None else ", the time when the target was first reached"
    late = ", or if it does not reach the target" if found.anyone_late else ""
    caption = FRONT.format(late=late, rounds=LAST_ROUNDS, when=when)
    drawn = [(f"Performance gap against {found.cost}", figure(frames, found))]
    return [Panel("What less forgetting costs in time", caption, drawn)]


def choice(frames: Frames) -> list[Markup]:
    """Say in a sentence which variants are on the front; nothing if all of them are."""
    found = frontier(frames)
    if found is None or found.middle["best"].equals(np.isfinite(found.middle["time_s"])):
        return []
    names = [variant.html for variant in frames.variants if found.middle["best"].get(variant.label, False)]
    late = np.isinf(found.middle["time_s"]).any()
    if len(names) == 1:
        those = " of those that reach it" if late else ""
        return [
            names[0]
            + f" has both the shortest {found.cost} and the smallest performance gap{those}{found.told_by_seeds}."
        ]
    others = " that reaches it" if late else ""
    return [
        escape(f"To trade {found.cost} against performance gap, choose ")
        + any_of(names)
        + f": every other variant{others} is at best as good as one of these in both{found.told_by_seeds}."
    ]


def any_of(names: list[Markup]) -> Markup:
    """Join names by commas and "or", and count those beyond the first few."""
    more = [Markup("one of {} more").format(len(names) - MAX_NAMED)] if len(names) > MAX_NAMED else []
    return display.listed(names[:MAX_NAMED] + more, "or")


def figure(frames: Frames, found: Frontier) -> go.Figure:
    """One mark per variant with its spread, its seeds as small ones, and the front as steps.

    Variants that do not reach the target stand on a strip at the right, which has no time.
    """
    unit, unit_s = display.time_unit(found.seeds["paced_s"].replace(math.inf, 0).max())
    seeds = found.seeds.assign(time=found.seeds["paced_s"] / unit_s).set_index("variant")[["time", "gap"]]
    middle = found.middle.assign(time=found.middle["time_s"] / unit_s)
    spread = seeds.replace(math.inf, math.nan).groupby("variant").std().fillna(0.0)
    ends = pd.concat([seeds, *(middle[["time", "gap"]] + sign * spread for sign in (-1, 1))]).replace(math.inf, 0)
    right = (1 + MARGIN) * ends["time"].max()
    margin = max(MARGIN * (ends["gap"].max() - ends["gap"].min()), LEAST_MARGIN_POINTS)
    bottom, top = max(ends["gap"].min() - margin, 0.0), ends["gap"].max() + margin

    widths = [0.87, 0.13] if found.anyone_late else [1.0]
    drawn = figures.canvas(380, cols=len(widths), shared_yaxes=True, column_widths=widths, horizontal_spacing=0.015)
    _add_front(drawn, middle[middle["best"]].sort_values(["time", "gap"]), right, top)
    places, spreads = (frame.to_dict("index") for frame in (middle, spread))
    for variant in frames.variants:
        if (label := variant.label) in places:
            _add(drawn, variant, seeds.loc[[label]], places[label], spreads[label], _text(frames, label))
    drawn.update_yaxes(range=[bottom, top])
    drawn.update_yaxes(title="performance gap (points)", col=1)
    drawn.update_xaxes(title=f"simulated {found.cost} ({unit})", range=[0, right], col=1)
    if found.anyone_late:
        drawn.update_xaxes(range=[-1, 1], showgrid=False, showticklabels=False, col=2)
        drawn.add_shape(
            xref="x2 domain", x0=0, x1=1, yref="y domain", y0=0, y1=1,
            layer="below", fillcolor=style.GRID, opacity=0.5, line_width=0,
        )  # fmt: skip
        drawn.add_annotation(
            text="not reached", textangle=-90, showarrow=False, font={"color": style.MUTED, "size": 12},
            xref="x2 domain", x=1, xanchor="right", yref="y domain", y=0.02, yanchor="bottom",
        )  # fmt: skip
    return drawn


def _add_front(drawn: go.Figure, front: pd.DataFrame, right: float, top: float) -> None:
    """Draw steps from one of the best to the next, and on to the edges of the figure as dashed lines."""
    time, gap = list(front["time"]), list(front["gap"])
    for x, y, dash in (
        (time, gap, "solid"),
        ([time[0], time[0], None, time[-1], right], [top, gap[0], None, gap[-1], gap[-1]], "dash"),
    ):
        drawn.add_scatter(
            x=x, y=y, mode="lines", line={"shape": "hv", "color": style.MUTED, "width": 1.4, "dash": dash},
            name="Pareto front", showlegend=dash == "solid", hoverinfo="skip", row=1, col=1,
        )  # fmt: skip


def _add(drawn: go.Figure, variant: Variant, seeds: pd.DataFrame, middle: Numbers, spread: Numbers, text: str) -> None:
    """A variant's seeds, and over them its median with ± the spread; pale off the front."""
    opacity = 1.0 if middle["best"] else PALE
    for late, rows in seeds.groupby(np.isinf(seeds["time"])):
        figures.marks(
            drawn, variant, np.zeros(len(rows)) if late else rows["time"], rows["gap"], "", hoverinfo="skip", name=None,
            marker={"size": 5, "line": None}, opacity=0.6 * opacity, showlegend=False, row=1, col=2 if late else 1,
        )  # fmt: skip
    late = math.isinf(middle["time"])
    bars = {"color": variant.colour, "thickness": 1.3, "width": 0}
    figures.marks(
        drawn, variant, [0.0 if late else middle["time"]], [middle["gap"]], "%{customdata}", customdata=[text],
        marker={"size": 12}, opacity=opacity, row=1, col=2 if late else 1,
        error_x={"array": [0.0 if late else spread["time"]], **bars}, error_y={"array": [spread["gap"]], **bars},
    )  # fmt: skip


def _text(frames: Frames, label: str) -> str:
    """Repeat what the tables say of a variant, with accuracy first."""
    seeds = frames.summary[frames.summary["variant"] == label]
    columns = [column for column in columns_for(frames) if column.key in TOLD]
    if common_target(frames) is not None:
        columns.append(TIME)
    cells = ((column.title, column.cell(seeds)) for column in columns)
    return "<br>".join(f"{title}: {escape(cell.text)} {cell.below}" for title, cell in cells)
