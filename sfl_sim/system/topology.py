"""Topology between the clients' own links and the server: a graph of links that many clients share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.optional_sections import Directions, Shared
from sfl_sim.system.profiles import Table, read_table

KEY = "clients.network.shared"
COLUMNS = ("from", "to", "capacity_bps")
SERVER = "server"
BACKHAUL = "backhaul"


class Topology:
    """Links that messages pass between the clients' own links and the server. They do not change.

    A message takes a path with the fewest edges; of several such paths, always the same.

    Args:
        graph: directed graph whose nodes are `server`, `client0`, `client1`, ... and any other names. An edge may
            have a `capacity_bps` above 0; without one it has no limit. One that is `half` shares its limit with the
            edge in the other direction.
        n_clients: number of clients, all of which must be connected to the server in both directions.

    Attributes:
        edges: edges of the graph that have a limit; paths consist of their numbers.
        capacity_bps: limits of these edges.

    Raises:
        ScenarioError: there is no path from a client to the server, or back.
    """

    def __init__(self, graph: nx.DiGraph[str], n_clients: int) -> None:
        capacities = {(start, end): about.get("capacity_bps") for start, end, about in graph.edges(data=True)}
        limits = {edge: float(capacity) for edge, capacity in capacities.items() if capacity is not None}
        self.edges = tuple(limits)
        self.capacity_bps = tuple(limits.values())
        numbers = {edge: number for number, edge in enumerate(limits)}

        def paths(ways: Mapping[str, list[str]], problem: str) -> tuple[tuple[int, ...], ...]:
            missing = next((name for name in map(client_name, range(n_clients)) if name not in ways), None)
            if missing:
                raise ScenarioError(problem, key=f"{KEY}.file", found=missing)
            edges = (pairwise(ways[client_name(client)]) for client in range(n_clients))
            return tuple(tuple(numbers[edge] for edge in path if edge in numbers) for path in edges)

        in_turn = [edge for edge in limits if graph.edges[edge].get("half")]
        numbers |= {(end, start): numbers[start, end] for start, end in in_turn}

        self._up = paths(nx.single_target_shortest_path(graph, SERVER), "no path from this client to the server")
        self._down = paths(nx.single_source_shortest_path(graph, SERVER), "no way from the server to this client")

    def path(self, sender: int | None, receiver: int | None) -> tuple[int, ...]:
        """Return the numbers of the `edges` that a message passes: up from a client, and down to a client.

        None is the server, through which clients send to each other.
        """
        return (() if sender is None else self._up[sender]) + (() if receiver is None else self._down[receiver])


def client_name(client: int) -> str:
    """Return the name of the client's node."""
    return f"client{client}"


def build_topology(n_clients: int, rng: np.random.Generator, shared: Shared) -> Topology:
    """Build the graph in a user's file, or one of access points with a common backhaul.

    Clients are assigned to the access points at random and evenly: numbers of clients differ by at most 1.

    Raises:
        ScenarioError: an unusable file.
    """
    if shared.file is not None:
        return Topology(_read_graph(Path(shared.file), n_clients), n_clients)
    access_points = shared.access_points
    assert access_points is not None, "a section has access points or a file"
    graph: nx.DiGraph[str] = nx.DiGraph()
    _connect(graph, BACKHAUL, SERVER, shared.backhaul_bps)
    for client, draw in enumerate(rng.permutation(n_clients).tolist()):
        access_point = f"access_point{draw % access_points}"
        _connect(graph, client_name(client), access_point, None)
        _connect(graph, access_point, BACKHAUL, shared.capacity_bps)
        if shared.duplex != "full" and isinstance(shared.capacity_bps, float):
            graph.edges[BACKHAUL, access_point].update(capacity_bps=None)
            graph.edges[access_point, BACKHAUL]["half"] = True
    return Topology(graph, n_clients)


def _connect(graph: nx.DiGraph[str], below: str, above: str, capacity_bps: float | Directions | None) -> None:
    """Add an edge in each direction, each with its capacity; None is no limit."""
    up_bps = capacity_bps.up if isinstance(capacity_bps, Directions) else capacity_bps
    down_bps = capacity_bps.down if isinstance(capacity_bps, Directions) else capacity_bps
    graph.add_edge(below, above, capacity_bps=up_bps)
    graph.add_edge(above, below, capacity_bps=down_bps)


def _read_graph(file: Path, n_clients: int) -> nx.DiGraph[str]:
    """Read edges from a CSV file; an empty capacity is no limit."""
    table = read_table(file, COLUMNS, f"{KEY}.file")
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


def _rows(table: Table, chosen: list[int]) -> Table:
    columns = {name: [cells[row] for row in chosen] for name, cells in table.columns.items()}
    return replace(table, lines=[table.lines[row] for row in chosen], columns=columns)
