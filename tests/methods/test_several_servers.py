"""Several servers in methods: averages from tier to tier, chains, and whom each server serves."""

from collections import Counter, OrderedDict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_world import distance, fleet, task
from torch import nn

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.chain import CHAINS, chain
from sfl_sim.methods.hierarchical import hierarchical
from sfl_sim.methods.tiers import ServedTier, Tiers, relocated
from sfl_sim.ops import AGGREGATOR, SERVER, Lost, ServerNode, aggregator_of, expect, on, par, send
from sfl_sim.scenario.load import parse
from sfl_sim.store import places
from sfl_sim.testing import simulate
from sfl_sim.training.contents import dump, load
from sfl_sim.training.executors import Eager
from sfl_sim.training.replay import Image, Replay

TIERED = {name: kind for name, kind in METHODS.items() if kind.tiered}
SAMPLES = [6, 9, 4, 8]
BACKBONE = {"uplink_bps": 1e6, "downlink_bps": 1e6}


def deep(shape, n_labels):
    """Five layers, so that chains of several hops have something to hold."""
    sizes = [shape[0] * shape[1] * shape[2], 7, 6, 5, 6, n_labels]
    maps = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)]
    maps[0], maps[-1] = nn.Sequential(nn.Flatten(), *maps[0]), maps[-1][0]
    return nn.Sequential(OrderedDict((f"layer{i}", layer) for i, layer in enumerate(maps, 1)))


def tiers(*counts, cuts=(), every=1, homes=None):
    """Tiers edge, fog, ... with so many servers each."""
    names = ["edge", "fog", "town"][: len(counts)]
    servers = [[ServerNode(name, k) for k in range(1, n + 1)] for name, n in zip(names, counts, strict=True)]
    pairs = zip(servers, [*servers[1:], [SERVER]], strict=True)
    above = [[up[k * len(up) // len(own)] for k in range(len(own))] for own, up in pairs]
    every = [every] * len(counts) if isinstance(every, int) else every
    cuts = cuts or [None] * len(counts)
    made = [ServedTier(*one) for one in zip(servers, above, cuts, every, strict=True)]
    first = servers[0]
    return Tiers(made, homes or (lambda round: [first[c % len(first)] for c in range(len(SAMPLES))]))


def world(*counts, backbone=None):
    names = ["edge", "fog", "town"][: len(counts)]
    return fleet(4, servers={name: {"count": n, "backbone": backbone} for name, n in zip(names, counts, strict=True)})


def run(name, made, counts, rounds=2, world_of=None, form=None, order="fcfs", executor=None, **settings):
    work = replace(task(SAMPLES, batch_size=3, **settings), tiers=made)
    kind = form or (hierarchical(METHODS[name]) if counts else METHODS[name])
    return simulate(kind(work), rounds, order, world_of or (world(*counts) if counts else None), executor)


@pytest.mark.parametrize("name", TIERED)
def test_one_edge_that_averages_every_round_is_the_method_with_one_server_to_the_bit(name):
    plain = run(name, Tiers(), ())
    edge = run(name, tiers(1), (1,))
    assert distance(plain.method, edge.method) == 0
    own = edge.rows[~np.isin(edge.rows["node"], [b"backbone"]) & (edge.rows["kind"] != b"adopt")]
    at_clients = [rows[places.at(rows["node"], "client", "uplink", "downlink")] for rows in (plain.rows, own)]
    assert [rows["kind"].tolist() for rows in at_clients[:1]] == [rows["kind"].tolist() for rows in at_clients[1:]]


@pytest.mark.parametrize("name", [name for name in TIERED if not METHODS[name].shares_server_model])
@pytest.mark.parametrize("counts", [(2,), (4,), (4, 2)])
def test_a_weighted_mean_of_weighted_means_is_the_weighted_mean(name, counts):
    """All methods whose clients train copies: edges change nothing but the last bits."""
    assert distance(run(name, Tiers(), ()).method, run(name, tiers(*counts), counts).method) < 1e-12


def test_edges_are_averaged_by_the_samples_of_their_clients():
    """Edges with 6 + 4 and 9 + 8 samples, after a round of SplitFedV2 each, and what is evaluated between averages."""
    between = run("splitfed_v2", tiers(2, every=2), (2,), rounds=1).method
    one, other = between.hosts.values()
    assert distance(one, other) > 1e-3
    for own, first, second in zip(between.model(), one.model(), other.model(), strict=True):
        expected = (10 * first.weights.flat + 17 * second.weights.flat) / 27
        assert torch.allclose(own.weights.flat, expected, atol=1e-15)
    averaged = run("splitfed_v2", tiers(2), (2,), rounds=1).method
    assert distance(between, averaged) < 1e-14
    assert distance(*averaged.hosts.values()) == 0, "after the average all edges hold the same"


def test_upper_tiers_average_after_so_many_averages_of_the_tier_below():
    """Every second round edges are averaged at the fog, and every sixth the fog at the cloud."""
    where = world(4, 2, backbone=BACKBONE)
    rows = run("fedavg", tiers(4, 2, every=[2, 3]), (4, 2), rounds=6, world_of=where).rows
    models = Counter(rows["round"][rows["node"] == b"backbone"].tolist())
    assert models == {2: 8, 4: 8, 6: 8 + 4}


def test_bytes_between_servers_are_two_models_for_each_edge_and_average():
    found = run("splitfed_v2", tiers(2, every=2), (2,), rounds=4, world_of=world(2, backbone=BACKBONE))
    size_bytes = sum(part.size_bytes for part in found.method.model())
    sent = found.rows["bytes"][found.rows["node"] == b"backbone"]
    assert sent.sum() == 2 * 2 * size_bytes * 2


def chained(name, made, counts, net=deep, **settings):
    return run(name, made, counts, form=chain(METHODS[name]), build=net, order="cyclic", **settings)


@pytest.mark.parametrize(
    ("counts", "cuts", "client_cuts"),
    [
        ((1,), [2], [1] * 4), ((2,), [3], [1] * 4), ((4, 2), [2, 4], [1] * 4), ((2, 2, 1), [2, 3, 4], [1] * 4),
        ((2,), [4], [1, 3, 2, 1]),
    ],
)  # fmt: skip
def test_a_chain_of_copies_learns_what_splitfed_v1_learns_whatever_its_cuts(counts, cuts, client_cuts):
    plain = run("splitfed_v1", Tiers(), (), build=deep, cuts=client_cuts)
    hops = chained("splitfed_v1", tiers(*counts, cuts=cuts), counts, cuts=client_cuts)
    assert distance(plain.method, hops.method) < 1e-12


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind in CHAINS])
def test_one_client_learns_over_hops_what_it_learns_with_one_server_to_the_bit(name):
    made = Tiers(tiers(1, 1, cuts=[2, 3]).tiers, lambda round: [ServerNode("edge", 1)])
    work = [replace(task([9], batch_size=3, build=deep), tiers=one) for one in (Tiers(), made)]
    where = fleet(1, servers={"edge": {"count": 1}, "fog": {"count": 1}})
    plain, hops = simulate(METHODS[name](work[0])), simulate(chain(METHODS[name])(work[1]), world=where)
    assert distance(plain.method, hops.method) == 0


def test_what_passes_each_hop_is_the_activations_there_and_their_gradient():
    found = chained("splitfed_v1", tiers(2, 1, cuts=[2, 4]), (2, 1), rounds=1, world_of=world(2, 1, backbone=BACKBONE))
    network, rows = found.method.task.network, found.rows
    between = rows[(rows["node"] == b"backbone") & (rows["client"] == 1)]
    label, n = network.part(0, 1).label_bytes, SAMPLES[1]
    at_cut = [8 * network.layers[cut - 1].out_shape[0] for cut in (2, 4)]
    assert between["bytes"][between["kind"] == b"smashed"].sum() == n * (sum(at_cut) + 2 * label)
    assert between["bytes"][between["kind"] == b"gradients"].sum() == n * sum(at_cut)
    parts = {b"edge2": (1, 2), b"fog1": (2, 4), b"server": (4, 5)}
    for node, ends in parts.items():
        macs = rows["macs"][(rows["node"] == node) & (rows["client"] == 1)].sum()
        assert macs == 3 * n * sum(layer.macs for layer in network.layers[slice(*ends)])


def test_a_client_that_moves_is_served_by_its_new_edge():
    edges = [ServerNode("edge", k) for k in (1, 2)]
    moving = tiers(2, homes=lambda round: [edges[(c + round) % 2] for c in range(4)])
    rows = run("splitfed_v2", moving, (2,)).rows
    jobs = rows[places.at_servers(rows["node"]) & (rows["client"] == 0)]
    assert sorted({(row["round"], row["node"]) for row in jobs}) == [(1, b"edge2"), (2, b"edge1")]


@pytest.mark.parametrize("down", ["move", "drop", "wait"])
def test_clients_of_an_edge_that_is_down_wait_move_or_are_left_out(down):
    made = tiers(2)
    first = replace(made.tiers[0], down=down)
    groups, flow = None, replace(made, tiers=[first]).groups(1, range(4))
    try:
        asked = next(flow)
        assert asked.nodes == first.servers
        flow.send([first.servers[1]])
    except StopIteration as stop:
        groups = stop.value
    one, two = first.servers
    assert groups == {
        "wait": {one: [0, 2], two: [1, 3]}, "move": {two: [0, 1, 2, 3]}, "drop": {two: [1, 3]},
    }[down]  # fmt: skip


@pytest.mark.parametrize("form", ["hierarchical", "chain"])
def test_a_run_that_was_interrupted_between_two_averages_goes_on_to_the_same_bits(form):
    made, kind = (tiers(2, every=3), hierarchical(METHODS["splitfed_v2"])) if form == "hierarchical" else (
        tiers(2, every=3, cuts=[2]), chain(METHODS["splitfed_v2"]))  # fmt: skip

    def begin():
        return kind(replace(task(SAMPLES, batch_size=3, build=deep), tiers=made)), Replay(Eager())

    whole, memory = begin()
    simulate(whole, 3, world=world(2), executor=memory)
    first, memory = begin()
    simulate(first, 2, world=world(2), executor=memory)
    image = Image(**load(dump(vars(memory.image()))))
    again, memory = begin()
    memory.walk(image)
    simulate(again, 3, world=world(2), executor=memory)
    assert not memory.is_walking
    assert distance(whole, again) == 0


def test_a_flow_at_another_place_names_that_place_everywhere_and_hears_of_losses():
    edge = ServerNode("edge", 2)
    heard = []

    def flow():
        try:
            yield par([inner()])
        except Lost as lost:
            heard.append(lost.client)
        yield send("model", AGGREGATOR, 3)
        yield expect("w2", {3: 1})
        return "done"

    def inner():
        yield on(SERVER, "step", "w2")

    moved = relocated(flow(), edge)
    (branch,) = next(moved).flows
    assert next(branch).node == edge
    sent = moved.throw(Lost(7))
    assert (sent.src, sent.dst, heard) == (aggregator_of(edge), 3, [7])
    assert moved.send(None).node == edge
    with pytest.raises(StopIteration, match="done"):
        moved.send(None)


SCENARIO = {"data": {"name": "digits", "train_samples": 120, "test_samples": 50}, "clients": {"count": 4}}


@pytest.mark.parametrize(
    ("edge", "more", "key"),
    [
        ({}, {"method": "hydra"}, "servers"),
        ({"cut": 2}, {"method": "fedavg"}, "method.name"),
        ({"cut": 1}, {}, "servers.edge.cut"),
        ({"clients": [1, 2, 1]}, {}, "servers.edge.clients"),
        ({"clients": [1, 2, 1, 1]}, {}, "servers.edge.clients"),
        ({"clients": "nearest"}, {}, "servers.edge.clients"),
        ({"clients": "math:pi"}, {}, "servers.edge.clients"),
        ({"clients": "math:hypot"}, {}, "servers.edge.clients"),
        ({"clients": "math:fsum"}, {}, "servers.edge.clients"),
        ({}, {"clients": {"count": 4, "overcommit": 1}}, "clients.overcommit"),
        ({"order": "cyclick"}, {}, "servers.edge.order"),
        ({"cost": "nothing"}, {}, "servers.edge.cost"),
        ({"backbone": {"compute_correlation": 0.5}}, {}, "servers.edge.backbone.compute_correlation"),
        ({"backbone": {"profile": "nothing"}}, {}, "servers.edge.backbone.profile"),
        ({"outages": {"profile": "nothing"}}, {}, "servers.edge.outages.profile"),
        (
            {"count": 3, "outages": {"profile": "flash"}},
            {"clients": {"count": 12, "availability": {"profile": "flash", "lost": "wait"}}},
            "servers.edge.outages.clients",
        ),
        ({"cut": 2}, {"method": {"name": "splitfed_v1", "server_agg_every": "step"}}, "method.server_agg_every"),
        ({"count": 0}, {}, "servers.edge.count"),
        ({"wrkers": 2}, {}, "servers.edge.wrkers"),
        ({"macs_per_s": 1e9, "speedup": 3}, {}, "servers.edge.macs_per_s"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(edge, more, key):
    assert refused({"edge": {"count": 1} | edge}, more).key == key


@pytest.mark.parametrize(
    ("servers", "key"),
    [
        ({"edge": {"count": 1, "cut": 2}, "fog": {"count": 1}}, "servers.fog.cut"),
        ({"edge": {"count": 1}, "fog": {"count": 1, "clients": "speed"}}, "servers.fog.clients"),
        (
            {"edge": {"count": 1}, "fog": {"count": 1, "outages": {"profile": "fedscale", "clients": "move"}}},
            "servers.fog.outages.clients",
        ),
        ({"edge": {"workers": 2}}, "servers.edge.count"),
        ({"server": {"count": 2}}, "servers.server"),
        ({"Edge 1": {"count": 2}}, "servers.Edge 1"),
    ],
)
def test_tiers_that_cannot_be_are_refused_by_their_key(servers, key):
    assert refused(servers, {}).key == key


def refused(servers, more):
    """What refuses a scenario with these servers."""
    with pytest.raises(ScenarioError) as error:
        list(Experiment(first_variant({"model": {"cut": 1}, "servers": servers} | more), None).rounds())
    return error.value


def first_variant(sections):
    return parse(SCENARIO | sections).variants[0].scenario


def test_clients_whose_server_was_down_all_round_are_as_unknown_as_before(tmp_path):
    """The first edge is down, which drops its clients: they were chosen, have done nothing, and stay new to Oort."""
    file = tmp_path / "down.csv"
    file.write_text("client,start_s,end_s,period_s\n0,9e5,1e6,1e6\n1,0,1e6,1e6\n")
    edge = {
        "count": 2,
        "clients": [1, 1, 2, 2],
        "average_every": 9,
        "outages": {"profile": str(file), "clients": "drop"},
    }
    clients = {"count": 4, "participation": 0.75, "choice": "oort"}
    scenario = first_variant({"servers": {"edge": edge}, "clients": clients, "train": {"rounds": 5}})
    experiment = Experiment(scenario, torch.device("cpu"))
    assert len([*experiment.rounds()]) == 5
    participation = experiment.walk.participation
    assert np.isfinite(participation._took_s).tolist() == [False, False, True, True]
    assert (participation._last_round > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize("rule", ["even", "speed", [1, 2, 2, 1]])
def test_a_scenario_trains_and_times_alike_with_any_rule_for_whom_a_server_serves(rule):
    servers = {"edge": {"count": 2, "clients": rule, "backbone": BACKBONE}}
    scenario = first_variant({"servers": servers, "train": {"rounds": 2}})
    trained, timed = Experiment(scenario, torch.device("cpu")), Experiment(scenario, None)
    rows = [list(one.rounds())[-1].row for one in (trained, timed)]
    assert trained.timeline_digest == timed.timeline_digest
    assert rows[0]["bytes_backbone"] > 0
    table = trained.histories()["servers"].set_index("server")
    assert table.loc[["edge1", "edge2"], "clients"].sum() == 4
    assert table["above"].tolist() == ["", "server", "server"]
    assert table["busy"].max() <= 1


@pytest.mark.parametrize("edge", [{"count": 2, "backbone": BACKBONE}, {"count": 2, "cut": 2, "backbone": BACKBONE}])
def test_adapters_train_at_edges_whose_frozen_layers_came_down_first(edge):
    lora = {"targets": ["conv1", "conv2", "fc"]}
    usual = {"method": "splitfed_v1", "train": {"rounds": 2}, "lora": lora}
    scenario = first_variant({"model": {"cut": 1}, "servers": {"edge": edge}} | usual)
    rows = [each.row for each in Experiment(scenario, None).rounds()]
    assert rows[0]["bytes_backbone"] > rows[1]["bytes_backbone"] > 0
    assert refused({"edge": edge}, usual | {"lora": lora | {"aggregate": "concat"}}).key == "lora.aggregate"
