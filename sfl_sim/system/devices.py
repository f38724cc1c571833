"""Devices of the clients: their names, and their rates in multiply-accumulates (MACs) per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.errors import ScenarioError
from sfl_sim.system.profiles import FloatArray, PerClient, available, find, per_client, read_table

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

KEY = "clients.compute"
ABOVE_ZERO = "a number above 0"


def draw_devices(
    n: int,
    rng: np.random.Generator,
    profile: str | Path | None = "ai_benchmark",
    macs_per_s: PerClient | None = None,
    scale: float = 1.0,
    reference_macs: float | None = None,
) -> tuple[list[str], FloatArray]:
    """Give each of n clients a device: its name, and its rate in MAC/s, times `scale`.

    Each client draws a row of the profile, uniformly and with replacement. Rates in `macs_per_s` (one for all, or one
    per client) replace the profile; the devices are then named `given`. A cost profile needs rates that were measured
    with its own reference network, which has `reference_macs`.

    Raises:
        ScenarioError: an unusable profile or number, neither a profile nor rates, or another reference network.
    """
    factor = per_client(scale, n, f"{KEY}.scale")
    if macs_per_s is not None:
        return ["given"] * n, factor * per_client(macs_per_s, n, f"{KEY}.macs_per_s")
    if profile is None:
        raise ScenarioError("needs a profile or macs_per_s", key=KEY, allowed=available("devices"))
    names, rates = _read_devices(profile, reference_macs)
    rows = rng.integers(len(names), size=n)
    return [names[row] for row in rows], factor * rates[rows]


def _read_devices(profile: str | Path, reference_macs: float | None) -> tuple[list[str], FloatArray]:
    """Read the names of a profile's devices, and their rates: MACs per frame over seconds per frame."""
    key = f"{KEY}.profile"
    table = read_table(find("devices", profile, key), ["device", "ms_per_frame", "reference_macs"], key)
    ms_per_frame, frame_macs = table.numbers("ms_per_frame"), table.numbers("reference_macs")
    table.require("ms_per_frame", ms_per_frame > 0, ABOVE_ZERO)
    table.require("reference_macs", frame_macs > 0, ABOVE_ZERO)
    if reference_macs is not None:
        table.require("reference_macs", frame_macs == reference_macs, f"{reference_macs:.0f}, as in {KEY}.cost")
    return table.columns["device"], frame_macs / (ms_per_frame / 1000)
