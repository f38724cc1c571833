"""Paths through access points and through graphs of a user's own; what cannot be used is refused in a line."""

import json
from collections import Counter

import networkx as nx
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Shared
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.system.fleet import build_fleet
from sfl_sim.system.topology import Topology, build_topology


def built(n, **section):
    return build_topology(n, stream(0, "access points"), Shared(**section))


def named(topology, sender=None, receiver=None):
    """The edges that a message passes, with their capacities; None is the server."""
    return [(*topology.edges[edge], topology.capacity_bps[edge]) for edge in topology.path(sender, receiver)]


def test_messages_pass_an_access_point_and_the_backhaul_and_those_between_clients_both_twice():
    topology = built(2, access_points=2, capacity_bps=5e6, duplex="full", backhaul_bps={"up": 1e6, "down": 2e6})
    (mine, *_), (*_, others) = named(topology, 0, None)[0], named(topology, None, 1)[1][:2]
    assert {mine, others} == {"access_point0", "access_point1"}
    up = [(mine, "backhaul", 5e6), ("backhaul", "server", 1e6)]
    down = [("server", "backhaul", 2e6), ("backhaul", others, 5e6)]
    assert (named(topology, 0, None), named(topology, None, 1)) == (up, down)
    assert named(topology, 0, 1) == up + down


def test_edges_without_a_limit_are_not_on_a_path():
    assert named(built(1, access_points=1, backhaul_bps=1e6), 0, None) == [("backhaul", "server", 1e6)]
    one = built(1, access_points=1, capacity_bps={"up": 1e6, "down": 2e6})
    assert named(one, None, 0) == [("backhaul", "access_point0", 2e6)]


def test_an_access_point_sends_and_receives_in_turn_unless_told_otherwise():
    half, full = built(1, access_points=1, capacity_bps=1e6), built(1, access_points=1, capacity_bps=1e6, duplex="full")
    assert half.path(0, None) == half.path(None, 0)
    assert half.path(0, 0) == half.path(0, None) * 2, "what goes from client to client passes the radio twice"
    assert set(full.path(0, None)).isdisjoint(full.path(None, 0))


def test_clients_are_dealt_evenly_and_at_random():
    topology = built(1000, access_points=7, capacity_bps=1e6)
    points = [topology.path(client, None) for client in range(1000)]
    assert set(Counter(points).values()) == {142, 143}
    together = sum(points[client] == points[client + 1] for client in range(999))
    assert together == pytest.approx(999 / 7, abs=45)  # four standard deviations
    again = build_topology(1000, stream(1, "access points"), Shared(access_points=7, capacity_bps=1e6))
    assert points != [again.path(client, None) for client in range(1000)]


def test_the_path_with_the_fewest_edges_is_taken_even_if_another_has_more_capacity():
    graph = nx.DiGraph()
    nx.add_path(graph, ["client0", "narrow", "server"], capacity_bps=1.0)
    nx.add_path(graph, ["client0", "wide", "wider", "server", "client0"], capacity_bps=9.0)
    assert named(Topology(graph, 1), 0, None) == [("client0", "narrow", 1.0), ("narrow", "server", 1.0)]


@pytest.fixture
def edges(tmp_path):
    """Writes a file of a user's own."""

    def write(*rows):
        path = tmp_path / "edges.csv"
        path.write_text("\n".join(["from,to,capacity_bps", *rows]))
        return path

    return write


ATTACHED = "client0,mast,", "mast,client0,"


def test_a_file_gives_any_graph(edges):
    path = edges(*ATTACHED, "mast,server,1e6", "server,mast,2e6", "client1,server,3e6", "server,client1,")
    topology = built(2, file=str(path))
    assert named(topology, 0, None) == [("mast", "server", 1e6)]
    assert named(topology, 1, 0) == [("client1", "server", 3e6), ("server", "mast", 2e6)]
    assert named(topology, None, 1) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (["server,client0,1e6"], r"shared\.file: no path from this client to the server \(found 'client0'\)"),
        (["client0,server,1e6"], r"shared\.file: no way from the server to this client \(found 'client0'\)"),
        ([*ATTACHED], r"no path from this client to the server \(found 'client0'\)"),
        (
            ["client1,server,1e6"],
            r"edges\.csv:2: .*column 'from'.*found 'client1'; allowed: server, client0 to client0",
        ),
        (["client0,client00,1"], r"edges\.csv:2: .*column 'to' cannot be used"),
        (["client0,,1e6"], r"edges\.csv:2: .*column 'to' cannot be used"),
        (["Client0,server,1e6"], r"edges\.csv:2: .*column 'from'.*found 'Client0'"),
        (["client0,SERVER,1e6"], r"edges\.csv:2: .*column 'to'.*found 'SERVER'"),
        (["client0,server,10 MB/s"], r"edges\.csv:2: .*found '10 MB/s'; allowed: a number, in bit/s, or with its unit"),
        ([*ATTACHED, "mast,server,-1"], r"edges\.csv:4: .*found '-1'; allowed: a number above 0, or nothing: no limit"),
        ([*ATTACHED, "mast,server,0"], r"edges\.csv:4: .*column 'capacity_bps'.*a number above 0"),
        ([*ATTACHED, "mast,server,fast"], r"edges\.csv:4: .*found 'fast'; allowed: a number"),
        ([*ATTACHED, "client0,mast,1"], r"edges\.csv:4: .*column 'to'.*no edge twice"),
        (["client0,client0,1"], r"edges\.csv:2: .*another node than in column 'from'"),
        ([], "no row follows the column names"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(edges, rows, problem):
    with pytest.raises(ScenarioError, match=problem):
        built(1, file=str(edges(*rows)))


def net(kind=nx.Graph, **about):
    """A client, and an edge from the mast to the server of which something is known."""
    graph = kind([("client0", "mast")])
    graph.add_edge("mast", "server", **about)
    return graph


@pytest.fixture(params=["json", "links.json", "graphml", "csv"])
def stored(tmp_path, request):
    """Stores a graph as a file of each form, and reads it."""

    def store(graph):
        path = tmp_path / f"net.{request.param}"
        if request.param == "graphml":
            nx.write_graphml(graph, path)
        elif request.param == "csv":
            names = list(
                dict.fromkeys(["capacity_bps", *(name for *_, about in graph.edges(data=True) for name in about)])
            )
            rows = [[*ends, *(about.get(name, "") for name in names)] for *ends, about in graph.edges(data=True)]
            rows += [[end, start, *about] for start, end, *about in rows]
            path.write_text("\n".join(",".join(map(str, row)) for row in [["from", "to", *names], *rows]))
        else:
            key = "links" if request.param.startswith("links") else "edges"
            path.write_text(json.dumps(nx.node_link_data(graph, edges=key)))
        return built(1, file=str(path))

    return store


def test_edges_have_capacities_and_latencies_in_every_form(stored):
    topology = stored(net(capacity_bps=1e5, latency_s=0.25))
    assert named(topology, 0, None) == [("mast", "server", 1e5)]
    assert (topology.latency_s(0, None), topology.latency_s(0, 0)) == (0.25, 0.5)
    assert topology.without_latency.latency_s(0, None) == 0
    assert topology.without_latency is topology.without_latency


@pytest.mark.parametrize(
    ("name", "meant"),
    [("capacity", "capacity_bps"), ("bandwidth", "capacity_bps"), ("LinkSpeedRaw", "capacity_bps"),
     ("capacity_Mbps", "capacity_bps"), ("latency", "latency_s"), ("delay", "latency_s"), ("weight", None)],
)  # fmt: skip
@pytest.mark.parametrize("value", [1e5, "10 Mbit/s", "1.000.000", "< 10 Gbps", "155 Mbit / s"])
def test_a_number_of_an_edge_that_means_nothing_here_is_refused(stored, name, meant, value):
    with pytest.raises(ScenarioError) as refused:
        stored(net(**{name: value}))
    error = refused.value
    assert (error.key, error.found, error.nearest) == ("clients.network.shared.file", name, meant)
    assert error.allowed == ["capacity_bps", "latency_s"]


def test_units_of_edges_are_read(stored):
    topology = stored(net(capacity_bps="100 kbit/s", latency_s="250 ms"))
    assert named(topology, 0, None) == [("mast", "server", 1e5)]
    assert topology.latency_s(0, None) == 0.25


def test_graphml_gives_edges_the_default_of_their_key(tmp_path):
    path = tmp_path / "net.graphml"
    nx.write_graphml(net(capacity_bps=1e5), path)
    stated = path.read_text()
    usual = stated.replace('attr.type="double" />', 'attr.type="double"><default>2e5</default></key>')
    assert usual != stated
    path.write_text(usual)
    assert named(built(1, file=str(path)), 0, None) == [("client0", "mast", 2e5), ("mast", "server", 1e5)]


def test_words_and_numbers_that_tell_edges_apart_may_stay(stored):
    assert named(stored(net(capacity_bps=1e5, key=7, id=3, label=1, medium="copper")), 0, None)[0][2] == 1e5


@pytest.mark.parametrize("second_bps", [1e5, 1e9])
@pytest.mark.parametrize("kind", [nx.MultiGraph, nx.MultiDiGraph])
def test_parallel_edges_are_refused(stored, kind, second_bps):
    graph = net(kind, capacity_bps=1e5)
    graph.add_edge("mast", "server", capacity_bps=second_bps)
    with pytest.raises(ScenarioError, match="no edge twice") as refused:
        stored(graph)
    assert (refused.value.key, refused.value.found) == ("clients.network.shared.file", "server")


def test_parallel_edges_of_json_are_seen_whatever_it_calls_itself(tmp_path):
    edges = [{"source": "mast", "target": "server"}, {"source": "server", "target": "mast", "capacity_bps": 1}]
    nodes = [{"id": name} for name in ("client0", "mast", "server")]
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"multigraph": False, "nodes": nodes, "edges": edges}))
    with pytest.raises(ScenarioError, match="no edge twice"):
        built(1, file=str(path))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"nodes": [], "edges": [], "links": []}, ["edges", "links"]),
        ({"nodes": []}, []),
        ([], []),
        ({"nodes": [{"id": "client0"}, {"id": "server"}], "links": [{"source": 0, "target": 1}]}, "0"),
        ({"nodes": [{"id": "server", "capacity_bps": 1}], "edges": []}, "capacity_bps"),
        ({"nodes": [{"id": "server", "Bandwidth": 1}], "edges": []}, "Bandwidth"),
        ({"graph": {"capacity_bps": 1}, "nodes": [], "edges": []}, "capacity_bps"),
        ({"latency": 1, "nodes": [], "edges": []}, "latency"),
        ({"directed": "true", "nodes": [], "edges": []}, "true"),
        ({"nodes": [{"id": "server"}], "edges": [{"source": "server", "target": "server"}]}, "server"),
        (
            {"nodes": [{"id": "a"}, {"id": "server"}], "edges": [{"source": "a", "target": "server", "x": {"bps": 1}}]},
            "x",
        ),
        ({"nodes": 3, "edges": [3]}, "nodes, edges"),
    ],
)
def test_json_of_another_form_is_told_by_what_was_found(tmp_path, content, found):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ScenarioError) as refused:
        built(1, file=str(path))
    assert (refused.value.key, refused.value.found) == ("clients.network.shared.file", found)


def test_a_fleet_shares_nothing_unless_the_network_says_so():
    links = {"uplink_bps": 1e6, "downlink_bps": 1e6}
    shared = {"access_points": 1, "backhaul_bps": 1e6}
    apart = build_fleet(3, 0, Clients(network=links), Server())
    together = build_fleet(3, 0, Clients(network={**links, "shared": shared}), Server())
    assert apart.topology is None
    assert [named(together.topology, client, None) for client in range(3)] == [[("backhaul", "server", 1e6)]] * 3
    assert list(apart.uplinks) == list(together.uplinks)
