"""Powers of the clients: watts while they compute, send, receive and wait."""

from dataclasses import dataclass

from sfl_sim.scenario import optional_sections as sections
from sfl_sim.system.profiles import find, per_client, read_row

KEY = "clients.power"
WATT, JOULE = 1e-3, 1e-9
"""Watts and joules per bit in a profile's units: mW, and mW at 1 Mbit/s, which is nJ per bit."""


@dataclass(frozen=True, slots=True)
class Power:
    """Powers of a fleet. Every list has one entry per client.

    A transfer takes its direction's watts for as long as it lasts, and its direction's joules for every bit.

    Attributes:
        compute_w: power while the device computes.
        uplink_w, downlink_w: power while the client sends, and while it receives.
        uplink_joule_per_bit, downlink_joule_per_bit: additional energy of every bit sent, and received.
        idle_w: power while a client takes part in a round and neither computes nor sends nor receives.
    """

    compute_w: list[float]
    uplink_w: list[float]
    downlink_w: list[float]
    uplink_joule_per_bit: list[float]
    downlink_joule_per_bit: list[float]
    idle_w: list[float]


def read_power(n: int, section: sections.PowerSection) -> Power:
    """Make the powers of n clients, with a radio profile or given watts.

    The profile's radio draws, at a throughput t, base + alpha * t, where alpha depends on the direction (Huang et al.,
    MobiSys 2012, Table 4): base for as long as a transfer lasts, and alpha for every bit, however fast it passes. A
    radio that sends and receives at once counts as two.

    Raises ScenarioError for an unusable profile or number.
    """
    uplink_w, downlink_w = section.uplink_w, section.downlink_w
    uplink_joule_per_bit = downlink_joule_per_bit = 0.0
    if section.radio is not None:
        uplink_w, uplink_joule_per_bit, downlink_joule_per_bit = _read_radio(section.radio)
        downlink_w = uplink_w
    assert uplink_w is not None, "a section has a radio or both watts"
    assert downlink_w is not None, "a section has a radio or both watts"
    return Power(
        compute_w=per_client(section.compute_w, n, f"{KEY}.compute_w").tolist(),
        uplink_w=per_client(uplink_w, n, f"{KEY}.uplink_w").tolist(),
        downlink_w=per_client(downlink_w, n, f"{KEY}.downlink_w").tolist(),
        uplink_joule_per_bit=[uplink_joule_per_bit] * n,
        downlink_joule_per_bit=[downlink_joule_per_bit] * n,
        idle_w=per_client(section.idle_w, n, f"{KEY}.idle_w", zero_allowed=True).tolist(),
    )


def _read_radio(radio: str) -> tuple[float, float, float]:
    """Read the base power in watts, and the joules per bit sent and received."""
    key = f"{KEY}.radio"
    columns = {"base_mw": WATT, "uplink_mw_per_mbps": JOULE, "downlink_mw_per_mbps": JOULE}
    table = read_row(find("power", radio, key), list(columns), key)
    for column in columns:
        table.require(column, table.numbers(column) > 0, "a number above 0")
    base_w, up, down = (float(unit * table.numbers(column)[0]) for column, unit in columns.items())
    return base_w, up, down
