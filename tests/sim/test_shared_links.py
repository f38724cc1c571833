"""Shared links against networks solved by hand, theory, an exact simulation, and links that are not shared."""

from bisect import insort
from fractions import Fraction
from itertools import chain, pairwise
from math import inf
from operator import itemgetter

import networkx as nx
import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import fleet, simulate, task

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Shared
from sfl_sim.sim.nodes import link_between
from sfl_sim.sim.shared_links import UNITS_PER_BPS, SharedLinks, _Path, fair_levels, units
from sfl_sim.system.links import Pattern, RateTrace, joint_transfer_s, slowest
from sfl_sim.system.topology import Topology, build_topology

FAST = RateTrace(1e6)
NODES = st.sampled_from([SERVER, 0, 1, 2])


def tree(parents, clients):
    """A topology of nodes {name: (parent, bit/s in each direction)} with client c below `clients[c]`."""
    graph = nx.DiGraph()
    for name, (parent, capacity_bps) in parents.items():
        graph.add_edge(name, parent, capacity_bps=capacity_bps)
        graph.add_edge(parent, name, capacity_bps=capacity_bps)
    for client, node in enumerate(clients):
        graph.add_edge(f"client{client}", node)
        graph.add_edge(node, f"client{client}")
    return Topology(graph, len(clients))


def bottleneck(n, capacity_bps):
    return tree({"ap": ("server", capacity_bps)}, ["ap"] * n)


class World:
    """Transfers over a topology, and what became of them: (started, ended, bytes moved), as they were asked for."""

    def __init__(self, topology, up=None, down=None):
        self.env = simpy.Environment()
        self.up, self.down = up or {}, down or {}
        self.links = Watched(self.env, topology, self.pieces)
        self.seen = {}

    def pieces(self, link, start_s):
        ends = (self.up, link.uplink_of), (self.down, link.downlink_of)
        return slowest([rates.get(client, FAST) for rates, client in ends if client is not None], start_s)

    def send(self, number, at_s, src, dst, size_bytes, until_s=inf):
        yield self.env.timeout(at_s)
        over = self.env.event()
        self.links.transfer(link_between(src, dst), size_bytes, lambda *seen: over.succeed(seen), until_s)
        started_s, moved_bytes = yield over
        self.seen[number] = (started_s, self.env.now, moved_bytes)

    def run(self, *messages):
        for number, message in enumerate(messages):
            self.env.process(self.send(number, *message))
        self.env.run()
        return [self.seen.get(number) for number in range(len(messages))]


class Watched(SharedLinks):
    """Notes the flows whenever they get their rates: whose they are, the rates, and the limits of their own."""

    def __init__(self, *args):
        super().__init__(*args)
        self.shares = []

    def _share(self, now_s):
        super()._share(now_s)
        noted = [
            (message.link.client, message.limit_bps if message.mark is None else path.level_bps, message.limit_bps)
            for path in self._paths.values()
            for *_, message in path.moving
        ]
        if noted:
            self.shares.append((now_s, *zip(*sorted(noted), strict=True)))


def ends(seen):
    return [ended_s for _, ended_s, _ in seen]


LINE = {"a": ("server", 12.0), "b": ("a", 5.0), "c": ("b", 2.0)}
"""server <-12- a <-5- b <-2- c, in bit/s."""


def test_a_line_of_three_bottlenecks_as_solved_by_hand():
    """Two clients at each of c, b and a upload, in the order of the levels at which they stop:

    - at c, the edge c-b allows 2/2 = 1 each (b-a would allow 5/4, a-server 12/6);
    - at b, b-a has 5 - 2 = 3 left for two: 1.5 each (a-server would allow (12 - 2)/4);
    - at a, a-server has 12 - 2 - 3 = 7 left: one is held to 2 by its own link, so the other gets 5.

    They bring 8 bytes = 64 bit each, but the last one 5 bytes = 40 bit, which have passed at 8 s. Nobody is faster for
    that: the other one at a has its own limit, which ends it at 32 s, and those at b and c are held below, until
    64 / 1.5 s and 64 s.
    """
    topology = tree(LINE, ["c", "c", "b", "b", "a", "a"])
    world = World(topology, up={4: RateTrace(2.0)})
    seen = world.run(*((0.0, client, SERVER, 5 if client == 5 else 8) for client in range(6)))
    assert world.links.shares[0][2] == pytest.approx([1, 1, 1.5, 1.5, 2, 5])
    assert ends(seen) == pytest.approx([64, 64, 64 / 1.5, 64 / 1.5, 32, 8])


def test_a_tree_of_two_levels_as_solved_by_hand():
    """Access points x (6 bit/s, three clients) and y (9 bit/s, one client) behind a backhaul of 10 bit/s.

    At first the backhaul would allow 10/4 = 2.5 each, but x only 6/3 = 2: so 2, 2, 2, and y's client gets 10 - 6 = 4.
    It brings 20 bit, until 5 s, which does not help those at x. Client 0 brings 12 bit, until 6 s; then x gives the
    other two 3 each. Client 1 has 6 of its 18 bit left for that, until 8 s. Client 2, of whose 30 bit 12 + 6 have
    passed then, gets all 6 bit/s of x, until 10 s.
    """
    topology = tree({"backhaul": ("server", 10.0), "x": ("backhaul", 6.0), "y": ("backhaul", 9.0)}, [*"xxxy"])
    seen = World(topology).run(*((0.0, c, SERVER, bits / 8) for c, bits in enumerate([12, 18, 30, 20])))
    assert ends(seen) == pytest.approx([6, 8, 10, 5])


def test_the_directions_do_not_share_and_peers_pass_both():
    """Uplinks: client 0's upload and the message from 1 to 2 share 8 bit/s; downlinks: that message and a download do.

    4 bit/s each; the download's 16 bit have passed at 4 s, but the message is held to 4 bit/s on its way up.
    """
    seen = World(bottleneck(4, 8.0)).run((0.0, 0, SERVER, 8), (0.0, 1, 2, 8), (0.0, SERVER, 3, 2))
    assert ends(seen) == pytest.approx([16, 16, 4])


@pytest.mark.parametrize(("duplex", "ends_s"), [("half", 2.0), ("full", 1.0)])
def test_an_upload_and_a_download_share_a_radio_that_sends_and_receives_in_turn(duplex, ends_s):
    """13.2 GB each way over 100 Mbit/s take 35 minutes then, and not 18."""
    shared = Shared(access_points=1, capacity_bps=8e3, duplex=duplex)
    world = World(build_topology(2, stream(0, "access points"), shared))
    assert ends(world.run((0.0, 0, SERVER, 1000), (0.0, SERVER, 1, 1000))) == pytest.approx([ends_s, ends_s])


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_equal_transfers_through_one_bottleneck_share_it_equally(n):
    """Processor sharing: n transfers of S bits, begun together, end together at n * S / C."""
    seen = World(bottleneck(n, 1e6)).run(*((1.0, client, SERVER, 12_500) for client in range(n)))
    assert seen == [(1.0, pytest.approx(1 + n * 0.1), 12_500)] * n


def test_who_comes_later_takes_half_from_then_on():
    """8 bit/s. Client 0 brings 80 bit; alone until 4 s, it has 48 left. Client 1 brings 24 bit: 4 bit/s for 6 s, until
    10 s. Client 0 then has 24 left, at 8 bit/s until 13 s."""
    seen = World(bottleneck(2, 8.0)).run((0.0, 0, SERVER, 10), (4.0, 1, SERVER, 3))
    assert seen == [(0.0, pytest.approx(13.0), 10), (4.0, pytest.approx(10.0), 3)]


def test_a_clients_own_link_leaves_the_rest_to_others_and_as_it_changes_so_do_they():
    """10 bit/s for two. Client 0's link has 2 bit/s for 10 s, nothing for 10 s, and so on; client 1's is fast.

    Client 1 gets 8, then 10, then 8 bit/s: 80 + 100 of its 200 bit by 20 s, and the rest by 22.5 s. Client 0 brings
    30 bit: 20 by 10 s, and the rest from 20 s to 25 s.
    """
    slow = RateTrace(1.0, Pattern([0.0, 10.0, 20.0], [2.0, 0.0]))
    seen = World(bottleneck(2, 10.0), up={0: slow}).run((0.0, 0, SERVER, 30 / 8), (0.0, 1, SERVER, 25))
    assert ends(seen) == pytest.approx([25.0, 22.5])


def test_a_transfer_that_ends_as_its_link_closes_has_ended_whatever_is_rounded():
    """7 bit/s from 0.1 s, half of it from 0.3 s: 1.4 + 3.5 bit by 1.3 s, when the link closes for a long time."""
    pattern = Pattern([0.0, 1.3, 1000.0], [7.0, 0.0])
    world = World(bottleneck(2, 7.0), up={0: RateTrace(pattern.mean_bps, pattern)})
    ((_, ended_s, moved_bytes), _) = world.run((0.1, 0, SERVER, 4.9 / 8), (0.3, 1, SERVER, 100))
    assert (ended_s, moved_bytes) == (pytest.approx(1.3), 4.9 / 8)


def test_giving_up_leaves_the_rest_to_others():
    """8 bit/s for two who bring 40 bit each. Client 0 gives up at 5 s, after 20 bit; the other's 20 get 8 bit/s."""
    seen = World(bottleneck(2, 8.0)).run((0.0, 0, SERVER, 5, 5.0), (0.0, 1, SERVER, 5))
    assert seen == [(0.0, 5.0, pytest.approx(2.5)), (0.0, pytest.approx(7.5), 5)]


@pytest.mark.parametrize("message", [(0.0, 0, SERVER, 5, 5.0), (5.0, 0, SERVER, 0)])
def test_giving_up_at_the_very_end_is_no_giving_up_and_nothing_to_move_takes_no_time(message):
    at_s, *_, size_bytes = message[:4]
    assert World(bottleneck(1, 8.0)).run(message) == [(at_s, 5.0, size_bytes)]


def test_a_client_sends_one_message_after_another_and_who_gives_up_waiting_is_passed_over():
    seen = World(bottleneck(1, 8.0)).run(
        (0.0, 0, SERVER, 4), (1.0, 0, SERVER, 4, 2.0), (1.5, 0, SERVER, 4), (1.7, SERVER, 0, 4)
    )
    assert seen == [(0.0, 4.0, 4), (2.0, 2.0, 0.0), (4.0, 8.0, 4), (1.7, pytest.approx(5.7), 4)]


def test_a_message_to_a_busy_peer_keeps_its_place_at_the_senders_link():
    """Client 0's message waits for client 1's downlink until 2 s, and its upload for that message until 3 s."""
    up, down = {0: RateTrace(8.0)}, {1: RateTrace(8.0)}
    world = World(bottleneck(2, 1e6), up, down)
    seen = world.run((0.0, SERVER, 1, 2), (0.5, 0, 1, 1), (0.6, 0, SERVER, 1))
    assert seen == [(0.0, 2.0, 2), (2.0, 3.0, 1), (3.0, 4.0, 1)]


def test_links_that_are_never_open_at_the_same_time_are_an_error(monkeypatch):
    monkeypatch.setattr("sfl_sim.system.links.MAX_PIECES", 100)
    first, second = (RateTrace(1.0, Pattern([0.0, 1.0, 2.0], rates)) for rates in ([2.0, 0.0], [0.0, 2.0]))
    with pytest.raises(ScenarioError, match="never open"):
        World(bottleneck(2, 8.0), {0: first}, {1: second}).run((0.0, 0, 1, 1))
    seen = World(bottleneck(2, 8.0), {0: first}, {1: second}).run((0.0, 0, 1, 1, 9.5))
    assert seen == [(0.0, 9.5, 0.0)], "who gives up does not wait for it"


def test_who_is_away_for_ever_waits_for_ever():
    world = World(bottleneck(2, 8.0))
    world.links.pieces = lambda link, start_s: iter([(inf, 0.0 if link.client == 0 else 8.0)])
    assert world.run((0.0, 0, SERVER, 1), (0.0, 1, SERVER, 1)) == [None, (0.0, 1.0, 1)]


def test_what_happens_at_one_instant_is_taken_together():
    """12 bit/s for three. At 2 s two end and send again, so that nothing changes; at 4 s one of them has finished."""
    world = World(bottleneck(3, 12.0))
    seen = world.run(*((0.0, client, SERVER, size) for client, size in [(0, 1), (0, 2), (1, 1), (1, 1), (2, 4.5)]))
    assert ends(seen) == pytest.approx([2.0, 4 + 8 / 6, 2.0, 4.0, 4 + 8 / 6 + 1])
    assert [now_s for now_s, *_ in world.links.shares] == pytest.approx([0.0, 2.0, 4.0, 4 + 8 / 6])


def test_ends_of_one_instant_are_told_by_client_whoever_began_first():
    world = World(bottleneck(3, 24.0))
    world.run((0.0, 2, SERVER, 10), (0.0, 0, SERVER, 10), (0.0, 1, SERVER, 10))
    assert list(world.seen) == [1, 2, 0]


rates_bps = st.sampled_from([1.0, 2.0, 3.0, 5.0, 7.0, 8.0])


@st.composite
def networks(draw, n_clients):
    """A random tree of up to four nodes, with clients anywhere; some edges have no limit."""
    names = ["server", *"abcd"[: draw(st.integers(1, 4))]]
    parents = {
        name: (draw(st.sampled_from(names[: i + 1])), draw(st.none() | rates_bps)) for i, name in enumerate(names[1:])
    }
    return tree(parents, [draw(st.sampled_from(names)) for _ in range(n_clients)])


def assert_fair(topology, flows, rates_bps, limits_bps):
    """Check that no edge is overloaded, and every flow is at its own limit or among the fastest at a full edge."""
    for flow, path in enumerate(flows):
        held = rates_bps[flow] == pytest.approx(limits_bps[flow], rel=1e-9)
        for edge in path:
            on_it = [rates_bps[other] * other_path.count(edge) for other, other_path in enumerate(flows)]
            fastest = max(rates_bps[other] for other, other_path in enumerate(flows) if edge in other_path)
            assert sum(on_it) <= topology.capacity_bps[edge] * (1 + 1e-9)
            full = sum(on_it) >= topology.capacity_bps[edge] * (1 - 1e-9)
            held = held or (full and rates_bps[flow] >= fastest * (1 - 1e-9))
        assert held


def max_min_rates(paths, limits_bps, capacity_bps):
    """Give the rates of flows one by one: they rise together until each is at its own limit, or an edge is full.

    This is how the package found them before, and the reference for how it does now.
    """
    free_bps = list(capacity_bps)
    rising = [0] * len(free_bps)
    for edge in chain.from_iterable(paths):
        rising[edge] += 1
    rates_bps = {}

    def stop(flow, rate_bps):
        rates_bps[flow] = rate_bps
        for edge in paths[flow]:
            free_bps[edge] -= rate_bps
            rising[edge] -= 1

    level_bps = 0.0  # no edge is full below it
    for flow in sorted(range(len(paths)), key=limits_bps.__getitem__):
        while flow not in rates_bps and limits_bps[flow] > level_bps:
            shares = ((free_bps[edge] / flows, edge) for edge, flows in enumerate(rising) if flows)
            level_bps, full = min(shares, default=(inf, -1))
            if limits_bps[flow] > level_bps:
                for other, path in enumerate(paths):
                    if full in path and other not in rates_bps:
                        stop(other, level_bps)
        if flow not in rates_bps:
            stop(flow, limits_bps[flow])
    return [rates_bps[flow] for flow in range(len(paths))]


ENDS = st.none() | st.integers(0, 5)
"""The server, or a client."""


def filled(paths, limits_bps, capacity_bps):
    """Return the rates by levels of paths, of which any messages count as held before."""
    by_edges = {edges: _Path(number, edges) for number, edges in enumerate(dict.fromkeys(paths))}
    for number, (edges, limit_bps) in enumerate(zip(paths, limits_bps, strict=True)):
        insort(by_edges[edges].moving, (units(limit_bps), number, None))
    for path in by_edges.values():
        path.rise_to(units(3.0))
    levels = fair_levels([*by_edges.values()], list(map(units, capacity_bps)), {})
    level_bps = dict(zip(by_edges, [level / UNITS_PER_BPS for level in levels], strict=True))
    return [min(level_bps[edges], limit_bps) for edges, limit_bps in zip(paths, limits_bps, strict=True)]


@settings(max_examples=100)
@given(networks(6), st.lists(st.tuples(ENDS, ENDS, rates_bps | st.just(0.0)), max_size=12))
def test_rates_are_max_min_fair(topology, flows):
    paths = [topology.path(src, dst) for src, dst, _ in flows]
    limits_bps = [limit for *_, limit in flows]
    rates = filled(paths, limits_bps, topology.capacity_bps)
    assert_fair(topology, paths, rates, limits_bps)
    assert rates == pytest.approx(max_min_rates(paths, limits_bps, topology.capacity_bps), rel=1e-12)


def test_an_edge_that_is_passed_twice_counts_twice():
    """9 bit/s: the flow with a limit of 1 takes 2 of them."""
    assert filled([(0, 0), (0,)], [1.0, 100.0], [9.0]) == [1.0, 7.0]


@st.composite
def own_links(draw):
    """A link that varies, or not. All are open at first; no whole number of bits passes by the end of a piece."""
    rates_bps = [draw(st.sampled_from([1.0, 2.0, 4.0])), *draw(st.lists(st.sampled_from([0.0, 1.0, 3.0]), max_size=2))]
    pattern = Pattern(np.arange(len(rates_bps) + 1) / np.sqrt(2), rates_bps)
    return RateTrace(pattern.mean_bps, pattern) if len(rates_bps) > 1 else RateTrace(rates_bps[0])


instants = st.integers(0, 40).map(lambda tenths: tenths / 10)
upload = st.tuples(instants, st.integers(1, 40), st.just(inf) | instants, own_links() | st.just(FAST))
"""(requested, bytes, given up, own link) of a client that brings one message."""
uploads = st.lists(upload, min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.data(), uploads)
def test_bytes_are_conserved_and_capacity_is_never_exceeded(data, messages):
    topology = data.draw(networks(len(messages)))
    world = World(topology, up={client: link for client, (*_, link) in enumerate(messages)})
    asked = [(at_s, c, SERVER, size, at_s + patience_s) for c, (at_s, size, patience_s, _) in enumerate(messages)]
    seen = world.run(*asked)
    moved_bits = [0.0] * len(messages)
    for (now_s, clients, rates_bps, limits_bps), (next_s, *_) in pairwise([*world.links.shares, (world.env.now,)]):
        assert_fair(topology, [topology.path(client, None) for client in clients], rates_bps, limits_bps)
        for client, rate_bps in zip(clients, rates_bps, strict=True):
            moved_bits[client] += rate_bps * (min(next_s, seen[client][1]) - now_s)
    for (*_, size, until_s), (_, ended_s, moved_bytes), bits in zip(asked, seen, moved_bits, strict=True):
        assert moved_bytes == pytest.approx(bits / 8, abs=1e-6)
        assert (moved_bytes == size and ended_s <= until_s) or (
            moved_bytes < size and ended_s == pytest.approx(until_s)
        )


def exact_ends(topology, messages):
    """Compute the ends of (requested, bytes) uploads, one per client: progressive filling by edges, in fractions."""
    left = {client: (Fraction(at_s), 8 * Fraction(size)) for client, (at_s, size) in enumerate(messages)}
    now, found = Fraction(0), {}
    while left:
        moving = [client for client, (at, _) in left.items() if at <= now]
        rates = exact_rates(topology, moving)
        ahead = [at - now for at, _ in left.values() if at > now]
        step = min(ahead + [left[client][1] / rate for client, rate in rates.items()])
        now += step
        for client, rate in rates.items():
            at, bits = left.pop(client)
            if bits == rate * step:
                found[client] = now
            else:
                left[client] = at, bits - rate * step
    return [float(found[client]) for client in range(len(messages))]


def exact_rates(topology, moving):
    free = [Fraction(capacity) for capacity in topology.capacity_bps]
    rates, rising = {}, set(moving)
    while rising:
        share, edge = min((free[e] / n, e) for e in range(len(free)) if (n := crossing(topology, rising, e)))
        for client in [client for client in rising if edge in topology.path(client, None)]:
            rising.remove(client)
            rates[client] = share
            for passed in topology.path(client, None):
                free[passed] -= share
    return rates


def crossing(topology, clients, edge):
    return sum(edge in topology.path(client, None) for client in clients)


@settings(max_examples=30)
@given(st.data(), st.lists(st.tuples(instants, st.integers(1, 40)), min_size=1, max_size=6))
def test_times_are_those_of_an_exact_simulation(data, messages):
    names = [*"abcd"[: data.draw(st.integers(1, 4))]]
    parents = {
        name: (data.draw(st.sampled_from(["server", *names[:i]])), data.draw(rates_bps)) for i, name in enumerate(names)
    }
    topology = tree(parents, [data.draw(st.sampled_from(names)) for _ in messages])
    seen = World(topology).run(*((at_s, client, SERVER, size) for client, (at_s, size) in enumerate(messages)))
    exact = exact_ends(topology, [(at_s, size) for at_s, size in messages])
    assert ends(seen) == pytest.approx(exact, rel=1e-9)


def one_by_one(topology, links, messages):
    """Return (ended, bytes moved) of (requested, sender, receiver, bytes, until): all rates anew at every instant."""
    left, seen = {}, [None] * len(messages)
    now_s = min(at_s for at_s, *_ in messages)
    while None in seen:
        left |= {i: 8.0 * m[3] for i, m in enumerate(messages) if m[0] <= now_s and i not in left and not seen[i]}
        for i in [i for i in left if messages[i][4] <= now_s]:
            seen[i] = now_s, messages[i][3] - left.pop(i) / 8
        paths = [topology.path(*(None if end == SERVER else end for end in messages[i][1:3])) for i in left]
        own = [slowest([links[c] for c in messages[i][1:3] if c != SERVER], now_s) for i in left]
        pieces = [next(piece for piece in walk if piece[0] > now_s * (1 + 1e-12)) for walk in own]
        rates = dict(zip(left, max_min_rates(paths, [bps for _, bps in pieces], topology.capacity_bps), strict=True))
        ends_s = {i: now_s + left[i] / bps for i, bps in rates.items() if bps}
        coming = [s for i, m in enumerate(messages) for s in (m[0], m[4]) if s > now_s and not seen[i]]
        next_s = min([*coming, *ends_s.values(), *(end_s for end_s, _ in pieces)], default=inf)
        for i, bps in rates.items():
            left[i] -= bps * (next_s - now_s)
        now_s = next_s
        for i in [i for i, end_s in ends_s.items() if end_s <= now_s * (1 + 1e-12)]:
            seen[i] = now_s, messages[i][3]
            del left[i]
    return seen


parts = st.tuples(
    instants,
    st.integers(1, 6),
    st.just(inf) | instants,
    own_links(),
    own_links(),
    st.sampled_from(["up", "down", "peer"]),
)


@settings(max_examples=100)
@given(st.data(), st.lists(parts, min_size=1, max_size=7))
def test_times_are_those_of_rates_found_anew_at_every_instant(data, drawn):
    """Message i goes from client 2i to 2i + 1, or the server stands in the place of one of them."""
    topology = data.draw(networks(2 * len(drawn)))
    links, messages = {}, []
    for i, (at_s, size, patience_s, first, second, way) in enumerate(drawn):
        links |= {2 * i: first, 2 * i + 1: second}
        src, dst = (SERVER if way == "down" else 2 * i), (SERVER if way == "up" else 2 * i + 1)
        messages.append((at_s, src, dst, size, at_s + patience_s))
    seen = World(topology, up=links, down=links).run(*messages)
    expected = one_by_one(topology, links, messages)
    assert [ended_s for _, ended_s, _ in seen] == pytest.approx([ended_s for ended_s, _ in expected], rel=1e-9)
    assert [moved for *_, moved in seen] == pytest.approx([moved for _, moved in expected], rel=1e-9, abs=1e-9)


@settings(max_examples=30)
@given(
    st.lists(own_links(), min_size=3, max_size=3),
    st.lists(st.tuples(instants, NODES, NODES, st.integers(1, 9)), min_size=1, max_size=8),
)
def test_where_the_shared_edges_are_wide_only_the_clients_own_links_count(links, messages):
    """Equal the clock without sharing: a message takes its links once both are free."""
    messages = [message for message in sorted(messages, key=itemgetter(0)) if message[1] != message[2]]
    own, free_s, expected = dict(enumerate(links)), {}, []
    for at_s, src, dst, size in messages:
        taken = [(name, client) for name, client in (("up", src), ("down", dst)) if client != SERVER]
        started_s = max(at_s, *(free_s.get(link, 0.0) for link in taken))
        ended_s = started_s + joint_transfer_s([own[client] for _, client in taken], started_s, size)
        free_s |= dict.fromkeys(taken, ended_s)
        expected.append((pytest.approx(started_s, rel=1e-9), pytest.approx(ended_s, rel=1e-9), size))
    assert World(bottleneck(3, 1e15), up=own, down=own).run(*messages) == expected


def test_a_client_that_is_held_by_its_own_link_alone_sends_as_without_sharing_to_the_bit():
    """Let other clients come and go meanwhile."""
    own = RateTrace(1e6 / 7)
    world = World(bottleneck(5, 1e6), up={0: own})
    others = [(0.1 * client, client, SERVER, 100_000 // client) for client in (1, 2, 3, 4)]
    ((_, ended_s, _), *_) = world.run((1 / 3, 0, SERVER, 12_023), *others)
    assert len(world.links.shares) > 6
    assert ended_s == 1 / 3 + own.transfer_s(1 / 3, 12_023)


def test_messages_that_are_over_are_forgotten_long_before_they_would_have_given_up():
    world = World(bottleneck(1, 8.0))
    world.run(*[(0.0, 0, SERVER, 1, 1e9)] * 5000)
    assert len(world.links._changes) < 2000


@pytest.mark.parametrize("method", ["splitfed_v2", "splitnn"])
def test_a_clock_with_wide_shared_links_agrees_with_one_without(method):
    """SplitNN sends from client to client, too."""
    rates = {"macs_per_s": [1e5, 3e5, 2e5], "uplink_bps": [1.0e5, 2.3e5, 0.7e5], "downlink_bps": [3e5, 2e5, 1e5]}
    wide = {"shared": {"access_points": 2, "capacity_bps": 1e12, "backhaul_bps": 1e12}}
    apart, together = (
        simulate(method, task(device=None), world=fleet(3, **rates, latency_s=0.01, **shared), workers=1)[2]
        for shared in ({}, wide)
    )
    names = ["node", "kind", "round", "step", "client", "bytes"]
    apart, together = np.sort(apart, order=names), np.sort(together, order=names)
    assert apart[names].tolist() == together[names].tolist()
    for instant in ("requested_s", "started_s", "ended_s"):
        assert together[instant] == pytest.approx(apart[instant], rel=1e-12)
