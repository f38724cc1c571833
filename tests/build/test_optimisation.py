"""How nodes optimise: losses, schedules, clipping, optimisers of one's own or of the server, values by client."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.utils import parameters_to_vector

from sfl_sim import run
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
binary, entropy = functional.binary_cross_entropy_with_logits, functional.cross_entropy
SGD, ADAM = torch.optim.SGD, torch.optim.Adam
MODEL_OF = {"diabetes": "mlp", "digit_pairs": "cnn_small", "digit_masks": "fcn_small", "digits": "cnn_small"}
OPTIONS = {"hydra": {"cut2": 2}, **{name: {"host": "splitfed_v1"} for name in ("fedbuff", "fedasync")}}


def own(name):
    return f"{__name__}:{name}"


def experiment(method="splitfed_v2", data="diabetes", clients=1, device=CPU, options=None, report=None, **train):
    scenario = {
        "data": {"name": data, "train_samples": 60},
        "model": {"name": MODEL_OF[data]},
        "clients": {"count": clients},
        "method": {"name": method, **OPTIONS.get(method, {})},
        "train": {"batch_size": 20, "rounds": 3, "lr": 0.1, **train},
        "report": report or {},
    }
    with permitted(Permission(everything=True)):
        return Experiment(parse(scenario).variants[0].scenario, device)


def weights(ours):
    return torch.cat([view.flatten() for part in ours.method.model() for _, view in part.weights.named_tensors()])


def plain(ours, data="diabetes", optimisers=(SGD, SGD), rates=(0.1, 0.1, 0.1), clip=None, loss=functional.mse_loss):
    """Train in plain torch on the batches of the only client; `optimisers` make those of the two parts."""
    dataset = load(data, train_samples=60)
    torch.manual_seed(torch_seed(0, "initial weights"))
    model = MODELS[MODEL_OF[data]](dataset.sample_shape, len(dataset.answers))
    parts = [list(model[:1].parameters()), list(model[1:].parameters())]
    targets = dataset.y_train if dataset.targets_train is None else dataset.targets_train
    for number, lr in enumerate(rates, start=1):
        made = [make(part, lr=lr) for make, part in zip(optimisers, parts, strict=True)]
        for batch in ours.method.data.batches(0, number):
            i = torch.from_numpy(batch.numbers)
            x = dataset.x_train[i]
            if dataset.mean is not None:
                x = (x / 255 - dataset.mean[:, None, None]) / dataset.std[:, None, None]
            model.zero_grad()
            loss(model(x), targets[i]).backward()
            for optimiser, part in zip(made, parts, strict=True):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(part, clip)
                optimiser.step()
    return parameters_to_vector(model.parameters()).detach()


def rmsprop(parameters, lr):
    return torch.optim.RMSprop(parameters, lr=lr, alpha=0.5)


def halved(number):
    return 0.5**number


def makes_nothing(parameters, lr):
    return None


def asymmetric(outputs, targets):
    """Errors above cost twice as much as those below."""
    error = outputs - targets
    return torch.where(error > 0, 2 * error, -error).mean()


def returns_no_scalar(outputs, targets):
    return outputs - targets


def fails(outputs, targets):
    raise ValueError("no loss today")


def balanced(labels):
    counts = np.maximum(np.bincount(labels, minlength=10), 1)
    return torch.tensor(len(labels) / (len(counts) * counts), dtype=torch.float32)


WEIGHTS = balanced(load("digits", train_samples=60).y_train.numpy())
SAME = 5e-5
"""Adam divides by the size of gradients: where that is almost 0, rounding differs between processors (1e-5)."""


@pytest.mark.parametrize(
    ("asked", "twin"),
    [
        ({"clip_norm": 0.05}, {"clip": 0.05}),
        ({"schedule": "cosine"}, {"rates": (0.1, 0.075, 0.025)}),
        ({"schedule": {"kind": "step", "step_size": 1}}, {"rates": (0.1, 0.01, 0.001)}),
        ({"schedule": {"kind": "multi_step", "milestones": ["2"], "gamma": "0.5"}}, {"rates": (0.1, 0.1, 0.05)}),
        ({"schedule": {"kind": own("halved"), "warmup_rounds": 1}}, {"rates": (0.05, 0.05, 0.025)}),
        ({"optimizer": own("rmsprop")}, {"optimisers": (rmsprop, rmsprop)}),
        ({"optimizer": "torch.optim:Adam"}, {"optimisers": (ADAM, ADAM)}),
        ({"server": {"optimizer": "adam"}}, {"optimisers": (SGD, ADAM)}),
        ({"server": {"lr": 0.3}}, {"optimisers": (SGD, lambda p, lr: SGD(p, lr=0.3))}),
        ({"server": {"momentum": 0.9}}, {"optimisers": (SGD, lambda p, lr: SGD(p, lr=lr, momentum=0.9))}),
        ({"lr": [0.2], "server": {"lr": 0.1}}, {"optimisers": (lambda p, lr: SGD(p, lr=0.2), SGD)}),
        ({}, {"loss": functional.mse_loss}),
        ({"loss": "l1"}, {"loss": functional.l1_loss}),
        ({"loss": "huber"}, {"loss": functional.huber_loss}),
        ({"loss": own("asymmetric")}, {"loss": asymmetric}),
        ({"data": "digit_pairs"}, {"loss": lambda o, t: binary(o, t.float())}),
        (
            {"data": "digit_pairs", "class_weights": [3.0] * 10},
            {"loss": lambda o, t: binary(o, t.float(), pos_weight=torch.full((10,), 3.0))},
        ),
        ({"data": "digit_masks"}, {"loss": lambda o, t: entropy(o, t.long())}),
        ({"data": "digit_masks", "ignore_index": 0}, {"loss": lambda o, t: entropy(o, t.long(), ignore_index=0)}),
        ({"data": "digits", "label_smoothing": 0.2}, {"loss": lambda o, t: entropy(o, t, label_smoothing=0.2)}),
        ({"data": "digits", "class_weights": "balanced"}, {"loss": lambda o, t: entropy(o, t, weight=WEIGHTS)}),
    ],
)
def test_training_is_that_of_a_loop_in_plain_torch(asked, twin):
    ours = experiment(**asked)
    list(ours.rounds())
    assert torch.allclose(weights(ours), plain(ours, asked.get("data", "diabetes"), **twin), atol=SAME)


@pytest.mark.parametrize("data", ["digits", "digit_pairs"])
def test_balanced_weights_count_the_samples_that_clients_train_with_and_none_that_are_set_aside(data):
    scenario = {
        "data": {"name": data, "train_samples": 60, "validation": {"share": 0.5}},
        "model": {"name": "cnn_small"},
        "clients": {"count": 3},
        "train": {"class_weights": "balanced"},
    }
    ours = Experiment(parse(scenario).variants[0].scenario, CPU)
    trained = np.concatenate(ours.setup.shares)
    assert len(trained) == 60 - len(ours.setup.validation) < 60
    dataset = load(data, train_samples=60)
    (given,) = ours.method.task.network.forward_settings.loss.mean.keywords.values()
    if data == "digits":
        assert torch.allclose(given, balanced(dataset.y_train.numpy()[trained]))
    else:
        having = dataset.targets_train[trained].sum(0)
        assert torch.allclose(given, ((len(trained) - having) / having).float())


def test_an_optimiser_that_comes_from_a_package_is_the_one_that_has_a_name():
    ours = [experiment(clients=3, optimizer=kind, weight_decay=0.1) for kind in ("adam", "torch.optim:Adam")]
    for each in ours:
        list(each.rounds())
    assert torch.allclose(*map(weights, ours), atol=SAME)


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
    for each in ours:
        list(each.rounds())
    assert torch.equal(*map(weights, ours))


@pytest.mark.parametrize(
    ("asked", "key", "told"),
    [
        ({"schedule": "cosin"}, "train.schedule.kind", "'cosine'"),
        ({"schedule": {"kind": "step", "step_size": 3, "gama": 1}}, "train.schedule.gama", "mean 'gamma'"),
        ({"schedule": {"kind": "step"}}, "train.schedule", "TypeError"),
        ({"schedule": {"kind": own("halved"), "gamma": 1}}, "train.schedule.gamma", "no options"),
        ({"schedule": {"kind": "cosine", "T_max": 1, "eta_min": -0.1}}, "train.schedule", "round 2"),
        ({"schedule": "cosine", "lr_decay": 0.9}, "train.lr_decay", "train.schedule"),
        ({"optimizer": "sdg"}, "train.optimizer", "'sgd'"),
        ({"optimizer": own("makes_nothing")}, "train.optimizer", "AttributeError"),
        ({"optimizer": own("CPU")}, "train.optimizer", "no function"),
        ({"server": {}}, "train.server", "{}"),
        ({"lr": [0.1, 0.2]}, "train.lr", "found 2"),
        ({"lr_min": 0.2}, "train.lr_min", "up to 0.1"),
        ({"lr_min": 0.01, "server": {"lr": 0.001}}, "train.lr_min", "up to 0.001"),
        ({"lr_min": 0.2, "clients": 2, "lr": [0.3, 0.05], "server": {"lr": 0.3}}, "train.lr_min", "up to 0.05"),
        ({"batch_size": {"by": "device_speed", "values": [4, 8]}}, "train.batch_size.values", "more values"),
        ({"batch_size": {"by": "device_speed", "values": [4.5]}}, "train.batch_size", "found 4.5"),
        ({"loss": "cross_entropy"}, "train.loss", "mse, l1, huber"),
        ({"data": "digits", "loss": "mse"}, "train.loss", "one label"),
        ({"data": "digits", "loss": "hinge"}, "train.loss", "package.module:name"),
        ({"data": "digits", "ignore_index": 3}, "train.ignore_index", "tokens and pixels"),
        ({"label_smoothing": 0.1}, "train.label_smoothing", "mse"),
        ({"class_weights": "balanced"}, "train.class_weights", "cross_entropy and bce"),
        ({"data": "digits", "class_weights": [1.0, 2.0]}, "train.class_weights", "10 labels"),
        ({"loss": own("fails")}, "train.loss", "ValueError: no loss today"),
        ({"loss": own("returns_no_scalar")}, "train.loss", "'Tensor (2, 1)'"),
        ({"loss": own("CPU")}, "train.loss", "no function"),
        ({"report": {"snapshots": {"rounds": [1]}}}, "report.snapshots", "'numbers'"),
        ({"report": {"leakage": {"samples": 10}}}, "report.leakage", "'numbers'"),
        ({"clients": 2, "lr": [0.1, 0.2]}, "train.server.lr", "clients"),
        ({"method": "fedavg", "server": {"lr": 0.1}}, "train.server", "fedavg"),
        ({"method": "slowmo", "clients": 2, "lr": [0.1, 0.2], "server": {"lr": 0.1}}, "train.server", "slowmo"),
        ({"method": "mergesfl", "clients": 2, "batch_size": [4, 8]}, "train.batch_size", "mergesfl"),
        ({"method": "smofi", "optimizer": own("rmsprop")}, "train.optimizer", "momentum buffers"),
    ],
)
def test_what_cannot_be_used_is_one_line(asked, key, told):
    with pytest.raises(ScenarioError) as refused:
        list(experiment(**asked).rounds())
    assert refused.value.key == key
    assert told in str(refused.value)


def test_an_attack_needs_one_size_of_batches_before_anything_runs():
    scenario = {"train": {"batch_size": [8, 16]}, "clients": {"count": 2}, "report": {"leakage": {"samples": 10}}}
    with pytest.raises(ScenarioError) as refused:
        Experiment(parse(scenario).variants[0].scenario, None)
    assert refused.value.key == "report.leakage"


def test_the_state_of_an_optimiser_of_one_s_own_survives_a_checkpoint():
    ours = experiment("fedavg", optimizer="torch.optim:Adam")
    weights_before, optimiser = ours.method.whole.weights, ours.method.optimiser(1, 0)
    weights_before.grad.fill_(1.0)
    optimiser.step(weights_before)
    again = Weights.restored(weights_before.part, load_content(dump(storable(weights_before.stored()))))
    for model in (weights_before, again):
        model.grad.copy_(torch.linspace(-1, 1, len(model.grad)))
        optimiser.step(model)
    assert torch.equal(weights_before.flat, again.flat)
    assert optimiser.n_moments == 2


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_predicts_numbers_or_says_why_not(name):
    kind = METHODS[name]
    more = {"optimizer": "nag", "momentum": 0.5} if name == "fednag" else {}
    if kind.needs_labels:
        with pytest.raises(ScenarioError) as refused:
            experiment(name, clients=4)
        assert refused.value.key == "method.name"
        return
    ours = experiment(name, clients=4, rounds=2, lr=0.05, **more)
    rows = [round.row for round in ours.rounds()]
    assert all(np.isfinite(row["loss"]) and row["accuracy"] is None for row in rows)
    assert {"r2", "mae", "rmse"} <= rows[-1].keys()


@pytest.mark.parametrize("data", ["digits", "digit_pairs", "digit_masks"])
def test_weights_have_the_type_of_the_network(data):
    ours = experiment(data=data, rounds=2, class_weights="balanced", precision="float64")
    assert all(np.isfinite(round.row["loss"]) for round in ours.rounds())


def test_timing_does_not_depend_on_the_loss_but_on_the_bytes_of_targets():
    ends = {}
    for data in ("digit_pairs", "digit_masks"):
        ours = experiment(data=data, device=None)
        ends[data] = next(iter(ours.rounds())).row["bytes_up"]
        part = ours.method.part1.part
        assert part.label_bytes == {"digit_pairs": 10, "digit_masks": 128}[data]
        assert ends[data] == 60 * (part.out_numel * 4 + part.label_bytes) + part.size_bytes


def test_a_loss_from_python_is_a_function(tmp_path):
    results = run(
        {"data": {"name": "diabetes"}, "model": {"name": "mlp"}, "clients": {"count": 2}},
        overrides={"train.rounds": 1, "train.loss": asymmetric},
        out=tmp_path,
    )
    assert results.rounds["r2"].notna().all()
    assert results.rounds["accuracy"].isna().all()


def test_a_network_must_score_every_pixel():
    with pytest.raises(ScenarioError, match=r"\(11, 8, 16\)"):
        Experiment(parse({"data": {"name": "digit_masks"}}).variants[0].scenario, CPU)


def test_early_stopping_and_targets_ask_for_the_first_score(tmp_path):
    scenario = {
        "data": {"name": "diabetes"}, "model": {"name": "mlp"}, "clients": {"count": 2},
        "train": {"rounds": 30, "lr": 0.05, "stop": {"accuracy": 0.2}},
        "report": {"target_accuracy": 0.1},
    }  # fmt: skip
    results = run(scenario, out=tmp_path)
    (summary,) = results.summary.to_dict("records")
    assert summary["stopped"] == "r2 of 0.2 is reached"
    assert summary["rounds_to_accuracy"] <= summary["rounds"]
    assert "Time to R² of 0.1" in next(tmp_path.rglob("report.html")).read_text()
