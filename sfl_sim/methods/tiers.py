"""Tiers of servers in methods: whom each server serves, flows at another server, and averages from tier to tier.

Hierarchical averaging: 2412.07197 and 2603.08687 (docs/methods/several_servers.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from sfl_sim.models.replica import Replica
from sfl_sim.ops import (
    AGGREGATOR,
    SERVER,
    Expect,
    Flow,
    Lost,
    Node,
    On,
    Par,
    Send,
    ServerNode,
    Start,
    Work,
    aggregator_of,
    on,
    par,
    present,
    send,
)
from sfl_sim.training.steps import Average


@dataclass(frozen=True)
class ServedTier:
    """A tier of servers, as methods know it.

    Attributes:
        servers: its servers.
        above: of each of them the server of the tier above; the main server above the last tier.
        cut: the last layer that it holds; None: it holds all that clients do not.
        every: number of rounds after which what its servers have learned is averaged.
        down: what becomes of the clients of a server that is down when a round begins.
    """

    servers: Sequence[ServerNode]
    above: Sequence[ServerNode]
    cut: int | None = None
    every: int = 1
    down: Literal["wait", "move", "drop"] = "wait"


@dataclass(frozen=True)
class Tiers:
    """Servers between clients and the main server.

    Attributes:
        tiers: from the clients up.
        homes: gives for a round the server of the first tier that serves each client.
    """

    tiers: Sequence[ServedTier] = ()
    homes: Callable[[int], Sequence[ServerNode]] = lambda round: ()

    def way(self, server: ServerNode) -> list[ServerNode]:
        """List the servers from one of the first tier up to the main server."""
        way = [server]
        for tier in self.tiers:
            way.append(tier.above[tier.servers.index(way[-1])])
        return way

    def groups(self, round: int, clients: Sequence[int]) -> Flow:
        """Give the clients that each server of the first tier serves in a round, in cyclic order.

        Where clients do not wait for a server that is down, they go to the one with the fewest, or are left out; the
        round begins once there is anybody.
        """
        first, homes = self.tiers[0], self.homes(round)
        groups: dict[ServerNode, list[int]] = {server: [] for server in first.servers}
        for c in clients:
            groups[homes[c]].append(c)
        if first.down == "wait":
            return groups
        up = yield present([server for server in first.servers if groups[server] or first.down == "move"])
        stranded = [c for c in clients if homes[c] not in up]
        groups = {server: groups[server] for server in up}
        if first.down == "move":
            for c in stranded:
                min(groups.values(), key=len).append(c)
            place = {c: k for k, c in enumerate(clients)}
            groups = {server: sorted(group, key=place.__getitem__) for server, group in groups.items()}
        return groups


def relocated(flow: Flow, server: ServerNode) -> Flow:
    """Run a flow with another server in the place of the main one."""
    there: dict[Node, ServerNode] = {SERVER: server, AGGREGATOR: aggregator_of(server)}
    result: Any = None
    error: Lost | None = None
    while True:
        try:
            op = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as stop:
            return stop.value
        if isinstance(op, Expect):
            op.node = there[op.node]
        elif isinstance(op, On):
            op.node = there.get(op.node, op.node)
        elif isinstance(op, Send):
            op.src, op.dst = there.get(op.src, op.src), there.get(op.dst, op.dst)
        elif isinstance(op, Par):
            op.flows = [relocated(inner, server) for inner in op.flows]
        elif isinstance(op, Start):
            op.flow = relocated(op.flow, server)
        result = error = None
        try:
            result = yield op
        except Lost as lost:
            error = lost


class Adopt(Average):
    """Set the state to a replica that has come down."""

    name = "adopt"

    def work(self, into: Replica, replicas: Sequence[Replica], shares: Sequence[float]) -> Work:
        return Work.of(0)


class Tree:
    """Copies of a model's parts at servers of all tiers, which are averaged from tier to tier.

    Args:
        tiers: the tiers.
        parts: by server, also the main one, the parts of which it holds a copy, by their number.
        clients_hold: number of the parts that clients hold, which the aggregators average.
    """

    def __init__(
        self, tiers: Tiers, parts: Mapping[ServerNode, Mapping[int, Replica]], clients_hold: Callable[[], int]
    ) -> None:
        self.tiers = tiers
        self.parts = parts
        self.clients_hold = clients_hold
        self.weights: dict[ServerNode, float] = {}
        """Samples with which each server of the first tier has trained since the last average."""
        self.is_even = True
        """True while all copies of a part are equal."""

    def count(self, weights: Mapping[ServerNode, float]) -> None:
        """Count the weight that each server of the first tier, which has trained, has in the next average."""
        self.is_even = False
        for server, weight in weights.items():
            self.weights[server] = self.weights.get(server, 0.0) + weight

    def node(self, server: ServerNode, number: int) -> ServerNode:
        """Give the node at a server's place that averages a part."""
        return aggregator_of(server) if number < self.clients_hold() else server

    def average(self, round: int) -> Flow:
        """Average up all tiers that are due in this round, then send down what has come of it."""
        weights, averaged = self.weights, []
        for level, tier in enumerate(self.tiers.tiers):
            if round % prod(below.every for below in self.tiers.tiers[: level + 1]):
                break
            weights = yield from self._up(tier, weights)
            averaged.append(tier)
        for tier in reversed(averaged):
            yield par(self._down(low, high) for low, high in zip(tier.servers, tier.above, strict=True))
        if averaged:
            self.weights = {}
        self.is_even = len(averaged) == len(self.tiers.tiers)

    def _up(self, tier: ServedTier, weights: Mapping[ServerNode, float]) -> Flow:
        """Average a tier's copies at the servers above; gives the weights of these."""
        sent = yield par(self._send(low, high) for low, high in zip(tier.servers, tier.above, strict=True))
        of_each = [weights.get(server, 0.0) for server in tier.servers]
        total = summed(tier, of_each)
        for high in total:
            below = [k for k, above in enumerate(tier.above) if above == high]
            shares = [of_each[k] / total[high] for k in below] if total[high] else []
            for number in sent[below[0]] if shares else ():
                copies = [sent[k][number] for k in below]
                yield on(self.node(high, number), Average(), self.parts[high][number], copies, shares)
        return total

    def _send(self, low: ServerNode, high: ServerNode) -> Flow:
        copies = {}
        for number, part in self.parts[low].items():
            copies[number] = yield send(part, self.node(low, number), self.node(high, number))
        return copies

    def _down(self, low: ServerNode, high: ServerNode) -> Flow:
        for number, part in self.parts[low].items():
            whole = self.parts[high][number]
            copy = yield send(whole, self.node(high, number), self.node(low, number))
            yield on(self.node(low, number), Adopt(), part, [copy], [1.0])

    def whole(self, weights: Mapping[ServerNode, float]) -> list[Replica]:
        """Give the average of all copies if it were taken now, part by part; `weights` are of the first tier."""
        if self.is_even:
            return [*self.parts[SERVER].values()]
        averages: dict[int, Replica] = {}
        for tier in self.tiers.tiers:
            of_each = [weights.get(server, 0.0) for server in tier.servers]
            for number in self.parts[tier.servers[0]].keys() - averages.keys():
                averages[number] = _averaged([self.parts[server][number] for server in tier.servers], of_each)
            weights = summed(tier, of_each)
        return [averages.get(number, part) for number, part in self.parts[SERVER].items()]


def summed(tier: ServedTier, of_each: Sequence[float]) -> dict[ServerNode, float]:
    """Sum the weights of a tier's servers by the server above."""
    total: dict[ServerNode, float] = {}
    for high, weight in zip(tier.above, of_each, strict=True):
        total[high] = total.get(high, 0.0) + weight
    return total


def _averaged(replicas: Sequence[Replica], weights: Sequence[float]) -> Replica:
    if len(replicas) == 1:
        return replicas[0]
    if any(replica.content is None for replica in replicas):
        return replicas[0].envelope()
    total = sum(weights)
    return Replica.averaged(replicas, [weight / total for weight in weights])
