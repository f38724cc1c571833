"""What the clients draw from their batteries: watts while they compute, send, receive and wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfl_sim.errors import ScenarioError
from sfl_sim.system.per_client import PerClient, per_client
from sfl_sim.system.profiles import available, find, read_table

if TYPE_CHECKING:
    from pathlib import Path

KEY = "clients.power"
WATT, JOULE = 1e-3, 1e-9
"""Of a profile's units: mW, and mW at 1 Mbit/s, which is nJ a bit."""


@dataclass(frozen=True, slots=True)
class Power:
    """The powers of a fleet. Every list has one entry per client.

    A transfer takes its direction's watts for as long as it lasts, and its direction's joules for every bit.

    Attributes:
        compute_w: while the device computes.
        idle_w: while a client takes part in a round and neither computes nor sends nor receives.
    """

    compute_w: list[float]
    uplink_w: list[float]
    downlink_w: list[float]
    uplink_joule_per_bit: list[float]
    downlink_joule_per_bit: list[float]
    idle_w: list[float]


def read_power(
    n: int,
    compute_w: PerClient,
    radio: str | Path | None = None,
    uplink_w: PerClient | None = None,
    downlink_w: PerClient | None = None,
    idle_w: PerClient = 0.0,
) -> Power:
    """The powers of n clients (one number for all, or one per client), with a radio profile or given watts.

    The profile's radio draws, at a throughput t, base + alpha * t, where alpha depends on the direction (Huang et al.,
    MobiSys 2012, Table 4): base for as long as a transfer lasts, and alpha for every bit, however fast it passes. A
    radio that sends and receives at once counts as two.

    Raises:
        ScenarioError: an unusable profile or number, or nothing that says what the radio draws.
    """
    uplink_joule_per_bit = downlink_joule_per_bit = 0.0
    if radio is not None:
        uplink_w, uplink_joule_per_bit, downlink_joule_per_bit = _read_radio(radio)
        downlink_w = uplink_w
    if uplink_w is None or downlink_w is None:
        raise ScenarioError("needs a radio, or uplink_w and downlink_w", key=KEY, allowed=available("power"))
    return Power(
        compute_w=per_client(compute_w, n, f"{KEY}.compute_w").tolist(),
        uplink_w=per_client(uplink_w, n, f"{KEY}.uplink_w").tolist(),
        downlink_w=per_client(downlink_w, n, f"{KEY}.downlink_w").tolist(),
        uplink_joule_per_bit=[uplink_joule_per_bit] * n,
        downlink_joule_per_bit=[downlink_joule_per_bit] * n,
        idle_w=per_client(idle_w, n, f"{KEY}.idle_w", zero_allowed=True).tolist(),
    )


def _read_radio(radio: str | Path) -> tuple[float, float, float]:
    """Base power in watts, and joules per bit sent and received."""
    key = f"{KEY}.radio"
    columns = {"base_mw": WATT, "uplink_mw_per_mbps": JOULE, "downlink_mw_per_mbps": JOULE}
    path = find("power", radio, key)
    table = read_table(path, list(columns), key)
    if len(table.lines) > 1:
        raise ScenarioError("a second row", key=key, file=str(path), line=table.lines[1], allowed="one row")
    for column in columns:
        table.require(column, table.numbers(column) > 0, "a number above 0")
    base_w, up, down = (float(unit * table.numbers(column)[0]) for column, unit in columns.items())
    return base_w, up, down
