"""Staleness of updates: shown for servers that wait for nobody, with the numbers of their rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from read_table import read

from sfl_sim.report.pages import learning
from sfl_sim.report.pages.run import panels

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames

HYDRA = "hydra, cyclic"
TITLE = "Staleness of updates"


@pytest.fixture(scope="session")
def stale(frames: Frames) -> Frames:
    """One variant's updates are 2 versions old in the mean of odd rounds, 4 in even ones, and one of a seed 9."""
    rounds = frames.rounds.assign(staleness_mean=4.0 - 2.0 * (frames.rounds["round"] % 2), updates_discarded=1.0)
    rounds["staleness_max"] = rounds["staleness_mean"] + 1
    rounds.loc[(rounds["seed"] == 1) & (rounds["round"] == 7), "staleness_max"] = 9.0
    rounds.loc[rounds["variant"] != HYDRA, ["staleness_mean", "staleness_max", "updates_discarded"]] = np.nan
    return replace(frames, rounds=rounds)


def test_the_section_is_there_for_asynchronous_methods_only(frames: Frames, stale: Frames) -> None:
    (panel,) = (panel for panel in panels(stale) if panel.title == TITLE)

    assert TITLE not in [panel.title for panel in panels(frames)]
    assert {trace.name for _, figure in panel.figures for trace in figure.data if trace.name} == {HYDRA}


def test_a_line_for_the_mean_and_a_dotted_one_for_the_stalest(stale: Frames) -> None:
    most, mean = learning.staleness(stale).data

    assert list(mean.y) == [2, 4] * 15
    assert most.line.dash == "dot"
    assert list(most.y) == [3, 5, 3, 5, 3, 5, 6, 5] + [3, 5] * 11  # 6: the median of 3 and 9


def test_the_table_sums_up_each_seed(stale: Frames) -> None:
    (panel,) = learning.staleness_panels(stale)
    (row,) = read(panel.tables[0]).values()

    first, second = learning.staleness_of_runs(stale).to_dict("records")
    assert (first["staleness_mean"], first["staleness_max"], first["updates_discarded"]) == (3, 5, 30)
    assert second["staleness_max"] == 9
    assert [cell[0] for cell in row.values()] == ["3", "7", "30"]  # medians over the two seeds
