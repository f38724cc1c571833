"""The results of each variant, and which one reaches a target when."""

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from read_table import best, in_words, read
from synthetic_run import ARRIVAL, CYCLIC, HYDRA, NEVER, FramesOf, World, retold

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.pages.learning import accuracy_against
from sfl_sim.report.pages.run import results_figure
from sfl_sim.report.panel import Column
from sfl_sim.report.results import (
    BYTES,
    ROUNDS,
    TIME,
    aims,
    common_target,
    medians,
    paper_table,
    results_table,
    target_table,
)


def test_a_row_is_headed_by_its_variant(frames: Frames) -> None:
    assert results_table(frames).titles[:2] == ["Variant", "Time to target"]


def test_the_best_median_of_a_column_is_marked(frames: Frames) -> None:
    leader = frames.summary.groupby("variant")["accuracy"].median().idxmax()

    assert best(results_table(frames), "Accuracy") == [leader]


def test_of_one_variant_alone_no_median_is_called_the_best(frames_of: FramesOf, small: World) -> None:
    one = frames_of(replace(small, variants=small.variants[:1]))
    several = frames_of(small)
    assert ["best" in results_table(frames).note for frames in (one, several)] == [False, True]


def test_a_median_comes_with_the_standard_deviation_over_seeds(frames: Frames) -> None:
    summary = frames.summary.copy()
    summary.loc[summary["variant"] == "hydra, cyclic", "accuracy"] = [0.80, 0.84]

    row = read(results_table(replace(frames, summary=summary)))["hydra, cyclic"]

    assert row["Accuracy"] == ("82.0 %", "± 2.8 %")  # 4 points apart: ± 4 / sqrt(2)


def test_own_metrics_stand_beside_the_accuracy(frames: Frames) -> None:
    summary = frames.summary.assign(**{"report.metrics.<sure>": 0.25, "report.metrics.unknown": np.nan})
    summary.loc[summary["variant"] == "hydra, cyclic", "report.metrics.<sure>"] = [0.5, 0.75]

    table = results_table(replace(frames, summary=summary))

    (title,) = [
        name for name in read(table)["hydra, cyclic"] if name not in read(results_table(frames))["hydra, cyclic"]
    ]
    assert title == "<sure>"
    assert read(table)["hydra, cyclic"][title] == ("0.625", "± 0.1768")
    assert not best(table, title)  # nobody knows which side of a metric of one's own is better


def test_the_round_that_validation_samples_choose_has_its_score_on_the_test_set_beside_the_accuracy(
    frames: Frames,
) -> None:
    title = "Accuracy of the best round by validation"
    assert title not in read(results_table(frames))[HYDRA]
    row = read(results_table(replace(frames, summary=frames.summary.assign(best_round_score=0.625))))[HYDRA]
    assert list(row).index(title) == list(row).index("Accuracy") + 1
    assert row[title][0] == "62.5 %"


def test_a_spread_that_is_no_number_is_not_told() -> None:
    perplexity = Column("Perplexity", "perplexity", "{:.2f}".format)
    assert perplexity.spread(pd.Series([3.0, 5.0])) == "± 1.41"
    assert perplexity.spread(pd.Series([3.0, math.inf])) == ""


def test_a_repriced_run_that_must_be_trained_anew_is_drawn_by_its_time(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    variants = json.loads((folder / "summary.json").read_text())["variants"]
    manifest["repriced"] = [{"variant": one["name"], "seed": one["seed"], "reason": "order"} for one in variants]
    assert results_figure(folder, "time").layout.yaxis.title.text == "accuracy (%)"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "accuracy" not in str(results_figure(folder, "time").layout.yaxis.title.text)


def test_the_paper_counts_over_seeds_first_and_over_rounds_then(frames: Frames) -> None:
    hydra = frames.rounds[frames.rounds["variant"] == "hydra, cyclic"]
    last = [statistics.median(hydra.loc[hydra["round"] == number, "accuracy"]) for number in range(26, 31)]

    table = paper_table(frames)
    assert table
    middle, spread = f"{100 * statistics.median(last):.1f} %", f"± {100 * statistics.stdev(last):.1f} %"
    assert read(table)["hydra, cyclic"]["Accuracy"] == (middle, spread)


def test_one_seed_is_not_counted_as_the_paper_counts(frames: Frames) -> None:
    assert paper_table(replace(frames, summary=frames.summary.query("seed == 0"))) is None


def test_the_memory_of_the_server_is_shown_where_it_differs(frames: Frames) -> None:
    heads = frames.summary["variant"].map({"hydra, cyclic": 5e6}).fillna(2e6)
    unlike, alike = (replace(frames, summary=frames.summary.assign(server_model_bytes=b)) for b in (heads, 2e6))

    assert read(results_table(unlike))["hydra, cyclic"]["Server memory"][0] == "5 MB"
    assert "Server memory" not in results_table(alike).titles


def test_numbers_that_read_alike_are_marked_alike(frames: Frames) -> None:
    table = results_table(frames)

    assert len({row["Sent down"] for row in read(table).values()}) == 1
    assert best(table, "Sent down") == []


def test_a_seed_that_misses_the_target_counts_as_infinitely_late(frames: Frames) -> None:
    late = frames.summary.copy()
    late.loc[(late["variant"] == "hydra, cyclic") & (late["seed"] == 1), "time_to_accuracy_s"] = np.nan

    assert np.isinf(medians(replace(frames, summary=late)).at["hydra, cyclic", "time_to_accuracy_s"])


def test_the_time_to_the_target_comes_first_and_the_rest_of_it_has_a_table_of_its_own(frames: Frames) -> None:
    assert results_table(frames).titles[1] == TIME.title
    assert in_words(results_table(frames)).count("target") == 1


def test_what_still_rises_is_told_beside_its_median(frames: Frames) -> None:
    last = frames.rounds["round"].max()
    accuracy = {"hydra, cyclic": [0.5 + 0.002 * number for number in range(last)]}  # a point in five rounds
    steady = {"splitfed_v2, fcfs": [0.7] * last, "splitfed_v2, cyclic": [0.6, 0.7] * (last // 2)}

    def rising(slope: float) -> list[str]:
        numbers = steady | {label: [slope * number for number in numbers] for label, numbers in accuracy.items()}
        rounds = frames.rounds.copy()
        for label, own in numbers.items():
            rows = rounds["variant"] == label
            rounds.loc[rows, "accuracy"] = rounds.loc[rows, "round"].map(dict(enumerate(own, start=1)))
        lines = in_words(results_table(replace(frames, rounds=rounds))).splitlines()
        return [line for line in lines if "still rising" in line]

    (told,) = rising(1.5)
    assert "still rising +1.5" in told
    assert told.startswith("hydra, cyclic")
    assert rising(0.9) == []


def test_how_steady_a_run_was_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(accuracy_spread=0.0123))

    title = "Spread of last rounds (points)"
    assert read(results_table(known))["hydra, cyclic"][title][0] == "1.2"
    assert title not in results_table(frames).titles


def test_energy_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(joule=np.where(frames.summary["seed"] == 0, 4000, 4400.0)))
    unknown = replace(frames, summary=frames.summary.assign(joule=np.nan))

    assert read(results_table(known))["hydra, cyclic"]["Energy of the clients"][0] == "4.2 kJ"
    assert "Energy of the clients" not in results_table(unknown).titles


Told = Callable[..., "Frames"]


@pytest.fixture
def told(frames: Frames) -> Told:
    """The frames, with the seconds that both seeds of a variant need, or NEVER after a run of 100 s."""

    def tell(seconds: dict[str, list[float]], reference: str = "") -> Frames:
        summary = frames.summary.assign(simulated_s=100.0, reference=reference, best_accuracy=0.875)
        return retold(replace(frames, summary=summary), time_to_accuracy_s=seconds)

    return tell


def cells(frames: Frames) -> dict[str, list[str]]:
    """What the only table reads: by variant the time and the speed-up in time, with what stands below."""
    (aim,) = aims(frames)
    titles = ("Time to target", "Speed-up in time")
    return {
        name: [" ".join(filter(None, row[title])) for title in titles] for name, row in read(target_table(aim)).items()
    }


LATE = [NEVER, NEVER]


@pytest.mark.parametrize(
    ("seconds", "reference", "expected"),
    [
        # 75 / 40, the medians beside it, and not the median of 3 and 1.5.
        ({ARRIVAL: [60, 90], CYCLIC: [20, 60], HYDRA: [30, 30]}, ARRIVAL,
         {ARRIVAL: ["1 min 15 s ± 21 s", "1.00× baseline"], CYCLIC: ["40 s ± 28 s", "1.88×"],
          HYDRA: ["30 s", "2.50×"]}),
        # Without a reference, the slowest that reaches the target with every seed is the baseline.
        ({ARRIVAL: LATE, CYCLIC: [20, 20], HYDRA: [60, 60]}, "",
         {CYCLIC: ["20 s", "3.00×"], HYDRA: ["1 min", "1.00× baseline"]}),
        # What is not reached has neither time nor speed-up.
        ({ARRIVAL: [50, 50], CYCLIC: LATE, HYDRA: [20, NEVER]}, ARRIVAL,
         {CYCLIC: ["not reached 0 of 2 seeds", "–"], HYDRA: ["not reached 1 of 2 seeds", "–"]}),
        ({ARRIVAL: LATE, CYCLIC: [50, 50], HYDRA: LATE}, ARRIVAL, {CYCLIC: ["50 s", "–"]}),
        ({ARRIVAL: LATE, CYCLIC: LATE, HYDRA: LATE}, "", {HYDRA: ["not reached 0 of 2 seeds", "–"]}),
    ],
)  # fmt: skip
def test_times_and_speed_ups_to_the_target(
    told: Told, seconds: dict[str, list[float]], reference: str, expected: dict[str, list[str]]
) -> None:
    found = cells(told(seconds, reference))
    assert {name: found[name] for name in expected} == expected


def with_three_seeds(frames: Frames, seconds: dict[str, list[float]], reference: str) -> Frames:
    third = frames.summary.query("seed == 1").assign(seed=2)
    summary = pd.concat([frames.summary, third]).sort_values(["variant", "seed"])
    summary["time_to_accuracy_s"] = [second for name in sorted(seconds) for second in seconds[name]]
    return replace(frames, summary=summary.assign(simulated_s=100.0, reference=reference, best_accuracy=0.875))


def test_a_late_seed_of_the_reference_counts_as_infinitely_late(frames: Frames) -> None:
    seconds = {ARRIVAL: [60, 30, NEVER], CYCLIC: [20, 20, 20], HYDRA: [30, 30, NEVER]}
    found = cells(with_three_seeds(frames, seconds, ARRIVAL))

    assert found[ARRIVAL] == ["1 min 2 of 3 seeds", "1.00× baseline"]
    # Nobody is some times as fast as a seed that never gets there.
    assert found[CYCLIC] == ["20 s", "–"]
    assert found[HYDRA] == ["30 s 2 of 3 seeds", "–"]


def test_without_a_reference_the_baseline_is_one_that_all_can_be_compared_with(frames: Frames) -> None:
    seconds = {ARRIVAL: [60, 30, NEVER], CYCLIC: [20, 20, 20], HYDRA: [30, 30, 30]}
    found = cells(with_three_seeds(frames, seconds, ""))

    assert found[ARRIVAL] == ["1 min 2 of 3 seeds", "–"]
    assert found[CYCLIC] == ["20 s", "1.50×"]
    assert found[HYDRA] == ["30 s", "1.00× baseline"]


def test_every_setting_has_its_target_and_its_own_table(told: Told) -> None:
    frames = told({ARRIVAL: [60, 60], CYCLIC: [20, 20], HYDRA: [30, 30]}, reference=ARRIVAL)
    apart = frames.summary["variant"] == HYDRA
    summary = frames.summary.assign(
        reference=frames.summary["reference"].mask(apart, HYDRA),
        target_accuracy=frames.summary["target_accuracy"].mask(apart, 0.6),
    )
    frames = replace(frames, summary=summary)

    one, other = aims(frames)

    assert [variant.label for variant in one.variants] == [ARRIVAL, CYCLIC]
    assert (one.name, other.name) == ("70\u00a0% accuracy", "60\u00a0% accuracy")
    assert one.share == pytest.approx(0.8)  # .7 of .875
    assert HYDRA not in read(target_table(one))
    assert common_target(frames) is None
    assert [variant.label for variant in other.variants] == [HYDRA]


def test_variants_whose_reference_has_not_run_have_no_target_yet(frames: Frames) -> None:
    (run,) = frames.runs
    summary = run.summary.assign(reference="never run", target_accuracy=np.nan)

    (aim,) = aims(merge([replace(run, summary=summary)]))

    assert (aim.target, aim.reference, len(aim.variants)) == (None, None, 3)


def test_curves_are_marked_where_the_target_is_reached_and_crossed_out_at_their_end_if_it_is_not(told: Told) -> None:
    frames = told({ARRIVAL: [40, 60], CYCLIC: [NEVER, NEVER], HYDRA: [20, 20]})
    (aim,) = aims(frames)
    figure = accuracy_against(frames, aim, TIME)

    marks = {trace.customdata[0].partition(": ")[0]: trace for trace in figure.select_traces({"mode": "markers"})}
    ends_s = frames.rounds[frames.rounds["variant"] == CYCLIC].groupby("round")["ended_s"].median()
    unit_s = ends_s.iloc[-1] / marks[CYCLIC].x[0]

    assert unit_s in (pytest.approx(60), pytest.approx(1))
    assert (marks[ARRIVAL].x[0], marks[HYDRA].x[0]) == pytest.approx((50 / unit_s, 20 / unit_s))
    assert [marks[name].marker.symbol for name in (ARRIVAL, CYCLIC, HYDRA)] == ["circle", "x-thin", "circle"]
    assert marks[CYCLIC].customdata[0].endswith("not reached")
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == pytest.approx(70)


def test_with_one_seed_the_mark_lies_on_the_round_that_reaches_the_target(frames: Frames) -> None:
    alone = replace(frames, summary=frames.summary.query("seed == 0"), rounds=frames.rounds.query("seed == 0"))
    (aim,) = aims(alone)

    reached = alone.rounds.query("variant == @HYDRA and accuracy >= 0.7").iloc[0]
    for figure, at in (
        (accuracy_against(alone, aim, ROUNDS), reached["round"]),
        (accuracy_against(alone, aim, BYTES), reached["bytes_so_far"] / 1e9),
    ):
        (mark,) = (t for t in figure.select_traces({"mode": "markers"}) if t.customdata[0].startswith(HYDRA))
        assert (mark.x[0], mark.y[0]) == pytest.approx((at, 100 * reached["accuracy"]))
