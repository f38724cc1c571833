"""What a server can know about its clients before a round: estimates for methods that suit their demands to them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sfl_sim.models.network import Network
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Value
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import BITS_PER_BYTE
from sfl_sim.training.steps import Forward


class SecondsPerSample:
    """Of any client: forward and backward pass of its part-1, and both ways over its links at their mean rates.

    A server would measure as much, as the mean over a client's past mini-batches; no queue is in it, nor what varies.

    Attributes:
        asked: whether anybody wanted to know, so that what is done depends on how fast the clients are.
    """

    def __init__(self, network: Network, cuts: Sequence[int], batch_size: int, fleet: Fleet) -> None:
        self.asked = False
        self._part1 = cache(lambda cut: Replica(network.part(0, cut)))
        self._cuts = cuts
        self._batch_size = batch_size
        self._fleet = fleet

    def __call__(self, c: int) -> float:
        """Seconds per sample of client `c`."""
        self.asked = True
        batch_size, fleet, replica = self._batch_size, self._fleet, self._part1(self._cuts[c])
        up_bytes = Forward().out(replica, Value("batch", samples=batch_size)).size_bytes
        down_bytes = batch_size * replica.part.out_numel * replica.part.wire_dtype.itemsize
        device_s = fleet.processors[c].seconds(replica.part.work(batch_size, passes=3))
        links_s = up_bytes / fleet.uplinks[c].mean_bps + down_bytes / fleet.downlinks[c].mean_bps
        return (device_s + BITS_PER_BYTE * links_s) / batch_size
