"""Estimates of the clients' speeds, for methods that adapt their demands to them before a round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sfl_sim.data.batches import ClientData
from sfl_sim.methods.wire import Wire
from sfl_sim.models.network import Network
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import BITS_PER_BYTE


class SecondsPerSample:
    """Estimated seconds per sample of each client: both passes of its part-1, and both directions of its links; without
    a split, both passes of the whole network.

    Links have their mean rates; latency, loading of samples, queues and jitter are left out.

    Attributes:
        asked: True once an estimate has been asked for, so that operations depend on the clients' speeds.
    """

    def __init__(self, network: Network, cuts: Sequence[int], data: ClientData, fleet: Fleet, wire: Wire) -> None:
        self.asked = False
        self._wire = wire
        self._part1 = cache(lambda cut: network.part(0, cut))
        self._cuts = cuts
        self._whole = len(network)
        self._data = data
        self._fleet = fleet

    def __call__(self, c: int) -> float:
        """Give the seconds per sample of client `c`."""
        self.asked = True
        batch_size, fleet = self._data.size(c), self._fleet
        part = self._part1(self._cuts[c] if self._cuts else self._whole)
        device_s = fleet.processors[c].seconds(part.work(batch_size, passes=3))
        if not self._cuts:
            return device_s / batch_size
        up_bytes, down_bytes = self._wire.crossing_bytes(part, batch_size)
        links_s = up_bytes / fleet.uplinks[c].mean_bps + down_bytes / fleet.downlinks[c].mean_bps
        return (device_s + BITS_PER_BYTE * links_s) / batch_size
