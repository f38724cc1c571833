"""Between time and forgetting who is worth a choice, and what availability and dropouts cost."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from read_table import in_words, untagged
from synthetic_run import ARRIVAL, CYCLIC, HYDRA, NEVER, retold

from sfl_sim.metrics.rounds import absence_costs
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import costs
from sfl_sim.report.pages.costs import choice, frontier, frontier_figure
from sfl_sim.report.pages.run import panels
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import knowing

Told = Callable[..., "Frames"]


@pytest.fixture
def told(frames: Frames) -> Told:
    """The frames, with seconds to the target and gaps in points of both seeds of each variant as told.

    Of a seed's clients is told how slow they make the rounds of all variants.
    """

    def tell(
        seconds: dict[str, list[float]], gaps: dict[str, list[float]], slowness: tuple[float, float] = (1, 1)
    ) -> Frames:
        run_s = frames.summary["rounds"] * frames.summary["seed"].map(dict(enumerate(slowness)))
        shares = {name: np.array(gaps[name]) / 100 for name in seconds}
        summary = frames.summary.assign(simulated_s=run_s)
        return retold(replace(frames, summary=summary), time_to_accuracy_s=seconds, performance_gap=shares)

    return tell


GAPS = {ARRIVAL: [28.0, 32.0], CYCLIC: [20.0, 20.0], HYDRA: [25.0, 25.0]}


def chosen(frames: Frames) -> list[str]:
    (sentence,) = choice(frames)
    assert sentence.facts["figures"] == [frontier(frames).cost, "performance gap"]
    return sentence.facts["chosen"]


def mark(drawn: go.Figure, name: str) -> go.Scatter:
    return next(drawn.select_traces({"name": name}))


def test_the_front_holds_those_whom_nobody_beats(told: Told) -> None:
    frames = told({ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 30]}, GAPS)
    found = frontier(frames)
    drawn = frontier_figure(frames, found)

    assert found.middle["best"].to_dict() == {ARRIVAL: True, CYCLIC: True, HYDRA: False}
    assert [mark(drawn, name).opacity == 1 for name in (ARRIVAL, CYCLIC, HYDRA)] == [True, True, False]
    assert chosen(frames) == [ARRIVAL, CYCLIC]


LATE = [NEVER, NEVER]


@pytest.mark.parametrize(
    ("seconds", "gaps", "best"),
    [
        ([[9, 9], [8, 8], [30, 30]], [30, 20, 25], [CYCLIC]),  # in both
        ([[10, 10], [20, 20], [20, 20]], [30, 29.96, 40], [ARRIVAL]),  # a gap that reads alike beats nobody
        ([[100.001] * 2, [100.002] * 2, [200] * 2], [30, 20, 25], [CYCLIC]),  # nor does such a time
        ([[10, 10], [20, 20], LATE], [30, 40, 2], [ARRIVAL]),  # who never arrives is not on the front
        ([[9, 9], [30, 30], [20, 20]], [30, 20, 25], None),  # nothing is said where all are
        ([[10, 10], [20, 20], LATE], [30, 20, 2], None),  # or all that arrive
    ],
)
def test_who_is_on_the_front_is_told_unless_all_are(
    told: Told, seconds: list[list[float]], gaps: list[float], best: list[str] | None
) -> None:
    names = (ARRIVAL, CYCLIC, HYDRA)
    frames = told(
        dict(zip(names, seconds, strict=True)), {name: [gap] * 2 for name, gap in zip(names, gaps, strict=True)}
    )
    if best is None:
        assert choice(frames) == []
    else:
        assert chosen(frames) == best
        assert ("that reaches the target" in choice(frames)[0].text) == (LATE in seconds)


def test_seeds_that_lack_a_variant_do_not_tell_what_the_front_is(told: Told) -> None:
    frames = told({ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 10]}, GAPS)
    assert "1 of 2 seeds" in choice(frames)[0].text
    lacking = (frames.summary["variant"] == HYDRA) & (frames.summary["seed"] == 1)
    assert "seeds" not in choice(replace(frames, summary=frames.summary[~lacking]))[0].text
    others = frames.summary.assign(seed=frames.summary["seed"] + 2 * (frames.summary["variant"] == ARRIVAL))
    assert "seeds" not in choice(replace(frames, summary=others))[0].text


def test_marks_are_medians_and_bars_standard_deviations_over_seeds(told: Told) -> None:
    frames = told({ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 30]}, GAPS)

    arrival = mark(frontier_figure(frames, frontier(frames)), ARRIVAL)

    assert (arrival.x[0], arrival.y[0]) == pytest.approx((10, 30))
    assert (arrival.error_x.array[0], arrival.error_y.array[0]) == pytest.approx((8**0.5, 8**0.5))


def test_the_line_steps_from_one_on_the_front_to_the_next(told: Told) -> None:
    frames = told({ARRIVAL: [10, 10], CYCLIC: [20, 20], HYDRA: [30, 30]}, GAPS)

    line = mark(frontier_figure(frames, frontier(frames)), "Pareto front")

    assert line.line.shape == "hv"
    assert (list(line.x), list(line.y)) == (pytest.approx([10, 20]), pytest.approx([30, 20]))


def test_beyond_the_last_of_the_front_its_line_is_dashed_to_the_edges(told: Told) -> None:
    frames = told({ARRIVAL: [10, 10], CYCLIC: [20, 20], HYDRA: [30, 30]}, GAPS)
    drawn = frontier_figure(frames, frontier(frames))

    (tails,) = (trace for trace in drawn.select_traces({"name": "Pareto front"}) if trace.line.dash == "dash")

    (up, from_first, _, from_last, right) = zip(tails.x, tails.y, strict=True)
    assert (from_first, from_last) == (pytest.approx((10, 30)), pytest.approx((20, 20)))
    assert up == pytest.approx((10, drawn.layout.yaxis.range[1]))
    assert right == pytest.approx((drawn.layout.xaxis.range[1], 20))


def test_what_the_clients_of_a_seed_do_to_all_variants_is_no_spread(told: Told) -> None:
    # The clients of the second seed are three times as slow; under HYDRA the first seed needs twice the rounds.
    frames = told({ARRIVAL: [10, 30], CYCLIC: [20, 60], HYDRA: [40, 60]}, GAPS, slowness=(1, 3))
    drawn = frontier_figure(frames, frontier(frames))

    spread = {name: mark(drawn, name).error_x.array[0] for name in GAPS}
    assert spread == pytest.approx({ARRIVAL: 0, CYCLIC: 0, HYDRA: np.std([80, 40], ddof=1)})
    assert [mark(drawn, name).x[0] for name in GAPS] == pytest.approx([20, 40, 50])  # medians, as in the table
    colour = mark(drawn, HYDRA).marker.color
    (small,) = (trace for trace in drawn.data if trace.marker.size == 5 and trace.marker.color == colour)
    assert list(small.x) == pytest.approx([80, 40])


def test_marks_fill_the_height_and_none_is_cut_off(told: Told) -> None:
    gaps = {ARRIVAL: [50.0, 54.0], CYCLIC: [48.0, 49.0], HYDRA: [46.0, 47.0]}
    frames = told({name: [9, 9] for name in gaps}, gaps)

    bottom, top = frontier_figure(frames, frontier(frames)).layout.yaxis.range

    assert 0 <= bottom < 46
    assert top > 52 + 8**0.5
    assert (54 - 46) / (top - bottom) > 0.5


def test_who_never_reaches_the_target_stands_beside_the_clock_and_not_on_the_front(told: Told) -> None:
    frames = told({ARRIVAL: [10, 10], CYCLIC: [20, 20], HYDRA: [NEVER, NEVER]}, {**GAPS, HYDRA: [1.0, 3.0]})
    found = frontier(frames)

    late = mark(frontier_figure(frames, found), HYDRA)

    assert late.xaxis == "x2"
    assert (late.y[0], late.error_x.array[0]) == (pytest.approx(2), 0)
    assert "not reached" in late.customdata[0]
    assert not found.middle["best"][HYDRA]


def test_a_single_late_seed_stands_there_alone(told: Told, frames: Frames) -> None:
    everyone = {ARRIVAL: [10, 10], CYCLIC: [20, 20], HYDRA: [5, NEVER]}
    drawn = frontier_figure(told(everyone, GAPS), frontier(told(everyone, GAPS)))
    colour = next(variant.colour for variant in frames.variants if variant.label == HYDRA)

    small = [trace for trace in drawn.data if trace.marker.size == 5 and trace.marker.color == colour]

    assert {trace.xaxis: len(trace.x) for trace in small} == {"x": 1, "x2": 1}


def test_where_nobody_reaches_the_target_the_time_of_a_round_counts(told: Told) -> None:
    frames = told({name: [NEVER, NEVER] for name in GAPS}, GAPS)
    round_s = (frames.summary["simulated_s"] / frames.summary["rounds"]).groupby(frames.summary["variant"]).median()

    found = frontier(frames)

    assert found.cost == "time of a round"
    assert found.middle["time_s"].to_dict() == pytest.approx(round_s.to_dict())
    assert not found.anyone_late


def test_two_variants_or_none_that_was_trained_make_no_front(frames: Frames) -> None:
    for untrained in ([HYDRA], [ARRIVAL, CYCLIC, HYDRA]):
        gaps = frames.summary["performance_gap"].mask(frames.summary["variant"].isin(untrained))
        assert frontier(replace(frames, summary=frames.summary.assign(performance_gap=gaps))) is None


TITLE = "Availability and dropouts"
HOUR_S, DAY_S = 3600.0, 86400.0
STAYS = [(0, 0.0, 10 * DAY_S), (1, 0.0, 600.0), (1, 1800.0, DAY_S), (2, 2 * DAY_S, 3 * DAY_S), (3, 900.0, 901.0)]
"""Client, from, until."""


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
    return keep_account(folder, {ARRIVAL: 10 * DAY_S, CYCLIC: HOUR_S}, losses)


def panel_of(frames: Frames) -> Panel:
    (panel,) = costs.participation_panels(frames)
    return panel


def sight_of(frames: Frames) -> costs.TimeWindow:
    return costs.first_window(frames, knowing(frames, "present"))


def test_the_section_is_for_runs_in_which_clients_may_go_away(frames: Frames, hurried: Frames) -> None:
    assert TITLE not in [panel.title for panel in panels(frames)]
    (panel,) = (panel for panel in panels(hurried) if panel.title == TITLE)
    assert len(panel.figures) == 3
    assert "until half of the variants are done: 1 h" in untagged(panel.caption)


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
    frames = keep_account(folder, {ARRIVAL: HOUR_S, CYCLIC: HOUR_S}, [], stays)
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
        folder, {ARRIVAL: HOUR_S, CYCLIC: HOUR_S}, [*late, (CYCLIC, 3, 3, 2700.0, 2700.0, "deadline")], []
    )
    (_, lanes), (_, present), _ = panel_of(frames).figures

    assert "available" not in {trace.name for figure in (lanes, present) for trace in figure.data}
    assert lanes.layout.yaxis.ticktext == ("3", "5")  # who is late most often on top
    assert {text[2] for trace in lanes.data for text in trace.customdata} == {"too late"}
    assert panel_of(frames).caption.startswith("A mark")


def test_where_all_come_through_there_is_no_figure_of_losses(folder: Path) -> None:
    frames = keep_account(folder, {ARRIVAL: HOUR_S, CYCLIC: HOUR_S}, [])

    assert [heading.split()[0] for heading, _ in panel_of(frames).figures] == [
        "Availability",
        "Available",
    ]
    assert "0.0 %" in in_words(panel_of(frames).tables[0])


def test_the_table_says_what_absence_costs(hurried: Frames) -> None:
    waiting, hurrying = absence_costs(hurried.rounds).set_index("variant").loc[[ARRIVAL, CYCLIC]].to_dict("records")
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

    assert "when a client of ● splitfed_v2, fcfs is available" in re.sub(
        r"\s+", " ", untagged(panel_of(hurried).caption)
    )


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
