"""Devices of the clients: their names, and their rates in multiply-accumulates (MACs) per second."""

import numpy as np

from sfl_sim.scenario.sections import Compute
from sfl_sim.system.profiles import FloatArray, find, per_client, read_table

KEY = "clients.compute"
ABOVE_ZERO = "a number above 0"


def draw_devices(
    n: int, rng: np.random.Generator, compute: Compute, reference_macs: float | None = None
) -> tuple[list[str], FloatArray, FloatArray]:
    """Give each of n clients a device: its name, its rate in MAC/s, and its training factor.

    Each client draws a row of the profile, uniformly and with replacement. Given rates replace the profile; the devices
    are then named `given`. A cost profile needs rates that were measured with its own reference network, which has
    `reference_macs`. Training takes the training factor times as long as the rates say; without one, what the
    profile's column of this name says, or as long.

    Raises ScenarioError for an unusable profile or number, or another reference network.
    """
    given = compute.training_factor
    factors = None if given is None else per_client(given, n, f"{KEY}.training_factor")
    if compute.profile is None:
        assert compute.macs_per_s is not None, "a section has a profile or a rate"
        rates = compute.scale * per_client(compute.macs_per_s, n, f"{KEY}.macs_per_s")
        return ["given"] * n, rates, np.ones(n) if factors is None else factors
    names, rates, measured_factors = _read_devices(compute.profile, reference_macs)
    rows = rng.integers(len(names), size=n)
    factors = measured_factors[rows] if factors is None else factors
    return [names[row] for row in rows], compute.scale * rates[rows], factors


def _read_devices(profile: str, reference_macs: float | None) -> tuple[list[str], FloatArray, FloatArray]:
    """Read the names of a profile's devices, their rates (MACs over seconds per frame), and their training factors."""
    key = f"{KEY}.profile"
    table = read_table(find("devices", profile, key), ["device", "ms_per_frame", "reference_macs"], key)
    ms_per_frame, frame_macs = table.numbers("ms_per_frame"), table.numbers("reference_macs")
    table.require("ms_per_frame", ms_per_frame > 0, ABOVE_ZERO)
    table.require("reference_macs", frame_macs > 0, ABOVE_ZERO)
    if reference_macs is not None:
        table.require("reference_macs", frame_macs == reference_macs, f"{reference_macs:.0f}, as in {KEY}.cost")
    factors = np.ones(len(table.lines))
    if "training_factor" in table.columns:
        factors = table.numbers("training_factor")
        table.require("training_factor", factors > 0, ABOVE_ZERO)
    return table.columns["device"], frame_macs / (ms_per_frame / 1000), factors
