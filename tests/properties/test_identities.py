"""Identities between methods (docs/methods/README.md#identities), in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_world import replayed
from small_world import distance, fleet, simulate, task, tensors, unsplit
from torch.nn.functional import cross_entropy

from sfl_sim.methods import METHODS
from sfl_sim.models.averages import average
from sfl_sim.ops import SERVER
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS
from sfl_sim.training.executors import Eager
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Train

EXACT = 1e-10


def test_i3_one_full_batch_step_a_round_is_gradient_descent_on_the_weighted_loss():
    samples = [12, 8, 4]
    work = task(samples, batch_size=12)
    method, *_ = simulate("splitfed_v1", work, rounds=4)
    net = unsplit(work)
    for number in range(1, 5):
        net.zero_grad()
        for client, share in enumerate(work.shares(range(3))):
            ((x, y),) = [batch.load() for batch in work.data.batches(client, number)]
            (share * cross_entropy(net(x), y)).backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
    expected = dict(net.named_parameters())
    assert all((tensor - expected[key]).abs().max() < EXACT for key, tensor in tensors(method).items())


class FrozenServer(Eager):
    """Runs the server's jobs with a learning rate of zero."""

    def run(self, op):
        if isinstance(op.step, Train) and op.node == SERVER:
            op.step = Train(Sgd(0.0))
        return super().run(op)


class FrozenLayers(Eager):
    """FedAvg's local training that leaves all layers after the cut as they are."""

    def run(self, op):
        if not isinstance(op.step, Train):
            return super().run(op)
        weights = op.state.weights
        kept = {name: tensor.clone() for name, tensor in weights.named_tensors() if not name.startswith("0.")}
        content = super().run(op)
        with torch.no_grad():
            for name, tensor in weights.named_tensors():
                if name in kept:
                    tensor.copy_(kept[name])
        return content


def test_i6_with_a_frozen_server_v2_is_fedavg_on_part_1():
    work = task()
    v2, *_ = simulate("splitfed_v2", work, rounds=3, executor=FrozenServer())
    fedavg, *_ = simulate("fedavg", work, rounds=3, executor=FrozenLayers())
    assert distance(v2, fedavg) < EXACT
    assert distance(v2, METHODS["splitfed_v2"](work)) > 1e-3


@pytest.mark.parametrize("order", [o for o in ORDERS if o not in ARRIVAL_DRIVEN])
def test_i7_the_order_changes_v2_but_not_v2_with_a_frozen_server_nor_v1(order):
    work = task(samples=[12, 8, 16, 12])
    slow_first = fleet(4, macs_per_s=[1e5, 1e6, 2e6, 3e6])

    def under(name, order, **more):
        return simulate(name, work, order=order, world=slow_first, **more)[0]

    assert distance(under("splitfed_v1", order), under("splitfed_v1", "fcfs")) == 0
    frozen = FrozenServer()
    one = under("splitfed_v2", order, executor=frozen)
    assert distance(one, under("splitfed_v2", "fcfs", executor=frozen)) < EXACT
    assert distance(under("splitfed_v2", order), under("splitfed_v2", "fcfs")) > 1e-4


@pytest.mark.parametrize(("every", "samples"), [("step", [4, 4, 4]), ("epoch", [4, 4, 4]), ("epoch", [12, 8, 4])])
def test_with_one_step_or_epoch_a_round_it_does_not_matter_how_often_v1_averages(every, samples):
    work = task(samples, momentum=0.9)
    often, *_ = simulate("splitfed_v1", work, options={"server_agg_every": every})
    once, *_ = simulate("splitfed_v1", work)
    assert distance(often, once) < EXACT


@pytest.mark.parametrize(("every", "epochs"), [("step", 1), ("epoch", 2)])
def test_v1_averaging_more_often_is_what_a_hand_written_loop_does(every, epochs):
    """Part-2 of all active clients is their weighted mean after every stretch; clients of different sizes."""
    work = task(samples=[12, 8], local_epochs=epochs)
    method, *_ = simulate("splitfed_v1", work, rounds=1, options={"server_agg_every": every})
    nets = [unsplit(work) for _ in range(2)]
    stretches = [
        list(work.data.epochs(c, 1)) if every == "epoch" else [[b] for b in work.data.batches(c, 1)] for c in range(2)
    ]
    for number in range(max(map(len, stretches))):
        active = [c for c in range(2) if number < len(stretches[c])]
        for c in active:
            for batch in stretches[c][number]:
                x, y = batch.load()
                nets[c].zero_grad()
                cross_entropy(nets[c](x), y).backward()
                with torch.no_grad():
                    for parameter in nets[c].parameters():
                        parameter -= 0.1 * parameter.grad
        _average_after_cut([nets[c] for c in active], work.shares(active))
    states = [dict(net.named_parameters()) for net in nets]
    for key, tensor in tensors(method).items():
        expected = 0.6 * states[0][key] + 0.4 * states[1][key] if key.startswith("0.") else states[0][key]
        assert (tensor - expected).abs().max() < EXACT


def _average_after_cut(nets, shares):
    with torch.no_grad():
        for parameters in zip(*(net[1:].parameters() for net in nets), strict=True):
            mean = sum(share * parameter for share, parameter in zip(shares, parameters, strict=True))
            for parameter in parameters:
                parameter.copy_(mean)


def test_splitnn_is_sgd_over_the_clients_in_the_order_of_their_visits():
    work = task()
    method, _, rows = simulate("splitnn", work, rounds=1)
    visits = list(dict.fromkeys(rows["client"][rows["node"] == b"client"]))
    (whole,) = work.split()
    for client in visits:
        for batch in work.data.batches(int(client), 1):
            Train(Sgd(0.1)).run(whole, batch)
    expected = dict(whole.weights.named_tensors())
    assert all((tensor - expected[key]).abs().max() < EXACT for key, tensor in tensors(method).items())
    assert sorted(visits) == [0, 1, 2]


def test_a_client_sees_the_same_batches_whatever_method_cut_and_order():
    a, b = task(cut=1), task(cut=2, momentum=0.5)
    for one, other in zip(a.data.batches(1, 3), b.data.batches(1, 3), strict=True):
        assert torch.equal(one.load()[0], other.load()[0])
    first, second = (torch.cat([batch.load()[1] for batch in a.data.batches(1, r)]) for r in (1, 2))
    assert first.sort().values.equal(second.sort().values)
    assert not first.equal(second)


def test_the_learning_rate_decays_to_its_floor():
    work = task(lr=0.5, lr_decay=0.5, lr_min=0.1)
    assert [work.optimiser(r).lr for r in (1, 2, 3, 4, 5)] == [0.5, 0.25, 0.125, 0.1, 0.1]


def test_only_participants_train():
    work = task()
    *_, rows = simulate("splitfed_v2", work, clients=[2, 0])
    assert set(rows["client"]) == {-1, 0, 2}
    alone, *_ = simulate("fedavg", work, clients=[1], rounds=1)
    (whole,) = work.split()
    for batch in work.data.batches(1, 1):
        Train(Sgd(0.1)).run(whole, batch)
    expected = dict(whole.weights.named_tensors())
    assert all((tensor - expected[key]).abs().max() < EXACT for key, tensor in tensors(alone).items())


def in_order_of_service(work, rows, rounds):
    """SplitFedV2's weights by plain sequential steps in the order in which the server served, without any clock."""
    part1, part2 = work.split(work.cut)
    clients = range(len(work.data))
    for number in range(1, rounds + 1):
        served = rows[(rows["kind"] == b"train") & (rows["round"] == number)]
        copies = {c: part1.snapshot() for c in clients}
        part2.weights.momentum = None
        replayed(work, copies, part2, np.sort(served, order="started_s"), number)
        average(part1.weights, [copies[c].weights for c in clients], work.shares(clients))
    return dict(part1.weights.named_tensors()) | dict(part2.weights.named_tensors())


@settings(max_examples=20)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    samples=st.lists(st.integers(2, 14), min_size=2, max_size=4),
    rates=st.lists(st.floats(1e4, 1e6), min_size=4, max_size=4),
    speedup=st.sampled_from([0.5, 3.0, 100.0]),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_training_in_simulated_time_is_sequential_training_in_the_order_of_service(
    order, samples, rates, speedup, momentum
):
    """Simulation is sequential training: what was learned is what the recorded order of service says."""
    work, world = task(samples, momentum=momentum), fleet(len(samples), rates[: len(samples)], speedup=speedup)
    method, _, rows = simulate("splitfed_v2", work, order=order, world=world, workers=1)
    expected = in_order_of_service(work, rows, 2)
    assert all(torch.equal(tensor, expected[key]) for key, tensor in tensors(method).items())
