"""Links that many clients share: each message on its way gets a max-min fair share of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import simpy

from sfl_sim.sim.nodes import Link
from sfl_sim.sim.station import LAST
from sfl_sim.system.links import BITS_PER_BYTE

if TYPE_CHECKING:
    from sfl_sim.system.topology import Topology

SAME_INSTANT = 1e-12
"""Relative tolerance within which two instants are the same: rounding alone may separate them."""

RatePieces = Iterator[tuple[float, float]]
"""Pairs of the end of a constant piece and its rate in bit/s."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """A message on its way: at `since_s` it had `bits` left, and since then it moves at `rate_bps`.

    Attributes:
        ended: event whose value is the number of bits that are left in the end.
        limit_bps: rate that its client's own links allow, until `limit_ends_s`.
        ends_s: instant at which its last bit has passed if the rate stays.
        changes_s: the earliest instant at which it ends, or at which its limit does.
    """

    client: int
    path: tuple[int, ...]
    pieces: RatePieces
    until_s: float
    ended: simpy.Event
    bits: float
    since_s: float
    rate_bps: float = 0.0
    ends_s: float = inf
    limit_bps: float = 0.0
    limit_ends_s: float = -inf
    changes_s: float = -inf

    def bits_left(self, now_s: float) -> float:
        return max(0.0, self.bits - self.rate_bps * (now_s - self.since_s))

    def renew_limit(self, now_s: float) -> None:
        if self.limit_ends_s <= now_s:
            while self.limit_ends_s <= now_s:
                self.limit_ends_s, self.limit_bps = next(self.pieces)
            self.changes_s = min(self.ends_s, self.until_s, self.limit_ends_s)

    def go_on(self, now_s: float, rate_bps: float) -> None:
        """Set the rate. An equal rate changes nothing, because the end would be rounded anew."""
        if rate_bps != self.rate_bps:
            self.bits, self.since_s, self.rate_bps = self.bits_left(now_s), now_s, rate_bps
            self.ends_s = now_s + self.bits / rate_bps if rate_bps else inf
            self.changes_s = min(self.ends_s, self.until_s, self.limit_ends_s)


class SharedLinks:
    """Messages move at max-min fair rates, found anew when one starts or ends or a client's own link changes.

    They are found for the messages that share an edge with it, and for those that share one with these, and so on.

    A client's own uplink and downlink carry one message at a time, in the order of request; a message starts once the
    sender's uplink and the receiver's downlink are free. From then on it is one of the flows that share the topology.

    Args:
        pieces: rates that the clients' own links allow a message from an instant on: constant pieces, which may be 0,
            of which the last lasts for ever.
    """

    def __init__(self, env: simpy.Environment, topology: Topology, pieces: Callable[[Link, float], RatePieces]) -> None:
        self.env = env
        self.topology = topology
        self.pieces = pieces
        self._uplinks, self._downlinks = (
            defaultdict[tuple[str, int], simpy.Resource](partial(simpy.Resource, env)) for _ in range(2)
        )
        self._flows: dict[_Transfer, None] = {}
        self._over = defaultdict[int, dict[_Transfer, None]](dict)
        """Flows over each edge."""
        self._ended: list[_Transfer] = []
        """Flows that have ended since rates were found."""
        self._settling: simpy.Event | None = None
        self._settles_s = inf

    def transfer(
        self, link: Link, size_bytes: float, until_s: float = inf
    ) -> Generator[simpy.Event, Any, tuple[float, float]]:
        """Move `size_bytes` over a `link`, or as many as can be moved by `until_s`.

        Gives the start and the number of bytes moved: `size_bytes` exactly if all have.

        Raises ScenarioError if the clients' own links are never open at the same time.
        """
        env = self.env
        with ExitStack() as own:
            requests = [own.enter_context(resource.request()) for resource in self._resources(link)]
            if not all(request.triggered for request in requests):
                free = simpy.AllOf(env, requests)
                yield free if until_s == inf else free | env.timeout(max(0.0, until_s - env.now))
            started_s = float(env.now)
            if not size_bytes or started_s >= until_s or not all(request.triggered for request in requests):
                return started_s, 0.0
            path = self.topology.path(*_way(link))
            pieces, bits = _joined(self.pieces(link, started_s), until_s), BITS_PER_BYTE * size_bytes
            flow = _Transfer(
                link.client, path, pieces, until_s=until_s, ended=env.event(), bits=bits, since_s=started_s
            )
            self._flows[flow] = None
            for edge in path:
                self._over[edge][flow] = None
            self._settle_by(started_s)
            yield flow.ended
            bits_left: Any = flow.ended.value
        return started_s, size_bytes - bits_left / BITS_PER_BYTE

    def latency_s(self, link: Link) -> float:
        """Give the seconds that a message takes on the shared links on top of its bytes."""
        return self.topology.latency_s(*_way(link))

    def _resources(self, link: Link) -> Iterator[simpy.Resource]:
        if link.uplink_of is not None:
            yield self._uplinks[link.tier, link.uplink_of]
        if link.downlink_of is not None:
            yield self._downlinks[link.tier, link.downlink_of]

    def _settle_by(self, at_s: float) -> None:
        """Schedule `_settle` for the end of the instant `at_s`, unless it is already scheduled for an earlier one."""
        if at_s < self._settles_s:
            self._settles_s = at_s
            self._settling = event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(self._settle)
            self.env.schedule(event, priority=LAST, delay=at_s - self.env.now)

    def _settle(self, event: simpy.Event) -> None:
        """End the messages that end now. Once their flows have gone on and no other ends, share the links anew."""
        if event is not self._settling:
            return  # something came before
        self._settles_s, now_s = inf, self.env.now
        done_s = now_s * (1 + SAME_INSTANT)
        changing = [flow for flow in self._flows if flow.changes_s <= done_s]
        over = [flow for flow in changing if flow.ends_s <= done_s or flow.until_s <= now_s]
        if over:
            for flow in sorted(over, key=attrgetter("client")):
                del self._flows[flow]
                for edge in set(flow.path):
                    del self._over[edge][flow]
                flow.ended.succeed(0.0 if flow.ends_s <= done_s else flow.bits_left(now_s))
            self._ended += over
            self._settle_by(now_s)
        elif self._flows:
            self._share(now_s, changing)
            self._settle_by(max(now_s, min(map(attrgetter("changes_s"), self._flows))))

    def _share(self, now_s: float, changing: Sequence[_Transfer]) -> None:
        flows = self._touched([*self._ended, *changing])
        self._ended = []
        for flow in flows:
            flow.renew_limit(now_s)
        paths, limits_bps = [flow.path for flow in flows], [flow.limit_bps for flow in flows]
        rates_bps = max_min_rates(paths, limits_bps, self.topology.capacity_bps)
        for flow, rate_bps in zip(flows, rates_bps, strict=True):
            flow.go_on(now_s, rate_bps)

    def _touched(self, changed: Sequence[_Transfer]) -> list[_Transfer]:
        """Return the flows whose rates depend on those of the `changed` ones, themselves included if they go on."""
        touched = dict.fromkeys(flow for flow in changed if flow in self._flows)
        edges = dict.fromkeys(chain.from_iterable(flow.path for flow in changed))
        waiting = list(edges)
        while waiting:
            for flow in self._over[waiting.pop()]:
                touched[flow] = None
                for edge in flow.path:
                    if edge not in edges:
                        edges[edge] = None
                        waiting.append(edge)
        return list(touched)


def _way(link: Link) -> tuple[int | None, int | None, str, str]:
    return link.uplink_of, link.downlink_of, link.server, link.tier


def max_min_rates(
    paths: Sequence[Sequence[int]], limits_bps: Sequence[float], capacity_bps: Sequence[float]
) -> list[float]:
    """Give the max-min fair rates of flows: none can grow except at the cost of one that is no faster.

    Progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2): the rates of all flows rise
    together. A flow stops when it reaches its own limit, or when an edge on its path is full; the others rise on. Plain
    Python, which for up to some 300 flows takes less time than incidence matrices do.

    Args:
        paths: the edges of each flow; an edge listed twice counts twice.
        limits_bps: of each flow, 0 or above.
        capacity_bps: of each edge, above 0.
    """
    free_bps = list(capacity_bps)
    rising = [0] * len(free_bps)
    for edge in chain.from_iterable(paths):
        rising[edge] += 1
    rates_bps: dict[int, float] = {}

    def stop(flow: int, rate_bps: float) -> None:
        rates_bps[flow] = rate_bps
        for edge in paths[flow]:
            free_bps[edge] -= rate_bps
            rising[edge] -= 1

    level_bps = 0.0  # no edge is full below it
    for flow in sorted(range(len(paths)), key=limits_bps.__getitem__):
        while flow not in rates_bps and limits_bps[flow] > level_bps:
            shares = ((free_bps[edge] / flows, edge) for edge, flows in enumerate(rising) if flows)
            level_bps, full = min(shares, default=(inf, -1))
            if limits_bps[flow] > level_bps:
                for other, path in enumerate(paths):
                    if full in path and other not in rates_bps:
                        stop(other, level_bps)
        if flow not in rates_bps:
            stop(flow, limits_bps[flow])
    return [rates_bps[flow] for flow in range(len(paths))]


def _joined(pieces: RatePieces, until_s: float) -> RatePieces:
    """Generate the pieces, with consecutive pieces of rate 0 joined to one; what comes after `until_s` nobody asks."""
    closed_s: float | None = None
    for ends_s, rate_bps in pieces:
        if not rate_bps:
            closed_s = ends_s
            if ends_s < until_s:
                continue
        if closed_s is not None:
            yield closed_s, 0.0
            closed_s = None
        if rate_bps:
            yield ends_s, rate_bps
    if closed_s is not None:
        yield closed_s, 0.0
