"""Durations for the array clock: seconds, or what is known only when an operation begins.

Added to the start of an operation, a duration gives the operation's end; `sim/array_clock.py` does nothing else with
it. The ends equal those of the event loop to the last bit, since the same devices and links are asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sfl_sim.ops import ServerNode
from sfl_sim.sim.client_resources import ClientResources
from sfl_sim.sim.prices import Computing, Moving, Prices
from sfl_sim.sim.trace import Demand
from sfl_sim.system.links import RateTrace


class Foreseen:
    """Duration that depends on its start: over a link whose rate varies, of a client that goes away, with jitter.

    Add it once for every operation, in the order in which the client's device and links serve them.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self.seconds = seconds

    def __radd__(self, start_s: float) -> float:
        """Give the end of an operation that begins at `start_s`."""
        return start_s + self.seconds(start_s)


Duration = float | Foreseen


def duration_of(demand: Demand, prices: Prices, resources: ClientResources) -> Duration:
    """Give the duration of an operation that uses nothing but the device or the links of one client, or a server."""
    if demand is None:
        return 0.0
    fleet = prices.fleet
    if isinstance(demand, Computing):
        seconds = float(prices.seconds(demand))
        if isinstance(demand.node, ServerNode) or (fleet.conditions is None and fleet.presence is None):
            return seconds
        return Foreseen(partial(_computed_s, resources, demand.node, seconds))
    link = demand.link
    rate = (fleet.downlinks if link.uplink_of is None else fleet.uplinks)[link.client]
    if rate.pattern is None and fleet.presence is None:
        return float(prices.seconds(demand))
    if fleet.presence is None:
        return Foreseen(partial(_crossed_s, rate, prices.wire_bytes(demand.size_bytes), prices.latency_s(link)))
    return Foreseen(partial(_moved_s, resources, demand))


def _crossed_s(rate: RateTrace, size_bytes: float, latency_s: float, start_s: float) -> float:
    return rate.transfer_s(start_s, size_bytes) + latency_s


def _computed_s(resources: ClientResources, client: int, service_s: float, start_s: float) -> float:
    return resources.compute(client, start_s, service_s)[1]


def _moved_s(resources: ClientResources, demand: Moving, start_s: float) -> float:
    return resources.move(demand.link, start_s, demand.size_bytes)[1]
