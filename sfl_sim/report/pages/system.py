"""Panels on the system: how unequal the fleet is, and what a cut after each layer costs a client."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from sfl_sim.report import display, figures, style
from sfl_sim.report.frames import distinct
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table
from sfl_sim.store.schema import tables

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from rich.table import Table as TerminalTable

    from sfl_sim.report.frames import Frames, Variant

LINES = {
    "macs_per_s": ("device", "solid"),
    "uplink_bps": ("uplink", "solid"),
    "downlink_bps": ("downlink", "dash"),
    "joule": ("device", "solid"),
}
"""The resource of each rate, and the dash of its line; energy is paid by the device."""
FLEET_CAPTION = "The wider a curve spreads along its logarithmic axis, the longer fast clients wait for slow ones. "
MAX_NAMES = 12
BAR_WIDTH, PALE = 0.72, 0.3
LANE_PX, BYTES_PX, MACS_PX = 18, 170, 110
BARS = (
    (2, "activations at the cut", "uplink", "activation_bytes", "bytes_text"),
    (3, "work of the client", "device", "share", "macs_text"),
)
"""The bars of each cut: row, name, resource, and the columns of their height and of what is said of it."""
CUTS_CAPTION = (
    "Each bar is a cut. Above: how long a sample's activations take on the uplink (and their gradient on "
    "the downlink). Below: how much of the model the client computes. Strong colours are Pareto cuts: no "
    "other cut has fewer bytes without more work at the client, or less work without more bytes. "
    "Triangles mark the cuts in use, larger where more clients have them."
)
PARETO = "Pareto cut: no other has fewer MACs or activations without more of the other"
LAYER_COLUMNS = list(tables("whatif")["layers"].columns)


def fleet_panels(frames: Frames) -> list[Panel]:
    """Devices and links, and energy if it is known."""
    drawn = [
        ("Device speeds", device_speeds(frames)),
        ("Link rates: uplink solid, downlink dashed", link_rates(frames)),
    ]
    if knows_energy(frames):
        drawn.append(("Energy that the run takes", energy(frames)))
    return [Panel("The fleet", FLEET_CAPTION + cost_model(frames), drawn, columns=2)]


def device_speeds(frames: Frames) -> go.Figure:
    """Share of clients whose device is at most this fast."""
    return _shares(frames, ["macs_per_s"]).update_xaxes(title="device speed (MAC/s)")


def link_rates(frames: Frames) -> go.Figure:
    """Share of clients whose uplink, and whose downlink, is at most this fast."""
    return _shares(frames, ["uplink_bps", "downlink_bps"]).update_xaxes(title="link rate (bit/s)")


def knows_energy(frames: Frames) -> bool:
    """Return True if the power of clients is known, so that they have energy."""
    return bool(frames.clients["joule"].gt(0).any())


def energy(frames: Frames) -> go.Figure:
    """Share of the clients that took part whose battery pays at most this much for the whole run."""
    paying = replace(frames, clients=frames.clients[frames.clients["joule"] > 0])
    return _shares(paying, ["joule"]).update_xaxes(title="energy of a client in the run (J)")


def cost_model(frames: Frames) -> str:
    """Say in a sentence how the time of a step follows from its work; nothing about runs that do not tell."""
    follows = [
        "its MACs" if cost == "macs" else f"its kinds of layers and their calls (cost profile {cost})"
        for cost in frames.clients["cost"].dropna().unique()
    ]
    if not follows:
        return ""
    factors = frames.clients["training_factor"]
    low, high = f"{factors.min():.3g}", f"{factors.max():.3g}"
    times = low if low == high else f"{low} to {high}"
    slower = "" if times == "1" else f" Training takes {times} times as long as the devices' rates say."
    return f"A step's time follows from {' or '.join(follows)}.{slower}"


def _shares(frames: Frames, columns: list[str]) -> go.Figure:
    """Empirical distributions: of the fleet that all variants share, or else of each in a variant's colour."""
    fleets = _fleets(frames, columns)
    figure = figures.canvas(290)
    for variants, fleet in fleets:
        alike = f" and {len(variants) - 1} alike" if len(variants) > 1 else ""
        cuts = _cuts(frames, variants)
        for column in columns:
            part, dash = LINES[column]
            neutral = {"name": part, "line_color": style.RESOURCE_COLOURS[part]}
            coloured = {"name": variants[0].label + alike, "line_color": variants[0].colour}
            look = neutral if len(fleets) == 1 else coloured
            hover = "%{y:.0f} % are at most %{x:.3s}%{customdata}"
            figures.ecdf(figure, fleet[column], cuts, hover, line_dash=dash, **look)
    rates = np.log10(frames.clients[columns])
    low, high = rates.min(axis=None) - 0.05, rates.max(axis=None) + 0.05
    figure.update_xaxes(type="log", exponentformat="SI", range=[low, high], dtick="D2" if 1 < high - low < 3 else None)
    return figure.update_yaxes(title="share of clients (%)", range=[0, 102])


def _fleets(frames: Frames, columns: list[str]) -> list[tuple[list[Variant], pd.DataFrame]]:
    """The fleets that differ in these columns, seeds pooled, each with the variants that have it."""
    fleets = frames.clients[["variant", "seed", "client", *columns]].groupby("variant")
    return distinct(
        (variant, fleets.get_group(variant.label).drop(columns="variant").reset_index(drop=True))
        for variant in frames.variants
        if variant.label in fleets.groups
    )


def _cuts(frames: Frames, variants: list[Variant]) -> pd.Series:
    """Each client's cut as the end of a sentence, clients in the order of their fleet; empty where variants differ."""
    clients = frames.clients[frames.clients["variant"].isin([variant.label for variant in variants])]
    cut = clients.groupby(["seed", "client"], sort=False)["cut"].agg(["min", "max"])
    return cut["min"].map(", cut after layer {:.0f}".format).where(cut["min"] == cut["max"], "").reset_index(drop=True)


def cut_panels(frames: Frames) -> list[Panel]:
    """A figure for each model that can be cut."""
    drawn = [(model_title(model), cut_costs(frames, variants, model)) for variants, model in models(frames)]
    return [Panel("Where to cut", CUTS_CAPTION, drawn)] if drawn else []


def models(frames: Frames) -> list[tuple[list[Variant], pd.DataFrame]]:
    """The layers (`LAYER_COLUMNS`) of each distinct model that can be cut, and the variants that have it."""
    tables = ((v, _of_first_seed(v, frames.layers)[LAYER_COLUMNS].reset_index(drop=True)) for v in frames.variants)
    return [(variants, table) for variants, table in distinct(tables) if len(table) > 1]


def _of_first_seed(variant: Variant, table: pd.DataFrame) -> pd.DataFrame:
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
    uses = _cuts_in_use(frames, variants)
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
        _mark_cuts(figure, cuts, dict(by_cut), lane, owners if len(uses) > 1 else [])
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


def _cuts_in_use(frames: Frames, variants: list[Variant]) -> dict[tuple[tuple[int, int], ...], list[Variant]]:
    """Group the variants by where they cut: by the pairs of a cut and the number of clients that have it."""
    uses: dict[tuple[tuple[int, int], ...], list[Variant]] = {}
    for variant in variants:
        cuts = _of_first_seed(variant, frames.clients)["cut"].dropna().astype(int)
        by_cut = tuple(sorted(Counter(cuts).items()))
        if by_cut:
            uses.setdefault(by_cut, []).append(variant)
    return uses


def _mark_cuts(figure: go.Figure, cuts: pd.DataFrame, by_cut: dict[int, int], lane: int, owners: list[Variant]) -> None:
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
