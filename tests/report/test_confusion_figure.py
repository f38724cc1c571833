"""What the model knows during a round: the figures show the matrices of the table, in the cyclic order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from synthetic_run import LABELS

from sfl_sim.report.pages.knowledge import MATRICES, round_film, round_films
from sfl_sim.report.pages.run import panels

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames

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
    title = "What the model knows during a round"
    (panel,) = (panel for panel in panels(looked_into) if panel.title == title)

    assert [heading.split(", ")[-1] for heading, _ in panel.figures] == ["round 3", "round 7"]
    assert title not in [panel.title for panel in panels(frames)]


def test_a_label_without_test_samples_stays_blank(looked_into: Frames) -> None:
    confusion = looked_into.confusion
    unknown = confusion.assign(share=confusion["share"].where(confusion["true_label"] != 4))

    strip = round_film(round_films(replace(looked_into, confusion=unknown))[0]).data[0]

    assert np.isnan(np.asarray(strip.z)).all(axis=1).tolist() == [row == places(looked_into)[4] for row in range(N)]
