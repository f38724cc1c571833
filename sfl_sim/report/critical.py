"""Tables: why a round takes so long, and what would make it shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.metrics.critical_path import RESOURCES, WAITING
from sfl_sim.report import display, style
from sfl_sim.report.table import Cell, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfl_sim.report.round_view import RoundView

TITLES = style.RESOURCE_NAMES | {"queue": "server held", WAITING: "nothing happens"}
CHANGES = {
    "uplink x2": "Uplinks ×2",
    "downlink x2": "Downlinks ×2",
    "devices x2": "Devices ×2",
    "server x2": "Server ×2",
    "workers x2": "Workers ×2",
    "no latency": "No latency",
}
"""The changes of retimed.parquet, as columns."""
LITTLE = 0.0005
"""The share of a round that counts as nothing."""


def path_table(views: Sequence[RoundView]) -> str:
    """The critical paths as HTML: seconds by resource, but for next to nothing, who is on them most, and slack."""
    spent_s = pd.DataFrame({view.variant.label: view.critical.seconds_by("resource") for view in views})
    spent_s = spent_s.reindex([*RESOURCES]).fillna(0.0)
    lengths_s = pd.Series({view.variant.label: view.duration_s for view in views})
    spent_s = spent_s[(spent_s > LITTLE * lengths_s).any(axis="columns")]
    titles = [TITLES[resource].capitalize() for resource in spent_s.index]
    rows = []
    for view in views:
        cells = [_part(seconds, view.duration_s) for seconds in spent_s[view.variant.label]]
        rows.append((view.variant.html, [*cells, _most(view), *_slack(view)]))
    return table([*titles, "Most on it", "Slack, median", "Most slack"], rows)


def _part(seconds: float, of_s: float) -> Cell:
    share = seconds / of_s
    return Cell(display.duration(seconds), display.percent(share, 0)) if share > LITTLE else Cell("–")


def _most(view: RoundView) -> Cell:
    """The client on most of the path, and the next two."""
    spent_s = view.critical.seconds_by("client").drop(-1, errors="ignore").head(3)
    shares = {
        f"client {c}": display.percent(s / view.duration_s, 0)
        for c, s in spent_s.items()
        if s > LITTLE * view.duration_s
    }
    first, *others = [f"{client}: {share}" for client, share in shares.items()] or ["–"]
    return Cell(first, ", ".join(others))


def _slack(view: RoundView) -> tuple[Cell, Cell]:
    """The median with the range, and who has most."""
    slack_s = view.critical.slack_s
    least, most = display.duration(slack_s.min()), display.duration(slack_s.max())
    if not slack_s.any():
        return Cell(least, "nobody has any"), Cell("–")
    return Cell(display.duration(slack_s.median()), f"{least} to {most}"), Cell(f"client {slack_s.idxmax()}", most)


def help_table(views: Sequence[RoundView]) -> str:
    """How long the rounds would take in other worlds, as HTML; empty if none was timed again."""
    rows = []
    for view in views:
        retimed = view.retimed.set_index("change")
        if len(retimed):
            now_s, after_s = retimed["before_s"].iloc[0], retimed["after_s"].reindex([*CHANGES])
            best_s = after_s.min()
            cells = [_changed(seconds, now_s, best_s) for seconds in after_s]
            rows.append(
                (view.variant.html, [Cell(display.duration(now_s), f"round {retimed['round'].iloc[0]}"), *cells])
            )
    return table(["As it is", *CHANGES.values()], rows) if rows else ""


def _changed(after_s: float, now_s: float, best_s: float) -> Cell:
    """What a change comes to, and whether no other does better."""
    share = after_s / now_s - 1
    if abs(share) < LITTLE:
        return Cell(display.duration(after_s), "no change")
    sign, most = "−" if share < 0 else "+", ", most" if share < 0 and after_s == best_s else ""
    return Cell(display.duration(after_s), f"{sign}{display.percent(abs(share))}{most}")
