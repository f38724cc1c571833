"""The resources of each client: a device and two links, each of which serves one operation at a time, as requested."""

from __future__ import annotations

from math import inf

from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.nodes import Link
from sfl_sim.sim.prices import Prices

Slot = tuple[float, float, float]
"""Start of a service, its seconds, and the instant at which it is lost; infinity if it is done by then."""


class ClientResources:
    """Devices and links of all clients, taken by one operation after another.

    Args:
        seed: of the run; jitter has a random stream for every client.
    """

    def __init__(self, prices: Prices, dropouts: Dropouts, seed: int) -> None:
        self.prices = prices
        self.dropouts = dropouts
        n, conditions = len(prices.fleet.macs_per_s), prices.fleet.conditions
        self._devices = None if conditions is None else conditions.begin(n, seed)
        self._device_free_s = [0.0] * n
        self._uplink_free_s = [0.0] * n
        self._downlink_free_s = [0.0] * n

    def compute(self, client: int, requested_s: float, service_s: float) -> Slot:
        """Occupy the client's device for `service_s` of work."""
        free_s = self._device_free_s[client]
        started_s = free_s if free_s > requested_s else requested_s
        if self._devices is not None:
            service_s = self._devices.seconds(client, started_s, service_s)
        if self.prices.fleet.presence is not None:
            service_s = self.prices.device_s(client, started_s, service_s)
        lost_s = self.dropouts.at_s(client, requested_s) if self.dropouts.are_possible else inf
        ended_s = started_s + service_s
        if ended_s <= lost_s:
            self._device_free_s[client] = ended_s
            return started_s, service_s, inf
        self._device_free_s[client] = lost_s
        return min(started_s, lost_s), service_s, lost_s

    def move(self, link: Link, requested_s: float, size_bytes: int) -> Slot:
        """Occupy a link, once the sender's uplink and the receiver's downlink are free."""
        _, _, sender, receiver, _, _, _, _ = link
        started_s = requested_s
        if sender is not None and self._uplink_free_s[sender] > started_s:
            started_s = self._uplink_free_s[sender]
        if receiver is not None and self._downlink_free_s[receiver] > started_s:
            started_s = self._downlink_free_s[receiver]
        lost_s = self.dropouts.message_at_s(link.ends, requested_s) if self.dropouts.are_possible else inf
        taken_s, latency_s = self.prices.transfer_s(link, started_s, size_bytes, lost_s)
        lasts_s, until_s = taken_s + latency_s, started_s + taken_s
        if started_s + lasts_s <= lost_s:
            lost_s = inf
        elif until_s > lost_s:
            until_s = lost_s
        # an operation that is lost while it waits frees no busy link
        if sender is not None and self._uplink_free_s[sender] < until_s:
            self._uplink_free_s[sender] = until_s
        if receiver is not None and self._downlink_free_s[receiver] < until_s:
            self._downlink_free_s[receiver] = until_s
        return (started_s, lasts_s, inf) if lost_s == inf else (min(started_s, lost_s), lasts_s, lost_s)

    def stop(self, client: int, now_s: float) -> None:
        """Free the client's device and links, whose operations are lost now."""
        for free_s in (self._device_free_s, self._uplink_free_s, self._downlink_free_s):
            free_s[client] = min(free_s[client], now_s)
