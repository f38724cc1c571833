"""Topology between the clients' own links and the server: a graph of links that many clients share."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np

from sfl_sim.errors import USUAL_NAMES, ScenarioError
from sfl_sim.scenario.files import MAX_TABLE_BYTES, read_json, read_text
from sfl_sim.scenario.optional_sections import Shared, UpAndDown
from sfl_sim.system.profiles import ProfileTable, read_table

KEY = "clients.network.shared"
FILE_KEY = f"{KEY}.file"
COLUMNS = ("from", "to", "capacity_bps")
KNOWN = {"capacity_bps": "a number above 0, or nothing: no limit", "latency_s": "a number of 0 or above, or nothing: 0"}
"""What a file may say of an edge in numbers: bits per second, and seconds of a message on top of its bytes."""
LABELS = ("id", "key", "name", "label")
"""What tools write beside an edge to tell it from others, which may be numbers too."""
MAX_TOLD = 10
"""Number of a graph's nodes that an error names."""
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
            `half` shares its limit with the edge in the other direction. It may have a `latency_s`, too.
        n_clients: number of clients, all of which must be connected in both directions to every server of the first
            tier, or to the main server if there are no tiers.
        tiers: names of the servers of each tier, from the clients up; each must be connected to all of the next one.
        covers_all: whether it has the links between tiers, too.
        tier: of whose servers the numbers are, which then stand in the place of clients.

    Attributes:
        edges: edges of the graph that have a limit; paths consist of their numbers.
        capacity_bps: limits of these edges.

    Raises ScenarioError if there is no path from a client to a server, or back.
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
        self._latency_s: dict[tuple[str, str], float] = {
            (start, end): about["latency_s"] for start, end, about in graph.edges(data=True) if about.get("latency_s")
        }
        self._up: dict[str, Mapping[str, list[str]]] = {}
        self._down: dict[str, Mapping[str, list[str]]] = {}
        clients = [_name(number, tier) for number in range(n_clients)]
        levels = [clients, *tiers, [SERVER]] if covers_all or not tiers else [clients, tiers[0]]
        for below, above in pairwise(levels):
            for server in above:
                graph.add_node(server)
                self._up[server] = nx.single_target_shortest_path(graph, server)
                self._down[server] = nx.single_source_shortest_path(graph, server)
                where = "the server" if server == SERVER else server
                for ways, problem in (
                    (self._up, f"no path from this {{}} to {where}"),
                    (self._down, f"no way from {where} to this {{}}"),
                ):
                    if missing := next((name for name in below if name not in ways[server]), None):
                        of = "client" if below is clients else "server"
                        raise ScenarioError(problem.format(of), key=FILE_KEY, found=missing)

    def path(self, sender: int | None, receiver: int | None, server: str = SERVER, tier: str = "") -> tuple[int, ...]:
        """Return the numbers of the `edges` that a message passes: up from a client, and down to a client.

        Args:
            sender, receiver: None is the server, through which clients send to each other.
            server: its name.
            tier: of whose servers the numbers are, instead of clients.
        """
        passed = self._passed(sender, receiver, server, tier)
        return tuple(self._numbers[edge] for edge in passed if edge in self._numbers)

    def latency_s(self, sender: int | None, receiver: int | None, server: str = SERVER, tier: str = "") -> float:
        """Return the seconds that the edges on a message's path add to the time of its bytes, as for `path`."""
        passed = self._passed(sender, receiver, server, tier) if self._latency_s else []
        return sum(self._latency_s.get(edge, 0.0) for edge in passed)

    @cached_property
    def without_latency(self) -> Topology:
        """The same links without latency: always the same object, since tiers that share links share one."""
        found = copy.copy(self)
        found._latency_s = {}
        return found

    def _passed(self, sender: int | None, receiver: int | None, server: str, tier: str) -> list[tuple[str, str]]:
        up = [] if sender is None else self._up[server][_name(sender, tier)]
        down = [] if receiver is None else self._down[server][_name(receiver, tier)]
        return [*pairwise(up), *pairwise(down)]


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

    Raises ScenarioError for an unusable file.
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
    form = file.suffix.lower()
    if form not in (".graphml", ".json"):
        return _graph(read_table(file, COLUMNS, FILE_KEY), n_clients)
    edges, is_directed = (_of_graphml if form == ".graphml" else _of_json)(file)
    both = edges if is_directed else [*edges, *((end, start, about) for start, end, about in edges if start != end)]
    names = dict.fromkeys([*COLUMNS, *(name for *_, about in both for name in about)])
    rows = [{**about, "from": start, "to": end} for start, end, about in both]
    cells = {name: ["" if row.get(name) is None else str(row[name]) for row in rows] for name in names}
    return _graph(ProfileTable(file, FILE_KEY, [None] * len(rows), cells), n_clients)


Edges = list[tuple[str, str, dict[str, object]]]
"""Ends of edges, and what is known of each."""


def _of_graphml(file: Path) -> tuple[Edges, bool]:
    """Read the edges of a file, and whether they are directed."""
    text = read_text(file, MAX_TABLE_BYTES, FILE_KEY)
    try:
        graph = nx.parse_graphml(text)
    except (nx.NetworkXError, SyntaxError, LookupError, TypeError, ValueError) as error:
        raise ScenarioError("cannot be read as a graph", key=FILE_KEY, file=str(file), found=str(error)) from error
    usual = graph.graph.pop("edge_default", {})  # networkx keeps them beside the edges
    _check_beside(file, [graph.graph, *graph.nodes.values()])
    return [(start, end, usual | about) for start, end, about in graph.edges(data=True)], graph.is_directed()


def _of_json(file: Path) -> tuple[Edges, bool]:
    """Read the edges of a file, which are under `edges`, or `links` as D3 and older networkx write them."""
    data = read_json(file, MAX_TABLE_BYTES, FILE_KEY)
    error = partial(ScenarioError, key=FILE_KEY, file=str(file))
    given = [name for name in ("edges", "links") if isinstance(data, dict) and name in data]
    if len(given) != 1:
        raise error("needs the edges of its graph under one key", found=given, allowed="edges, or links")
    nodes, edges = data.get("nodes", []), data[given[0]]
    if not all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in (nodes, edges)):
        raise error("needs lists of mappings", found=f"nodes, {given[0]}")
    about = data.get("graph", {})
    _check_beside(file, [data, *([about] if isinstance(about, dict) else []), *nodes])
    if not isinstance(is_directed := data.get("directed", False), bool):
        raise error("says in no clear words whether edges are directed", found=is_directed, allowed="true or false")
    ids = {str(node.get("id")) for node in nodes}
    read: Edges = []
    for number, edge in enumerate(edges):
        about = dict(edge)
        start, end = (str(about.pop(name, None)) for name in ("source", "target"))
        if missing := next((name for name in (start, end) if name not in ids), None):
            raise error(f"edge {number} has an end that is no node", found=missing, allowed=sorted(ids)[:MAX_TOLD])
        read.append((start, end, about))
    return read, is_directed


def _check_beside(file: Path, places: Iterable[Mapping[str, object]]) -> None:
    """Raise ScenarioError if a node, or the graph, has what only edges can have, also by one of its usual names."""
    for name in (name for place in places for name, value in place.items() if value is not None):
        if KNOWN.keys() & {name, *USUAL_NAMES.get(name.casefold(), ())}:
            problem = "is known of edges alone, and not of nodes or of the graph"
            raise ScenarioError(problem, key=FILE_KEY, file=str(file), found=name, allowed=KNOWN)


def _graph(table: ProfileTable, n_clients: int) -> nx.DiGraph[str]:
    starts, ends = table.columns["from"], table.columns["to"]
    clients = set(map(client_name, range(n_clients)))
    for column in ("from", "to"):
        known = [_is_node(name, clients) for name in table.columns[column]]
        table.require(column, np.array(known), f"{SERVER}, client0 to client{n_clients - 1}, or a name of your own")
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node(SERVER)
    new = []
    for start, end in zip(starts, ends, strict=True):
        new.append(start != end and not graph.has_edge(start, end))
        graph.add_edge(start, end)
    table.require("to", np.array(new), "another node than in column 'from', and no edge twice")
    table.require_no_others(KNOWN, ("from", "to", *LABELS))
    for name, allowed in KNOWN.items():
        cells = table.columns.get(name, [])
        told = _rows(table, [row for row, cell in enumerate(cells) if cell])
        if not told.lines:
            continue
        numbers = told.numbers(name)
        told.require(name, numbers >= 0 if name == "latency_s" else numbers > 0, allowed)
        for start, end, number in zip(told.columns["from"], told.columns["to"], numbers.tolist(), strict=True):
            graph.edges[start, end][name] = number
    return graph


def _is_node(name: str, clients: Container[str]) -> bool:
    """Return False for no name, and for one that is meant as a client's or as the server's, and is none."""
    small = name.casefold()
    return name in clients if small.startswith("client") else name == SERVER if small == SERVER else name != ""


def _rows(table: ProfileTable, chosen: list[int]) -> ProfileTable:
    columns = {name: [cells[row] for row in chosen] for name, cells in table.columns.items()}
    return replace(table, lines=[table.lines[row] for row in chosen], columns=columns)
