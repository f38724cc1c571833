"""Nodes of a fleet, the links between them, and whose operation is whose."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import AGGREGATOR, SERVER, Node, On, ServerNode, Value, aggregator_of
from sfl_sim.store import places
from sfl_sim.system.cost import Processor
from sfl_sim.system.fleet import Fleet, ServerTier
from sfl_sim.system.presence import Presence


class Link(NamedTuple):
    """What a message takes from one node to another: the uplink of a client, the downlink of a client, or both.

    Between a server and the tier above, the server stands in the place of the client, in the fleet of its tier.

    Attributes:
        place: its name in records.
        client: the client that records name: the sender if it is one.
        uplink_of, downlink_of: the clients at its ends; None at a server.
        tier: name of the tier of the lower server; empty if a client is at an end.
        server: place of the server at its end, or of the upper server.
        reach_s: latency beyond that of the clients' own links.
        up: when the server at its end is up; None if always.
    """

    place: str
    client: int
    uplink_of: int | None = None
    downlink_of: int | None = None
    tier: str = ""
    server: str = places.SERVER
    reach_s: float = 0.0
    up: Presence | None = None

    @property
    def ends(self) -> list[int]:
        """The clients at its ends, the receiver first."""
        return [client for client in (self.downlink_of, self.uplink_of) if client is not None]


def link_between(src: Node, dst: Node) -> Link | None:
    """Give the link between a client and the main server, or between clients; None if a message needs none."""
    if isinstance(src, ServerNode):
        return None if isinstance(dst, ServerNode) else Link(places.DOWNLINK, dst, downlink_of=dst)
    if isinstance(dst, ServerNode):
        return Link(places.UPLINK, src, uplink_of=src)
    return None if src == dst else Link(places.PEER, src, src, dst)


class Nodes(dict[Node, Processor]):
    """The nodes of a fleet, and their processors. A node that is not there is refused when it is first named.

    Attributes:
        links: by sender and receiver, the link between two nodes; None if a message needs none.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(dict.fromkeys((SERVER, AGGREGATOR), fleet.server))
        for tier in fleet.tiers.values():
            for node, processor in zip(tier.nodes, tier.servers.processors, strict=True):
                self |= {node: processor, aggregator_of(node): processor}
        self.links = _LinksByEnds(self, fleet.tiers)
        self._of_clients = fleet.processors

    def __missing__(self, node: Any) -> Processor:
        client, last = int(node) if isinstance(node, Integral) else -1, len(self._of_clients) - 1
        if not 0 <= client <= last:
            allowed = [f"clients 0 to {last}", *dict.fromkeys(repr(one) for one in self if isinstance(one, ServerNode))]
            raise ScenarioError(f"a flow names node {node!r}, which does not exist", allowed=allowed)
        processor = self[node] = self._of_clients[client]
        return processor

    def check(self, *nodes: Node) -> None:
        """Raise ScenarioError if one of the `nodes` is not there."""
        for node in nodes:
            self[node]


class _LinksByEnds(dict[tuple[Node, Node], Link | None]):
    """Links between nodes; those between clients, which may be very many, are made anew each time."""

    def __init__(self, nodes: Nodes, tiers: Mapping[str, ServerTier]) -> None:
        self._nodes = nodes
        self._first = next(iter(tiers.values()), None)
        self._at = {str(node): (tier, k) for tier in tiers.values() for k, node in enumerate(tier.nodes)}

    def __missing__(self, ends: tuple[Node, Node]) -> Link | None:
        self._nodes.check(*ends)
        link = link_between(*ends)
        if any(isinstance(node, ServerNode) for node in ends):
            if self._at:
                link = self._tiered(link, *ends)
            self[ends] = link
        return link

    def _tiered(self, link: Link | None, src: Node, dst: Node) -> Link | None:
        """Give the link between two nodes where there are tiers. Raises ScenarioError if they are no neighbours."""
        servers = [node.place for node in (src, dst) if isinstance(node, ServerNode)]
        if link is not None:
            tier, k = self._at.get(servers[0], (None, 0))
            if tier is not None and tier is self._first:
                reach_s = 0.0 if tier.reach_s is None else float(tier.reach_s[link.client, k])
                return link._replace(server=servers[0], reach_s=reach_s, up=self._presence(servers[0]))
        elif servers[0] == servers[1]:
            return None
        for low, high in (servers, servers[::-1]) if link is None else ():
            tier, k = self._at.get(low, (None, 0))
            if tier is not None and tier.above[k].place == high:
                up, down = (k, None) if low == servers[0] else (None, k)
                there = self._presence(high)
                return Link(places.BACKBONE, places.NOBODY, up, down, tier.name, server=high, up=there)
        problem = f"a flow sends from {src!r} to {dst!r}, between which there is no link: messages go from tier to tier"
        raise ScenarioError(problem, key="servers")

    def _presence(self, place: str) -> Presence | None:
        tier, k = self._at.get(place, (None, 0))
        return tier.servers.presence[k] if tier is not None and tier.servers.presence else None


def client_of(op: On) -> int:
    """Return the client of an operation: of the device, or of a job at a server; `NOBODY` if it belongs to none.

    A job belongs to the maker of the first value that its step takes.
    """
    if not isinstance(op.node, ServerNode):
        return op.node
    for argument in op.args:
        if isinstance(argument, Value):
            return owner(argument)
    return places.NOBODY


def owner(value: Value) -> int:
    """Return the client that made a value, or `NOBODY`."""
    maker = value.maker
    return places.NOBODY if maker is None or isinstance(maker, ServerNode) else maker


def maker_of(op: On) -> Node:
    """Return the maker of an operation's result: its node, or the client whose job at a server it is."""
    client = client_of(op)
    return op.node if client == places.NOBODY else client
