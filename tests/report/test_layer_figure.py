"""Where to cut: the figure shows what each cut costs and who cuts where, the terminal the same as a table."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console
from synthetic_run import LAYERS

from sfl_sim.engine.layer_table import layer_table
from sfl_sim.models.zoo import network
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages import system
from sfl_sim.report.pages.run import panels
from sfl_sim.report.pages.system import cut_costs, layers_in_terminal, models

if TYPE_CHECKING:
    from pathlib import Path

    import plotly.graph_objects as go

FCFS, CYCLIC, HYDRA = "splitfed_v2, fcfs", "splitfed_v2, cyclic", "hydra, cyclic"


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
    names = {"fcfs": FCFS, "cyclic": CYCLIC, "hydra": HYDRA}
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

    assert marks(figure) == {f"cut of {FCFS} and 1 alike": [2], f"cut of {HYDRA}": [1, 3]}
    assert small < large


def test_a_method_without_a_cut_has_no_mark(frames: Frames) -> None:
    nowhere: list[int | None] = [None] * 10

    assert marks(figure_of(cut_differently(frames, fcfs=nowhere, cyclic=nowhere, hydra=nowhere))) == {}


def test_every_distinct_model_has_its_figure(frames: Frames) -> None:
    other = frames.layers["model"].where(frames.layers["variant"] != HYDRA, "lenet5")

    found = models(replace(frames, layers=frames.layers.assign(model=other)))

    assert [[variant.label for variant in variants] for variants, _ in found] == [[FCFS, CYCLIC], [HYDRA]]


def test_runs_of_earlier_versions_have_no_such_panel(folder: Path) -> None:
    clients = pd.read_parquet(folder / "clients.parquet")
    clients.drop(columns="cut").to_parquet(folder / "clients.parquet")
    (folder / "layers.parquet").unlink()

    titles = [panel.title for panel in panels(merge([load(folder)]))]

    assert "The fleet" in titles
    assert "Where to cut" not in titles


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
