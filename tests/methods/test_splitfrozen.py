"""SplitFrozen: frozen clients run ahead, nothing comes down, and activations may be kept."""

import lossy_world
import numpy as np
import pytest
import torch
from small_world import attention_net, distance, fleet, simulate, task, tensors
from torch import nn

from sfl_sim.data.batches import ClientData
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.lora import Lora
from sfl_sim.ops import Value
from sfl_sim.scenario.load import parse
from sfl_sim.studies.walk import recut
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Train, TrainAlone

BEHIND = Lora(rank=2, targets=("block2.q", "block2.v", "block3.q", "block3.v"))
"""Adapters behind a cut after block1."""


def run(name="splitfrozen", options=None, order="cyclic", **settings):
    work = task(**{"build": attention_net, "lora": BEHIND, "cut": 2, "momentum": 0.9} | settings)
    return simulate(name, work, rounds=3, order=order, options=options or {}, workers=1)


def test_it_learns_what_splitfed_v2_learns_with_a_frozen_part1():
    assert distance(run()[0], run("splitfed_v2")[0]) < 1e-12


@pytest.mark.parametrize("local_epochs", [1, 2])
def test_kept_activations_are_as_good_as_those_that_are_sent_again(local_epochs):
    once, again = (run(options={"send_once": s}, local_epochs=local_epochs)[0] for s in (True, False))
    assert distance(once, again) < 1e-12


def test_a_part2_without_weights_is_refused():
    def ends_in_a_shape(shape, n_labels):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, n_labels), nn.Identity())

    with pytest.raises(ScenarioError) as refused:
        run(build=ends_in_a_shape, lora=None)
    assert (refused.value.key, refused.value.found) == ("model.cut", 2)


def test_nothing_comes_down_and_clients_compute_no_backward_pass():
    _, _, rows = run()
    assert set(rows["node"]) == {b"client", b"uplink", b"server"}
    assert set(rows["kind"][rows["node"] == b"client"]) == {b"forward"}
    assert set(rows["kind"][rows["node"] == b"uplink"]) == {b"smashed"}


def test_with_send_once_every_sample_goes_up_once():
    method, _, rows = run(options={"send_once": True})
    sent = rows[rows["node"] == b"uplink"]
    assert set(sent["round"]) == {1}
    assert sent["bytes"].sum() == (12 + 8 + 4) * (4 * 8 * 8 + 8)
    assert len(rows[(rows["kind"] == b"train") & (rows["round"] == 3)]) == 6
    assert method.server_bytes([0]) - method.part2.size_bytes == (12 + 8 + 4) * 4 * 8 * 8


def test_a_client_is_at_most_so_many_messages_ahead_of_the_server():
    """The server takes 1000 times as long as the client, so that a client runs as far ahead as it may."""
    for ahead in (1, 3):
        work = task(samples=(40,), build=attention_net, lora=BEHIND, cut=2, device=None)
        world = fleet(1, speedup=0.001)
        _, _, rows = simulate("splitfrozen", work, 1, world=world, options={"ahead": ahead}, workers=1)
        forward, train = (rows[rows["kind"] == kind] for kind in (b"forward", b"train"))
        waiting = [int((forward["started_s"] < end).sum()) - done for done, end in enumerate(train["ended_s"][:-4], 1)]
        assert max(waiting) == ahead - 1, ahead
        np.testing.assert_allclose(forward["started_s"][ahead:], train["ended_s"][: len(train) - ahead])


def test_without_adapters_the_server_trains_all_of_its_layers():
    method, _, _ = run(lora=None)
    (initial,) = task(build=attention_net).split()
    before, after = dict(initial.weights.named_tensors()), tensors(method)
    same = {name.partition(".")[0] for name in before if torch.equal(before[name], after[name])}
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert {"embedding", "block1"} <= same
    assert moved == {"block2", "block3", "head"}


def test_adapters_lie_behind_the_cut_alone():
    def experiment(*targets):
        scenario = {"data": {"name": "digits", "train_samples": 40, "test_samples": 10}, "clients": {"count": 2},
                    "model": {"name": "cnn_small", "cut": 2}, "method": "splitfrozen",
                    "lora": {"targets": list(targets)}}  # fmt: skip
        return Experiment(parse(scenario).variants[0].scenario, None)

    part1, part2 = experiment("conv3", "fc").method.model()
    assert (part1.part.n_parameters, part1.size_bytes) == (0, 0)
    assert {place.weight.partition(".")[0] for place in part2.part.adapters} == {"conv3", "fc"}
    with pytest.raises(ScenarioError) as refused:
        experiment("conv1")
    assert refused.value.key == "lora.targets"


def test_adapters_lie_behind_another_cut_too():
    scenario = {"data": {"name": "synthetic", "shape": [6], "n_labels": 9, "samples": 40, "test_samples": 9},
                "model": {"name": "char_transformer", "cut": "block2"}, "clients": {"count": 2},
                "method": "splitfrozen", "lora": {}}  # fmt: skip
    one = Experiment(parse(scenario).variants[0].scenario, None)
    for cut in (2, 5):
        recut(one, [cut, cut])
        part1, part2 = one.method.model()
        assert part1.size_bytes == 0
        assert {place.weight.partition(".")[0] for place in part2.part.adapters} == {
            f"block{number}" for number in range(cut, 7)
        }


def test_keeping_needs_the_samples_as_they_were():
    work = task(build=attention_net, lora=BEHIND, cut=2, device=None)
    data = ClientData(work.data.shares, 3, rest="drop")
    with pytest.raises(ScenarioError) as refused:
        METHODS["splitfrozen"](
            type(work)(network=work.network, cuts=work.cuts, data=data),
            METHODS["splitfrozen"].Options(send_once=True),
        )
    assert refused.value.key == "method.send_once"


@pytest.mark.parametrize("options", [{"ahead": 1}, {}, {"send_once": True}])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_client_that_goes_away_in_between_keeps_nobody_waiting(share, options):
    _, _, (rows,) = lossy_world.run("splitfrozen", [range(4)], options=options, device=None)
    away = lossy_world.gone_at({3: lossy_world.instant(rows, 3, share)})
    _, clock, records = lossy_world.run("splitfrozen", [range(4), range(3)], away, options, device=None)
    assert {loss.client for loss in clock.records.take_dropouts()} == {3}
    served = records[0][(records[0]["kind"] == b"train") & (records[0]["node"] == b"server")]
    assert set(served["client"]) >= {0, 1, 2}
    assert len(served[served["client"] == 3]) < len(rows[(rows["kind"] == b"train") & (rows["client"] == 3)])


@pytest.mark.parametrize(("last", "sent_again"), [(0, 2), (2, 0), (4, 0)])
def test_only_a_client_that_is_lost_in_its_first_epoch_sends_it_again(last, sent_again):
    """It has two mini-batches in each of three epochs, and is away when the server has trained on the `last` one."""
    usual = {"options": {"send_once": True}, "local_epochs": 3, "device": None}

    def of_client_3(rows, kind):
        return np.sort(rows[(rows["kind"] == kind) & (rows["client"] == 3)], order="started_s")

    _, _, (whole,) = lossy_world.run("splitfrozen", [range(4)], **usual)
    job = of_client_3(whole, b"train")[last]
    lasts_s = job["ended_s"] - job["started_s"]
    away = lossy_world.gone_at({3: job["ended_s"] - lasts_s / 2}, for_s=lasts_s)
    _, clock, (_, rows) = lossy_world.run("splitfrozen", [range(4)] * 2, away, **usual)
    assert {(loss.round, loss.client) for loss in clock.records.take_dropouts()} == {(1, 3)}
    assert len(of_client_3(rows, b"smashed")) == sent_again
    assert len(of_client_3(rows, b"train")) == 6


def test_a_step_whose_gradient_nobody_needs_gives_none():
    part2, smashed = task().split(1)[1], Value("smashed", samples=2)
    assert TrainAlone(Sgd(0.1)).out(part2, smashed).size_bytes == 0
    assert Train(Sgd(0.1)).out(part2, smashed).size_bytes > 0
