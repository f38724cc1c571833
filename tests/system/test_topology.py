"""Paths through access points and through graphs of a user's own; what cannot be used is refused in a line."""

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


def test_a_fleet_shares_nothing_unless_the_network_says_so():
    links = {"uplink_bps": 1e6, "downlink_bps": 1e6}
    shared = {"access_points": 1, "backhaul_bps": 1e6}
    apart = build_fleet(3, 0, Clients(network=links), Server())
    together = build_fleet(3, 0, Clients(network={**links, "shared": shared}), Server())
    assert apart.topology is None
    assert [named(together.topology, client, None) for client in range(3)] == [[("backhaul", "server", 1e6)]] * 3
    assert list(apart.uplinks) == list(together.uplinks)
