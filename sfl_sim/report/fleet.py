"""Panel on the fleet: how unequal it is in device speeds, in link rates, and in the energy that a run takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.report import figures, style
from sfl_sim.report.frames import distinct
from sfl_sim.report.html_page import Panel

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames, Variant

MARKS = {
    "macs_per_s": ("device", "solid"),
    "uplink_bps": ("uplink", "solid"),
    "downlink_bps": ("downlink", "dash"),
    "joule": ("device", "solid"),
}
"""The resource of each rate, and the dash of its line; energy is paid by the device."""
CAPTION = "The wider a curve spreads along its logarithmic axis, the longer the fast clients wait for the slow. "


def fleet_panel(frames: Frames) -> Panel:
    """Devices and links, and energy if it is known."""
    drawn = [
        ("Device speeds", device_speeds(frames)),
        ("Link rates: uplink solid, downlink dashed", link_rates(frames)),
    ]
    if knows_energy(frames):
        drawn.append(("Energy that the run takes", energy(frames)))
    return Panel("The fleet", CAPTION + cost_model(frames), drawn, columns=2)


def device_speeds(frames: Frames) -> go.Figure:
    """Share of clients whose device is at most this fast."""
    return _shares(frames, ["macs_per_s"]).update_xaxes(title="device speed (MAC/s)")


def link_rates(frames: Frames) -> go.Figure:
    """Share of clients whose uplink, and whose downlink, is at most this fast."""
    return _shares(frames, ["uplink_bps", "downlink_bps"]).update_xaxes(title="link rate (bit/s)")


def knows_energy(frames: Frames) -> bool:
    """Whether anybody said what the clients draw."""
    return bool(frames.clients["joule"].gt(0).any())


def energy(frames: Frames) -> go.Figure:
    """Share of the clients that took part whose battery pays at most this much for the whole run."""
    paying = replace(frames, clients=frames.clients[frames.clients["joule"] > 0])
    return _shares(paying, ["joule"]).update_xaxes(title="energy of a client in the run (J)")


def cost_model(frames: Frames) -> str:
    """How the time of a step follows from its work, in a sentence; nothing about runs that do not say."""
    follows = [
        "its MACs" if cost == "macs" else f"its kinds of layers and their calls (cost profile {cost})"
        for cost in frames.clients["cost"].dropna().unique()
    ]
    return f"A step's time follows from {' or '.join(follows)}." if follows else ""


def _shares(frames: Frames, columns: list[str]) -> go.Figure:
    """Empirical distributions: of the fleet that all variants share, or else of each in a variant's colour."""
    fleets = _fleets(frames, columns)
    figure = figures.canvas(290)
    for variants, fleet in fleets:
        alike = f" and {len(variants) - 1} alike" if len(variants) > 1 else ""
        cuts = _cuts(frames, variants)
        for column in columns:
            part, dash = MARKS[column]
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
