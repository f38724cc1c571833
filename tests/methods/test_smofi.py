"""SMoFi: its golden scalars, the identities I11, and what its barriers cost (docs/methods/smofi.md)."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_world import EVERYBODY, run
from small_world import distance, fleet, simulate, task, tensors, unsplit
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.smofi import Fuse, Fusion
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.system.presence import Presence
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import MomentumAverage, Train

EXACT = 1e-10
BARRIERS = ("paper", "strict", "relaxed")
OFF = {"fusion": False, "server_momentum": 0.0}


@pytest.fixture
def fusions(monkeypatch):
    """Collect the content of every fusion, after it, as (mbar, m_1): their first elements."""
    fuse, seen = Fuse.run, []

    def watched(self, fusion, shares):
        fuse(self, fusion, shares)
        separate, fused = fusion.buffers
        seen.append((float(fused[0, 0]), float(separate[0, -1, 0])))

    monkeypatch.setattr(Fuse, "run", watched)
    return seen


def with_gradients(monkeypatch, gradients):
    """Let every mini-batch of client c have the gradient `gradients[c]` at each weight of part-2, whatever the data."""

    def differentiate(self, part, data):
        for member in part.members:
            member.weights.grad.fill_(gradients[data.maker])
        return torch.zeros_like(data.load()[0])

    monkeypatch.setattr(Train, "differentiate", differentiate)


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize(
    ("staleness", "fused", "own", "weights"),
    [(-1.0, [2, 2.25, 2.2291667], [3, 4, 4.125], [-1, -11.125]), (0.0, [2, 2.5, 2.625], [3, 4, 4.25], [-1, -11.25])],
)
def test_the_golden_scalars(monkeypatch, fusions, barrier, staleness, fused, own, weights):
    """Two clients with one and three mini-batches and constant gradients 1 and 3: the golden values of the README."""
    with_gradients(monkeypatch, {0: 1.0, 1: 3.0})
    moved, merge = [], MomentumAverage.run

    def watched_merge(self, into, replicas, shares):
        if not into.part.first:
            moved.extend(float((replica.weights.flat - start)[0]) for replica in replicas)
        merge(self, into, replicas, shares)

    monkeypatch.setattr(MomentumAverage, "run", watched_merge)
    work = task(samples=[4, 12], momentum=0.5, lr=1.0)
    start = next(iter(METHODS["smofi"](work).parts.values()))[1].weights.flat.clone()
    options = {"staleness": staleness, "server_momentum": 0.3, "barrier": barrier}
    method, *_ = simulate("smofi", work, rounds=1, options=options)
    assert [mbar for mbar, _ in fusions] == pytest.approx(fused)
    assert [m_1 for _, m_1 in fusions] == pytest.approx(own)
    assert moved == pytest.approx(weights)
    if staleness == -1:
        part2 = method.pieces[1].weights
        assert float((part2.flat - start)[0]) == pytest.approx(-8.59375)  # k = (.25, .75)
        assert float(part2.momentum[0]) == pytest.approx(8.59375)


@pytest.mark.parametrize(
    ("barrier", "last_job", "rates"),
    [*((barrier, b"forward", 1e3) for barrier in BARRIERS), ("relaxed", b"gradients", [1e3, 200.0])],
)
def test_a_lost_client_counts_like_one_that_is_done(monkeypatch, fusions, barrier, last_job, rates):
    """The golden scalars, though both clients have three mini-batches: the first goes away in the second of them.

    In the last case its gradient is on the way back while its surrogate still waits for a slower client's first step.
    """
    with_gradients(monkeypatch, {0: 1.0, 1: 3.0})
    given = {"samples": [12, 12], "momentum": 0.5, "lr": 1.0}
    options, world = {"staleness": -1.0, "server_momentum": 0.0, "barrier": barrier}, fleet(2, rates)
    *_, rows = simulate("smofi", task(**given, device=None), 1, options=options, world=world)
    (last,) = rows[(rows["kind"] == last_job) & (rows["client"] == 0) & (rows["step"] == 1)]
    leaves_s = (last["started_s"] + last["ended_s"]) / 2
    presence = [Presence([(0.0, leaves_s)], 1e6), Presence([(0.0, 1e6)], 1e6)]
    world, dropouts = replace(world, presence=presence), Dropouts("drop", presence)
    method, *_ = simulate("smofi", task(**given), 1, options=options, world=world, dropouts=dropouts)
    assert [mbar for mbar, _ in fusions] == pytest.approx([2, 2.25, 2.2291667])
    start = METHODS["smofi"](task(**given)).pieces[1].weights.flat
    assert method.pieces[1].weights.flat - start == pytest.approx(-11.125)  # of the second client alone


@pytest.mark.parametrize("speedup", [1.0, 20.0])
def test_who_has_delivered_is_not_lost_while_its_surrogate_waits(speedup):
    """For a slower client, or for the server's only worker."""
    settings = {"samples": [16, 12, 16, 12], "local_epochs": 1, "speedup": speedup, "device": None}
    settings["options"] = {"barrier": "relaxed", "server_momentum": 0.0}
    *_, (rows,) = run("smofi", [EVERYBODY], **settings)
    delivered = rows[(rows["kind"] == b"model") & (rows["node"] == b"uplink")]
    for place in range(3):
        late_s = delivered["ended_s"][place] + 1e-6
        _, clock, _ = run("smofi", [EVERYBODY], policy="deadline", deadline_s=late_s, **settings)
        lost = {loss.client for loss in clock.records.dropouts}
        assert lost == set(delivered["client"][place + 1 :])


def by_hand(work, rounds, clients, alpha, beta_g, carry=False):
    """SMoFi on one unsplit network a client, with torch.optim on part-2's parameters: written without the simulator.

    Part-1 is the first layer.
    """

    def network(state):
        net = unsplit(work)
        net.load_state_dict(state)
        return net

    weights, velocity, fused = unsplit(work).state_dict(), None, None
    for number in range(1, rounds + 1):
        usual = work.optimiser(number)
        nets = {c: network(weights) for c in clients}
        kinds = {"sgd": torch.optim.SGD, "nag": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        more = (
            {"momentum": work.momentum, "nesterov": work.optimizer == "nag"} if work.optimizer in ("sgd", "nag") else {}
        )
        kind = kinds[work.optimizer]
        ours = {c: [kind(p, lr=usual.lr, weight_decay=work.weight_decay, **more)
                    for p in (nets[c][0].parameters(), nets[c][1:].parameters())] for c in clients}  # fmt: skip
        batches = {c: list(work.data.batches(c, number)) for c in clients}
        names = {"sgd": ["momentum_buffer"], "nag": ["momentum_buffer"]}.get(work.optimizer, ["exp_avg", "exp_avg_sq"])
        fused = fused if carry else None
        for step in range(max(map(len, batches.values()))):
            for c in clients:
                if step >= len(batches[c]):
                    continue
                if fused is not None:
                    for p, means in zip(nets[c][1:].parameters(), fused, strict=True):
                        for name, mean in zip(names, means, strict=True):
                            ours[c][1].state[p][name] = mean.clone()
                x, y = batches[c][step].load()
                nets[c].zero_grad()
                nn.functional.cross_entropy(nets[c](x), y).backward()
                for optimiser in ours[c]:
                    optimiser.step()
            weight = {c: (max(0, step + 1 - len(batches[c])) + 1) ** alpha for c in clients}
            rows = list(zip(*([(c, p) for p in nets[c][1:].parameters()] for c in clients), strict=True))
            own = [{c: {n: ours[c][1].state[p][n].clone() for n in names} for c, p in row} for row in rows]
            fused = [[sum(weight[c] * values[c][n] for c in clients) / len(clients) for n in names] for values in own]
        shares = dict(zip(clients, work.shares(clients), strict=True))
        mean = {key: sum(shares[c] * nets[c].state_dict()[key] for c in clients) for key in weights}
        delta = {key: weights[key] - mean[key] for key in weights}
        velocity = {key: delta[key] + (beta_g * velocity[key] if velocity else 0) for key in delta}
        weights = {key: weights[key] - velocity[key] for key in weights}
    return weights


@pytest.mark.parametrize(
    ("optimizer", "carry"), [("sgd", False), ("sgd", True), ("nag", False), ("adam", False), ("adamw", False)]
)
def test_training_is_what_a_hand_written_loop_does(optimizer, carry):
    momentum = 0.9 if optimizer in ("sgd", "nag") else 0.0
    work = task([4, 13, 8], optimizer=optimizer, momentum=momentum, weight_decay=1e-3, lr=0.02, local_epochs=2)
    options = {"staleness": -0.5, "server_momentum": 0.3, "carry_fused": carry}
    method, *_ = simulate("smofi", work, rounds=3, options=options, clients=[0, 2])
    expected = by_hand(work, 3, [0, 2], alpha=-0.5, beta_g=0.3, carry=carry)
    assert all((value - expected[key]).abs().max() < EXACT for key, value in tensors(method).items())


@settings(max_examples=15)
@given(
    samples=st.lists(st.integers(2, 14), min_size=1, max_size=4),
    momentum=st.sampled_from([0.0, 0.9]),
    rates=st.lists(st.sampled_from([1e4, 1e5, 1e6]), min_size=4, max_size=4),
    host=st.sampled_from(["fedavg", "fedprox", "fednar"]),
    cut=st.integers(1, 2),
)
def test_the_barrier_changes_when_things_are_learned_but_not_what(samples, momentum, rates, host, cut):
    """Waiting less is never later; and with no fusion nobody waits at all."""
    work = task(samples, momentum=momentum, cut=cut, weight_decay=1e-2)
    world = fleet(len(samples), rates[: len(samples)])
    found, ends_s = {}, {}
    for barrier in BARRIERS:
        options = {"barrier": barrier, "host": host}
        found[barrier], clock, _ = simulate("smofi", work, options=options, world=world)
        ends_s[barrier] = clock.now_s
    assert distance(found["paper"], found["strict"]) == 0
    assert distance(found["paper"], found["relaxed"]) == 0
    _, clock, _ = simulate("smofi", work, options={"fusion": False, "host": host}, world=world)
    # a fusion takes the server a moment, which only the two longer waits put on the way of every mini-batch
    assert clock.now_s * (1 - 1e-9) <= ends_s["relaxed"] <= ends_s["strict"] * (1 + 1e-9)
    assert ends_s["strict"] <= ends_s["paper"] * (1 + 1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_fusion_and_global_momentum_it_is_v1_to_the_bit_and_to_the_instant(momentum):
    work = task([12, 5, 9], momentum=momentum, local_epochs=2)
    (v1, _, their_ops), (smofi, _, our_ops) = simulate("splitfed_v1", work), simulate("smofi", work, options=OFF)
    assert distance(v1, smofi) == 0
    assert our_ops.tobytes() == their_ops.tobytes()


def test_i11_without_momentum_there_is_nothing_to_fuse():
    work = task([12, 5, 9])
    smofi = simulate("smofi", work, options={"server_momentum": 0.0})[0]
    assert distance(smofi, simulate("splitfed_v1", work)[0]) < EXACT


def test_i11_a_single_client_is_v1_with_fedavgm():
    work = task([13], momentum=0.9)
    smofi = simulate("smofi", work, 3, options={"server_momentum": 0.5})[0]
    assert distance(smofi, simulate("fedavgm", work, 3, options={"server_momentum": 0.5})[0]) < EXACT


def test_i11_identical_clients_are_v1():
    work = task([8, 8], momentum=0.9, batch_size=8)
    work.data.shares[1][:] = work.data.shares[0]
    smofi = simulate("smofi", work, 3, options={"server_momentum": 0.0})[0]
    assert distance(smofi, simulate("splitfed_v1", work, 3)[0]) < EXACT


def test_i11_constant_gradients_do_not_drive_surrogates_apart_faster_than_without_momentum(monkeypatch):
    """W_j - mean = -lr*T*(g_j - mean g); V1's is lr * sum_t (1 - beta^t)/(1 - beta); both means are the same."""
    gradients, beta, steps = {0: 1.0, 1: 4.0}, 0.9, 5
    with_gradients(monkeypatch, gradients)
    apart, means = {}, {}
    merge = MomentumAverage.run
    for name, options in (("smofi", {"server_momentum": 1e-12}), ("fedavgm", {"server_momentum": 1e-12})):
        work = task([20, 20], momentum=beta, lr=0.1)
        found = {}

        def watched(self, into, replicas, shares, found=found):
            found[into.part.first] = [float(r.weights.flat[0] - into.weights.flat[0]) for r in replicas]
            merge(self, into, replicas, shares)

        monkeypatch.setattr(MomentumAverage, "run", watched)
        simulate(name, work, 1, options=options)
        low, high = sorted(found[False])
        apart[name], means[name] = high - low, (low + high) / 2
    assert apart["smofi"] == pytest.approx(0.1 * steps * 3)
    assert apart["fedavgm"] == pytest.approx(0.1 * 3 * sum((1 - beta**t) / (1 - beta) for t in range(1, steps + 1)))
    assert means["smofi"] == pytest.approx(means["fedavgm"])


@given(late=st.lists(st.integers(-5, 50), min_size=1, max_size=20))
def test_shares_of_the_fusion(late):
    """Who is active counts fully; who is done, less and less; the divisor is a count."""
    work = task([4])
    counted = METHODS["smofi"](work).shares(late)
    flat = METHODS["smofi"](work, METHODS["smofi"].Options(staleness=0.0)).shares(late)
    assert flat == pytest.approx([1 / len(late)] * len(late))
    assert all(share <= 1 / len(late) + 1e-12 for share in counted)
    assert counted == pytest.approx([(max(0, delta) + 1) ** -0.1 / len(late) for delta in late])


def test_the_published_weights_of_stale_buffers():
    """The page of SMoFi: delta 1, 2, 5, 10, 50 at alpha = -0.1."""
    shares = METHODS["smofi"](task([4])).shares([1, 2, 5, 10, 50])
    assert 5 * np.array(shares) == pytest.approx([0.933, 0.896, 0.836, 0.787, 0.675], abs=5e-4)


def test_bytes_are_those_of_v1():
    work = task(device=None)
    ours, theirs = (simulate(name, work)[2]["bytes"].sum() for name in ("smofi", "splitfed_v1"))
    assert ours == theirs


def test_the_barrier_of_the_paper_costs_what_averaging_every_step_costs():
    """The sum over steps of the slowest client's, where models and averages take no time (docs/methods/timing.md)."""
    # the second client's data come early and its gradients late, except in its last mini-batch, a small one: it matters
    # that the first has waited for its backward pass, and not only for its data
    work, world = task([8, 5], device=None), fleet(2, 1e6, [2e4, 1e6], [1e6, 1e4])
    free = {"world": world, "include_model_exchange": False}
    _, smofi, _ = simulate("smofi", work, **free)
    _, v1_step, _ = simulate("splitfed_v1", work, options={"server_agg_every": "step"}, **free)
    assert smofi.now_s == pytest.approx(v1_step.now_s, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "options", "key"),
    [
        ({"cuts": [2, 2], "round_cuts": [1, 2]}, {"carry_fused": True}, "method.carry_fused"),
        ({"optimizer": "adam"}, {"carry_fused": True}, "method.carry_fused"),
        ({"cuts": [1, 2]}, {}, "model.cut"),
    ],
)
def test_what_cannot_be_fused_or_carried_is_refused(settings, options, key):
    with pytest.raises(ScenarioError) as refused:
        METHODS["smofi"](task([8, 8], **settings), METHODS["smofi"].Options(**options))
    assert refused.value.key == key


def test_the_matrix_of_a_round_is_not_kept_for_the_next_one(monkeypatch):
    fuse, seen = Fuse.run, []

    def watched(self, fusion, shares):
        fuse(self, fusion, shares)
        seen.append(ref(fusion))

    monkeypatch.setattr(Fuse, "run", watched)
    method, *_ = simulate("smofi", task(momentum=0.9))
    gc.collect()
    assert seen
    assert not any(fusion() for fusion in seen), method


def test_where_the_model_is_cut_says_nothing_about_what_a_single_client_learns():
    """It fuses with itself, whatever part of the model is the server's in a round."""
    usual = {"samples": [10], "momentum": 0.9, "weight_decay": 1e-3}
    options = {"server_momentum": 0.3}
    drawn = simulate("smofi", task(cuts=[2], round_cuts=[1, 2], **usual), 5, options=options)[0]
    fixed = simulate("fedavgm", task(**usual), 5, options=options)[0]
    assert distance(drawn, fixed) < EXACT


def test_fused_buffers_lie_in_one_matrix_whose_rows_the_optimisers_change():
    work = task([4, 4])
    _, part2 = next(iter(METHODS["smofi"](work).parts.values()))
    surrogates = [part2.snapshot(), part2.snapshot()]
    sgd = Sgd(0.1, 0.5)
    fusion = Fusion(part2, 2, sgd, None)
    for row, surrogate in enumerate(surrogates):
        surrogate.weights.grad.fill_(row + 1.0)
        fusion.advance(surrogate.weights, row, sgd)
    Fuse().run(fusion, [0.5, 0.5])
    own, fused = fusion.buffers
    assert (own[0, 0] == 1).all()
    assert (own[0, 1] == 2).all()
    assert (fused == 1.5).all()
