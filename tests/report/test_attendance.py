"""Availability and dropouts: what figures and table say of a run whose rounds are known by hand."""

from __future__ import annotations

import html
import re
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from read_table import in_words

from sfl_sim.metrics.costs import absence_costs
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import costs
from sfl_sim.report.pages.run import panels
from sfl_sim.report.results import knowing

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.panel import Panel

FCFS, CYCLIC = "splitfed_v2, fcfs", "splitfed_v2, cyclic"
TITLE = "Availability and dropouts"
HOUR_S, DAY_S = 3600.0, 86400.0
STAYS = [(0, 0.0, 10 * DAY_S), (1, 0.0, 600.0), (1, 1800.0, DAY_S), (2, 2 * DAY_S, 3 * DAY_S), (3, 900.0, 901.0)]
"""Client, from, until."""


def plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\u00a0", " ")


def keep_account(
    folder: Path,
    ends_s: dict[str, float],
    losses: list[tuple[object, ...]],
    stays: list[tuple[int, float, float]] = STAYS,
) -> Frames:
    """Let each variant of a stored run of four rounds end then, in equal rounds, and lose whom it is told."""
    path = folder / "rounds.parquet"
    rounds = pd.read_parquet(path)
    end_s = rounds["variant"].map(ends_s)
    rounds["ended_s"] = end_s * rounds["round"] / 4
    rounds["started_s"] = rounds["ended_s"] - end_s / 8  # nobody was there for as long before each
    told = pd.DataFrame(losses, columns=["variant", "round", "client", "lost_s", "returned_s", "cause"])
    lost = told.groupby(["variant", "round"])["client"].nunique()
    rounds["lost"] = [lost.get(key, 0) for key in zip(rounds["variant"], rounds["round"], strict=True)]
    rounds = rounds.assign(
        present=4.0,
        lost_device_s=60.0 * rounds["lost"],
        lost_link_s=0.0,
        lost_bytes=rounds["bytes_up"] * rounds["lost"],
    )
    rounds.to_parquet(path)
    told = told.assign(seed=0, node="uplink", kind="smashed", step=0)
    told.to_parquet(folder / "dropouts.parquet")
    there = [
        (variant, 0, client, from_s, min(until_s, end_s))
        for variant, end_s in ends_s.items()
        for client, from_s, until_s in stays
        if from_s < end_s
    ]
    if there:
        pd.DataFrame(there, columns=["variant", "seed", "client", "from_s", "until_s"]).to_parquet(
            folder / "presence.parquet"
        )
    return merge([load(folder)])


@pytest.fixture
def hurried(folder: Path) -> Frames:
    """One variant waits for ten days; the other is done in an hour, since it loses client 1 and, twice, client 3."""
    losses = [
        (CYCLIC, 2, 1, 600.0, 1800.0, "away"),
        (CYCLIC, 3, 3, 901.0, np.nan, "away"),
        (CYCLIC, 3, 3, 901.0, np.nan, "away"),
        (CYCLIC, 4, 3, 3500.0, np.nan, "away"),
    ]
    return keep_account(folder, {FCFS: 10 * DAY_S, CYCLIC: HOUR_S}, losses)


def panel_of(frames: Frames) -> Panel:
    (panel,) = costs.participation_panels(frames)
    return panel


def sight_of(frames: Frames) -> costs.TimeWindow:
    return costs.first_window(frames, knowing(frames, "present"))


def test_the_section_is_for_runs_in_which_clients_may_go_away(frames: Frames, hurried: Frames) -> None:
    assert TITLE not in [panel.title for panel in panels(frames)]
    (panel,) = (panel for panel in panels(hurried) if panel.title == TITLE)
    assert len(panel.figures) == 3
    assert "until half of the variants are done: 1 h" in plain(panel.caption)


def test_who_waits_for_days_does_not_hide_what_happens_within_the_hour(hurried: Frames) -> None:
    window = sight_of(hurried)

    assert window.until_s == HOUR_S
    assert window.stays["until_s"].max() == HOUR_S
    (_, lanes), (_, present), _ = panel_of(hurried).figures
    assert lanes.layout.xaxis.range == present.layout.xaxis.range == (0, 60)
    assert all(np.nanmax(trace.x) <= 60 for figure in (lanes, present) for trace in figure.data if len(trace.x))


def test_a_lane_for_everybody_who_is_there_or_lost_then_and_who_is_there_most_on_top(hurried: Frames) -> None:
    lanes = panel_of(hurried).figures[0][1]

    assert lanes.layout.yaxis.ticktext == ("0", "1", "3")  # client 2 comes on the third day only
    bars = lanes.data[0]
    lane_of_1 = np.asarray(bars.x)[np.asarray(bars.y) == 1].reshape(-1, 3)[:, :2]
    np.testing.assert_allclose(lane_of_1, [[0, 10], [30, 60]])
    (marks,) = (trace for trace in lanes.data if trace.name == CYCLIC)
    assert list(marks.x) == pytest.approx([10, 901 / 60, 3500 / 60])
    assert list(marks.y) == [1, 2, 2]
    assert [text[2].replace("\u00a0", " ") for text in marks.customdata] == ["away for 20 min"] + ["away for good"] * 2


def test_the_number_of_clients_is_exact_at_any_time(hurried: Frames) -> None:
    number = costs.numbers(sight_of(hurried))

    assert number.to_dict() == {0: 2, 600: 1, 900: 2, 901: 1, 1800: 2, HOUR_S: 2}


def test_of_many_steps_the_highest_and_the_lowest_are_drawn(folder: Path) -> None:
    rng = np.random.default_rng(0)
    begins_s = rng.uniform(0, HOUR_S, 20_000)
    stays = [(int(c), begin_s, begin_s + 5.0) for c, begin_s in enumerate(begins_s)]
    frames = keep_account(folder, {FCFS: HOUR_S, CYCLIC: HOUR_S}, [], stays)
    window = sight_of(frames)
    number = costs.numbers(window)
    drawn = costs.present(frames, window).data[0]

    assert len(drawn.x) < 2100 < 30_000 < len(number)
    assert max(drawn.y) == number.max()
    at = np.asarray(drawn.x) * 60
    np.testing.assert_array_equal(drawn.y, number.iloc[number.index.get_indexer(at, method="nearest")])
    assert "40 of 20000 clients" in panel_of(frames).figures[0][0]


def test_with_a_deadline_alone_nobody_is_away_and_no_bars_are_drawn(folder: Path) -> None:
    late = [(CYCLIC, 1, 5, 900.0, 900.0, "deadline"), (CYCLIC, 2, 3, 1800.0, 1800.0, "deadline")]
    frames = keep_account(
        folder, {FCFS: HOUR_S, CYCLIC: HOUR_S}, [*late, (CYCLIC, 3, 3, 2700.0, 2700.0, "deadline")], []
    )
    (_, lanes), (_, present), _ = panel_of(frames).figures

    assert "available" not in {trace.name for figure in (lanes, present) for trace in figure.data}
    assert lanes.layout.yaxis.ticktext == ("3", "5")  # who is late most often on top
    assert {text[2] for trace in lanes.data for text in trace.customdata} == {"too late"}
    assert panel_of(frames).caption.startswith("A mark")


def test_where_all_come_through_there_is_no_figure_of_losses(folder: Path) -> None:
    frames = keep_account(folder, {FCFS: HOUR_S, CYCLIC: HOUR_S}, [])

    assert [heading.split()[0] for heading, _ in panel_of(frames).figures] == [
        "Availability",
        "Available",
    ]
    assert "0.0 %" in in_words(panel_of(frames).tables[0])


def test_the_table_says_what_absence_costs(hurried: Frames) -> None:
    waiting, hurrying = absence_costs(hurried.rounds).set_index("variant").loc[[FCFS, CYCLIC]].to_dict("records")
    rounds = hurried.rounds[hurried.rounds["variant"] == CYCLIC].set_index("round")

    assert waiting["lost_share"] == waiting["byte_share"] == waiting["lost_device_s"] == 0
    assert waiting["round_s"] == 10 * DAY_S / 8
    assert waiting["idle_s"] == 5 * DAY_S
    assert hurrying["lost_share"] == 3 / 16  # four rounds of four
    assert hurrying["lost_device_s"] == 180
    vain = rounds.loc[[2, 3, 4], "bytes_up"].sum() / (rounds["bytes_up"] + rounds["bytes_down"]).sum()
    assert hurrying["byte_share"] == pytest.approx(vain)
    assert re.search(r" 7 min 30 s .* 18\.8 % .* 3 min ", in_words(panel_of(hurried).tables[0]))


def test_the_caption_names_the_variant_whose_clients_are_drawn_if_others_have_other_hours(hurried: Frames) -> None:
    assert sight_of(hurried).alike
    path = hurried.runs[0].folder / "presence.parquet"
    stays = pd.read_parquet(path)
    stays.loc[stays["variant"] == CYCLIC, "from_s"] += 1.0
    stays.to_parquet(path)

    assert "when a client of ● splitfed_v2, fcfs is available" in re.sub(r"\s+", " ", plain(panel_of(hurried).caption))


def test_runs_side_by_side_and_a_single_round(hurried: Frames, tmp_path: Path) -> None:
    folder = hurried.runs[0].folder
    other = shutil.copytree(folder, tmp_path / "other")
    rounds = pd.read_parquet(folder / "rounds.parquet")
    rounds[rounds["round"] == 1].to_parquet(other / "rounds.parquet")
    frames = merge([load(folder), load(other)])
    (panel,) = (panel for panel in panels(frames) if panel.title == TITLE)

    assert {trace.name for _, figure in panel.figures for trace in figure.data} == {"available"} | {
        variant.label for variant in frames.variants
    }
    assert len(panel.tables[0].rows) == 4
