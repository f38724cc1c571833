"""Several servers: queues of their own, links between them, outages; against closed forms, a recursion and Ciw."""

import json
from dataclasses import replace
from math import inf

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_steps import Compute, computing, made_by, sending, together
from small_world import fleet

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, Lost, ServerNode, State, aggregator_of, expect, on, par, present, send
from sfl_sim.rng import stream
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence
from sfl_sim.training.executors import Timing

EDGES = [ServerNode("edge", number) for number in (1, 2, 3)]
SLOW = {"macs_per_s": 1.0}
"""A server of 1 MAC/s."""
BACKBONE = {"uplink_bps": 8.0, "downlink_bps": 8.0}
"""Links of a byte a second."""


def world(n=2, servers=None, **network):
    """Devices of 1 MAC/s, links of a byte a second, a main server of 1 MAC/s."""
    servers = {"edge": {"count": 2, **SLOW, "backbone": BACKBONE}} if servers is None else servers
    return fleet(n, 1.0, 8.0, 8.0, speedup=1.0, servers=servers, **network)


def rows_of(flow, where=None, **settings):
    clock = EventClock(where or world(), Timing(), ORDERS["fcfs"], **settings)
    clock.run(flow, 1)
    return clock.take_rows()


def named(rows, name):
    return rows[rows["node"] == name]


def test_every_server_has_a_queue_of_its_own():
    here, there = EDGES[:2]
    apart, same = (rows_of(together(computing(edge, 3) for edge in edges)) for edges in ((here, there), (here, here)))
    assert apart["ended_s"].tolist() == [3, 3]
    assert same["ended_s"].tolist() == [3, 6]
    assert sorted(apart["node"].tolist()) == [b"edge1", b"edge2"]


def test_a_message_between_servers_takes_their_link_one_after_another_and_belongs_to_its_client():
    def passes(c):
        made = yield on(EDGES[0], Compute(0), State("model"), made_by(c, 2))
        made.size_bytes = 4
        yield send(made, EDGES[0], SERVER)
        yield send(made, SERVER, EDGES[0])

    rows = rows_of(together([passes(0), passes(1)]))
    on_the_way = named(rows, b"backbone")
    assert sorted(on_the_way["client"]) == [0, 0, 1, 1]
    assert on_the_way["started_s"].tolist() == [0, 4, 4, 8]
    assert on_the_way["ended_s"].tolist() == [4, 8, 8, 12]


@pytest.mark.parametrize(
    ("src", "dst"),
    [(0, SERVER), (SERVER, 0), (EDGES[0], EDGES[1]), (0, ServerNode("fog", 1)), (ServerNode("fog", 1), SERVER)],
)
def test_messages_go_from_tier_to_tier_and_nothing_else_is_accepted(src, dst):
    servers = {"edge": {"count": 2, **SLOW}, "fog": {"count": 1, **SLOW}} if "FOG" not in repr((src, dst)) else None

    with pytest.raises(ScenarioError, match=r"no link|does not exist"):
        rows_of(sending(4, src, dst), world(servers=servers))


def test_at_one_place_a_message_needs_no_link():
    def flow():
        yield from sending(4, EDGES[0], aggregator_of(EDGES[0]))
        yield from computing(aggregator_of(EDGES[0]), 2)

    rows = rows_of(flow())
    assert rows[["node", "ended_s"]].tolist() == [(b"aggregator", 2.0)]


HOPS = [EDGES[0], ServerNode("fog", 1), SERVER]
CHAIN = {"edge": {"count": 1, **SLOW}, "fog": {"count": 1, **SLOW}}


def test_a_conveyor_of_equal_clients_is_through_after_the_sum_and_the_longest_hop_for_each_further_one():
    """sum p + (d - 1) max p (docs/methods/several_servers.md): 15 s for hops of 2, 3 and 1 s and four clients."""

    def passes():
        for server, seconds in zip(HOPS, (2, 3, 1), strict=True):
            yield from computing(server, seconds)

    assert rows_of(together(passes() for _ in range(4)), world(4, CHAIN))["ended_s"].max() == 15


@given(st.lists(st.lists(st.integers(1, 1000), min_size=3, max_size=3), min_size=1, max_size=8), st.data())
def test_a_chain_ends_when_the_recursion_says(service_s, data):
    """Of the k-th to come at a hop: start = max(own arrival, end of the one before); first come, first served."""
    came_s = np.array(data.draw(st.lists(st.floats(0, 1000), min_size=len(service_s), max_size=len(service_s))))
    came_s = came_s.round(3)

    def passes(c):
        for server, seconds in zip(HOPS, service_s[c], strict=True):
            yield from computing(server, seconds, None, made_by(c))

    clock = EventClock(world(len(service_s), CHAIN), Timing(), ORDERS["fcfs"])
    clock.serve(sorted(((t, passes(c)) for c, t in enumerate(came_s)), key=lambda one: one[0]))
    rows = clock.take_rows()
    at_s = list(came_s)
    for hop, server in enumerate(HOPS):
        free_s = -inf
        for c in sorted(range(len(at_s)), key=lambda c: (at_s[c], c)):
            free_s = max(at_s[c], free_s) + service_s[c][hop]
            at_s[c] = free_s
        found = named(rows, str(server).encode())
        assert found["ended_s"][np.argsort(found["client"])] == pytest.approx(at_s, rel=1e-9)


def test_a_tandem_of_an_edge_and_the_cloud_ends_when_ciw_says():
    """The edge's one worker serves as they come, so that they come to the cloud in the order of their numbers."""
    ciw = pytest.importorskip("ciw", reason="an independent simulator of queues: pip install ciw")
    rng, n = stream(0, "edge and cloud"), 300
    gaps_s, edge_s, cloud_s = rng.exponential(1.5, n), rng.exponential(1.2, n), rng.exponential(2.2, n)

    def passes(number):
        yield from computing(EDGES[0], edge_s[number])
        yield from computing(SERVER, cloud_s[number])

    clock = EventClock(world(1, {"edge": {"count": 1, **SLOW}}), Timing(), Queueing(ORDERS["fcfs"], 2),
                       queues={EDGES[0]: Queueing(ORDERS["fcfs"])})  # fmt: skip
    clock.serve((t, passes(number)) for number, t in enumerate(gaps_s.cumsum()))
    rows = clock.take_rows()

    def queue(times_s):
        return ciw.dists.Sequential([*map(float, times_s), inf])

    theirs = ciw.Simulation(
        ciw.create_network(
            arrival_distributions=[queue(gaps_s), None],
            service_distributions=[queue(edge_s), queue(cloud_s)],
            number_of_servers=[1, 2],
            routing=[[0.0, 1.0], [0.0, 0.0]],
        )
    )
    theirs.simulate_until_max_time(1e6)
    ended_s = sorted(record.exit_date for record in theirs.get_all_records() if record.node == 2)
    assert np.sort(named(rows, b"server")["ended_s"]) == pytest.approx(ended_s, rel=1e-9)


def test_each_server_has_an_order_of_its_own():
    state = {edge: State("model") for edge in EDGES[:2]}

    def flow():
        yield expect(state[EDGES[0]], {1: 1, 0: 1}, node=EDGES[0])
        yield expect(state[EDGES[1]], {3: 1, 2: 1}, node=EDGES[1])
        yield par([computing(edge, 1 + c, state[edge], made_by(c)) for c in range(4) for edge in [EDGES[c // 2]]])

    queues = {EDGES[0]: Queueing(ORDERS["cyclic"]), EDGES[1]: Queueing(ORDERS["fcfs"])}
    rows = rows_of(flow(), world(4), queues=queues)
    assert named(rows, b"edge1")["client"].tolist() == [1, 0]
    assert named(rows, b"edge2")["client"].tolist() == [2, 3]


def with_outage(up_s, n=2):
    """A world whose first edge is up in these intervals of every 100 s, and whose second always is."""
    where = world(n)
    edge = where.tiers["edge"]
    presence = [Presence(up_s, 100.0), Presence([(0.0, 100.0)], 100.0)]
    return replace(where, tiers={"edge": replace(edge, servers=replace(edge.servers, presence=presence))})


def test_what_a_server_does_stands_still_while_it_is_down():
    """Down from 2 s to 10 s: a job of 3 s ends at 11 s, a message of 4 s to it, and one from it, wait likewise."""
    where = with_outage([(0.0, 2.0), (10.0, 100.0)])
    for node in (EDGES[0], aggregator_of(EDGES[0])):
        assert rows_of(computing(node, 3), where)["ended_s"].tolist() == [11], node
    for ends in ((0, EDGES[0]), (EDGES[0], 0), (EDGES[0], SERVER), (SERVER, EDGES[0])):
        assert rows_of(sending(4, *ends), where)["ended_s"].tolist() == [12], ends
    assert rows_of(sending(4, 0, EDGES[1]), where)["ended_s"].tolist() == [4]


def test_a_flow_is_told_which_servers_are_up():
    seen = []

    def flow():
        seen.append((yield present(EDGES[:2])))
        yield from computing(0, 5)
        seen.append((yield present(EDGES[:2])))
        seen.append((yield present(EDGES[:1])))

    rows = rows_of(flow(), with_outage([(0.0, 2.0), (10.0, 100.0)]))
    assert seen == [EDGES[:2], EDGES[1:2], EDGES[:1]]
    assert rows["ended_s"].max() == 5


def test_a_client_that_goes_away_loses_its_jobs_at_every_server_and_nothing_hangs():
    lost = []

    def brings(c, server):
        try:
            yield from computing(server, 50, None, made_by(c))
        except Lost as gone:
            lost.append((gone.client, str(server)))
            raise

    presence = [Presence([(0.0, 10.0)], 1000.0), Presence([(0.0, 1000.0)], 1000.0)]
    flows = {0: brings(0, EDGES[0]), 1: brings(1, EDGES[1]), 2: brings(0, SERVER)}
    rows_of(together(flows), replace(world(2), presence=presence), dropouts=Dropouts("drop", presence))
    assert sorted(lost) == [(0, "edge1"), (0, "server")]


def test_servers_of_a_tier_may_share_one_link():
    shared = {"access_points": 1, "backhaul_bps": 8.0}
    fast = {"uplink_bps": 800.0, "downlink_bps": 800.0, "shared": shared}
    sends = together(sending(4, edge, SERVER) for edge in EDGES[:2])
    rows = rows_of(sends, world(servers={"edge": {"count": 2, **SLOW, "backbone": fast}}))
    assert rows["ended_s"].tolist() == pytest.approx([8, 8])


@pytest.mark.parametrize("ending", ["json", "graphml", "csv"])
def test_a_graph_of_all_links_is_read_from_a_file(tmp_path, ending):
    """Both clients and the edge beyond share a link of 8 bit/s to the mast; the way from edge to cloud has 16."""
    graph = nx.DiGraph()
    for low, high, capacity in (
        ("client0", "mast", None), ("client1", "mast", None), ("mast", "edge1", 8.0), ("edge1", "server", 16.0),
    ):  # fmt: skip
        for ends in ((low, high), (high, low)):
            graph.add_edge(*ends, **({} if capacity is None else {"capacity_bps": capacity}))
    path = tmp_path / f"links.{ending}"
    if ending == "json":
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    elif ending == "graphml":
        nx.write_graphml(graph, path)
    else:
        edges = [f"{a},{b},{data.get('capacity_bps', '')}" for a, b, data in graph.edges(data=True)]
        path.write_text("\n".join(["from,to,capacity_bps", *edges]))

    def sends(c):
        yield from sending(4, c, EDGES[0])
        yield from sending(4, EDGES[0], SERVER)

    where = world(servers={"edge": {"count": 1, **SLOW}}, shared={"file": str(path)})
    where = replace(where, uplinks=fleet(2, 1.0, 800.0).uplinks)
    rows = rows_of(together(map(sends, range(2))), where)
    assert named(rows, b"uplink")["ended_s"].tolist() == pytest.approx([8, 8])
    assert named(rows, b"backbone")["ended_s"].tolist() == pytest.approx([10, 12])


def test_edges_of_a_graph_add_their_latency_to_messages(tmp_path):
    """4 bytes take 4 s at 8 bit/s; the way up has 0.25 s more, the way down 0.75 s, the client 1 s."""
    path = tmp_path / "links.csv"
    rows = ["client0,mast,,", "mast,client0,,", "mast,edge1,8,0.25", "edge1,mast,8,0.75"]
    rows += ["edge1,server,,0.5", "server,edge1,,0"]
    path.write_text("\n".join(["from,to,capacity_bps,latency_s", *rows]))
    where = world(1, {"edge": {"count": 1, **SLOW}}, shared={"file": str(path)}, latency_s=1.0)
    where = replace(where, uplinks=fleet(1, 800.0, 800.0).uplinks, downlinks=fleet(1, 800.0, 800.0).downlinks)
    for ends, ended_s in (((0, EDGES[0]), 5.25), ((EDGES[0], 0), 5.75), ((EDGES[0], SERVER), 0.5)):
        assert rows_of(sending(4, *ends), where)["ended_s"].tolist() == [ended_s]


def test_a_graph_that_lacks_a_way_is_refused(tmp_path):
    path = tmp_path / "links.json"
    nodes, edges = [{"id": "client0"}, {"id": "edge1"}], [{"source": "client0", "target": "edge1"}]
    for graph, problem in (
        ({"directed": True, "nodes": nodes, "edges": edges}, "edge1"),
        (
            {"nodes": [{"id": "client0"}, {"id": "server"}], "edges": [{"source": "client0", "target": "server"}]},
            "edge1",
        ),
        ({}, "graph"),
    ):
        path.write_text(json.dumps(graph))
        with pytest.raises(ScenarioError, match=problem):
            world(1, {"edge": {"count": 1, **SLOW}}, shared={"file": str(path)})


def test_distances_to_servers_add_to_the_latency(tmp_path):
    path = tmp_path / "reach.csv"
    path.write_text("edge1,edge2\n0.5,2\n1.5,0\n")
    where = world(2, {"edge": {"count": 2, **SLOW, "reach_s": str(path)}}, latency_s=0.25)
    for client, ended_s in ((0, 6.25), (1, 4.25)):
        assert rows_of(sending(4, client, EDGES[1]), where)["ended_s"].tolist() == [ended_s]
    with pytest.raises(ScenarioError, match=r"reach_s: "):
        world(3, {"edge": {"count": 2, **SLOW, "reach_s": str(path)}})
    path.write_text("edge1,edge2,edge3,macs_per_s\n0.5,2,1,1e9\n1.5,0,1,1e9\n")
    with pytest.raises(ScenarioError, match=r"'edge3'.*allowed: edge1, edge2"):
        world(2, {"edge": {"count": 2, **SLOW, "reach_s": str(path)}})
