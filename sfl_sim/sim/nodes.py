"""Nodes of a fleet, the links between them, and whose operation is whose."""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import AGGREGATOR, SERVER, Node, On, ServerNode, Value
from sfl_sim.store import places
from sfl_sim.system.cost import Processor
from sfl_sim.system.fleet import Fleet


class Link(NamedTuple):
    """What a message takes from one node to another: the uplink of a client, the downlink of a client, or both.

    Attributes:
        place: its name in records.
        client: the client that records name: the sender if it is one.
        uplink_of, downlink_of: the clients at its ends; None at a server.
    """

    place: str
    client: int
    uplink_of: int | None = None
    downlink_of: int | None = None

    @property
    def ends(self) -> list[int]:
        """The clients at its ends, the receiver first."""
        return [client for client in (self.downlink_of, self.uplink_of) if client is not None]


def link_between(src: Node, dst: Node) -> Link | None:
    """Give the link from `src` to `dst`; None if a message needs none: at one node, or between servers."""
    if isinstance(src, ServerNode):
        return None if isinstance(dst, ServerNode) else Link(places.DOWNLINK, dst, downlink_of=dst)
    if isinstance(dst, ServerNode):
        return Link(places.UPLINK, src, uplink_of=src)
    return None if src == dst else Link(places.PEER, src, src, dst)


class Nodes(dict[Node, Processor]):
    """The nodes of a fleet, and their processors. A node that is not there is refused when it is first named.

    Attributes:
        links: by sender and receiver, the link between two nodes, as `link_between`.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(dict.fromkeys((SERVER, AGGREGATOR), fleet.server))
        self.links = _Links(self)
        self._of_clients = fleet.processors

    def __missing__(self, node: Any) -> Processor:
        client, last = int(node) if isinstance(node, Integral) else -1, len(self._of_clients) - 1
        if not 0 <= client <= last:
            allowed = [f"clients 0 to {last}", *(repr(one) for one in self if isinstance(one, ServerNode))]
            raise ScenarioError(f"a flow names node {node!r}, which does not exist", allowed=allowed)
        processor = self[node] = self._of_clients[client]
        return processor


class _Links(dict[tuple[Node, Node], Link | None]):
    """Links between nodes; those between clients, which may be very many, are made anew each time."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def __missing__(self, ends: tuple[Node, Node]) -> Link | None:
        for node in ends:
            self._nodes[node]  # which refuses one that is not there
        link = link_between(*ends)
        if any(isinstance(node, ServerNode) for node in ends):
            self[ends] = link
        return link


def client_of(op: On) -> int:
    """Give the client of an operation: of the device, or of a job at a server; `NOBODY` if it belongs to none.

    A job belongs to the maker of the first value that its step takes.
    """
    if not isinstance(op.node, ServerNode):
        return op.node
    for argument in op.args:
        if isinstance(argument, Value):
            maker = argument.maker
            return places.NOBODY if maker is None or isinstance(maker, ServerNode) else maker
    return places.NOBODY
