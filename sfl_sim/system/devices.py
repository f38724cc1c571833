"""Devices of the clients: their names, and their rates in multiply-accumulates (MACs) per second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.system.profiles import FloatArray, PerClient, available, find, per_client, read_table

if TYPE_CHECKING:
    from pathlib import Path

KEY = "clients.compute"
ABOVE_ZERO = "a number above 0"


def draw_devices(
    n: int,
    rng: np.random.Generator,
    profile: str | Path | None = "ai_benchmark",
    macs_per_s: PerClient | None = None,
    scale: float = 1.0,
    training_factor: PerClient | None = None,
    reference_macs: float | None = None,
) -> tuple[list[str], FloatArray, FloatArray]:
    """Give each of n clients a device: its name, its rate in MAC/s, times `scale`, and its training factor.

    Each client draws a row of the profile, uniformly and with replacement. Rates in `macs_per_s` (one for all, or one
    per client) replace the profile; the devices are then named `given`. A cost profile needs rates that were measured
    with its own reference network, which has `reference_macs`. Training takes `training_factor` times as long as these
    rates say; without it, what the profile's column of this name says, or as long.

    Raises:
        ScenarioError: an unusable profile or number, neither a profile nor rates, or another reference network.
    """
    factor = per_client(scale, n, f"{KEY}.scale")
    slower = None if training_factor is None else per_client(training_factor, n, f"{KEY}.training_factor")
    if macs_per_s is not None:
        rates = factor * per_client(macs_per_s, n, f"{KEY}.macs_per_s")
        return ["given"] * n, rates, np.ones(n) if slower is None else slower
    if profile is None:
        raise ScenarioError("needs a profile or macs_per_s", key=KEY, allowed=available("devices"))
    names, rates, slower_than = _read_devices(profile, reference_macs)
    rows = rng.integers(len(names), size=n)
    return [names[row] for row in rows], factor * rates[rows], slower_than[rows] if slower is None else slower


def _read_devices(profile: str | Path, reference_macs: float | None) -> tuple[list[str], FloatArray, FloatArray]:
    """Read the names of a profile's devices, their rates (MACs over seconds per frame), and their training factors."""
    key = f"{KEY}.profile"
    table = read_table(find("devices", profile, key), ["device", "ms_per_frame", "reference_macs"], key)
    ms_per_frame, frame_macs = table.numbers("ms_per_frame"), table.numbers("reference_macs")
    table.require("ms_per_frame", ms_per_frame > 0, ABOVE_ZERO)
    table.require("reference_macs", frame_macs > 0, ABOVE_ZERO)
    if reference_macs is not None:
        table.require("reference_macs", frame_macs == reference_macs, f"{reference_macs:.0f}, as in {KEY}.cost")
    slower = table.numbers("training_factor") if "training_factor" in table.columns else np.ones(len(table.lines))
    if "training_factor" in table.columns:
        table.require("training_factor", slower > 0, ABOVE_ZERO)
    return table.columns["device"], frame_macs / (ms_per_frame / 1000), slower
