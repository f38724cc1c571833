"""What models know: with early exits, of the inputs of the last layer, and within a round."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from read_table import best, read
from synthetic_run import LABELS, World, write_run

from sfl_sim.report import style
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.knowledge import (
    MATRICES,
    REST,
    ExitAnswers,
    accuracy_by_offload,
    accuracy_by_rho,
    exit_panels,
    exits,
    exits_table,
    film_panels,
    mapped,
    representation_panels,
    round_film,
    round_films,
    scatter,
    silhouette,
)

CLIENTS, OWN, UNSEEN, RHO = 4, 30, 8, 0.8
"""Each client has one of four labels to itself, and 30 test samples of it; of each other label it has 8."""
WORLD = World(variants=World().variants[:2], clients=CLIENTS, rounds=4, batches=3)
HEADLESS, EXITING = (setting.name for setting in WORLD.variants)


def answers_of(variant: str, seed: int, client: int) -> pd.DataFrame:
    """Exits are sure of what is seen, and right; the server is right otherwise, with the second seed every other time.

    Without exits, it is the server that knows what is seen and nothing else.
    """
    rows = pd.DataFrame({"label": np.repeat(range(CLIENTS), [OWN if c == client else UNSEEN for c in range(CLIENTS)])})
    seen = rows["label"] == client
    has_exit, knows = variant == EXITING, rows.index % 2 <= 1 - seed
    return rows.assign(
        variant=variant, seed=seed, client=client, sample=rows.index, seen=seen,
        entropy=np.where(seen, 0.1, 1.0).astype("float32") if has_exit else np.float32(np.inf),
        device_correct=seen & has_exit, server_correct=~seen & knows if has_exit else seen,
    )  # fmt: skip


@pytest.fixture(scope="module")
def exiting_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "exits", WORLD)
    summary = json.loads((folder / "summary.json").read_text())
    summary["variants"] = [variant | {"rho": RHO} for variant in summary["variants"]]
    (folder / "summary.json").write_text(json.dumps(summary))
    answers = [answers_of(*key) for key in product((HEADLESS, EXITING), (0, 1), range(CLIENTS))]
    pd.concat(answers).to_parquet(folder / "answers.parquet", index=False)
    samples = pd.DataFrame({"client": 0, "sample": range(50), "label": np.arange(50) % len(LABELS), "x": 0.0, "y": 1.0})
    maps = [samples.assign(variant=EXITING, seed=seed, silhouette=-0.3 + 0.1 * seed) for seed in (0, 1)]
    pd.concat(maps).to_parquet(folder / "representations.parquet", index=False)
    return folder


@pytest.fixture(scope="module")
def exiting(exiting_folder: Path) -> Frames:
    return merge([load(exiting_folder)])


@pytest.fixture(scope="module")
def known(exiting: Frames) -> list[ExitAnswers]:
    return exits(exiting)


def test_the_sections_are_there_where_devices_have_exits_and_samples_were_mapped(
    frames: Frames, exiting: Frames
) -> None:
    for section in (exit_panels, representation_panels):
        assert len(section(exiting)) == 1
        assert section(frames) == []


def test_answers_of_servers_alone_are_no_section(exiting: Frames) -> None:
    assert not exits(replace(exiting, variants=exiting.variants[:1]))


def test_clients_that_were_asked_on_the_way_have_a_curve_of_these_rounds(exiting: Frames) -> None:
    def drawings(asked: list[int]) -> dict[str, Callable[[], go.Figure]]:
        known = (exiting.rounds["variant"] == EXITING) & exiting.rounds["round"].isin(asked)
        rounds = exiting.rounds.assign(hybrid_accuracy=np.where(known, exiting.rounds["round"] / 10, np.nan))
        (panel,) = exit_panels(replace(exiting, rounds=rounds))
        return dict(panel.drawings)

    title = "Hybrid accuracy against simulated time"
    assert title not in drawings([4])
    curve = [trace for trace in drawings([2, 4])[title]().data if trace.name]
    assert [trace.name for trace in curve] == [EXITING]
    assert list(curve[0].y) == pytest.approx([20.0, 40.0])


def test_the_table_tells_either_side_alone_and_both_together(known: list[ExitAnswers]) -> None:
    table = exits_table(known)
    rows = read(table)
    row = rows[EXITING]

    assert rows[HEADLESS]["Devices alone"][0] == "–"  # without an exit
    assert row["Devices alone"][0] == "55.6 %"  # 30 of 54 samples are of labels that the client has seen
    assert row["Server alone"] == ("33.3 %", "± 15.7 %")  # 24 or 12 of 54
    assert row["Hybrid accuracy"] == ("88.9 %", "± 15.7 %")  # all of the one and the other
    assert best(table, "Hybrid accuracy") == [EXITING]
    assert row["on unseen labels"] == ("75.0 %", "± 35.4 %")
    assert row["Offloaded"][0] == "44.4 %"
    assert best(table, "Offloaded") == []  # though it is the least


def test_smaller_rho_ask_for_fewer_unseen_labels(known: list[ExitAnswers]) -> None:
    lines = {line.name: line for line in accuracy_by_rho(known).select_traces({"fill": None})}

    asked = np.array([0, 6, 12, 18, 24])
    assert lines[HEADLESS].x == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert lines[HEADLESS].y == pytest.approx(100 * OWN / (OWN + asked))
    assert lines[EXITING].y[0] == 100
    assert lines[EXITING].y[-1] == pytest.approx(88.9, abs=0.1)


def test_test_sets_of_another_kind_have_no_rho(exiting: Frames) -> None:
    other = replace(exiting, summary=exiting.summary.assign(rho=np.nan))

    assert not accuracy_by_rho(exits(other)).data
    (panel,) = exit_panels(other)
    assert [heading for heading, _ in panel.figures] == ["Accuracy against offloading"]
    assert "ρ" not in panel.caption


def test_offloading_goes_from_the_devices_alone_to_the_server_alone(known: list[ExitAnswers]) -> None:
    traces = list(accuracy_by_offload(known).select_traces({"fill": None}))
    line = next(trace for trace in traces if trace.name == EXITING)
    stars = [trace for trace in traces if trace.marker.symbol == "star" and trace.x[0] is not None]

    by_offloaded = dict(zip(np.round(line.x, 1), np.round(line.y, 1), strict=True))
    assert by_offloaded[0.0] == 55.6
    assert by_offloaded[100.0] == 33.3
    assert [(star.x[0], star.y[0]) for star in stars] == [
        pytest.approx((100, 55.6), abs=0.1),
        pytest.approx((44.4, 88.9), abs=0.1),
    ]


def test_the_first_seed_is_drawn_and_the_score_is_of_all(exiting: Frames) -> None:
    (variant,) = mapped(exiting)
    figure = scatter(exiting, variant)

    assert variant.label == EXITING
    assert silhouette(exiting, variant).endswith(": silhouette −0.25 ± 0.07")
    assert [trace.name for trace in figure.data] == LABELS
    assert len({trace.marker.color for trace in figure.data}) == len(LABELS)
    assert sum(len(trace.x) for trace in figure.data) == 50
    assert {score for trace in figure.data for _, score in trace.customdata} == {-0.3}


def test_more_labels_than_colours_are_grey_together(exiting: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "LABEL_COLOURS", style.LABEL_COLOURS[:3])
    (variant,) = mapped(exiting)
    rest, *others = scatter(exiting, variant).data

    assert (rest.name, len(rest.x), rest.marker.color) == (REST, 35, style.MUTED)
    assert set(rest.text) == set(LABELS[3:])
    assert [trace.name for trace in others] == LABELS[:3]


def test_one_label_has_no_silhouette(exiting: Frames) -> None:
    (variant,) = mapped(exiting)
    alike = replace(exiting, representations=exiting.representations.assign(silhouette=np.nan))

    assert silhouette(alike, variant) == variant.html


N = len(LABELS)
JOBS = [0, 10, 20, 30, 40, 50, 60, 70, 80]


@pytest.fixture(scope="module")
def looked_into(frames: Frames) -> Frames:
    """Rounds 3 and 7 of the second variant: after job k, a share of (k + label) / 100 of a label is known, and the rest
    is taken for the next label."""
    job, label, answer = np.meshgrid(JOBS, range(N), range(N), indexing="ij")
    known = (job + label) / 100
    share = np.where(answer == label, known, np.where(answer == (label + 1) % N, 1 - known, 0.0))
    table = pd.DataFrame(
        {"job": job.ravel(), "true_label": label.ravel(), "predicted_label": answer.ravel(), "share": share.ravel()}
    ).assign(variant=frames.variants[1].label, seed=frames.variants[1].seed, time_s=0.0)
    return replace(frames, confusion=pd.concat([table.assign(round=number) for number in (3, 7)]))


def places(frames: Frames) -> pd.Series:
    """Each label's place in the cyclic order of the second variant's first seed."""
    ours = (frames.labels["variant"] == frames.variants[1].label) & (frames.labels["seed"] == frames.variants[1].seed)
    return frames.labels[ours & (frames.labels["round"] == 1)].set_index("label")["position"]


def test_rows_are_labels_in_the_cyclic_order_and_columns_the_jobs_before_each_look(looked_into: Frames) -> None:
    strip = round_film(round_films(looked_into)[0]).data[0]

    for label, place in places(looked_into).items():
        assert list(np.asarray(strip.z)[place]) == pytest.approx([job + label for job in JOBS])
    assert list(strip.x) == [-10, *JOBS]


def test_dots_are_the_jobs_on_the_rows_of_their_clients_labels(looked_into: Frames) -> None:
    variant = looked_into.variants[1]
    dots = next(round_film(round_films(looked_into)[0]).select_traces({"type": "scatter"}))

    jobs = variant.rows("ops", ["client", "started_s"], node="server", round=3).sort_values("started_s")
    assert list(dots.y) == [LABELS[client % N] for client in jobs["client"]]  # client c holds label c % N
    assert list(dots.x) == [job + 0.5 for job in range(len(jobs))]


def test_matrices_are_those_of_evenly_chosen_looks_from_the_first_to_the_last(looked_into: Frames) -> None:
    figure = round_film(round_films(looked_into)[0])
    place = places(looked_into)

    matrices = list(figure.select_traces({"type": "heatmap"}))[1:]
    assert len(matrices) == MATRICES
    for matrix, job in zip(matrices, [0, 20, 40, 60, 80], strict=True):
        for label in range(N):
            row = np.asarray(matrix.z)[place[label]]
            assert row[place[label]] == pytest.approx(job + label)
            assert row[place[(label + 1) % N]] == pytest.approx(100 - job - label)
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["start", *(f"after<br>{job} jobs" for job in (20, 40, 60, 80))]


def test_there_is_a_figure_for_each_round_and_none_without_snapshots(frames: Frames, looked_into: Frames) -> None:
    (panel,) = film_panels(looked_into)

    assert [heading.split(", ")[-1] for heading, _ in panel.figures] == ["round 3", "round 7"]
    assert film_panels(frames) == []


def test_a_label_without_test_samples_stays_blank(looked_into: Frames) -> None:
    confusion = looked_into.confusion
    unknown = confusion.assign(share=confusion["share"].where(confusion["true_label"] != 4))

    strip = round_film(round_films(replace(looked_into, confusion=unknown))[0]).data[0]

    assert np.isnan(np.asarray(strip.z)).all(axis=1).tolist() == [row == places(looked_into)[4] for row in range(N)]
