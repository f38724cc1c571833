"""What the figures of a what-if draw: the least is marked, and what changes, changes where it should."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from synthetic_whatif import BANDWIDTHS, CUTS, LAYERS, Vary, World, write_whatif

from sfl_sim.features.whatif import figures as whatif_figures
from sfl_sim.features.whatif.headline import first_to_target
from sfl_sim.features.whatif.load import ShownAxis, WhatIfFolder, load_whatif
from sfl_sim.features.whatif.page import trained, trained_panels, trained_table
from sfl_sim.report import style
from sfl_sim.report.lead import best_by_column
from sfl_sim.store.columns import BREAKDOWN

BANDWIDTH = BANDWIDTHS.key
THREE = replace(BANDWIDTHS, values=(0.3, 1.0, 10.0), base=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    series = (("splitfed_v2", 1.0), ("splitfed_v1", 4.0))
    world = World(axes=(CUTS, THREE), series=series, seeds=(0, 1), clients=9, trained=(1, 6, 10, 18))
    return write_whatif(tmp_path_factory.mktemp("whatif") / "two", world)


@pytest.fixture(scope="module")
def whatif(folder: Path) -> WhatIfFolder:
    return load_whatif(folder)


def star_of(figure: go.Figure, **chosen: object) -> go.Scatter:
    (star,) = (
        trace for trace in figure.select_traces(chosen) if trace.type == "scatter" and trace.marker.symbol == "star"
    )
    return star


def across_of(whatif: WhatIfFolder) -> ShownAxis:
    assert whatif.across is not None
    return whatif.across


def numbers(values: tuple[float, ...]) -> ShownAxis:
    return ShownAxis("clients.network.scale", list(values), [f"{value:g}" for value in values], None, 0)


# What a round takes


def test_the_parts_of_a_bar_add_up_to_the_median_and_the_star_is_at_the_least(
    folder: Path, whatif: WhatIfFolder
) -> None:
    points = pd.read_parquet(folder / "points.parquet")
    points = points[(points[BANDWIDTH] == 1) & (points["series"] == "splitfed_v1")]
    median_s = points.groupby("model.cut")["round_s"].median()
    figure = whatif_figures.stacked(whatif, whatif.series[1])
    bars = [trace for trace in figure.data if trace.type == "bar"]

    assert np.sum([bar.x for bar in bars], axis=0) == pytest.approx(median_s.to_numpy())
    assert [bar.name for bar in bars] == [
        style.RESOURCE_NAMES[part] for part in BREAKDOWN if part not in ("assistants", "backbone")
    ]
    star = star_of(figure)
    assert (star.y[0], star.x[0]) == (median_s.idxmin() - 1, pytest.approx(median_s.min()))


def test_the_own_cut_is_bold_and_cuts_that_are_not_pareto_are_pale(whatif: WhatIfFolder) -> None:
    names = list(whatif_figures.stacked(whatif, whatif.series[0]).layout.yaxis.ticktext)
    assert names[1] == "<b>2 pw1</b>"
    pale = [whatif_figures.PALE_NAME in name for name in names]
    assert pale == [
        not pareto and layer != 2 for layer, pareto in zip(LAYERS["layer"][:25], LAYERS["pareto"], strict=False)
    ]


def test_numbers_lie_on_a_numeric_axis_in_their_order(tmp_path: Path) -> None:
    """However the user orders them; the indices of all tables follow."""
    speedups = Vary("server.speedup", (1000.0, 10.0, 100.0), base=2)
    whatif = load_whatif(write_whatif(tmp_path / "speedup", World(axes=(speedups,), clients=6)))
    figure = whatif_figures.stacked(whatif, whatif.series[0])
    area = figure.data[0]

    assert whatif.along.base == 1
    assert list(area.x) == [10, 100, 1000]
    assert figure.layout.xaxis.type == "log"
    assert star_of(figure).x[0] == 1000  # the fastest server
    queue = next(trace for trace in figure.data if trace.name == "waiting in the queue" and trace.type == "scatter")
    assert queue.y[0] > queue.y[1] > queue.y[2]


def test_each_series_has_a_line_and_a_star_at_its_own_best(whatif: WhatIfFolder) -> None:
    figure = whatif_figures.by_series(whatif)
    lines, stars = figure.data[::2], figure.data[1::2]
    assert [line.name for line in lines] == ["splitfed_v2", "splitfed_v1"]
    for line, star in zip(lines, stars, strict=True):
        assert (star.x[0], star.y[0]) == (min(line.x), line.y[np.argmin(line.x)])


# Where the best changes


def test_the_map_marks_the_least_of_each_column(whatif: WhatIfFolder) -> None:
    for draw in (whatif_figures.time_map, partial(whatif_figures.time_map, over_best=True)):
        heat, _, stars = draw(whatif, whatif.series[0], across_of(whatif)).data
        assert list(stars.y) == list(np.argmin(heat.z, axis=0))
        assert list(stars.x) == [0, 1, 2]
    assert np.min(heat.z, axis=0) == pytest.approx(0)  # the logarithm of once the best


def test_a_step_lies_where_both_times_are_equal() -> None:
    """One cut needs 10 s whatever the bandwidth, the other 20 s over it: they meet at twice the bandwidth."""
    across = numbers((0.5, 1.0, 4.0, 8.0))
    times_s = np.array([20 / np.array(across.values), np.full(4, 10.0)])
    x, y = whatif_figures.step_line(times_s, across)
    assert list(y) == [1, 1, 1, 1, 0, 0, 0, 0]
    assert x == pytest.approx([-0.5, 0.5, 0.5, 1.5, 1.5, 2.5, 2.5, 3.5])  # 2 is halfway from 1 to 4


def test_names_have_no_number_between_them() -> None:
    orders = ShownAxis("server.order", ["fcfs", "cyclic"], ["fcfs", "cyclic"], 0, 0)
    times_s = np.array([[1.0, 3.0], [2.0, 2.0]])
    assert list(whatif_figures.step_line(times_s, orders)[0]) == [-0.5, 0.5, 0.5, 1.5]


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(1e-3, 1e6) | st.just(np.nan), min_size=5, max_size=5), min_size=2, max_size=6))
def test_steps_lie_between_the_columns_that_they_part(rows: list[list[float]]) -> None:
    """Whatever the times, and where some are unknown, the line passes all stars from left to right."""
    times_s, values = np.array(rows), (0.1, 0.3, 1.0, 3.0, 10.0)
    best = best_by_column(times_s)
    assume(best)
    x, y = whatif_figures.step_line(times_s, numbers(values))
    assert (np.diff(x) >= 0).all()
    for column, row in best.items():
        assert times_s[row, column] == np.nanmin(times_s[:, column])
        assert row in y[:-1][(x[:-1] <= column) & (column <= x[1:])]


def test_holes_in_the_map_stay_holes(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "holes", World(axes=(CUTS, THREE), clients=3))
    points = pd.read_parquet(folder / "points.parquet")
    first, second, _ = THREE.values
    lost = (points[BANDWIDTH] == first) | ((points["model.cut"] == 11) & (points[BANDWIDTH] == second))
    points[~lost].to_parquet(folder / "points.parquet")
    whatif = load_whatif(folder)
    heat, _, stars = whatif_figures.time_map(whatif, whatif.series[0], across_of(whatif)).data
    assert list(stars.x) == [1, 2]
    assert np.isnan(heat.z).sum() == 25 + 1
    assert star_of(whatif_figures.stacked(whatif, whatif.series[0])).y[0] != 10


# Clients


def test_every_class_has_a_star_at_its_own_best_and_slow_devices_want_shallow_cuts(
    folder: Path, whatif: WhatIfFolder
) -> None:
    clients = pd.read_parquet(folder / "clients.parquet")
    clients = clients[(clients[BANDWIDTH] == 1) & (clients["series"] == "splitfed_v2")]
    own_s = clients[["device_s", "uplink_s", "queue_s", "server_s", "downlink_s"]].sum(axis="columns")
    best = own_s.groupby([clients["group"], clients["model.cut"]]).mean().unstack().idxmin(axis="columns") - 1
    figure = whatif_figures.preferences(whatif, whatif.series[0])
    lines, stars = figure.data[::2], figure.data[1::2]

    assert [line.name for line in lines] == ["slow", "middle", "fast"]
    assert [star.y[0] for star in stars] == list(best[["slow", "middle", "fast"]])
    assert stars[0].y[0] <= stars[1].y[0] <= stars[2].y[0]


def test_all_classes_take_the_whole_round_and_the_slow_wait_the_least(whatif: WhatIfFolder) -> None:
    figure = whatif_figures.spent(whatif, whatif.series[0], at=24)
    lengths = np.sum([bar.x for bar in figure.data], axis=0)
    waiting = next(bar for bar in figure.data if bar.name == style.RESOURCE_NAMES["barrier"])
    assert lengths == pytest.approx(lengths[0])
    assert waiting.x[0] < waiting.x[1] < waiting.x[2]


def test_memory_is_one_line_where_classes_do_not_differ_and_energy_one_for_each(whatif: WhatIfFolder) -> None:
    memory = whatif_figures.client_cost(whatif, whatif.series[0], "client_memory_bytes")
    assert [line.name for line in memory.data] == ["the most of any client"]
    assert (np.diff(memory.data[0].x) > 0).all()
    energy = whatif_figures.client_cost(whatif, whatif.series[0], "client_joule")
    assert [line.name for line in energy.data] == ["slow", "middle", "fast", "mean of all clients"]


# Runs


def test_what_must_be_trained_has_no_accuracy_and_what_never_gets_there_says_so(whatif: WhatIfFolder) -> None:
    points = whatif.here(trained(whatif))
    marks = whatif_figures.time_to_target(whatif, points).data[0]
    assert (marks.text[0], marks.text[3]) == ("not reached", "must be trained")
    assert list(marks.marker.opacity) == [0, 1, 1, 0]
    accuracy = whatif_figures.accuracy_by_round(whatif, points).data[0]
    assert list(accuracy.text) == [f"{CUTS.values[cut]} {CUTS.names[cut]}" for cut in (1, 6, 10)]
    table = trained_table(whatif, points)
    assert [row[2].text for row in table.rows][3] == "–"


def test_the_first_to_the_target_is_among_the_valid(whatif: WhatIfFolder) -> None:
    overlay = whatif.overlay.assign(target_accuracy=0.555)
    quick = overlay.assign(time_to_accuracy_s=overlay["time_to_accuracy_s"].mask(~overlay["valid"], 1.0))
    (sentence,) = first_to_target(replace(whatif, overlay=quick))
    assert sentence.facts["first"] == [("splitfed_v2", 10)]
    assert sentence.facts["compared"] == "time to 55.5\u00a0% accuracy"
    (panel,) = trained_panels(replace(whatif, overlay=quick))
    assert panel.drawings[0][0] == "Time to 55.5\u00a0% accuracy"


def test_a_world_that_is_not_among_the_values_is_drawn_at_the_middle_one(tmp_path: Path) -> None:
    axes = (CUTS, replace(BANDWIDTHS, values=(10.0, 3.0, 1.0), base=None))
    whatif = load_whatif(write_whatif(tmp_path / "middle", World(axes=axes, clients=6)))
    across = across_of(whatif)
    assert (across.values, across.shown, across.base) == ([1.0, 3.0, 10.0], 1, None)
