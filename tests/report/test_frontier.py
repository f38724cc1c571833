"""Between time and forgetting: who is worth a choice, and where the others stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sfl_sim.report.pages.costs import choice, frontier, frontier_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames

ARRIVAL, CYCLIC, HYDRA = "splitfed_v2, fcfs", "splitfed_v2, cyclic", "hydra, cyclic"
NEVER = np.nan
Told = Callable[..., "Frames"]


@pytest.fixture
def told(frames: Frames) -> Told:
    """The frames, with seconds to the target and gaps in points of both seeds of each variant as told.

    Of a seed's clients is told how slow they make the rounds of all variants.
    """

    def tell(
        seconds: dict[str, list[float]], gaps: dict[str, list[float]], slowness: tuple[float, float] = (1, 1)
    ) -> Frames:
        summary = frames.summary.copy()
        summary["simulated_s"] = summary["rounds"] * summary["seed"].map(dict(enumerate(slowness)))
        for name in seconds:
            ours = summary["variant"] == name
            summary.loc[ours, "time_to_accuracy_s"] = seconds[name]
            summary.loc[ours, "performance_gap"] = np.array(gaps[name]) / 100
        return replace(frames, summary=summary)

    return tell


GAPS = {ARRIVAL: [28.0, 32.0], CYCLIC: [20.0, 20.0], HYDRA: [25.0, 25.0]}


def mark(drawn: go.Figure, name: str) -> go.Scatter:
    return next(drawn.select_traces({"name": name}))


def test_the_front_holds_those_whom_nobody_beats(told: Told) -> None:
    frames = told({ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 30]}, GAPS)
    found = frontier(frames)
    drawn = frontier_figure(frames, found)

    assert found.middle["best"].to_dict() == {ARRIVAL: True, CYCLIC: True, HYDRA: False}
    assert [mark(drawn, name).opacity == 1 for name in (ARRIVAL, CYCLIC, HYDRA)] == [True, True, False]
    (sentence,) = choice(frames)
    assert ARRIVAL in sentence
    assert CYCLIC in sentence
    assert HYDRA not in sentence


def test_seeds_that_lack_a_variant_do_not_tell_what_the_front_is(told: Told) -> None:
    frames = told({ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 10]}, GAPS)
    assert "1 of 2 seeds alone say the same" in choice(frames)[0]
    lacking = (frames.summary["variant"] == HYDRA) & (frames.summary["seed"] == 1)
    assert "seeds alone" not in choice(replace(frames, summary=frames.summary[~lacking]))[0]
    others = frames.summary.assign(seed=frames.summary["seed"] + 2 * (frames.summary["variant"] == ARRIVAL))
    assert "seeds alone" not in choice(replace(frames, summary=others))[0]


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
    assert choice(frames) == []  # of those that reach it, nobody is beaten


def test_who_is_best_among_those_that_reach_the_target_is_not_called_the_least_forgetful_of_all(told: Told) -> None:
    seconds = {ARRIVAL: [10, 10], CYCLIC: [20, 20], HYDRA: [NEVER, NEVER]}

    (sentence,) = choice(told(seconds, {ARRIVAL: [30, 30], CYCLIC: [40, 40], HYDRA: [2, 2]}))

    assert sentence.endswith("the smallest performance gap of those that reach it.")


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


def test_a_time_that_reads_the_same_wins_nobody_a_place_on_the_front(told: Told) -> None:
    frames = told({ARRIVAL: [100.001] * 2, CYCLIC: [100.002] * 2, HYDRA: [200] * 2}, GAPS)

    assert frontier(frames).middle["best"].to_dict() == {ARRIVAL: False, CYCLIC: True, HYDRA: False}


def test_a_front_that_single_seeds_do_not_share_is_told_so(told: Told) -> None:
    """By medians all but one are on the front; in the second seed that one is quicker than all others."""
    agreed = {ARRIVAL: [8, 12], CYCLIC: [20, 20], HYDRA: [30, 30]}

    (sure,) = choice(told(agreed, GAPS))
    (unsure,) = choice(told(agreed | {HYDRA: [50, 10]}, GAPS))

    assert sure.endswith("in both.")
    assert unsure.endswith("in both (by medians; 1 of 2 seeds alone say the same).")


def test_one_who_is_best_in_both_leaves_no_choice(told: Told) -> None:
    (sentence,) = choice(told({ARRIVAL: [9, 9], CYCLIC: [8, 8], HYDRA: [30, 30]}, GAPS))

    assert CYCLIC in sentence
    assert "both the shortest time to 70\u00a0% accuracy and the smallest performance gap." in sentence


def test_nothing_is_said_where_everyone_is_on_the_front(told: Told) -> None:
    assert choice(told({ARRIVAL: [9, 9], HYDRA: [20, 20], CYCLIC: [30, 30]}, GAPS)) == []


def test_two_variants_or_none_that_was_trained_make_no_front(frames: Frames) -> None:
    for untrained in ([HYDRA], [ARRIVAL, CYCLIC, HYDRA]):
        gaps = frames.summary["performance_gap"].mask(frames.summary["variant"].isin(untrained))
        assert frontier(replace(frames, summary=frames.summary.assign(performance_gap=gaps))) is None
