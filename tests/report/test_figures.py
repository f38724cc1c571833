"""Each figure shows the numbers of the frames, and no others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import LABELS, World, write_run

from sfl_sim.metrics.scores import client_ends, label_ends
from sfl_sim.report import figures
from sfl_sim.report.frames import Frames, label_ranks, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import costs, knowledge, learning, system
from sfl_sim.report.pages.one_round import MAX_POINTS, OneRound, server_queue
from sfl_sim.report.results import BYTES, ROUNDS, TIME, aims


def test_accuracy_is_the_median_over_seeds_in_percent(frames: Frames) -> None:
    line = next(learning.accuracy_against(frames, *aims(frames), ROUNDS).select_traces({"name": "hydra, cyclic"}))
    expected = frames.rounds.query("variant == 'hydra, cyclic'").groupby("round")["accuracy"].median()

    assert list(line.x) == list(range(1, 31))
    assert line.y == pytest.approx(100 * expected.to_numpy())


def test_bands_of_two_seeds_go_from_one_to_the_other(frames: Frames) -> None:
    first = frames.variants[0]
    rounds = frames.rounds[frames.rounds["variant"] == first.label].groupby("round")
    drawn = {
        "accuracy": learning.accuracy_against(frames, *aims(frames), TIME),
        "performance_gap": knowledge.label_history(frames, first),
    }

    for column, figure in drawn.items():
        band = next(figure.select_traces({"fill": "toself"}))

        outline = np.concatenate([rounds[column].max(), rounds[column].min()[::-1]])
        assert band.y == pytest.approx(100 * outline.clip(0, 1))


def test_seeds_of_different_variants_are_not_added_up(frames: Frames) -> None:
    own_seeds = frames.summary["seed"] + 2 * pd.factorize(frames.summary["variant"])[0]
    summary = frames.summary.assign(seed=own_seeds)
    assert "bands: least to most" in learning.accuracy_panels(replace(frames, summary=summary))[0].caption


def test_nothing_is_kept_of_no_names() -> None:
    assert figures.evenly_spaced([]) == []
    assert figures.evenly_spaced("abcde", 2) == ["a", "d"]


def test_time_and_rounds_show_the_same_accuracies(frames: Frames) -> None:
    by_time, by_round = (
        next(figure.select_traces({"name": "hydra, cyclic"}))
        for figure in (
            learning.accuracy_against(frames, *aims(frames), TIME),
            learning.accuracy_against(frames, *aims(frames), ROUNDS),
        )
    )

    assert by_time.y == pytest.approx(by_round.y)
    assert (np.diff(by_time.x) > 0).all()


def test_bytes_add_up_over_the_rounds_of_a_run_in_both_directions(frames: Frames) -> None:
    (line,) = learning.accuracy_against(frames, *aims(frames), BYTES).select_traces({"name": "hydra, cyclic"})
    one = frames.rounds.query("variant == 'hydra, cyclic' and seed == 0")  # all seeds send as much

    assert line.x * 1e9 == pytest.approx(np.cumsum(one["bytes_up"] + one["bytes_down"]).to_numpy())
    assert line.y == pytest.approx(
        next(learning.accuracy_against(frames, *aims(frames), ROUNDS).select_traces({"name": "hydra, cyclic"})).y
    )


def test_the_performance_gap_is_drawn_against_the_clock_and_against_rounds(frames: Frames) -> None:
    rounds = frames.rounds.query("variant == 'hydra, cyclic'").groupby("round")
    by_time, by_round = (
        next(figure.select_traces({"name": "hydra, cyclic"}))
        for figure in (learning.against(frames, "performance_gap", cost) for cost in (TIME, ROUNDS))
    )

    for line in (by_time, by_round):
        assert line.y == pytest.approx(100 * rounds["performance_gap"].median().to_numpy())
    assert by_time.x / by_time.x[0] == pytest.approx(
        (rounds["ended_s"].median() / rounds["ended_s"].median()[1]).to_numpy()
    )
    assert list(by_round.x) == list(range(1, 31))


def test_a_metric_of_one_s_own_has_a_figure(frames: Frames, folder: Path) -> None:
    assert learning.own_metric_panels(frames) == []
    scenario = yaml.safe_load((folder / "scenario.yaml").read_text())
    scenario.setdefault("report", {})["metrics"] = {"surest": "mine:surest"}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    rounds = pd.read_parquet(folder / "rounds.parquet")
    rounds.assign(surest=rounds["round"] / 8).to_parquet(folder / "rounds.parquet")
    (panel,) = learning.own_metric_panels(merge([load(folder)]))
    ((title, figure),) = panel.figures
    assert (title, panel.title) == ("surest", "Your metrics")
    assert [list(line.y) for line in figure.data] == [[0.125, 0.25, 0.375, 0.5]] * 2


def test_labels_are_categories_with_variants_side_by_side_and_seeds_as_points(frames: Frames) -> None:
    figure = knowledge.accuracy_by(frames, frames.variants)
    assert {trace.mode for trace in figure.data} == {"markers"}
    assert list(figure.layout.xaxis.ticktext) == LABELS
    hydra = frames.labels.query("variant == 'hydra, cyclic' and round > 25 and label_name == 'cat'")
    by_seed = hydra.groupby("seed")["accuracy"].median()

    seeds, medians = (trace for trace in figure.select_traces({"name": "hydra, cyclic"}))
    for trace, expected in ((seeds, by_seed), (medians, [by_seed.median()])):
        cats = [index for index, name in enumerate(trace.customdata) if name == "cat"]
        assert [trace.y[index] for index in cats] == pytest.approx([100 * accuracy for accuracy in expected])
        assert {round(trace.x[index]) for index in cats} == {LABELS.index("cat")}
    assert len({trace.x[0] for trace in figure.data if len(trace.x) == 10}) == len(frames.variants)
    assert figure.layout.shapes[0].y0 == pytest.approx(10)  # chance


def test_places_in_the_order_are_shown_where_variants_differ_in_it(frames: Frames) -> None:
    def titles(each: Frames) -> list[str]:
        return [panel.title for panel in knowledge.history_panels(each)]

    alone = replace(frames, variants=frames.variants[1:])
    assert len(titles(frames)) == len(titles(alone)) + 1
    by_place = knowledge.accuracy_by(frames, frames.variants, "place")
    assert list(by_place.layout.xaxis.ticktext) == [str(place) for place in range(1, 11)]
    assert list(knowledge.label_history(alone, alone.variants[0]).data[0].y) == list(range(10))
    assert list(knowledge.label_history(alone, alone.variants[0]).layout.yaxis.ticktext) == LABELS


def test_the_bars_of_a_variant_add_up_to_its_mean_round(frames: Frames) -> None:
    figure = costs.round_breakdown(frames)
    mean_s = frames.rounds.assign(took_s=frames.rounds["ended_s"] - frames.rounds["started_s"])

    drawn = sum(np.asarray(trace.x) for trace in figure.data)  # all below two minutes: in seconds

    expected = mean_s.groupby("variant")["took_s"].mean()[[v.label for v in frames.variants]]
    assert drawn == pytest.approx(expected.to_numpy())


def test_a_resource_that_nobody_spends_time_on_is_not_in_the_legend(frames: Frames) -> None:
    waiting = replace(frames, rounds=frames.rounds.assign(assistants_s=1.0))

    named, waited = ({bar.name for bar in costs.round_breakdown(each).data} for each in (frames, waiting))

    assert waited - named == {"waiting for assistants"}


def test_labels_are_rows_with_their_names_in_the_order_where_seeds_agree_on_it(
    frames: Frames, tmp_path: Path, small: World
) -> None:
    one_seed = merge([load(write_run(tmp_path / "run", replace(small, seeds=(0,))))])
    two_seeds_of, one_seed_of = (knowledge.label_history(each, each.variants[1]) for each in (frames, one_seed))

    assert list(two_seeds_of.layout.yaxis.ticktext) == LABELS
    rows = one_seed.labels[one_seed.labels["variant"] == one_seed.variants[1].label].query(f"round == {small.rounds}")
    last = rows.sort_values("position")
    assert np.asarray(one_seed_of.data[0].z)[:, -1] == pytest.approx(100 * last["accuracy"], abs=1e-3)
    places = [f"{place}: {name}" for place, name in enumerate(last["label_name"], start=1)]
    assert list(one_seed_of.layout.yaxis.ticktext) == places


def test_clients_are_drawn_by_the_accuracy_of_their_own_labels(frames: Frames) -> None:
    assert [heading for panel in knowledge.label_panels(frames) for heading, _ in panel.drawings] == [
        "Accuracy by label"
    ]
    held = [np.eye(len(LABELS), dtype=int)[label] for label in frames.clients["dominant_label"]]
    frames = replace(frames, clients=frames.clients.assign(label_samples=held))
    figure = knowledge.accuracy_by_client(frames, frames.variants)
    ends = client_ends(label_ends(frames.labels), frames.clients)
    assert len(figure.data) >= len(frames.variants)
    for variant in frames.variants:
        own = ends[ends["variant"] == variant.label]
        (line,) = (trace for trace in figure.select_traces({"name": variant.label}) if "lines" in trace.mode)
        worst = own.groupby("seed")["accuracy"].min()
        assert min(line.y) == pytest.approx(100 * worst.median())


def test_labels_without_an_order_keep_their_own(frames: Frames) -> None:
    unordered = frames.labels.assign(position=-1)

    assert label_ranks(unordered).equals(unordered["label"])


def test_it_says_how_the_time_of_a_step_follows_and_which_training_factor_was_used(frames):
    assert "MACs" in system.cost_model(frames)
    slower = frames.clients.assign(training_factor=3.9, cost="phones")
    said = system.cost_model(replace(frames, clients=slower))
    assert "cost profile phones" in said
    assert " 3.9 times " in said
    assert "at worst" in said  # how far such prices were off, and for which network


def test_it_says_that_an_access_point_sends_and_receives_in_turn(frames):
    shared = {"clients.network.shared.capacity_bps": 1e8}

    def said(**more):
        run = SimpleNamespace(settings={"a": shared | {f"clients.network.shared.{key}": more[key] for key in more}})
        return system.shared_radio(replace(frames, runs=[run]))

    assert system.shared_radio(frames) == ""
    assert said(duplex="full") == ""
    assert "100\xa0Mbit/s" in said(duplex=None)


def speeds(frames: Frames) -> go.Figure:
    return dict(system.fleet_drawings(frames))["Device speeds"]()


def test_variants_share_one_fleet_unless_theirs_differ(frames: Frames) -> None:
    slower = frames.clients["variant"] == "hydra, cyclic"
    halved = frames.clients.assign(
        macs_per_s=frames.clients["macs_per_s"].where(~slower, frames.clients["macs_per_s"] / 2)
    )

    assert [trace.name for trace in speeds(frames).data] == ["device"]
    assert [trace.name for trace in speeds(replace(frames, clients=halved)).data] == [
        "splitfed_v2, fcfs and 1 alike",
        "hydra, cyclic",
    ]


def test_energy_is_of_those_who_paid_any(frames: Frames) -> None:
    hydra = frames.clients["variant"] == "hydra, cyclic"
    known = replace(frames, clients=frames.clients.assign(joule=np.where(hydra, np.nan, frames.clients["client"])))

    shares = system.energy(known).data[0]

    drawn = [len(system.fleet_drawings(each)) for each in (frames, known)]
    assert drawn == [2, 3]
    assert shares.name == "device"  # both variants that know any
    assert (min(shares.x), max(shares.x)) == (1, 9)


def test_a_long_queue_is_thinned_but_keeps_its_peaks(frames: Frames) -> None:
    arrivals_s = [*range(2000), *np.repeat([100.1, 511.1, 922.1, 1333.1, 1744.1], 5)]
    jobs = pd.DataFrame({"node": "server", "requested_s": arrivals_s})
    jobs = jobs.assign(started_s=jobs["requested_s"] + 0.2, ended_s=jobs["requested_s"] + 0.3)
    view = replace(OneRound(frames).views[1], ops=jobs)

    steps = server_queue(view, longest_s=2000.0, most_waiting=6).data[0]

    assert len(steps.x) <= MAX_POINTS < len(view.queue)
    assert sum(steps.y == 6) >= 5  # the one that comes every second, and five more


def test_where_one_runs_for_months_and_others_for_hours_time_is_logarithmic(frames: Frames) -> None:
    slow = frames.rounds["variant"] == "splitfed_v2, fcfs"
    long = frames.rounds.assign(ended_s=frames.rounds["ended_s"] * np.where(slow, 1000.0, 1.0))
    usual = learning.accuracy_against(frames, *aims(frames), TIME)
    figure = learning.accuracy_against(replace(frames, rounds=long), *aims(frames), TIME)

    assert usual.layout.xaxis.type is None
    assert usual.layout.xaxis.tickvals is None
    assert figure.layout.xaxis.type == "log"
    line = next(figure.select_traces({"name": "splitfed_v2, fcfs"}))
    unit_s = long.loc[slow & (long["round"] == 30), "ended_s"].median() / line.x[-1]
    at_s = dict(zip(figure.layout.xaxis.ticktext, np.array(figure.layout.xaxis.tickvals) * unit_s, strict=True))
    known_s = {"1 min": 60, "10 min": 600, "1 h": 3600, "6 h": 21600, "1 d": 86400, "1 week": 604800}
    assert at_s == pytest.approx({text: known_s[text] for text in at_s})
    assert 2 < len(at_s) < 7


def test_where_one_sends_a_hundred_times_the_bytes_of_others_bytes_are_logarithmic(frames: Frames) -> None:
    much = np.where(frames.rounds["variant"] == "splitfed_v2, fcfs", 100, 1)
    rounds = frames.rounds.assign(bytes_so_far=frames.rounds["bytes_so_far"] * much)
    usual, figure = (
        learning.accuracy_against(each, *aims(frames), BYTES) for each in (frames, replace(frames, rounds=rounds))
    )
    assert usual.layout.xaxis.type is None
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.title.text.startswith("bytes up and down (")


@settings(max_examples=60)
@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=6))
def test_axes_are_common_unless_they_differ_more_than_five_times(lengths: list[float]) -> None:
    found = figures.extents(lengths)

    assert found == (lengths if max(lengths) > 5 * min(lengths) else [max(lengths)] * len(lengths))


def test_bars_that_differ_by_much_are_shares(frames: Frames) -> None:
    slow, fast = pd.Series({"device": 90.0, "queue": 10.0}), pd.Series({"device": 1.0, "queue": 1.0})

    seconds, shares = (figures.bars({"a": slow, "b": other}, "time", "round") for other in (slow / 2, fast))

    assert seconds.layout.xaxis.title.text == "time (s)"
    assert shares.layout.xaxis.title.text == "share of the round (%)"
    assert [list(bar.x) for bar in shares.data] == [[90, 50], [10, 50]]


def test_rows_of_bars_leave_room_for_names_of_many_lines() -> None:
    parts_s = pd.Series({"uplink": 1.0, "device": 2.0})
    usual, long = (figures.bars({"a": parts_s, text: parts_s}, "time", "round") for text in ("b<br>c", "b<br>c<br>d"))
    bar_px = [figure.data[0].width * (figure.layout.height - 90) for figure in (usual, long)]
    assert long.layout.height == usual.layout.height + 2 * figures.LINE_PX
    assert bar_px[0] == pytest.approx(bar_px[1])
