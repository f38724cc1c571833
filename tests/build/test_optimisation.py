"""How nodes optimise: schedules, clipping, optimisers of one's own, another one at the server, values by client."""

import numpy as np
import pytest
import torch

from sfl_sim.data.loading import load
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.weights import Weights
from sfl_sim.models.zoo import MODELS
from sfl_sim.rng import torch_seed
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.training.alternatives import replicas_by_name
from sfl_sim.training.contents import dump, storable
from sfl_sim.training.contents import load as load_content

CPU = torch.device("cpu")


def experiment(method="splitfed_v2", clients=1, device=CPU, options=None, **train):
    scenario = {
        "data": {"name": "diabetes", "train_samples": 60},
        "model": {"name": "mlp"},
        "clients": {"count": clients},
        "method": {"name": method, **(options or {})},
        "train": {"batch_size": 20, "rounds": 3, "lr": 0.1, **train},
    }
    with permitted(Permission(everything=True)):
        return Experiment(parse(scenario).variants[0].scenario, device)


def weights(ours):
    return torch.cat([view.flatten() for part in ours.method.model() for _, view in part.weights.named_tensors()])


def plain(ours, optimisers, rates=(0.1, 0.1, 0.1), clip=None, renews=True):
    """Train in plain torch on the batches of the only client; `optimisers` make those of the two parts."""
    dataset = load("diabetes", train_samples=60)
    torch.manual_seed(torch_seed(0, "initial weights"))
    model = MODELS["mlp"](dataset.sample_shape, 1)
    parts = [list(model[:1].parameters()), list(model[1:].parameters())]
    for number, lr in enumerate(rates, start=1):
        made = [make(part, lr=lr) for make, part in zip(optimisers, parts, strict=True)]
        for batch in ours.method.data.batches(0, number):
            i = torch.from_numpy(batch.numbers)
            for one in made:
                one.zero_grad()
            torch.nn.functional.mse_loss(model(dataset.x_train[i]), dataset.targets_train[i]).backward()
            for one, part in zip(made, parts, strict=True):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(part, clip)
                one.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def rmsprop(parameters, lr):
    return torch.optim.RMSprop(parameters, lr=lr, alpha=0.5)


def halved(number):
    return 0.5**number


def makes_nothing(parameters, lr):
    return None


OWN = f"{__name__}:rmsprop"
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
SAME = 5e-5
"""Adam divides by the size of gradients: where that is almost 0, rounding differs between processors (1e-5)."""


@pytest.mark.parametrize(
    ("train", "twin"),
    [
        ({"clip_norm": 0.05}, {"optimisers": (SGD, SGD), "clip": 0.05}),
        ({"schedule": "cosine"}, {"optimisers": (SGD, SGD), "rates": (0.1, 0.075, 0.025)}),
        ({"schedule": {"kind": "step", "step_size": 1}}, {"optimisers": (SGD, SGD), "rates": (0.1, 0.01, 0.001)}),
        (
            {"schedule": {"kind": f"{__name__}:halved", "warmup_rounds": 1}},
            {"optimisers": (SGD, SGD), "rates": (0.05, 0.05, 0.025)},
        ),
        ({"optimizer": OWN, "lr": 0.1}, {"optimisers": (rmsprop, rmsprop)}),
        ({"optimizer": "torch.optim:Adam"}, {"optimisers": (ADAM, ADAM)}),
        ({"server": {"optimizer": "adam"}}, {"optimisers": (SGD, ADAM)}),
        ({"server": {"lr": 0.3}}, {"optimisers": (SGD, lambda p, lr: SGD(p, lr=0.3))}),
        ({"server": {"momentum": 0.9}}, {"optimisers": (SGD, lambda p, lr: SGD(p, lr=lr, momentum=0.9))}),
        ({"lr": [0.2], "server": {"lr": 0.1}}, {"optimisers": (lambda p, lr: SGD(p, lr=0.2), SGD)}),
    ],
)
def test_training_is_that_of_a_loop_in_plain_torch(train, twin):
    ours = experiment(**train)
    list(ours.rounds())
    assert torch.allclose(weights(ours), plain(ours, **twin), atol=SAME)


def test_an_optimiser_that_comes_from_a_package_is_the_one_that_has_a_name():
    ours = [experiment(clients=3, optimizer=kind, weight_decay=0.1) for kind in ("adam", "torch.optim:Adam")]
    for one in ours:
        list(one.rounds())
    assert torch.allclose(*map(weights, ours), atol=SAME)


OPTIONS = {"hydra": {"cut2": 2}, **{key: {"host": "splitfed_v1"} for key in ["fedbuff", "fedasync"]}}
SAME_EVERYWHERE = {"fednag", "slowmo"}


@pytest.mark.parametrize("name", sorted(set(METHODS) - SAME_EVERYWHERE))
def test_every_method_that_trains_at_the_server_trains_there_as_asked(name):
    rate = {} if METHODS[name].keeps_graphs else {"lr": 1e-4}  # slopes along random directions are long

    def trained(**server):
        scenario = {
            "data": {"name": "digits", "train_samples": 80, "test_samples": 20},
            "clients": {"count": 4, "participation": 0.5},
            "method": {"name": name, **OPTIONS.get(name, {})},
            "train": {"rounds": 1, "batch_size": 8, "momentum": 0.5, **rate, **({"server": server} if server else {})},
        }
        run = Experiment(parse(scenario).variants[0].scenario, CPU)
        list(run.rounds())
        return {part: replica.weights.flat for part, replica in replicas_by_name(run.method.model()).items()}

    usual = trained()
    if len(usual) == 1:
        with pytest.raises(ScenarioError, match=r"train.server: .* trains nothing at a main server"):
            trained(lr=0.001)
        return
    other = trained(lr=0.001)
    assert any(not torch.equal(usual[part], other[part]) for part in usual)


def test_sizes_of_batches_and_epochs_differ_by_client():
    ours = experiment(clients=3, batch_size=[5, 10, 20], local_epochs=[3, 2, 1], device=None)
    data = ours.method.data
    assert [data.n_batches(c) for c in range(3)] == [12, 4, 1]
    assert [[batch.samples for batch in data.batches(c, 1)] for c in (1, 2)] == [[10] * 4, [20]]
    list(ours.rounds())


def test_slow_devices_take_the_first_values():
    ours = experiment(clients=6, batch_size={"by": "device_speed", "values": [4, 16]}, device=None)
    slow = np.argsort(ours.setup.fleet.macs_per_s, kind="stable")[:3]
    assert [ours.method.data.size(c) for c in range(6)] == [4 if c in slow else 16 for c in range(6)]


def test_a_table_names_sizes_and_rates(tmp_path):
    table = tmp_path / "clients.csv"
    table.write_text("client,batch_size,lr\n1,8,0.2\n0,4,0.1\n")
    ours = experiment("fedavg", clients=2, batch_size=str(table), lr=str(table))
    assert [ours.method.data.size(c) for c in (0, 1)] == [4, 8]
    assert [ours.method.optimiser(1, c).lr for c in (0, 1)] == [0.1, 0.2]


def test_clients_of_one_rate_train_as_if_it_were_given_once():
    ours = [experiment("fedavg", clients=3, lr=lr) for lr in (0.1, [0.1] * 3)]
    for one in ours:
        list(one.rounds())
    assert torch.equal(*map(weights, ours))


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ({"schedule": "cosin"}, "train.schedule.kind: is no schedule .*did you mean 'cosine'"),
        ({"schedule": {"kind": "step", "size": 3}}, "train.schedule: fails with TypeError"),
        (
            {"schedule": {"kind": f"{__name__}:halved", "gamma": 1}},
            "train.schedule.gamma: a schedule of your own takes",
        ),
        ({"schedule": "cosine", "lr_decay": 0.9}, "train.lr_decay: cannot be given together with train.schedule"),
        ({"optimizer": "sdg"}, "train.optimizer: unknown choice .*did you mean 'sgd'"),
        ({"optimizer": f"{__name__}:makes_nothing"}, "train.optimizer: fails with AttributeError"),
        ({"optimizer": f"{__name__}:CPU"}, "train.optimizer: is no function"),
        ({"server": {}}, "train.server: says nothing that is different"),
        ({"lr": [0.1, 0.2]}, "train.lr: a list needs one entry per client"),
        ({"batch_size": {"by": "device_speed", "values": [4, 8]}}, "train.batch_size.values: has more values than"),
        ({"batch_size": {"by": "device_speed", "values": [4.5]}}, "train.batch_size: must be a whole number"),
    ],
)
def test_what_cannot_be_used_is_one_line(train, problem):
    with pytest.raises(ScenarioError, match=problem):
        experiment(**train)


def test_an_attack_needs_one_size_of_batches_before_anything_runs():
    scenario = {"train": {"batch_size": [8, 16]}, "clients": {"count": 2}, "report": {"leakage": {"samples": 10}}}
    with pytest.raises(ScenarioError, match=r"report.leakage: needs one train.batch_size for all clients"):
        Experiment(parse(scenario).variants[0].scenario, None)


@pytest.mark.parametrize(
    ("method", "train", "problem"),
    [
        ("splitfed_v2", {"lr": [0.1, 0.2]}, "train.server.lr: is missing, where clients have"),
        ("fedavg", {"server": {"lr": 0.1}}, "train.server: fedavg trains nothing at a main server"),
        (
            "slowmo",
            {"lr": [0.1, 0.2], "server": {"lr": 0.1}},
            "train.server: must be the same for all nodes with slowmo",
        ),
        ("mergesfl", {"batch_size": [4, 8]}, "train.batch_size: must be the same for all clients with mergesfl"),
        ("smofi", {"optimizer": OWN}, "train.optimizer: fuses momentum buffers"),
    ],
)
def test_a_method_that_needs_the_same_everywhere_says_so(method, train, problem):
    with pytest.raises(ScenarioError, match=problem):
        list(experiment(method, clients=2, **train).rounds())


def test_the_state_of_an_optimiser_of_one_s_own_survives_a_checkpoint():
    ours = experiment("fedavg", optimizer="torch.optim:Adam")
    weights_before, optimiser = ours.method.whole.weights, ours.method.optimiser(1, 0)
    weights_before.grad.fill_(1.0)
    optimiser.step(weights_before)
    again = Weights.restored(weights_before.part, load_content(dump(storable(weights_before.stored()))))
    for one in (weights_before, again):
        one.grad.copy_(torch.linspace(-1, 1, len(one.grad)))
        optimiser.step(one)
    assert torch.equal(weights_before.flat, again.flat)
    assert optimiser.n_moments == 2
