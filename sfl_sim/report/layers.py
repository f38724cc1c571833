"""What a cut after each layer costs a client: a panel with a figure for each model, and a table of its layers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from markupsafe import Markup

from sfl_sim.report import display, figures, style
from sfl_sim.report.frames import distinct
from sfl_sim.report.html_page import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.store.columns import LAYER_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from rich.table import Table as TerminalTable

    from sfl_sim.report.frames import Frames, Variant

MAX_NAMES = 12
BAR_WIDTH, PALE = 0.72, 0.3
LANE_PX, BYTES_PX, MACS_PX = 18, 170, 110
BARS = (
    (2, "activations at the cut", "uplink", "activation_bytes", "bytes_text"),
    (3, "work of the client", "device", "share", "macs_text"),
)
"""The bars of each cut: row, name, resource, and the columns of their height and of what is said of it."""
CAPTION = """A bar for every cut: what a sample's activations take on the uplink (and their gradient on the downlink), \
and below it how much of the model the client computes. Strong colours are Pareto cuts: no other saves bytes or work \
at no cost in the other. Triangles are the cuts in use, larger where more clients have them."""
PARETO = "Pareto cut: no other saves MACs or activations at no cost in the other"


def cut_panels(frames: Frames) -> list[Panel]:
    """A figure for each model that can be cut."""
    drawn = [(model_title(model), cut_costs(frames, variants, model)) for variants, model in models(frames)]
    return [Panel("Where to cut", CAPTION, drawn)] if drawn else []


def models(frames: Frames) -> list[tuple[list[Variant], pd.DataFrame]]:
    """The layers (`LAYER_COLUMNS`) of each distinct model that can be cut, and the variants that have it."""
    tables = ((v, _of(v, frames.layers)[LAYER_COLUMNS].reset_index(drop=True)) for v in frames.variants)
    return [(variants, table) for variants, table in distinct(tables) if len(table) > 1]


def _of(variant: Variant, table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["variant"] == variant.label) & (table["seed"] == variant.seed)]


def model_title(layers: pd.DataFrame) -> Markup:
    """The model in a line; its name is escaped."""
    macs, parameters = (display.prefixed(layers[column].sum()) for column in ("macs", "parameters"))
    text = f": {len(layers)} layers, {macs} MACs a sample, {parameters} parameters"
    return Markup(layers["model"].iloc[0]) + text


def cut_costs(frames: Frames, variants: list[Variant], layers: pd.DataFrame) -> go.Figure:
    """Bytes of a sample's activations at each cut above the MACs before it, and the cuts of `variants` on top.

    Args:
        layers: of the variants' model, with `LAYER_COLUMNS`.
    """
    uses = _uses(frames, variants)
    heights_px = [LANE_PX * max(len(uses), 1), BYTES_PX, MACS_PX]
    figure = figures.canvas(
        90 + sum(heights_px), rows=3, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights_px
    )
    figure.update_layout(barmode="overlay")
    macs = layers["macs"].cumsum()
    cuts = layers.assign(
        about=layers["layer"].astype(str) + " " + layers["name"],
        share=100 * macs / layers["macs"].sum(),
        macs_text=macs.map(display.prefixed) + " MACs",
        bytes_text=layers["activation_bytes"].map(display.data_size),
    )[:-1]
    for lane, (by_cut, owners) in enumerate(uses.items()):
        _mark(figure, cuts, dict(by_cut), lane, owners if len(uses) > 1 else [])
    for pareto, rows in cuts.groupby("pareto"):
        for row, name, resource, y, text in BARS:
            figure.add_bar(
                x=rows["layer"].to_numpy(), y=rows[y].to_numpy(), row=row, col=1, width=BAR_WIDTH,
                name=name, showlegend=bool(pareto), opacity=1.0 if pareto else PALE,
                marker_color=style.RESOURCE_COLOURS[resource], customdata=rows[["about", text]].to_numpy(),
                hovertemplate="cut after %{customdata[0]}: %{customdata[1]} a sample",
            )  # fmt: skip
    figure.update_xaxes(showgrid=False, range=[0.4, len(layers) - 0.4])
    figure.update_xaxes(row=1, visible=False)
    figure.update_xaxes(row=3, title="cut after layer", tickformat="d")
    if len(cuts) <= MAX_NAMES:
        figure.update_xaxes(row=3, tickvals=cuts["layer"], ticktext=cuts["name"])
    figure.update_yaxes(row=1, visible=False, range=[len(uses) - 0.5, -0.5])
    figure.update_yaxes(row=2, title="activations", rangemode="tozero", tickformat="~s", ticksuffix="B", nticks=5)
    figure.update_yaxes(row=3, title="MACs (%)", range=[0, 100], nticks=4)
    return figure


def _uses(frames: Frames, variants: list[Variant]) -> dict[tuple[tuple[int, int], ...], list[Variant]]:
    """Which variants cut where: by the pairs of a cut and the number of clients that have it."""
    uses: dict[tuple[tuple[int, int], ...], list[Variant]] = {}
    for variant in variants:
        cuts = _of(variant, frames.clients)["cut"].dropna().astype(int)
        by_cut = tuple(sorted(Counter(cuts).items()))
        if by_cut:
            uses.setdefault(by_cut, []).append(variant)
    return uses


def _mark(figure: go.Figure, cuts: pd.DataFrame, by_cut: dict[int, int], lane: int, owners: list[Variant]) -> None:
    """A triangle on each cut in use, larger where more clients have it; in the colour of its first owner, if any."""
    n_clients = sum(by_cut.values())
    colour = owners[0].colour if owners else style.INK
    alike = f" and {len(owners) - 1} alike" if len(owners) > 1 else ""
    figure.add_scatter(
        x=list(by_cut), y=[lane] * len(by_cut), row=1, col=1, mode="markers",
        name=f"cut of {owners[0].label}{alike}" if owners else "cut in use",
        marker={"symbol": "triangle-down", "size": [6 + 8 * (n / n_clients) ** 0.5 for n in by_cut.values()],
                "color": colour, "opacity": 1},
        customdata=[f"{n} of {display.plural(n_clients, 'client')} after {cuts['about'].iloc[cut - 1]}"
                    for cut, n in by_cut.items()],
        hovertemplate="%{customdata}",
    )  # fmt: skip


def layers_in_terminal(layers: pd.DataFrame, sample_shape: tuple[int, ...], n_labels: int) -> TerminalTable:
    """One row per layer, within 80 columns; `layers` has `LAYER_COLUMNS`, its names as they are."""
    sample = "x".join(map(str, sample_shape))
    share = layers["macs"] / layers["macs"].sum()
    columns = {
        "": layers["layer"].astype(str),
        "Layer": layers["name"],
        "Output": layers["out_shape"],
        "MACs": layers["macs"].map(display.prefixed),
        "Share": share.map(display.percent),
        "Sum": share.cumsum().map(display.percent),
        "Activations": layers["activation_bytes"].map(display.data_size),
        "Params": layers["parameters"].map(display.prefixed),
        "Pareto": layers["pareto"].map({True: "*", False: ""}),
    }
    title = f"{model_title(layers)}\nfor samples of {sample} and {display.plural(n_labels, 'label')}"
    rows = [[Cell(text) for text in row] for row in zip(*columns.values(), strict=True)]
    return Table(list(columns), rows, title, PARETO, words=("Layer", "Output")).in_terminal()
