"""Split fine-tuning with adapters: every method is a host, and identities between them hold."""

import numpy as np
import pytest
import torch
from small_world import CPU, attention_net, distance, fleet, simulate, task, tensors, usual_options

from sfl_sim.methods import METHODS
from sfl_sim.models.lora import Lora
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.timing import Timing

USUAL = Lora(rank=2)
HOSTS = [name for name, kind in METHODS.items() if not kind.has_exits]


def options(name):
    return {"cut2": 4} if name == "hydra" else usual_options(name)


def finetune(name, lora=USUAL, **settings):
    return simulate(name, task(build=attention_net, lora=lora, **settings), options=options(name))


@pytest.mark.parametrize("aggregate", ["separate", "ffa"])
@pytest.mark.parametrize("name", HOSTS)
def test_every_method_trains_adapters_and_nothing_else(name, aggregate):
    lora = Lora(rank=2, aggregate=aggregate)
    method, _, _ = finetune(name, lora, cut=2)
    (initial,) = task(build=attention_net, lora=lora).split()
    before = dict(initial.weights.named_tensors())
    after = {key.rpartition("client0.")[2]: tensor for key, tensor in tensors(method).items()}
    moved = {key for key in before if key in after and not torch.equal(after[key], before[key])}
    assert {key[-2:] for key in moved} == ({".A", ".B"} if aggregate == "separate" else {".B"})


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v2", "splitnn", "mergesfl"])
def test_one_client_split_trains_as_one_that_is_not_split(name, cut):
    alone, _, _ = finetune("fedavg", samples=(12,))
    split, _, _ = finetune(name, samples=(12,), cut=cut)
    assert distance(alone, split) < 1e-12


def test_messages_hold_adapters_alone():
    lora = Lora(rank=2)
    _, _, rows = finetune("splitfed_v2", lora, cut=3)
    assert set(rows["bytes"][rows["kind"] == b"model"]) == {8 * 2 * 2 * 2 * (8 + 8)}


@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v2", "mergesfl", "smofi"])
def test_a_client_whose_layers_are_all_frozen_gets_no_gradient_and_computes_none(name):
    _, _, rows = finetune(name, cut=1)
    assert rows["bytes"][rows["kind"] == b"gradients"].sum() == 0
    assert rows["macs"][rows["kind"] == b"backward"].sum() == 0
    assert rows["macs"][rows["kind"] == b"forward"].sum() > 0


def prepared(lora):
    work = task(build=attention_net, cut=2, lora=lora, device=None)
    clock = EventClock(fleet(3), Timing(), ORDERS["fcfs"], workers=float("inf"))
    clock.run(METHODS["splitfed_v2"](work).prepare(), 1, in_round=False)
    return clock.take_rows()


def test_frozen_layers_go_to_every_client_once_before_the_first_round():
    frozen = sum(p.numel() for p in attention_net((1, 4, 4), 3)[:2].parameters())
    rows = prepared(Lora())
    assert sorted(rows["client"]) == [0, 1, 2]
    assert set(rows["bytes"]) == {4 * frozen}
    assert set(prepared(Lora(frozen_itemsize=2))["bytes"]) == {2 * frozen}


def test_clients_that_have_the_frozen_layers_get_nothing():
    assert len(prepared(Lora(preinstalled=True))) == 0
    assert len(prepared(None)) == 0


def test_timing_only_has_the_timeline_of_the_run_that_trains():
    timelines = [finetune("splitfed_v2", cut=2, device=device)[2] for device in (CPU, None)]
    np.testing.assert_array_equal(*timelines)


def test_adapters_at_the_server_cost_the_server_what_lies_above_the_first():
    lora = Lora(rank=2, targets=("block3.q",))
    _, _, rows = finetune("splitfed_v2", lora, cut=2)
    net = task(build=attention_net, lora=lora).network
    jobs = rows[(rows["kind"] == b"train") & (rows["node"] == b"server")]
    below, above = net.part(2, 3), net.part(3, 5)
    assert jobs["macs"][0] == below.work(4, passes=1).macs + above.work(4, passes=3).macs
