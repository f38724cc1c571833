"""What training with early exits costs in bytes, work and time (docs/methods/harmony.md#on-the-wire)."""

from dataclasses import replace
from math import ceil

import pytest
import torch
from small_exits import deep, deep_task
from small_world import CPU, fleet, simulate

from sfl_sim.methods import METHODS
from sfl_sim.models.heads import exit_network
from sfl_sim.models.lora import Lora
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Bundle
from sfl_sim.ops import Value, Work
from sfl_sim.rng import stream
from sfl_sim.training.exit_steps import Adapt
from sfl_sim.training.optimisers import Sgd

FP32 = Network("deep", deep, (1, 4, 4), 3, torch.float32)
PRICED = {"samples": [10, 6, 7, 4], "cuts": [1, 3, 2, 3], "device": None, "local_epochs": 1}
M = 2


def priced(name, rounds=1, world=None, options=None, include_model_exchange=True):
    """The work, and the rows of a timing-only run in fp32."""
    work = replace(deep_task(**PRICED), network=FP32)
    *_, rows = simulate(
        name, work, rounds, world=world, options=options or {}, include_model_exchange=include_model_exchange
    )
    return work, rows


def depths_drawn(work, c, stochastic):
    """K of each mini-batch of client `c` in round 1."""
    depths, n = sorted(set(work.cuts)), work.data.n_batches(c)
    if not stochastic:
        return [work.cuts[c]] * n
    own = depths.index(work.cuts[c])
    return [depths[rank] for rank in stream(work.seed, "exit depths", 1, c).integers(own + 1, size=n)]


def sizes(c, work):
    """Samples of the mini-batches of client `c` in a round."""
    return [batch.samples for batch in work.data.batches(c, 1)]


def numel(cut):
    """Elements of one sample's features after `cut` layers."""
    return FP32.layers[cut - 1].out_numel


def macs(start, stop):
    return sum(layer.macs for layer in FP32.layers[start:stop])


def head_layer(cut):
    return exit_network(FP32, cut).layers[-1]


def ours(rows, **wanted):
    """The rows in which these columns have these values."""
    for column, value in wanted.items():
        rows = rows[rows[column] == (value.encode() if isinstance(value, str) else value)]
    return rows


@pytest.mark.parametrize("head", ["embedding", "logits"])
@pytest.mark.parametrize("switches", [{}, {"stochastic_exit": False, "quantise": False}, {"csa_weight": 0.0}], ids=str)
def test_the_bytes_of_a_mini_batch_are_those_of_12_3(head, switches):
    """Up 2n (A_K + A_d) + ceil(n/8) + 1 and 4n dS, down 2n dS and 4n A_d, in fp32; no labels."""
    work, rows = priced("harmony", options={"head": head, **switches})
    answer = numel(4) if head == "embedding" else 3
    half = 2 if switches.get("quantise", True) else 4
    for c, cut in enumerate(work.cuts):
        drawn = depths_drawn(work, c, switches.get("stochastic_exit", True))
        for step, (n, k) in enumerate(zip(sizes(c, work), drawn, strict=True)):
            up, down = (ours(rows, node=node, client=c, step=step)["bytes"].tolist() for node in ("uplink", "downlink"))
            view = half * n * numel(k) + ceil(n / 8) + 1 if switches.get("csa_weight", 1) else 0
            assert up == [half * n * numel(cut) + view, 4 * n * answer]
            assert down == [half * n * answer, 4 * n * numel(cut)]


@pytest.mark.parametrize(
    ("name", "options"),
    [("harmony", {"head": "embedding"}), ("harmony", {"head": "logits"}), ("multiexit", {})],
    ids=str,
)
def test_a_round_moves_front_end_and_exit_both_ways_and_the_classifier_where_clients_train_it(name, options):
    work, rows = priced(name, rounds=2, options=options)
    classifier = FP32.layers[-1].parameters if options.get("head") == "embedding" else 0
    for c, cut in enumerate(work.cuts):
        elements = sum(layer.parameters + layer.buffers for layer in FP32.layers[:cut]) + head_layer(cut).parameters
        for node in ("uplink", "downlink"):
            assert ours(rows, node=node, client=c, kind="model")["bytes"].tolist() == [4 * (elements + classifier)] * 2


def test_multiexit_sends_what_splitfed_v1_sends_and_the_exits():
    work, rows = priced("multiexit")
    _, v1 = priced("splitfed_v1")
    for c, cut in enumerate(work.cuts):
        up, down = (ours(rows, node=node, client=c)["bytes"].sum() for node in ("uplink", "downlink"))
        v1_up, v1_down = (ours(v1, node=node, client=c)["bytes"].sum() for node in ("uplink", "downlink"))
        assert up - v1_up == down - v1_down == 4 * head_layer(cut).parameters


@pytest.mark.parametrize("head", ["embedding", "logits"])
@pytest.mark.parametrize(
    "switches", [{}, {"stochastic_exit": False}, {"csa_weight": 0.0}, {"cross_batch": False}], ids=str
)
def test_the_work_of_a_mini_batch_is_that_of_12_3(head, switches):
    """Passes of phi and h: 3M for each adaptation, one forward, two backward; z+ is priced as far as its exit.

    Nobody needs the gradient of samples, nor that of z+ at the server: a pass less of the layer that each enters.
    """
    work, rows = priced("harmony", options={"head": head, "inner_steps": M, **switches})
    aligned = switches.get("csa_weight", 1)
    for c, cut in enumerate(work.cuts):
        small = macs(0, cut) + head_layer(cut).macs
        drawn = depths_drawn(work, c, switches.get("stochastic_exit", True))
        for step, (n, k) in enumerate(zip(sizes(c, work), drawn, strict=True)):
            on_device, at_server = (
                ours(rows, node=node, client=c, step=step)["macs"].sum() for node in ("client", "server")
            )
            first = macs(0, 1)
            adaptation = M * (3 * small - first) * (2 if aligned else 1)
            view, view_at_server = (macs(0, k), 3 * macs(k, 4) - macs(k, k + 1)) if aligned else (0, 0)
            at_client = macs(4, 5) if head == "embedding" else 0
            assert on_device == n * (adaptation + view + 3 * small - first + 3 * at_client)
            assert at_server == n * (3 * (macs(cut, 5) - at_client) + view_at_server)


def test_a_mini_batch_takes_the_work_and_the_bytes_of_12_3_and_two_round_trips():
    """One round trip more than with SplitFedV1, given their MACs and bytes; lanes for all, so nobody waits."""
    rates = {
        "macs_per_s": [1e5, 3e5, 7e5, 5e4],
        "uplink_bps": [1e5, 4e4, 9e4, 2e5],
        "downlink_bps": [3e5, 2e5, 1e5, 2e5],
    }
    world = fleet(4, **rates, latency_s=0.25)
    for name, messages in (("harmony", 4), ("multiexit", 2), ("splitfed_v1", 2)):
        work, rows = priced(name, world=world, include_model_exchange=False)
        for c in range(4):
            mine = ours(rows, client=c)
            seconds = ours(mine, node="client")["macs"].sum() / rates["macs_per_s"][c]
            seconds += ours(mine, node="server")["macs"].sum() / world.server_macs_per_s
            for node in ("uplink", "downlink"):
                wire = mine[(mine["node"] == node.encode()) & (mine["kind"] != b"model")]
                seconds += 8 * wire["bytes"].sum() / rates[f"{node}_bps"][c]
            seconds += messages * 0.25 * work.data.n_batches(c)
            assert mine["ended_s"].max() == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("multiexit", [(1, 5), (3, 5), (2, 5)]),
        ("harmony", [(1, 4)] * 3),
    ],
)
def test_the_server_holds_for_each_client_the_layers_that_its_features_may_run_through(name, held):
    """With HARMONY those of any depth, but for the classifier, which is at the clients."""
    work = replace(deep_task(**PRICED), network=FP32)
    layers = [layer for start, stop in held for layer in FP32.layers[start:stop]]
    n_bytes = sum(4 * (layer.parameters + layer.buffers) for layer in layers)
    assert METHODS[name](work).server_bytes([0, 1, 2]) == n_bytes


def test_the_model_in_use_is_adapted_on_mini_batches_of_no_round_and_priced():
    """Everybody downloads, those who never took part as well; then 3M passes of phi and h, one batch a step."""
    work = replace(deep_task(**PRICED), network=FP32)
    method, simulator, _ = simulate("harmony", work, rounds=1, options={"inner_steps": M}, clients=[0])
    simulator.run(method.finish(), 1)
    rows = simulator.take_rows()
    for c, cut in enumerate(work.cuts):
        n_samples = sum(batch.samples for batch in work.data.steps(c, 0, M))
        assert len(ours(rows, client=c, node="downlink", kind="model")) == 1
        passes = 3 * (macs(0, cut) + head_layer(cut).macs) - macs(0, 1)  # no gradient of samples
        assert ours(rows, client=c)["macs"].sum() == n_samples * passes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("multiexit", {}),
        ("splitgp", {"ft_steps": 3, "ft_lr": 0.1}),
        ("harmony", {"inner_steps": 1}),
        ("harmony", {"inner_steps": 1, "head": "logits"}),
    ],
    ids=str,
)
def test_a_timing_only_run_of_unequal_depths_has_the_timeline_of_the_training_run(name, options):
    found = []
    for device in (CPU, None):
        work = deep_task(device=device)
        method, simulator, rows = simulate(name, work, options=options, workers=2, clients=[3, 0, 1])
        simulator.run(method.finish(), 2)
        found.append((rows.tobytes(), simulator.take_rows().tobytes(), simulator.now_s))
    assert found[0] == found[1]


def test_inner_steps_cost_as_many_times_one_step_with_adapters_too():
    """A frozen product's gradient is spared in each of them."""
    phi, h = Network("deep", deep, (1, 4, 4), 3, lora=Lora(targets=("1", "3"))).split(2, seed=0, device=CPU)
    batch = Value("batch", samples=4)
    one, five = (Adapt(Sgd(0.1), n_steps=n).work(Bundle([phi, h]), batch) for n in (1, 5))
    assert five == Work.total([one] * 5)
