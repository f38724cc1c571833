"""Figures: how unequal the fleet is, in device speeds and in link rates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sfl_sim.report import display, style
from sfl_sim.report.frames import Frames

MAX_POINTS = 400
RATES = ["macs_per_s", "uplink_bps", "downlink_bps"]
DASHES = {"macs_per_s": "solid", "uplink_bps": "solid", "downlink_bps": "dash"}
PARTS = {"macs_per_s": "device", "uplink_bps": "uplink", "downlink_bps": "downlink"}


def device_speeds(frames: Frames) -> go.Figure:
    """Share of clients whose device is at most this fast."""
    return _shares(frames, ["macs_per_s"]).update_xaxes(title="device speed (MAC/s)")


def link_rates(frames: Frames) -> go.Figure:
    """Share of clients whose uplink, and whose downlink, is at most this fast."""
    return _shares(frames, ["uplink_bps", "downlink_bps"]).update_xaxes(title="link rate (bit/s)")


def _shares(frames: Frames, columns: list[str]) -> go.Figure:
    """Empirical distributions: one neutral fleet if all variants share it, else one per variant in its colour."""
    fleets = [frames.clients[frames.clients["variant"] == variant.label] for variant in frames.variants]
    first, *others = (fleet[["seed", "client", *RATES]].reset_index(drop=True) for fleet in fleets)
    shared = all(first.equals(other) for other in others)
    drawn = list(zip(frames.variants, fleets, strict=True))[: 1 if shared else None]
    figure = style.canvas(290)
    for variant, fleet in drawn:
        for column in columns:
            part = PARTS[column]
            figure.add_scatter(
                **_steps(fleet[column]),
                mode="lines",
                name=part if shared else f"{variant.label}, {part}",
                line={
                    "shape": "hv", "width": 2.4, "dash": DASHES[column],
                    "color": style.RESOURCE_COLOURS[part] if shared else variant.colour,
                },
                hovertemplate="%{y:.0f} % are at most %{x:.3s}",
            )  # fmt: skip
    rates = np.log10(frames.clients[columns])
    low, high = rates.min(axis=None) - 0.05, rates.max(axis=None) + 0.05
    figure.update_xaxes(type="log", exponentformat="SI", range=[low, high])
    return figure.update_yaxes(title="share of clients (%)", range=[0, 102])


def _steps(rates: pd.Series) -> dict[str, np.ndarray]:
    steps = pd.DataFrame({"x": np.sort(rates), "y": 100 * np.arange(1, len(rates) + 1) / len(rates)})
    steps = pd.concat([steps.head(1).assign(y=0.0), display.thin(steps, MAX_POINTS)])
    return {"x": steps["x"].to_numpy(), "y": steps["y"].to_numpy()}
