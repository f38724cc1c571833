"""SplitFedV3, multi-head and MergeSFL against loops written by hand and against each other (docs/methods)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_world import attention_net, batch_norm_net, distance, fleet, simulate, task, tensors, unsplit
from torch import nn
from torch.nn.functional import cross_entropy

from sfl_sim.build.method import SecondsPerSample
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.averages import average
from sfl_sim.models.lora import Lora
from sfl_sim.ops import SERVER, Value
from sfl_sim.scenario.load import parse
from sfl_sim.training.steps import Backward, Forward, Train

EXACT = 1e-10


def by_hand(work, rounds, clients, shared):
    """Part number `shared` (0 or 1) is averaged every round; of the other, every client keeps its own."""
    parts = work.split(work.cut)
    own = {c: parts[1 - shared].snapshot() for c in clients}
    for number in range(1, rounds + 1):
        sgd, copies = work.optimiser(number), []
        for c in clients:
            own[c] = own[c].snapshot()
            copies.append(parts[shared].snapshot())
            part1, part2 = (own[c], copies[-1]) if shared else (copies[-1], own[c])
            for batch in work.data.batches(c, number):
                smashed = Value("smashed", content=Forward().run(part1, batch))
                Backward(sgd).run(part1, Value("gradients", content=Train(sgd).run(part2, smashed)))
        average(parts[shared].weights, [copy.weights for copy in copies], work.shares(clients))
    return parts[shared], own


@pytest.mark.parametrize(("name", "shared"), [("splitfed_v3", 1), ("multihead", 0)])
def test_one_part_is_averaged_and_the_other_is_everybodys_own(name, shared):
    work = task([12, 8, 5, 7], build=batch_norm_net, cut=2, momentum=0.9)
    method, *_ = simulate(name, work, rounds=3, clients=[0, 2, 3])
    expected, own = by_hand(work, 3, [0, 2, 3], shared)
    parts = method.model()
    assert torch.equal(parts[shared].weights.flat, expected.weights.flat)
    found = parts[1 - shared].replicas
    assert list(found) == ["client0", "client2", "client3"]  # client 1 never took part, and has nothing
    for c, replica in own.items():
        assert torch.equal(found[f"client{c}"].weights.flat, replica.weights.flat)
        assert torch.equal(found[f"client{c}"].weights.buffers, replica.weights.buffers)
    assert not torch.equal(own[0].weights.flat, own[2].weights.flat)


class AveragedHeads(METHODS["multihead"]):
    """Multi-head whose heads are averaged after all."""

    def round(self, round, clients):
        yield from super().round(round, clients)
        yield from self.average(SERVER, self.part2, {c: self.heads[c] for c in clients})
        self.heads.clear()

    def model(self):
        return [self.part1, self.part2]


@pytest.mark.parametrize("cut", [1, 2])
def test_i16_multi_head_with_averaged_heads_is_fedavg(cut, monkeypatch):
    monkeypatch.setitem(METHODS, "averaged heads", AveragedHeads)
    work = task(build=batch_norm_net, cut=cut, momentum=0.9)
    assert distance(simulate("averaged heads", work, 3)[0], simulate("fedavg", work, 3)[0]) < EXACT


@pytest.mark.parametrize("cut", [1, 2])
def test_i9_mergesfl_is_v1_averaging_every_step_with_equal_batches(cut):
    work = task([12, 12, 12], cut=cut, weight_decay=1e-3)
    v1, *_ = simulate("splitfed_v1", work, 3, options={"server_agg_every": "step"})
    assert distance(simulate("mergesfl", work, 3)[0], v1) < EXACT


def test_i10_mergesfl_with_one_step_a_round_is_v1_and_fedsgd():
    work = task([4, 3, 2])
    merged, *_ = simulate("mergesfl", work, 3)
    assert distance(merged, simulate("splitfed_v1", work, 3)[0]) < EXACT
    assert distance(merged, simulate("fedavg", work, 3)[0]) < EXACT


def merged_by_hand(work, sizes, steps, epochs, shares):
    """One round of so many steps on whole networks; the server's layers are one set, the clients' one set each."""
    clients = range(len(sizes))
    nets, server = [unsplit(work) for _ in clients], unsplit(work)[1:]
    todo = [list(replace(work.data, local_epochs=epochs).batches(c, 1, sizes[c])) for c in clients]
    for step in range(steps):
        active = [c for c in clients if step < len(todo[c])]
        pairs = {c: todo[c][step].load() for c in active}
        smashed = torch.cat([nets[c][0](x) for c, (x, _) in pairs.items()])
        total = len(smashed)
        cross_entropy(server(smashed), torch.cat([y for _, y in pairs.values()])).backward()
        with torch.no_grad():
            for parameter in server.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
            for c, (x, _) in pairs.items():
                for parameter in nets[c][0].parameters():
                    parameter -= 0.1 * sizes[c] / work.data.batch_size * total / len(x) * parameter.grad
                    parameter.grad = None
    front = {
        f"0.{name}": sum(share * net[0].get_parameter(name) for share, net in zip(shares, nets, strict=True))
        for name, _ in nets[0][0].named_parameters()
    }
    return front | dict(server.named_parameters())


@pytest.mark.parametrize(
    ("options", "sizes", "steps", "epochs", "seen", "shares"),
    [
        ({}, [4, 4, 4], 3, 1, [10, 7, 3], [10 / 20, 7 / 20, 3 / 20]),
        ({"batch_regulation": "time"}, [4, 2, 1], 3, 1, [10, 6, 3], [4 / 7, 2 / 7, 1 / 7]),
        ({"steps": "mean"}, [4, 4, 4], 2, 2, [8, 7, 6], [10 / 20, 7 / 20, 3 / 20]),
        ({"steps": "mean", "batch_regulation": "time"}, [4, 2, 1], 2, 1, [8, 4, 2], [4 / 7, 2 / 7, 1 / 7]),
    ],
)
def test_mergesfl_is_what_a_hand_written_loop_does(options, sizes, steps, epochs, seen, shares):
    """Whole batches of the largest client make three steps, and clients drop out when they have run out of their own.

    Regulated, 4 * 1/2 and 4 * 1/3 are 2 and 1 samples, the steps stay three, and clients count by their batches. The
    mean of 3, 2 and 1 mini-batches is two, for which the last client sees its 3 samples twice.
    """
    work = task([10, 7, 3], sample_s={0: 1.0, 1: 2.0, 2: 3.0}.get)
    method, _, rows = simulate("mergesfl", work, 1, options=options)
    assert method.batch_sizes(range(3)) == dict(enumerate(sizes))
    expected = merged_by_hand(work, sizes, steps, epochs, shares)
    for name, tensor in tensors(method).items():
        assert (tensor - expected[name]).abs().max() < EXACT
    per_sample = method.part1.part.out_numel * 8 + 8
    for c, size in enumerate(sizes):
        smashed = rows[(rows["kind"] == b"smashed") & (rows["client"] == c)]
        assert smashed["bytes"].max() == min(size, work.data.samples(c)) * per_sample
        assert smashed["bytes"].sum() == seen[c] * per_sample


def test_the_mean_of_those_who_take_part_is_rounded_to_whole_steps():
    """Of 5 and 2 mini-batches."""
    *_, rows = simulate("mergesfl", task([20, 40, 8], device=None), 1, clients=[0, 2], options={"steps": "mean"})
    assert np.bincount(rows["client"][rows["kind"] == b"forward"]).tolist() == [4, 0, 4]


def test_regulated_batches_save_the_time_for_which_the_fast_wait_and_everybody_takes_as_many_steps():
    """Devices that differ by eight and links that are alike."""
    speeds = [1e4, 8e4, 4e4]
    work = task([16, 16, 16], device=None, sample_s={c: 1 / speed for c, speed in enumerate(speeds)}.get)
    world = fleet(3, speeds, 1e9, 1e9)
    ended_s = {}
    for regulation in ("none", "time"):
        *_, rows = simulate("mergesfl", work, 1, world=world, options={"batch_regulation": regulation})
        steps = rows[rows["kind"] == b"forward"]
        assert np.bincount(steps["client"]).tolist() == [4, 4, 4]
        ended_s[regulation] = rows["ended_s"].max()
    assert ended_s["time"] < 0.3 * ended_s["none"]


def test_a_ratio_that_is_whole_is_not_rounded_down():
    """32 * 0.1 / (0.1 * 32 / 11) is less than 11 in floating point."""
    work = task([64, 64], batch_size=32, device=None, sample_s={0: 0.1, 1: 0.1 * 32 / 11}.get)
    method = METHODS["mergesfl"](work, METHODS["mergesfl"].Options(batch_regulation="time"))
    assert method.batch_sizes([0, 1]) == {0: 32, 1: 11}


def test_the_fastest_of_those_who_take_part_has_whole_batches():
    work = task([8, 8, 8], device=None, sample_s={0: 0.5, 1: 3.0, 2: 4.0}.get)
    method = METHODS["mergesfl"](work, METHODS["mergesfl"].Options(batch_regulation="time"))
    assert method.batch_sizes([1, 2]) == {1: 4, 2: 3}
    assert method.batch_sizes([0, 1]) == {0: 4, 1: 1}  # 4 / 6 would be none


def flat_batch_norm(shape, n_labels):
    """A network that cannot train on a single sample."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8)), nn.Linear(8, 8), nn.Linear(8, n_labels)
    )


def test_batch_norm_needs_regulated_batches_of_two():
    work = task([8, 8], build=flat_batch_norm, sample_s={0: 1.0, 1: 9.0}.get)
    with pytest.raises(ScenarioError) as refused:
        simulate("mergesfl", work, options={"batch_regulation": "time"})
    assert (refused.value.key, refused.value.found) == ("method.batch_regulation", "time")
    whole = replace(work, data=replace(work.data, rest="drop"))
    method, *_ = simulate("mergesfl", whole, options={"batch_regulation": "time"})
    assert method.batch_sizes([0, 1]) == {0: 4, 1: 2}


WORLD = {"macs_per_s": [1e5, 3e5, 7e5], "uplink_bps": [1e5, 4e4, 9e4], "downlink_bps": [3e5, 2e5, 1e5]}


@pytest.mark.parametrize("network", [{}, {"build": attention_net, "lora": Lora(targets=("block3.q",))}])
def test_the_estimate_is_what_a_lone_client_takes(network):
    """For a mini-batch, but for what the server computes; to frozen layers no gradient comes down."""
    work, world = task([4, 4, 4], cut=2, device=None, **network), fleet(3, **WORLD)
    estimate = SecondsPerSample(work.network, work.cuts, work.data, world, work.wire)
    for c in range(3):
        *_, rows = simulate("mergesfl", work, 1, world=world, clients=[c], include_model_exchange=False)
        server = rows[rows["node"] == b"server"]
        spent_s = rows["ended_s"].max() - (server["ended_s"] - server["started_s"]).sum()
        assert 4 * estimate(c) == pytest.approx(spent_s, rel=1e-9)


@pytest.mark.parametrize(("name", "held"), [("splitfed_v3", [2, 1]), ("multihead", [2, 3]), ("mergesfl", [1, 1])])
def test_what_the_server_holds(name, held):
    """Part-2s: in a round of clients 0 and 1, and in one of client 2 after it."""
    method, *_ = simulate(name, task(device=None), 1, clients=[0, 1])
    found = [method.server_bytes(clients) for clients in ([0, 1], [2])]
    assert found == [n * method.part2.size_bytes for n in held]


def experiment(method, device="cpu"):
    values = {
        "data": {"train_samples": 200, "test_samples": 50, "partition": {"kind": "dominant_label"}},
        "clients": {"count": 10, "participation": 0.5},
        "method": method,
        "train": {"rounds": 2, "batch_size": 8},
    }
    run = Experiment(parse(values).variants[0].scenario, device and torch.device(device))
    return run, list(run.rounds())


@pytest.mark.parametrize(("name", "part"), [("splitfed_v3", "part1"), ("multihead", "part2")])
def test_a_scenario_trains_evaluates_and_keeps_every_client_s_part(name, part):
    run, rounds = experiment({"name": name})
    owners = {key.split(".")[1] for key in run.weights() if key.startswith(part)}
    trained = {int(c) for row in rounds for c in row.ops["client"] if c >= 0}
    assert owners == {f"client{c}" for c in trained}
    assert all(0 <= row.row["accuracy"] <= 1 for row in rounds)
    assert run.timeline_digest == experiment({"name": name}, None)[0].timeline_digest


def test_a_scenario_regulates_batches_by_its_devices_and_links():
    run, rounds = experiment({"name": "mergesfl", "batch_regulation": "time"})
    first = rounds[0].ops
    clients = sorted({int(c) for c in first["client"][first["kind"] == b"forward"]})
    assert len(clients) == 5
    sizes = run.method.batch_sizes(clients)
    assert max(sizes.values()) == 8
    assert min(sizes.values()) < 8
    for c in clients:
        forwards = first[(first["kind"] == b"forward") & (first["client"] == c)]
        assert len(forwards) == -(-len(run.shares[c]) // 8)
