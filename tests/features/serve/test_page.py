"""The page on served requests: made from the folder alone, with what there is data for and nothing else."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from read_table import numbers
from synthetic_serving import Method, Rule, World, write_served

from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve import page as serving
from sfl_sim.features.serve.load import MAX_DETAILED, ServedFolder, load_serving
from sfl_sim.features.serve.page import groups_table, headline, panels, results, warnings, write_serving
from sfl_sim.report.display import duration, percent
from sfl_sim.report.figures import wide_axis
from sfl_sim.report.lead import BestSpan

FIGURES = {"How long an answer takes": 1, "Where the time goes": 2, "Under load": 4, "What accuracy costs": 2}


def page_of(folder: Path) -> str:
    return write_serving(folder, folder / "serving.html").read_text(encoding="utf-8")


def figures_of(served: ServedFolder) -> dict[str, int]:
    """How many figures each panel has, drawn, by its title."""
    return {panel.title: len(panel.figures) for panel in panels(served)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, an oracle and a label-free rule, three rates, two seeds."""
    return write_served(tmp_path_factory.mktemp("served") / "sweep", World())


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return page_of(folder)


def test_a_sweep_over_rates_with_rules_has_every_section(folder: Path, page: str) -> None:
    every = FIGURES | {"Thresholds over time": 3}
    assert figures_of(load_serving(folder)) == every
    assert re.findall("<h2>(.*?)</h2>", page)[:-3] == ["Results", *every]
    assert page.count('class="plotly-graph-div"') == sum(every.values())


def test_tables_are_headed_by_these_words(folder: Path) -> None:
    numbers = ["p50", "p95", "p99", "Accuracy", "Offloaded"]
    rates = ["Variant", "Requests/s", *numbers, "Answers/s", "Server busy"]
    shown = results(load_serving(folder))
    assert [list(table.titles) for table in shown] == [rates, rates, ["Variant", "Requests", *numbers]]


def test_the_page_is_whole_without_the_network_and_names_are_no_tags(page: str) -> None:
    body = page[page.index("<body>") :]
    assert "http" not in body.replace("http://www.w3.org", "")
    assert "<windows>" not in page
    assert "Doors &amp; &lt;windows&gt;" in page
    assert "harmony <b>" not in body
    assert "harmony &lt;b&gt;" in body


def test_it_says_who_is_quick_and_who_is_right(folder: Path) -> None:
    served = load_serving(folder)
    quick, right, *_ = headline(served)
    middle = served.at_rate.groupby("series")[["p95_s", "accuracy"]].median()
    assert quick.facts["medians"] == pytest.approx(middle["p95_s"].to_dict())
    assert right.facts["first"] == [middle["accuracy"].idxmax()]


def test_every_number_on_top_is_in_the_stored_tables(folder: Path) -> None:
    """At the highest rate that all keep up with; the quickest is so with one of two seeds alone."""
    quick, right, along = headline(load_serving(folder))
    trials = pd.DataFrame(json.loads((folder / "serving.json").read_text())["trials"])
    late = trials.groupby("rate_per_s")["falls_behind"].max()
    rate = late.index[~late.astype(bool)].max()
    middle = trials[trials["rate_per_s"] == rate].groupby("series")[["p95_s", "accuracy"]].median()
    p95_s, accuracy = middle["p95_s"].sort_values(), middle["accuracy"].sort_values(ascending=False)
    assert len(quick.facts["not told apart"]) == len(p95_s)
    assert numbers(quick.text) == numbers(*map(duration, p95_s), "95", f"{rate:g}", "95", "2")
    assert numbers(right.text) == numbers(f"{rate:g}", *map(percent, accuracy.iloc[:2]), "2", "2")
    kept_up = trials[trials["rate_per_s"].isin(late.index[~late.astype(bool)])]
    best = kept_up.groupby(["rate_per_s", "series"])["p95_s"].median().unstack().idxmin(axis="columns")
    assert along.facts["spans"] == [BestSpan(sorted(p95_s.index).index(*set(best)), 0, len(best) - 1)]
    assert numbers(along.text) == ["95"]


def test_all_variants_are_saturated_only_if_that_is_known_of_all(folder: Path, page: str) -> None:
    served = load_serving(folder)
    unknown = served.trials["series"] == served.series[0].label
    few = replace(served, trials=served.trials.assign(falls_behind=served.trials["falls_behind"].mask(unknown)))
    assert "all variants between 80 and 320\u00a0requests/s" in serving.saturations(served)
    assert serving.saturations(few).startswith(" Saturated: " + served.series[1].html + ", ")
    assert "· saturated" in page


def test_the_settings_are_there_where_they_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfl_sim.features.serve.page.panels", lambda served: [])
    folder = write_served(tmp_path / "stored", replace(World(), seeds=(0,), requests=100))
    (folder / "scenario.yaml").write_text("{name: Doors & <windows>, data: {name: digits}, serving: {requests: 100}}")

    page = page_of(folder)

    assert "Data: digits, " in page
    assert "requests: 100, arrivals poisson" in page
    assert "<h2>Settings</h2>" in page
    assert "<title>Doors &amp; &lt;windows&gt; – serving</title>" in page


def test_one_variant_at_one_rate_has_no_load_figure_and_no_choice_of_thresholds(tmp_path: Path) -> None:
    world = replace(World(), methods=World().methods[:1], rules=(Rule("oracle"),), rates=(20.0,), seeds=(0,))
    served = load_serving(write_served(tmp_path / "one", world))

    assert figures_of(served) == {"How long an answer takes": 1, "Where the time goes": 2, "What accuracy costs": 1}
    assert "at 20\u00a0requests/s" in headline(served)[0].facts["compared"]
    assert "next" not in headline(served)[0].facts


def test_a_timing_only_run_has_no_accuracy(tmp_path: Path) -> None:
    world = replace(World(), rules=(Rule("probability", 0.4),), trained=False, status="interrupted")
    served = load_serving(write_served(tmp_path / "timing", world))

    assert list(figures_of(served)) == list(FIGURES)[:-1]
    assert "Accuracy" not in results(served)[0].titles
    assert len(warnings(served)) == 2


def test_more_requests_make_the_figures_no_larger(tmp_path: Path) -> None:
    def size(requests: int) -> int:
        world = World(methods=(Method("a", 0.8, 0.8),), rates=(20.0,), seeds=(0,), requests=requests)
        shown = panels(load_serving(write_served(tmp_path / str(requests), world)))
        return sum(len(figure.to_json()) for panel in shown for _, figure in panel.figures)

    assert abs(size(24_000) - size(12_000)) < 2000


def test_a_folder_without_served_requests_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"serving\.json, requests\.parquet"):
        write_serving(tmp_path, tmp_path / "page.html")


@pytest.mark.parametrize(("left", "problem"), [([], "nothing to report"), ([{"variant": "a", "seed": 0}], "series")])
def test_a_damaged_folder_is_refused(tmp_path: Path, left: list[dict[str, object]], problem: str) -> None:
    folder = write_served(tmp_path / "damaged", replace(World(), seeds=(0,), requests=100))
    (folder / "serving.json").write_text(json.dumps({"scenario": "damaged", "trials": left}))
    with pytest.raises(ScenarioError, match=problem):
        write_serving(folder, tmp_path / "page.html")


SWEEP = World(rules=(Rule("oracle"),), rates=(10.0, 40.0, 320.0))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> ServedFolder:
    return load_serving(write_served(tmp_path_factory.mktemp("served") / "sweep", SWEEP))


@pytest.fixture(scope="module")
def thresholds(tmp_path_factory: pytest.TempPathFactory) -> ServedFolder:
    """Two methods with so many fixed thresholds that not all can be drawn, an oracle and a rule."""
    fixed = tuple(Rule("fixed", value) for value in (0.05, 0.2, 0.8, 1.6))
    world = World(rules=(*fixed, Rule("oracle"), Rule("offload_rate", 0.3)), rates=(30.0,), seeds=(0,), requests=2000)
    return load_serving(write_served(tmp_path_factory.mktemp("served") / "thresholds", world))


def test_details_are_shown_at_the_highest_rate_that_all_keep_up_with(sweep: ServedFolder) -> None:
    assert sweep.rate_per_s == 40
    assert set(sweep.at_rate["rate_per_s"]) == {40}
    assert len(sweep.detailed) == 2


def test_of_too_many_variants_rules_are_drawn_and_fixed_thresholds_left_out(thresholds: ServedFolder) -> None:
    assert len(thresholds.series) > MAX_DETAILED
    assert {series.threshold for series, _ in thresholds.detailed} == {"oracle", "offload_rate"}


def test_colours_tell_what_was_trained_and_dashes_its_thresholds(thresholds: ServedFolder) -> None:
    colours = {series.family: series.colour for series in thresholds.series}
    assert len(set(colours.values())) == 2
    assert all(series.colour == colours[series.family] for series in thresholds.series)
    assert {series.dash for series in thresholds.series if series.threshold == "oracle"} == {"solid"}


def test_the_curve_of_latencies_passes_through_its_marks(sweep: ServedFolder) -> None:
    curve, marks = serving.survival(sweep).data[:2]
    trials = sweep.detailed[0][1]
    latency_s = sweep.requests(trials, ["arrived_s", "ended_s"]).eval("ended_s - arrived_s")

    assert len(latency_s) == 2 * 540  # two seeds, without their warm-up
    assert marks.x == pytest.approx(1e3 * latency_s.quantile([0.5, 0.95, 0.99]).to_numpy())
    assert np.interp([-50, -5, -1], -curve.y, curve.x) == pytest.approx(marks.x, rel=0.02)


def test_the_parts_of_a_bar_add_up_to_its_latency(sweep: ServedFolder) -> None:
    for prefix, told in (("", "latency_s"), ("tail_", "p95_s")):
        lengths = np.sum([bar.x for bar in serving.parts(sweep, prefix).data], axis=0)
        expected = [1e3 * trials[told].mean() for _, trials in sweep.detailed]
        assert lengths == pytest.approx(expected, rel=0.03)


def test_marks_are_hollow_and_bars_pale_where_a_fleet_falls_behind(sweep: ServedFolder) -> None:
    line, *bars = (trace for trace in serving.p95(sweep).data[:3])
    assert list(line.marker.color) == [sweep.series[0].colour] * 2 + ["#FFFFFF"]
    assert [(tuple(bar.x), bar.opacity) for bar in bars] == [((10, 40), 1.0), ((40, 320), serving.PALE)]


def test_without_load_latency_is_as_eq_12_says_and_under_load_beyond(sweep: ServedFolder) -> None:
    ratios = np.array([line.y for line in serving.eq12(sweep).data])
    assert np.median(ratios[:, 0]) == pytest.approx(1)
    assert (ratios[:, -1] > 5).all()


def test_the_front_excludes_what_is_slower_and_less_right(thresholds: ServedFolder) -> None:
    points = serving.choices(thresholds)
    assert len(points) == len(thresholds.series)
    for label, row in points.iterrows():
        better = (points["p95_s"] <= row["p95_s"]) & (points["accuracy"] >= row["accuracy"]) & (points.index != label)
        assert row["best"] != better.any()
    front = serving.by_latency(thresholds).data[0]
    assert sorted(front.y) == list(front.y) == sorted(100 * points.loc[points["best"], "accuracy"])


def test_one_threshold_for_all_never_beats_the_oracle_at_the_same_test_sets(thresholds: ServedFolder) -> None:
    answers = thresholds.rows("answers")
    assert len(answers)
    traces = serving.by_offload(thresholds, answers).data
    for curve, star in zip(traces[::2], traces[1::2], strict=True):
        assert (curve.x[0], curve.x[-1]) == (100, 0)  # from a threshold of 0 to an infinite one
        assert max(curve.y[1:-1]) <= star.y[0]


def test_a_rule_s_course_ends_at_the_share_it_is_to_hold(thresholds: ServedFolder) -> None:
    assert {series.threshold for series, _ in serving.adapting(thresholds)} == {"offload_rate"}
    (panel,) = serving.rule_panels(thresholds)
    (_, threshold), (_, offloaded), _ = panel.figures
    assert len(offloaded.layout.shapes) == 2  # a dotted line for each method
    for line in offloaded.data:
        assert line.y[0] < 25
        assert np.mean(line.y[-5:]) == pytest.approx(30, abs=4)
    assert all(line.y[0] > line.y[-1] for line in threshold.data)


# Words


@pytest.mark.parametrize(
    ("p95_s", "behind", "spans"),
    [([[1.0, 2.0, 9.0], [3.0, 2.5, 4.0]], [False, False, False], [(0, 0, 1), (1, 2, 2)]),
     ([[1.0, 2.0, 4.0], [3.0, 2.5, 3.9]], [False, False, False], [(0, 0, 2)]),  # 3.9 beats 4.0 by chance
     ([[1.0, 2.0, 9.0], [3.0, 2.5, 4.0]], [False, False, True], [(0, 0, 1)])],  # where nobody keeps up
)  # fmt: skip
def test_it_is_told_at_which_rate_the_ranking_changes(
    sweep: ServedFolder, p95_s: list[list[float]], behind: list[bool], spans: list[tuple[int, int, int]]
) -> None:
    trials = sweep.trials.copy()
    for series, its_p95_s in zip(sorted(series.label for series in sweep.series), p95_s, strict=True):
        for rate, seconds, late in zip(SWEEP.rates, its_p95_s, behind, strict=True):
            rows = (trials["series"] == series) & (trials["rate_per_s"] == rate)
            trials.loc[rows, ["p95_s", "falls_behind"]] = seconds, float(late)
    *_, along = headline(replace(sweep, trials=trials))
    assert along.facts["spans"] == [BestSpan(*span) for span in spans]


def test_each_group_has_a_row(sweep: ServedFolder) -> None:
    table = groups_table(sweep)
    assert sorted(row[0].below for row in table.rows) == ["fast", "fast", "middle", "middle", "slow", "slow"]


@pytest.mark.parametrize(("ends", "scale"), [((10.0, 30.0), "linear"), ((0.3, 700.0), "log"), ((1e-3, 1e6), "log")])
def test_axes_are_logarithmic_where_numbers_differ_by_much(ends: tuple[float, float], scale: str) -> None:
    axis = wide_axis(*ends)
    assert axis["type"] == scale
    if scale == "log":
        ticks = axis["tickvals"]
        assert isinstance(ticks, list)
        assert ends[0] / 1.3 <= ticks[0] < ticks[-1] <= ends[1] * 1.3
        assert 2 <= len(ticks) <= 10


def test_variants_without_a_common_rate_are_shown_at_their_lowest(tmp_path: Path) -> None:
    slow, fast = (
        write_served(tmp_path / name, replace(SWEEP, methods=(Method(name, 0.8, 0.8),), rates=rates))
        for name, rates in (("slow", (5.0, 10.0)), ("fast", (20.0, 40.0)))
    )
    one, other = load_serving(slow), load_serving(fast)
    both = replace(
        one, trials=pd.concat([one.trials, other.trials], ignore_index=True), series=one.series + other.series
    )
    assert both.rate_per_s is None
    assert both.at_rate.groupby("series")["rate_per_s"].first().to_dict() == {"slow, oracle": 5, "fast, oracle": 20}
