"""Topology between the clients' own links and the server: a graph of links that many clients share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.files import MAX_TABLE_BYTES, read_text
from sfl_sim.scenario.optional_sections import Shared, UpAndDown
from sfl_sim.system.profiles import ProfileTable, read_table

KEY = "clients.network.shared"
COLUMNS = ("from", "to", "capacity_bps")
SERVER = "server"
BACKHAUL = "backhaul"
SITES = "sites"
"""Node from which, behind the backhaul, ways without a limit lead to all servers of the first tier."""


class Topology:
    """Links that messages pass between the clients' own links and their servers. They do not change.

    A message takes a path with the fewest edges; of several such paths, always the same.

    Args:
        graph: directed graph whose nodes are `server`, `client0`, `client1`, ..., the servers of tiers (`edge1`, ...)
            and any other names. An edge may have a `capacity_bps` above 0; without one it has no limit. One that is
            `half` shares its limit with the edge in the other direction.
        n_clients: number of clients, all of which must be connected in both directions to every server of the first
            tier, or to the main server if there are no tiers.
        tiers: names of the servers of each tier, from the clients up; each must be connected to all of the next one.
        covers_all: whether it has the links between tiers, too.
        tier: of whose servers the numbers are, which then stand in the place of clients.

    Attributes:
        edges: edges of the graph that have a limit; paths consist of their numbers.
        capacity_bps: limits of these edges.

    Raises:
        ScenarioError: there is no path from a client to a server, or back.
    """

    def __init__(
        self,
        graph: nx.DiGraph[str],
        n_clients: int,
        tiers: Sequence[Sequence[str]] = (),
        covers_all: bool = False,
        tier: str = "",
    ) -> None:
        capacities = {(start, end): about.get("capacity_bps") for start, end, about in graph.edges(data=True)}
        limits = {edge: float(capacity) for edge, capacity in capacities.items() if capacity is not None}
        self.edges = tuple(limits)
        self.capacity_bps = tuple(limits.values())
        self.covers_all = covers_all
        self._numbers = {edge: number for number, edge in enumerate(limits)}
        in_turn = [edge for edge in limits if graph.edges[edge].get("half")]
        self._numbers |= {(end, start): self._numbers[start, end] for start, end in in_turn}
        self._up: dict[str, Mapping[str, list[str]]] = {}
        self._down: dict[str, Mapping[str, list[str]]] = {}
        clients = [_name(number, tier) for number in range(n_clients)]
        levels = [clients, *tiers, [SERVER]] if covers_all or not tiers else [clients, tiers[0]]
        for below, above in pairwise(levels):
            for server in above:
                self._up[server] = nx.single_target_shortest_path(graph, server)
                self._down[server] = nx.single_source_shortest_path(graph, server)
                where = "the server" if server == SERVER else server
                for ways, problem in (
                    (self._up, f"no path from this {{}} to {where}"),
                    (self._down, f"no way from {where} to this {{}}"),
                ):
                    if missing := next((name for name in below if name not in ways[server]), None):
                        of = "client" if below is clients else "server"
                        raise ScenarioError(problem.format(of), key=f"{KEY}.file", found=missing)

    def path(self, sender: int | None, receiver: int | None, server: str = SERVER, tier: str = "") -> tuple[int, ...]:
        """Return the numbers of the `edges` that a message passes: up from a client, and down to a client.

        Args:
            sender, receiver: None is the server, through which clients send to each other.
            server: its name.
            tier: of whose servers the numbers are, instead of clients.
        """
        up, down = (None if one is None else _name(one, tier) for one in (sender, receiver))
        return (() if up is None else self._path(self._up, up, server)) + (
            () if down is None else self._path(self._down, down, server)
        )

    def _path(self, ways: Mapping[str, Mapping[str, list[str]]], name: str, server: str) -> tuple[int, ...]:
        return tuple(self._numbers[edge] for edge in pairwise(ways[server][name]) if edge in self._numbers)


def client_name(client: int) -> str:
    """Return the name of the client's node."""
    return f"client{client}"


def _name(number: int, tier: str) -> str:
    return f"{tier}{number + 1}" if tier else client_name(number)


def build_topology(
    n_clients: int, rng: np.random.Generator, shared: Shared, tiers: Sequence[Sequence[str]] = (), tier: str = ""
) -> Topology:
    """Build the graph in a user's file, or one of access points with a common backhaul.

    Clients are assigned to the access points at random and evenly: numbers of clients differ by at most 1.

    Args:
        tiers: names of the servers of each tier, from the clients up; the backhaul leads to those of the first.
        tier: as for `Topology`.

    Raises:
        ScenarioError: an unusable file.
    """
    if shared.file is not None:
        return Topology(_read_graph(Path(shared.file), n_clients), n_clients, tiers, covers_all=True)
    access_points = shared.access_points
    assert access_points is not None, "a section has access points or a file"
    graph: nx.DiGraph[str] = nx.DiGraph()
    if tiers:
        _connect(graph, BACKHAUL, SITES, shared.backhaul_bps)
        for server in tiers[0]:
            _connect(graph, SITES, server, None)
    else:
        _connect(graph, BACKHAUL, SERVER, shared.backhaul_bps)
    for client, draw in enumerate(rng.permutation(n_clients).tolist()):
        access_point = f"access_point{draw % access_points}"
        _connect(graph, _name(client, tier), access_point, None)
        _connect(graph, access_point, BACKHAUL, shared.capacity_bps)
        if shared.duplex != "full" and isinstance(shared.capacity_bps, float):
            graph.edges[BACKHAUL, access_point].update(capacity_bps=None)
            graph.edges[access_point, BACKHAUL]["half"] = True
    return Topology(graph, n_clients, tiers, tier=tier)


def _connect(graph: nx.DiGraph[str], below: str, above: str, capacity_bps: float | UpAndDown | None) -> None:
    """Add an edge in each direction, each with its capacity; None is no limit."""
    up_bps = capacity_bps.up if isinstance(capacity_bps, UpAndDown) else capacity_bps
    down_bps = capacity_bps.down if isinstance(capacity_bps, UpAndDown) else capacity_bps
    graph.add_edge(below, above, capacity_bps=up_bps)
    graph.add_edge(above, below, capacity_bps=down_bps)


def _read_graph(file: Path, n_clients: int) -> nx.DiGraph[str]:
    """Read a graph: edges from a CSV file, GraphML, or node-link JSON; an empty or missing capacity is no limit."""
    key = f"{KEY}.file"
    if file.suffix in (".graphml", ".json"):
        text = read_text(file, MAX_TABLE_BYTES, key)
        try:
            graph = (
                nx.parse_graphml(text)
                if file.suffix == ".graphml"
                else nx.node_link_graph(json.loads(text), edges="edges")
            )
        except (nx.NetworkXError, SyntaxError, LookupError, TypeError, ValueError) as error:
            raise ScenarioError("cannot be read as a graph", key=key, file=str(file), found=str(error)) from error
        graph = nx.DiGraph(graph)
        rows = [
            {"from": start, "to": end, "capacity_bps": graph.edges[start, end].get("capacity_bps")}
            for start, end in graph.edges
        ]
        table = ProfileTable(
            file,
            key,
            [0] * len(rows),
            {name: ["" if row[name] is None else str(row[name]) for row in rows] for name in COLUMNS},
        )
    else:
        table = read_table(file, COLUMNS, key)
    return _graph(table, n_clients)


def _graph(table: ProfileTable, n_clients: int) -> nx.DiGraph[str]:
    starts, ends, limits = (table.columns[column] for column in COLUMNS)
    clients = set(map(client_name, range(n_clients)))
    for column in ("from", "to"):
        known = [name in clients if name.startswith("client") else name != "" for name in table.columns[column]]
        table.require(column, np.array(known), f"{SERVER}, client0 to client{n_clients - 1}, or a name of your own")
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node(SERVER)
    new = []
    for start, end in zip(starts, ends, strict=True):
        new.append(start != end and not graph.has_edge(start, end))
        graph.add_edge(start, end)
    table.require("to", np.array(new), "another node than in column 'from', and no edge twice")
    limited = _rows(table, [row for row, cell in enumerate(limits) if cell])
    capacity_bps = limited.numbers("capacity_bps")
    limited.require("capacity_bps", capacity_bps > 0, "a number above 0, or nothing: no limit")
    for start, end, limit in zip(limited.columns["from"], limited.columns["to"], capacity_bps.tolist(), strict=True):
        graph.edges[start, end]["capacity_bps"] = limit
    return graph


def _rows(table: ProfileTable, chosen: list[int]) -> ProfileTable:
    columns = {name: [cells[row] for row in chosen] for name, cells in table.columns.items()}
    return replace(table, lines=[table.lines[row] for row in chosen], columns=columns)
