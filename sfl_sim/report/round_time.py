"""Panels on where the time of a round goes, why it takes so long, and what would make it shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.metrics.critical_path import RESOURCES, WAITING
from sfl_sim.report import display, figures, style
from sfl_sim.report.pages.one_round import drawn
from sfl_sim.report.pages.participation import unreliable
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.store.columns import BREAKDOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames
    from sfl_sim.report.pages.one_round import OneRound, RoundView

TITLES = style.RESOURCE_NAMES | {"queue": "server held idle", WAITING: "no operation"}
CHANGES = {
    "uplink x2": "Uplinks ×2",
    "downlink x2": "Downlinks ×2",
    "devices x2": "Devices ×2",
    "server x2": "Server ×2",
    "workers x2": "Workers ×2",
    "no latency": "No latency",
}
"""The changes of speedups.parquet, as columns."""
LITTLE = 0.0005
"""The share of a round that counts as nothing."""
NOTHING = 1e-6
"""The share of a round below which a resource is left out of bars."""
BREAKDOWN_CAPTION = (
    "Warm colours are waiting: in the server's queue{assistants} or for stragglers (slower clients). All "
    "other colours are work of the average participating client{absent} (mean over rounds and seeds)."
)
PATH_CAPTION = (
    "Only operations on the critical path make a round longer. The path (the dark line above) leads from "
    "the round's end back to its start, in each step to the operation that was waited for. Slack is how "
    "much later a client could finish without making the round longer (round {round}, first "
    "seed{drawn}).{helping}"
)
HELPING = (
    " Below, the same round is timed again with one thing faster. A faster resource off the path does "
    "not help; where the path gets shorter, another one may become the longest."
)


def breakdown_panels(frames: Frames) -> list[Panel]:
    """Panel on where the time of the average client's round goes."""
    caption = BREAKDOWN_CAPTION.format(
        assistants=", for assistants" if frames.rounds["assistants_s"].any() else "",
        absent=", and include the time while it is away" if unreliable(frames) else "",
    )
    return [Panel("Where the time goes", caption, [("Mean time of a round by resource", round_breakdown(frames))])]


def path_panels(details: OneRound) -> list[Panel]:
    """The critical paths of one round, and what would make it shorter, if that was tried."""
    frames, views = details.frames, details.views
    helping = help_table(views)
    caption = PATH_CAPTION.format(round=frames.typical_round, drawn=drawn(frames), helping=HELPING if helping else "")
    tables = [path_table(views), *([helping] if helping else [])]
    return [Panel("Why a round takes so long", caption, tables=tables)]


def round_breakdown(frames: Frames) -> go.Figure:
    """Mean seconds of a round by resource, over rounds and seeds: one stacked bar per variant."""
    columns = {f"{part}_s": part for part in BREAKDOWN}
    mean_s = frames.rounds.groupby("variant")[list(columns)].mean().rename(columns=columns)
    total_s = mean_s.sum(axis="columns")
    shown_s = mean_s.loc[:, mean_s.ge(NOTHING * total_s, axis="index").any()]
    rows = {
        f"{figures.on_a_phone(variant)} {display.duration(total_s[variant.label])}": pd.Series(
            shown_s.loc[variant.label]
        )
        for variant in frames.variants
    }
    return figures.bars(rows, "mean time of a round", "round")


def path_table(views: Sequence[RoundView]) -> Table:
    """Tabulate the critical paths: seconds by resource, the clients that are on them most, and slack."""
    spent_s = pd.DataFrame({view.variant.label: view.critical.seconds_by("resource") for view in views})
    spent_s = spent_s.reindex([*RESOURCES]).fillna(0.0)
    lengths_s = pd.Series({view.variant.label: view.duration_s for view in views})
    spent_s = spent_s[(spent_s > LITTLE * lengths_s).any(axis="columns")]
    titles = [TITLES[resource].capitalize() for resource in spent_s.index]
    rows = []
    for view in views:
        cells = [_part(seconds, view.duration_s) for seconds in spent_s[view.variant.label]]
        rows.append([Cell(view.html), *cells, _most(view), *_slack(view)])
    return Table(["Variant", *titles, "Most on it", "Median slack", "Most slack"], rows)


def _part(seconds: float, of_s: float) -> Cell:
    share = seconds / of_s
    return Cell(display.duration(seconds), display.percent(share, 0)) if share > LITTLE else Cell("–")


def _most(view: RoundView) -> Cell:
    """The client on most of the path, and the next two."""
    spent_s = view.critical.seconds_by("client").drop(-1, errors="ignore").head(3)
    shares = {
        view.names[c]: display.percent(s / view.duration_s, 0)
        for c, s in spent_s.items()
        if s > LITTLE * view.duration_s
    }
    first, *others = [f"{client}: {share}" for client, share in shares.items()] or ["–"]
    return Cell(first, ", ".join(others))


def _slack(view: RoundView) -> tuple[Cell, Cell]:
    """Give the median with the range, and the client that has most."""
    slack_s = view.critical.slack_s
    if slack_s.empty:
        return Cell("–"), Cell("–")
    least, most = display.duration(slack_s.min()), display.duration(slack_s.max())
    if not slack_s.any():
        return Cell(least, "no client has any"), Cell("–")
    return Cell(display.duration(slack_s.median()), f"{least} to {most}"), Cell(view.names[slack_s.idxmax()], most)


def help_table(views: Sequence[RoundView]) -> Table | None:
    """Tabulate how long the rounds would take in other system configurations; None if none was timed again."""
    rows = []
    for view in views:
        retimed = view.retimed.set_index("change")
        if len(retimed):
            now_s, after_s = retimed["before_s"].iloc[0], retimed["after_s"].reindex([*CHANGES])
            best_s = after_s.min()
            cells = [_changed(seconds, now_s, best_s) for seconds in after_s]
            now = Cell(display.duration(now_s), f"round {retimed['round'].iloc[0]}")
            rows.append([Cell(view.html), now, *cells])
    titles = ["Variant", "As it is", *CHANGES.values()]
    return Table(titles, rows, title="What would help") if rows else None


def _changed(after_s: float, now_s: float, best_s: float) -> Cell:
    """Say what a change comes to, and whether no other does better."""
    share = after_s / now_s - 1
    if abs(share) < LITTLE:
        return Cell(display.duration(after_s), "no change")
    sign, most = "−" if share < 0 else "+", ", most" if share < 0 and after_s == best_s else ""
    return Cell(display.duration(after_s), f"{sign}{display.percent(abs(share))}{most}")
