from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from read_table import read

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.one_round import CHANGES, OneRound, help_table, path_table
from sfl_sim.report.pages.run import panels

if TYPE_CHECKING:
    from pathlib import Path


def test_the_table_says_what_the_path_is_made_of_and_who_is_on_it_and_who_is_not(eight: Frames) -> None:
    views = [view for view in OneRound(eight).views if view.critical.slack_s.any()]

    assert views
    for view, row in zip(views, read(path_table(views)).values(), strict=True):
        found = view.critical
        *parts, most_on_it, slack, most_slack = row.values()
        percents = [float(share.removesuffix(" %")) for _, share in parts if share]
        assert sum(percents) == pytest.approx(100, abs=len(percents) / 2)
        assert most_on_it[0].startswith(f"{view.names[found.seconds_by('client').drop(-1).idxmax()]}:")
        assert most_slack[0] == view.names[found.slack_s.idxmax()]
        assert slack[1] == f"0 s to {most_slack[1]}"


def test_where_nobody_has_slack_nobody_has_most(frames: Frames) -> None:
    view = OneRound(frames).views[0]
    alone = replace(view, ops=view.ops[view.ops["client"].isin([view.critical.path["client"].iloc[0], -1])])

    (row,) = read(path_table([alone])).values()

    assert row["Median slack"] == ("0 s", "no client has any")
    assert row["Most slack"] == ("–", "")


def test_what_would_help_is_told_where_the_run_knows(folder: Path) -> None:
    frames = merge([load(folder)])
    name = frames.variants[0].name
    after_s = [60.0, 100.0, 99.99, 80.0, 103.0, 90.0]
    speedups = {"variant": name, "seed": 0, "round": 2, "change": list(CHANGES), "before_s": 100.0, "after_s": after_s}

    before = help_table(OneRound(frames).views)
    pd.DataFrame(speedups).to_parquet(folder / "speedups.parquet")
    table = help_table(OneRound(frames).views)
    assert table
    (row,) = read(table).values()

    assert before is None
    assert row["As it is"] == ("1 min 40 s", "round 2")
    assert [row[title][1] for title in CHANGES.values()] == [
        "−40.0 %, most", "no change", "no change", "−20.0 %", "+3.0 %", "−10.0 %",
    ]  # fmt: skip


def test_the_panel_follows_the_gantt_chart(frames: Frames) -> None:
    titles = [panel.title for panel in panels(frames)]

    assert titles.index("Why a round takes so long") == titles.index("One round, operation by operation") + 1
