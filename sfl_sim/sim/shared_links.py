"""Links that many clients share: each message on its way gets a max-min fair share of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, count
from math import inf
from typing import TYPE_CHECKING

import simpy

from sfl_sim.sim.nodes import Link
from sfl_sim.sim.station import LAST
from sfl_sim.system.links import BITS_PER_BYTE

if TYPE_CHECKING:
    from sfl_sim.system.topology import Topology  # imports networkx

SAME_INSTANT = 1e-12
"""Relative tolerance within which two instants are the same: rounding alone may separate them."""
UNITS_PER_BPS, MAX_BPS = 2.0**64, 1e30
"""Rates are added up as whole numbers of a unit, so that sums are exact whoever has come and gone; none is higher."""


def units(rate_bps: float) -> int:
    """Give a rate as a whole number of units, of which it is a multiple if it is at least 0.01 bit/s."""
    return int(min(rate_bps, MAX_BPS) * UNITS_PER_BPS)


RatePieces = Iterator[tuple[float, float]]
"""Pairs of the end of a constant piece and its rate in bit/s."""


@dataclass(slots=True, eq=False)
class _Transfer:
    """A message, from its request on. It moves at its own limit, or at the level of its path if that is lower.

    Attributes:
        then: called with its start and the number of bytes that have moved, once it is over.
        queues: at the clients' own links that it takes: it moves once it is the first in all of them.
        limit, limit_bps: rate that the clients' own links allow, until `limit_ends_s`; in units, and in bit/s.
        bits: that it had left at `since_s`.
        ends_s: instant at which its last bit has passed, if it moves at its own limit.
        mark: else, the bits that its path has given to each by then.
        changes_s: the instant of `next_s` that is foreseen.
    """

    number: int
    link: Link
    size_bytes: float
    until_s: float
    then: Callable[[float, float], None]
    queues: list[deque[_Transfer]]
    started_s: float = inf
    path: _Path = field(init=False)
    pieces: RatePieces = field(init=False)
    limit: int = 0
    limit_bps: float = 0.0
    limit_ends_s: float = -inf
    bits: float = 0.0
    since_s: float = 0.0
    ends_s: float = inf
    mark: float | None = None
    changes_s: float = inf

    def bits_left(self, now_s: float) -> float:
        if now_s == self.since_s:
            return self.bits
        if self.mark is None:
            return max(0.0, self.bits - self.limit_bps * (now_s - self.since_s))
        return max(0.0, self.mark - self.path.given_bits(now_s))

    def next_s(self, now_s: float) -> float:
        """Return the earliest instant at which it or its limit ends, of those that it does not share with its path."""
        return min(self.ends_s, self.until_s, self.limit_ends_s)

    def is_done(self, now_s: float, done_s: float) -> bool:
        return (self.ends_s if self.mark is None else self.path.gives_s(self.mark, now_s)) <= done_s

    def renew_limit(self, now_s: float) -> None:
        while self.limit_ends_s <= now_s * (1 + SAME_INSTANT):
            self.limit_ends_s, self.limit_bps = next(self.pieces)
        self.limit = units(self.limit_bps)

    def keep_to_limit(self, now_s: float, bits: float) -> None:
        self.bits, self.since_s, self.mark = bits, now_s, None
        self.ends_s = now_s + bits / self.limit_bps if self.limit_bps else inf


class _Path:
    """The messages that pass the same edges: those with the lowest limits move at these, all others at one level.

    A message at the level need not be looked at as the level changes: it ends when the path has given its bits, which
    are the integral of the level, to each.

    Attributes:
        moving: the messages by their limit, in units: (limit, number, message).
        n_held, held: the number of those that move at their own limits, and the sum of these.
        marks: a heap of the ends of the others, (mark, number, message), and of some that have become invalid.
        changes_s: the instant of `next_s` that is foreseen.
    """

    def __init__(self, number: int, edges: tuple[int, ...]) -> None:
        self.number, self.edges = number, edges
        self.moving: list[tuple[int, int, _Transfer]] = []
        self.n_held = self.held = 0
        self.marks: list[tuple[float, int, _Transfer]] = []
        self.changes_s = inf
        self.level = self.level_bps = self._given_bits = self._since_s = 0.0

    def given_bits(self, now_s: float) -> float:
        return self._given_bits + self.level_bps * (now_s - self._since_s)

    def gives_s(self, mark: float, now_s: float) -> float:
        """Return the instant at which so many bits have been given, if the level stays."""
        return now_s + (mark - self.given_bits(now_s)) / self.level_bps if self.level_bps else inf

    def add(self, message: _Transfer, now_s: float, bits: float) -> None:
        entry = message.limit, message.number, message
        position = bisect_left(self.moving, entry)
        self.moving.insert(position, entry)
        if position < self.n_held:
            self.n_held += 1
            self.held += message.limit
            message.keep_to_limit(now_s, bits)
        elif message.mark is None:
            self.keep_to_level(message, now_s, bits)

    def remove(self, message: _Transfer) -> None:
        position = bisect_left(self.moving, (message.limit, message.number))
        del self.moving[position]
        if position < self.n_held:
            self.n_held -= 1
            self.held -= message.limit

    def keep_to_level(self, message: _Transfer, now_s: float, bits: float) -> None:
        message.bits, message.since_s, message.ends_s = bits, now_s, inf
        message.mark = self.given_bits(now_s) + bits
        heappush(self.marks, (message.mark, message.number, message))

    def next_s(self, now_s: float) -> float:
        """Return the next instant at which a message ends that moves at the level."""
        while self.marks and self.marks[0][2].mark != self.marks[0][0]:
            heappop(self.marks)
        return self.gives_s(self.marks[0][0], now_s) if self.marks else inf

    def rise_to(self, level: float) -> None:
        """Count those as held whose limits are at most `level`, in units."""
        moving = self.moving
        while self.n_held < len(moving) and (limit := moving[self.n_held][0]) <= level:
            self.n_held += 1
            self.held += limit
        while self.n_held and (limit := moving[self.n_held - 1][0]) > level:
            self.n_held -= 1
            self.held -= limit

    def set_level(self, level: float, n_held: int, now_s: float) -> list[_Transfer]:
        """Let messages move at a new `level`, in units, of which `n_held` were held; gives those that change."""
        if level != self.level:
            self._given_bits, self._since_s, self.level = self.given_bits(now_s), now_s, level
            self.level_bps = 0.0 if level == inf else level / UNITS_PER_BPS
        held, free = self.moving[n_held : self.n_held], self.moving[self.n_held : n_held]
        for *_, message in held:
            message.keep_to_limit(now_s, message.bits_left(now_s))
        for *_, message in free:
            self.keep_to_level(message, now_s, message.bits_left(now_s))
        return [message for *_, message in held or free]


class SharedLinks:
    """Messages move at max-min fair rates, set anew when one starts or ends or a client's own link changes.

    They are set for the messages that share an edge with it, and for those that share one with these, and so on.

    A client's own uplink and downlink carry one message at a time, in the order of request; a message starts once the
    sender's uplink and the receiver's downlink are free. From then on it is one of those that share the topology.

    Args:
        pieces: rates that the clients' own links allow a message from an instant on: constant pieces, which may be 0,
            of which the last lasts for ever.
    """

    def __init__(self, env: simpy.Environment, topology: Topology, pieces: Callable[[Link, float], RatePieces]) -> None:
        self.env = env
        self.topology = topology
        self.pieces = pieces
        self._capacity = [units(capacity_bps) for capacity_bps in topology.capacity_bps]
        self._queues = defaultdict[tuple[str, str, int], deque[_Transfer]](deque)
        self._paths: dict[tuple[int, ...], _Path] = {}
        self._over = defaultdict[int, dict[_Path, None]](dict)
        """Paths with messages over each edge."""
        self._touched: dict[_Path, None] = {}
        """Paths whose messages or limits have changed since rates were set."""
        self._changes: list[tuple[float, int, _Transfer | _Path]] = []
        """A heap of instants, of which those are valid that still stand in `changes_s`."""
        self._alone: dict[int, float] = {}
        """Levels of edges as `fair_levels` knows them."""
        self._many = 1000
        self._numbers = count()
        self._settling: simpy.Event | None = None
        self._settles_s = inf

    def transfer(
        self, link: Link, size_bytes: float, then: Callable[[float, float], None], until_s: float = inf
    ) -> None:
        """Move `size_bytes` over a `link`, or as many as can be moved by `until_s`.

        Then calls `then` with the start and the number of bytes moved: `size_bytes` exactly if all have.

        Raises ScenarioError if the clients' own links are never open at the same time.
        """
        ends = ("up", link.uplink_of), ("down", link.downlink_of)
        queues = [self._queues[link.tier, way, client] for way, client in ends if client is not None]
        message = _Transfer(next(self._numbers), link, size_bytes, until_s, then, queues)
        for queue in queues:
            queue.append(message)
        if not self._start(message) and until_s < inf:
            patience = self.env.timeout(max(0.0, until_s - self.env.now))
            patience.callbacks.append(lambda _: self._give_up(message))

    def latency_s(self, link: Link) -> float:
        """Give the seconds that a message takes on the shared links on top of its bytes."""
        return self.topology.latency_s(*_way(link))

    def _start(self, message: _Transfer) -> bool:
        """Start a message, if its own links are free for it."""
        if not all(queue[0] is message for queue in message.queues):
            return False
        message.started_s = now_s = self.env.now
        if not message.size_bytes or now_s >= message.until_s:
            self.env.timeout(0.0).callbacks.append(lambda _: self._end(message, 0.0))
            return True
        edges = self.topology.path(*_way(message.link))
        if edges not in self._paths:
            self._paths[edges] = path = _Path(next(self._numbers), edges)
            for edge in edges:
                self._over[edge][path] = None
        message.path = self._paths[edges]
        message.pieces = self.pieces(message.link, now_s)
        self._put(message, now_s, BITS_PER_BYTE * message.size_bytes)
        self._settle_by(now_s)
        return True

    def _put(self, message: _Transfer, now_s: float, bits: float) -> None:
        """Let a message move on its path, with the limit that its own links have from now on."""
        message.renew_limit(now_s)
        message.path.add(message, now_s, bits)
        self._touched[message.path] = None
        self._foresee(message, now_s)

    def _remove(self, message: _Transfer) -> None:
        path = message.path
        path.remove(message)
        message.mark, message.changes_s = None, inf
        self._touched[path] = None
        if not path.moving:
            path.changes_s = inf
            del self._paths[path.edges]
            for edge in set(path.edges):
                del self._over[edge][path]

    def _end(self, message: _Transfer, moved_bytes: float) -> None:
        """Say that a message is over, and let those start that have waited for its own links."""
        message.started_s = min(message.started_s, self.env.now)
        for queue in message.queues:
            queue.remove(message)
        for queue in message.queues:
            if queue and queue[0].started_s == inf:
                self._start(queue[0])
        message.then(message.started_s, moved_bytes)

    def _give_up(self, message: _Transfer) -> None:
        if message.started_s == inf:
            self._end(message, 0.0)

    def _foresee(self, it: _Transfer | _Path, now_s: float) -> None:
        at_s = it.next_s(now_s)
        if at_s != it.changes_s:
            it.changes_s = at_s
            if at_s < inf:
                heappush(self._changes, (at_s, it.number, it))
                if len(self._changes) > self._many:  # those that became invalid are forgotten
                    self._changes = [change for change in self._changes if change[2].changes_s == change[0]]
                    heapify(self._changes)
                    self._many = 1000 + 2 * len(self._changes)

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
        over = sorted(self._due(now_s, done_s), key=lambda message: (message.link.client, message.number))
        left = [0.0 if message.is_done(now_s, done_s) else message.bits_left(now_s) for message in over]
        for message in over:
            self._remove(message)
        for message, bits in zip(over, left, strict=True):
            self._end(message, message.size_bytes - bits / BITS_PER_BYTE)
        if over and self.env.peek() <= now_s:
            self._settle_by(now_s)
            return
        if self._touched:
            self._share(now_s)
        while self._changes and self._changes[0][2].changes_s != self._changes[0][0]:
            heappop(self._changes)
        if self._changes:
            self._settle_by(max(now_s, self._changes[0][0]))

    def _due(self, now_s: float, done_s: float) -> dict[_Transfer, None]:
        """Return the messages that end by `done_s`, and renew the limits that do."""
        over: dict[_Transfer, None] = {}
        while self._changes and self._changes[0][0] <= done_s:
            at_s, _, it = heappop(self._changes)
            if it.changes_s != at_s:
                continue
            it.changes_s = inf
            if isinstance(it, _Path):
                self._touched[it] = None
                while it.next_s(now_s) <= done_s:
                    over[heappop(it.marks)[2]] = None
            elif it.until_s <= done_s or it.is_done(now_s, done_s):
                over[it] = None
            else:
                bits = it.bits_left(now_s)
                it.path.remove(it)
                self._put(it, now_s, bits)
        return over

    def _share(self, now_s: float) -> None:
        for edge in chain.from_iterable(path.edges for path in self._touched):
            self._alone.pop(edge, None)
        paths, touched, self._touched = self._depending(), self._touched, {}
        was_held = [path.n_held for path in paths]
        levels = fair_levels(paths, self._capacity, self._alone)
        for path, n_held, level in zip(paths, was_held, levels, strict=True):
            if level != path.level or path in touched:
                for message in path.set_level(level, n_held, now_s):
                    self._foresee(message, now_s)
                self._foresee(path, now_s)

    def _depending(self) -> list[_Path]:
        """Return the paths whose levels depend on those that were touched, themselves included if they are used."""
        paths, edges = dict(self._touched), set[int]()
        waiting = list(paths)
        for path in waiting:
            for edge in set(path.edges) - edges:
                edges.add(edge)
                new = [other for other in self._over[edge] if other not in paths]
                waiting += new
                paths |= dict.fromkeys(new)
        return [path for path in waiting if path.moving]


def _way(link: Link) -> tuple[int | None, int | None, str, str]:
    return link.uplink_of, link.downlink_of, link.server, link.tier


def fair_levels(paths: Sequence[_Path], capacity: Sequence[int], alone: dict[int, float]) -> list[float]:
    """Give the level of each path that makes rates max-min fair: none can grow but at the cost of one not faster.

    Progressive filling (Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2): the rates of all messages rise
    together. A message stops at its own limit, or when an edge on its path is full; the others rise on.

    Args:
        paths: whose messages share edges; an edge listed twice counts twice. In the end those are held that should be.
        capacity: of each edge, in units.
        alone: the levels at which edges are full if no other one is, if known; those that were unknown are added.
    """
    over = defaultdict[int, list[_Path]](list)
    for path in paths:
        for edge in path.edges:
            over[edge].append(path)
    for edge in over.keys() - alone.keys():
        alone[edge] = _level_when_full(over[edge], capacity[edge])
    free: dict[int, float] = {edge: capacity[edge] for edge in over}
    full = sorted((alone[edge], edge) for edge in over if alone[edge] < inf)
    levels: dict[_Path, float] = {}
    while full and len(levels) < len(paths):
        level, edge = heappop(full)
        rising = [path for path in over[edge] if path not in levels]
        if free[edge] < capacity[edge]:
            level = _level_when_full(rising, free[edge])
        if full and inf > level > full[0][0]:
            heappush(full, (level, edge))  # another edge is full before
        elif level < inf:
            for path in dict.fromkeys(rising):
                levels[path] = level
                path.rise_to(level)
                for passed in path.edges:
                    free[passed] -= path.held + (len(path.moving) - path.n_held) * level
    for path in paths:
        path.rise_to(levels.setdefault(path, inf))
    return [levels[path] for path in paths]


def _level_when_full(paths: Sequence[_Path], capacity: float) -> float:
    """Return the level, in units, at which the messages on the paths need a capacity; inf if they never do.

    Newton's method: what they need bends downwards as the level rises, so steps from below never go too far, and end.
    """
    n, level = sum(len(path.moving) for path in paths), -1.0
    while True:
        n_free, left = n, capacity
        for path in paths:
            n_free -= path.n_held
            left -= path.held
        if not n_free and left >= 0:
            return inf
        next_level = max(capacity // n, left // n_free if n_free else 0)
        if next_level == level:
            return level
        level = next_level
        for path in paths:
            path.rise_to(level)
