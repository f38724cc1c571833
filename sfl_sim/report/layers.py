"""What a cut after each layer costs a client, as a figure and as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from plotly.subplots import make_subplots
from rich.table import Table

from sfl_sim.report import display, style
from sfl_sim.report.frames import distinct
from sfl_sim.store.columns import LAYER_COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MAX_NAMES = 12
BAR_WIDTH, PALE = 0.72, 0.3
LANE_PX, BYTES_PX, MACS_PX = 18, 170, 110
BARS = (
    (2, "activations at the cut", "uplink", "activation_bytes", "bytes_text"),
    (3, "work of the client", "device", "share", "macs_text"),
)
"""The bars of each cut: row, name, resource, and the columns of their height and of what is said of it."""


def models(frames: Frames) -> list[tuple[list[Variant], pd.DataFrame]]:
    """The layers (`LAYER_COLUMNS`) of each distinct model that can be cut, and the variants that have it."""
    tables = ((v, _of(v, frames.layers)[LAYER_COLUMNS].reset_index(drop=True)) for v in frames.variants)
    return [(variants, table) for variants, table in distinct(tables) if len(table) > 1]


def _of(variant: Variant, table: pd.DataFrame) -> pd.DataFrame:
    return table[(table["variant"] == variant.label) & (table["seed"] == variant.seed)]


def model_title(layers: pd.DataFrame) -> str:
    """The model in a line."""
    macs, parameters = (display.prefixed(layers[column].sum()) for column in ("macs", "parameters"))
    return f"{layers['model'].iloc[0]}: {len(layers)} layers, {macs} MACs a sample, {parameters} parameters"


def cut_costs(frames: Frames, variants: list[Variant], layers: pd.DataFrame) -> go.Figure:
    """Bytes of a sample's activations at each cut above the MACs before it, and the cuts of `variants` on top.

    Args:
        layers: of the variants' model, with `LAYER_COLUMNS`.
    """
    uses = _uses(frames, variants)
    heights_px = [LANE_PX * max(len(uses), 1), BYTES_PX, MACS_PX]
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights_px)
    figure.update_layout(style.canvas(90 + sum(heights_px)).layout, barmode="overlay")
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
    return style.tidy(figure)


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


def layers_in_terminal(layers: pd.DataFrame, sample_shape: tuple[int, ...], n_labels: int) -> Table:
    """One row per layer, within 80 columns; `layers` has `LAYER_COLUMNS`."""
    sample = "x".join(map(str, sample_shape))
    table = Table(
        box=None, header_style="bold", pad_edge=False, title_justify="left", title_style="",
        title=f"{model_title(layers)}\nfor samples of {sample} and {display.plural(n_labels, 'label')}",
        caption="Pareto cut: no other saves MACs or activations at no cost in the other",
        caption_justify="left",
    )  # fmt: skip
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
    for heading in columns:
        table.add_column(heading, no_wrap=True, justify="left" if heading in ("Layer", "Output") else "right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
