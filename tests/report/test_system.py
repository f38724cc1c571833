"""Where to cut, and what clients hold: figures, terminal, and the preview of a partition."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from markupsafe import Markup
from read_table import in_words
from rich.console import Console
from synthetic_run import ARRIVAL, CYCLIC, HYDRA, LAYERS

from sfl_sim.build.layer_table import layer_table
from sfl_sim.models.zoo import network
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import system
from sfl_sim.report.pages.run import panels
from sfl_sim.report.pages.system import (
    PartitionResult,
    Preview,
    cut_costs,
    holdings_panels,
    layers_in_terminal,
    models,
    preview_in_terminal,
    preview_table,
    write_preview,
)
from sfl_sim.report.results import results_table


def figure_of(frames: Frames) -> go.Figure:
    ((variants, layers),) = models(frames)
    return cut_costs(frames, variants, layers)


def heights(figure: go.Figure, name: str) -> dict[float, float]:
    """Where bars stand and how high they are, strong and pale ones."""
    traces = figure.select_traces({"name": name})
    return {x: y for trace in traces for x, y in zip(trace.x, trace.y, strict=True)}


def marks(figure: go.Figure) -> dict[str, list[int]]:
    return {trace.name: list(trace.x) for trace in figure.select_traces({"type": "scatter"})}


def cut_differently(frames: Frames, **cuts: list[int | None]) -> Frames:
    """The frames with other cuts of the ten clients of some variants."""
    names = {"fcfs": ARRIVAL, "cyclic": CYCLIC, "hydra": HYDRA}
    by_variant = {names[name]: values for name, values in cuts.items()}
    cut = [
        by_variant[row.variant][row.client] if row.variant in by_variant else row.cut
        for row in frames.clients.itertuples()
    ]
    return replace(frames, clients=frames.clients.assign(cut=pd.Series(cut, dtype=float)))


def test_every_cut_has_its_bytes_and_the_share_of_the_work_before_it(frames: Frames) -> None:
    figure = figure_of(frames)

    assert heights(figure, "activations at the cut") == {1: 4096, 2: 2048, 3: 4096}
    assert heights(figure, "work of the client") == {1: 10, 2: 40, 3: 90}


def test_pareto_cuts_are_strong_and_the_others_pale(frames: Frames) -> None:
    bars = figure_of(frames).select_traces({"name": "activations at the cut"})

    assert {trace.opacity == 1: list(trace.x) for trace in bars} == {True: [1, 2], False: [3]}


def test_one_mark_does_for_variants_that_cut_alike(frames: Frames) -> None:
    assert marks(figure_of(frames)) == {"cut in use": [2]}


def test_variants_that_cut_differently_have_marks_of_their_own(frames: Frames) -> None:
    figure = figure_of(cut_differently(frames, hydra=[1, 1, 1, 1, 1, 1, 1, 1, 3, 3]))
    small, large = sorted(next(figure.select_traces({"name": f"cut of {HYDRA}"})).marker.size)

    assert marks(figure) == {f"cut of {ARRIVAL} and 1 alike": [2], f"cut of {HYDRA}": [1, 3]}
    assert small < large


def test_a_method_without_a_cut_has_no_mark(frames: Frames) -> None:
    nowhere: list[int | None] = [None] * 10

    assert marks(figure_of(cut_differently(frames, fcfs=nowhere, cyclic=nowhere, hydra=nowhere))) == {}


def test_every_distinct_model_has_its_figure(frames: Frames) -> None:
    other = frames.layers["model"].where(frames.layers["variant"] != HYDRA, "lenet5")

    found = models(replace(frames, layers=frames.layers.assign(model=other)))

    assert [[variant.label for variant in variants] for variants, _ in found] == [[ARRIVAL, CYCLIC], [HYDRA]]


def test_names_of_layers_are_text_and_never_markup(folder: Path) -> None:
    layers = pd.read_parquet(folder / "layers.parquet")
    layers.assign(name="<b>" + layers["name"], model="<i>").to_parquet(folder / "layers.parquet")

    found = merge([load(folder)]).layers

    assert not found[["name", "model"]].stack().str.contains("<").any()


def test_the_fleet_tells_each_device_s_cut_unless_variants_differ(frames: Frames) -> None:
    def said(frames: Frames) -> set[str]:
        return {
            text for trace in dict(system.fleet_drawings(frames))["Device speeds"]().data for text in trace.customdata
        }

    assert said(frames) == {", cut after layer 2"}
    assert said(cut_differently(frames, hydra=[1] * 10)) == {""}


def test_the_terminal_shows_every_layer_within_80_columns() -> None:
    printed = io.StringIO()
    shape = (3, 224, 224)
    layers = layer_table(network("mobilenet_v1", shape, 1000)).assign(model="mobilenet_v1")
    Console(file=printed, width=80).print(layers_in_terminal(layers, shape, 1000), soft_wrap=True)
    title, _, _, *rows, _ = lines = printed.getvalue().replace("\u00a0", " ").splitlines()

    assert "569 M MACs a sample, 4.23 M parameters" in title
    assert [row.split()[1] for row in rows] == layers["name"].tolist()
    assert " ".join(rows[0].split()[2:]) == "32x112x112 14.5 M 2.5 % 2.5 % 1.61 MB 1.28 k *"
    assert max(map(len, lines)) <= 80


def test_shares_of_the_terminal_add_up() -> None:
    printed = io.StringIO()
    Console(file=printed, width=80).print(layers_in_terminal(LAYERS, (1, 8, 8), 10))

    assert printed.getvalue().count("100.0\u00a0%") == 1


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
        PartitionResult("seed 0", COUNTS.rename(columns={"fox": "<b>fox"}), 40),
        PartitionResult("seed 1", COUNTS.iloc[1:].rename(columns={"fox": "<b>fox"}), 30),
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
    unused, empty = (line for line in text.splitlines() if line.startswith("seed 0: "))
    assert "10 of 40 samples (25.0\u00a0%)" in unused
    assert "1 client " in empty
    assert "seed 1: " not in text
    assert "3 more partitions" in text


def test_numbers_are_dealt_in_groups(tmp_path: Path) -> None:
    of_numbers = replace(PREVIEW, partitions=[replace(one, group="group") for one in PREVIEW.partitions])
    assert "Groups" in preview_table(of_numbers).titles
    page = write_preview(of_numbers, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "label" not in re.sub(r"<script.*?</script>|<style.*?</style>| aria-label", "", page, flags=re.DOTALL)


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

    table = preview_table(Preview("study", "", [PartitionResult(str(seed), COUNTS, 40) for seed in seeds], 0))
    assert alone[0] == "Same for all 3 seeds"
    assert [row[0].text for row in table.rows] == ["Same for all 3 seeds"]
    assert (first[0], second[0]) == ("seed 0 and 1 more seed", "seed 2")
