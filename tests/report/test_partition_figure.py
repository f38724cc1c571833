"""The heat map of who holds what, in the report of a run and in the preview of a partition."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup
from read_table import in_words
from rich.console import Console

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import system
from sfl_sim.report.pages.run import panels
from sfl_sim.report.pages.system import (
    Partition,
    Preview,
    holdings_panels,
    preview_in_terminal,
    preview_table,
    write_preview,
)
from sfl_sim.report.results import results_table

if TYPE_CHECKING:
    from pathlib import Path

    import plotly.graph_objects as go

COUNTS = pd.DataFrame([[0, 0, 0], [1, 1, 8], [9, 0, 1], [6, 2, 2]], columns=["cat", "dog", "fox"])


def drawn(figure: go.Figure) -> pd.DataFrame:
    """The heat map as a table, labels x clients."""
    heat = figure.data[1]
    return pd.DataFrame(np.asarray(heat.z), index=list(heat.y), columns=list(heat.x))


def test_columns_are_shares_of_a_client_s_samples_by_its_dominant_label_and_the_empty_come_last() -> None:
    figure = system.holdings(COUNTS)

    assert drawn(figure).T.to_dict("index") == {
        "client 2": {"cat": 90, "dog": 0, "fox": 10},
        "client 3": {"cat": 60, "dog": 20, "fox": 20},
        "client 1": {"cat": 10, "dog": 10, "fox": 80},
        "client 0": {"cat": 0, "dog": 0, "fox": 0},
    }
    assert list(drawn(figure)) == ["client 2", "client 3", "client 1", "client 0"]
    assert list(figure.data[0].y) == [10, 10, 10, 0]
    assert figure.data[1].zmax == 100
    assert list(figure.layout.xaxis2.ticktext) == ["2", "3", "1", "0"]


def test_of_thousands_of_clients_and_many_labels_some_are_drawn_and_few_are_named() -> None:
    counts = pd.DataFrame(np.random.default_rng(0).integers(0, 9, (2000, 100)), columns=[f"l{i}" for i in range(100)])

    figure = system.holdings(counts)

    assert drawn(figure).shape == (100, system.MAX_CLIENTS)
    assert figure.layout.xaxis2.title.text == "400 of 2,000 clients, by dominant label"
    assert not figure.layout.xaxis2.showticklabels
    assert len(figure.layout.yaxis2.tickvals) == 20


@pytest.fixture
def holding(frames: Frames) -> Frames:
    """Frames of a run that stored what clients hold: the third variant's clients hold something else."""
    others = (frames.clients["variant"] == frames.variants[2].label).to_numpy()
    label_samples = [
        np.roll(np.eye(10, dtype=int)[client] * 5, other)
        for client, other in zip(frames.clients["client"], others, strict=True)
    ]
    return replace(frames, clients=frames.clients.assign(label_samples=label_samples))


def test_a_report_shows_each_distinct_partition_once_with_the_names_of_its_labels(holding: Frames) -> None:
    (panel,) = holdings_panels(system.held(holding))

    (first, figure), (second, other) = panel.figures
    assert "splitfed_v2, fcfs" in first
    assert first.endswith("and 1 more variant")
    assert second == holding.variants[2].html
    assert set(drawn(figure).index) == set(holding.labels["label_name"])
    assert not drawn(figure).equals(drawn(other))


def test_clients_accuracy_is_shown_where_there_is_one(small_folder: Path) -> None:
    without = merge([load(small_folder)])
    rounds = without.rounds.assign(client_accuracy=without.rounds["accuracy"] / 2)
    frames = replace(without, rounds=rounds, summary=without.summary.assign(client_accuracy=0.125))

    figure = dict(panels(frames)[0].figures)["Client accuracy against rounds"]

    line = next(figure.select_traces({"name": "splitfed_v2, cyclic"}))
    expected = rounds.query("variant == 'splitfed_v2, cyclic'")["client_accuracy"]
    assert line.y == pytest.approx(100 * expected.to_numpy())
    assert not figure.layout.shapes  # the target is one of the global accuracy
    assert "12.5 %" in in_words(results_table(frames))


def test_a_run_without_holdings_and_clients_accuracy_is_reported_without_them(small_folder: Path) -> None:
    frames = merge([load(small_folder)])

    first, *others = panels(frames)

    assert "Labels held by each client" not in [panel.title for panel in others]
    assert "Client accuracy against rounds" not in dict(first.figures)
    assert "Client accuracy" not in results_table(frames).titles


# The preview

PREVIEW = Preview(
    "pets & <others>",
    "pets, shards=1",
    [
        Partition("seed 0", COUNTS.rename(columns={"fox": "<b>fox"}), 40),
        Partition("seed 1", COUNTS.iloc[1:].rename(columns={"fox": "<b>fox"}), 30),
    ],
    3,
)


def test_the_terminal_says_sizes_labels_divergence_and_what_is_missing() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(preview_in_terminal(PREVIEW))
    text = console.file.getvalue()

    first, second = (line.split("  ") for line in text.splitlines() if line.startswith("seed") and "·" in line)
    assert [word.strip() for word in first if word.strip()][:5] == ["seed 0", "4", "1", "0 · 10 · 10", "0 · 2 · 3"]
    assert [word.strip() for word in second if word.strip()][:5] == ["seed 1", "3", "0", "10 · 10 · 10", "2 · 3 · 3"]
    assert "seed 0: 10 of 40 samples (25.0\u00a0%) are not used." in text
    assert "seed 0: 1 client without samples, which no run accepts." in text
    assert "seed 1: " not in text
    assert "3 more partitions of other variants or seeds left out." in text


def test_the_page_opens_offline_and_names_are_text_and_never_markup(tmp_path: Path) -> None:
    page = write_preview(PREVIEW, tmp_path / "new" / "page.html").read_text(encoding="utf-8")

    own = page[: page.index("<script>")] + page[page.index("<body>") :]
    assert "<h1>pets &amp; &lt;others&gt;</h1>" in own
    assert "<b>" not in own.replace("\\u003c", "<")
    assert "://" not in own.replace("http://www.w3.org", "")
    assert own.count("js-plotly-plot") + own.count("plotly-graph-div") >= 2


def test_a_partition_that_all_seeds_share_is_drawn_once_and_says_so() -> None:
    seeds = [Markup(f"seed {seed}") for seed in range(3)]

    (alone,) = holdings_panels([(seeds, COUNTS)])[0].figures
    (first, second) = holdings_panels([(seeds[:2], COUNTS), (seeds[2:], COUNTS.iloc[1:])])[0].figures

    table = preview_table(Preview("study", "", [Partition(str(seed), COUNTS, 40) for seed in seeds], 0))
    assert alone[0] == "Same for all 3 seeds"
    assert [row[0].text for row in table.rows] == ["Same for all 3 seeds"]
    assert (first[0], second[0]) == ("seed 0 and 1 more seed", "seed 2")
