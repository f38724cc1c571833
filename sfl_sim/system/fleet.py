"""All the clients' devices and links, and the server's rate: the world in which one run takes place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sfl_sim.rng import stream
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.network import draw_links
from sfl_sim.system.per_client import per_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sfl_sim.system.links import RateTrace


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is fixed about the nodes during a run. Every list has one entry per client."""

    devices: list[str]
    macs_per_s: list[float]
    uplinks: list[RateTrace]
    downlinks: list[RateTrace]
    latency_s: list[float]
    server_macs_per_s: float

    @property
    def uplink_bps(self) -> list[float]:
        """The uplinks' mean rates, for reports."""
        return [link.mean_bps for link in self.uplinks]

    @property
    def downlink_bps(self) -> list[float]:
        """The downlinks' mean rates, for reports."""
        return [link.mean_bps for link in self.downlinks]


def build_fleet(
    n_clients: int, seed: int, compute: Mapping[str, Any], network: Mapping[str, Any], speedup: float
) -> Fleet:
    """Draw the fleet of a run: `compute` and `network` hold the options of `draw_devices` and `draw_links`.

    The server needs, for a multiply-accumulate, 1/`speedup` of the seconds that a client needs on average
    (SMoFi, Eq. 13: T_srv = work * s_mean / gamma). A mean of seconds, not of rates: slow clients weigh most.

    Raises:
        ScenarioError: an option cannot be used.
    """
    (gamma,) = per_client(speedup, 1, "server.speedup")
    devices, macs_per_s = draw_devices(n_clients, stream(seed, "devices"), **compute)
    uplinks, downlinks, latency_s = draw_links(n_clients, stream(seed, "links"), **network)
    return Fleet(
        devices,
        macs_per_s.tolist(),
        uplinks,
        downlinks,
        latency_s.tolist(),
        server_macs_per_s=float(gamma / np.mean(1 / macs_per_s)),
    )
