"""What replay costs, and how stale the updates of an asynchronous server are."""

import re
from dataclasses import replace

import numpy as np
import pytest
from read_table import read, untagged
from synthetic_run import HYDRA

from sfl_sim.report.frames import Frames
from sfl_sim.report.pages import learning


@pytest.fixture(scope="session")
def replaying(frames: Frames) -> Frames:
    """One variant asks for 40 samples a round, of which 30 come in the first seed and all in the second."""
    ours = frames.rounds["variant"] == HYDRA
    rounds = frames.rounds.assign(
        replay_proportion=0.1,
        replay_requested=40.0,
        replay_collected=30.0 + 10.0 * frames.rounds["seed"],
        replay_late=2.0,
        replay_bytes=(frames.rounds["bytes_up"] + frames.rounds["bytes_down"]) / 4,
        assistants_s=(frames.rounds["ended_s"] - frames.rounds["started_s"]) / 8,
    )
    unknown = [column for column in rounds if column.startswith("replay_")]
    rounds.loc[~ours, unknown] = np.nan
    return replace(frames, rounds=rounds)


def test_the_section_is_there_for_methods_that_replay_only(frames: Frames, replaying: Frames) -> None:
    (panel,) = learning.replay_panels(replaying)

    assert learning.replay_panels(frames) == []
    assert {trace.name for _, figure in panel.figures for trace in figure.data if trace.name} == {HYDRA}


def test_it_says_what_replay_costs_in_bytes_and_in_waiting(replaying: Frames) -> None:
    took_s = replaying.rounds.query("variant == @HYDRA").eval("ended_s - started_s").groupby(replaying.rounds["seed"])
    sentence = untagged(learning.replay_words(replaying)["costs"])

    assert {"25.0 %", "12.5 %"} <= set(re.findall(r"[\d.]+ %", sentence))
    seconds = float(re.search(r"for ([\d.]+) s of a round", sentence)[1])
    assert seconds == pytest.approx(took_s.mean().median() / 8, rel=0.01)


def test_the_table_has_what_was_asked_for_and_what_came(replaying: Frames) -> None:
    (panel,) = learning.replay_panels(replaying)
    (table,) = panel.tables
    row = read(table)[HYDRA]

    assert row["Samples asked for"][0] == "1.2 k"  # 40 in each of 30 rounds
    assert row["of which arrived"] == ("87.5 %", "± 17.7 %")  # 75 % and 100 %
    assert not any(table.best)


def test_the_gap_between_what_is_asked_for_and_what_comes_is_the_shortage(replaying: Frames) -> None:
    asked, came = learning.samples(replaying).data

    assert set(asked.y) == {40}
    assert set(came.y) == {35}  # the median of 30 and 40
    assert came.fill == "tonexty"


def test_shares_are_in_percent_round_by_round(replaying: Frames) -> None:
    (panel,) = learning.replay_panels(replaying)
    for heading, share in (("Proportion of replay", 10), ("Share of the bytes", 25)):
        figure = dict(panel.figures)[heading]
        (line,) = figure.select_traces({"mode": "lines", "fill": None})
        assert list(line.x) == list(range(1, 31))
        assert line.y == pytest.approx(share)


@pytest.fixture(scope="session")
def stale(frames: Frames) -> Frames:
    """One variant's updates are 2 versions old in the mean of odd rounds, 4 in even ones, and one of a seed 9."""
    rounds = frames.rounds.assign(staleness_mean=4.0 - 2.0 * (frames.rounds["round"] % 2), updates_discarded=1.0)
    rounds["staleness_max"] = rounds["staleness_mean"] + 1
    rounds.loc[(rounds["seed"] == 1) & (rounds["round"] == 7), "staleness_max"] = 9.0
    rounds.loc[rounds["variant"] != HYDRA, ["staleness_mean", "staleness_max", "updates_discarded"]] = np.nan
    return replace(frames, rounds=rounds)


def test_the_section_is_there_for_asynchronous_methods_only(frames: Frames, stale: Frames) -> None:
    (panel,) = learning.staleness_panels(stale)

    assert learning.staleness_panels(frames) == []
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


def test_cuts_that_change_are_shown_beside_the_length_of_rounds(frames: Frames) -> None:
    """For the variants whose cuts change; without any there is no panel."""
    rounds = frames.rounds.assign(cut_mean=np.where(frames.rounds["variant"] == HYDRA, 2.0, np.nan))
    (panel,) = learning.changing_cut_panels(replace(frames, rounds=rounds))
    cut, length = (figure.data[-1] for _, figure in panel.figures)
    own = frames.rounds[frames.rounds["variant"] == HYDRA]

    assert set(cut.y) == {2.0}
    assert length.y[0] == pytest.approx((own["ended_s"] - own["started_s"])[own["round"] == 1].median())
    assert not learning.changing_cut_panels(frames)
