"""The loss of a scenario: it fits the data, or one line says why not; and methods train with it as plain torch does."""

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
from sfl_sim.models.zoo import MODELS
from sfl_sim.rng import torch_seed
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted

CPU = torch.device("cpu")
MODEL_OF = {"diabetes": "mlp", "digit_pairs": "cnn_small", "digit_masks": "fcn_small", "digits": "cnn_small"}


def experiment(data="diabetes", method="splitfed_v2", clients=1, device=CPU, report=None, **train):
    scenario = {
        "data": {"name": data, "train_samples": 60},
        "model": {"name": MODEL_OF[data]},
        "clients": {"count": clients},
        "method": {"name": method, **({"cut2": 2} if method == "hydra" else {})},
        "train": {"batch_size": 20, "rounds": 2, **train},
        "report": report or {},
    }
    with permitted(Permission(everything=True)):
        return Experiment(parse(scenario).variants[0].scenario, device)


def asymmetric(outputs, targets):
    """Errors above cost twice as much as those below."""
    error = outputs - targets
    return torch.where(error > 0, 2 * error, -error).mean()


def returns_no_scalar(outputs, targets):
    return outputs - targets


def fails(outputs, targets):
    raise ValueError("no loss today")


OWN = f"{__name__}:asymmetric"


def balanced(labels):
    counts = np.bincount(labels)
    return torch.tensor(len(labels) / (len(counts) * counts), dtype=torch.float32)


@pytest.mark.parametrize(
    ("data", "train", "loss"),
    [
        ("diabetes", {}, functional.mse_loss),
        ("diabetes", {"loss": "l1"}, functional.l1_loss),
        ("diabetes", {"loss": "huber"}, functional.huber_loss),
        ("diabetes", {"loss": OWN}, asymmetric),
        ("digit_pairs", {}, lambda o, t: functional.binary_cross_entropy_with_logits(o, t.float())),
        (
            "digit_pairs",
            {"class_weights": [3.0] * 10},
            lambda o, t: functional.binary_cross_entropy_with_logits(o, t.float(), pos_weight=torch.full((10,), 3.0)),
        ),
        ("digit_masks", {}, lambda o, t: functional.cross_entropy(o, t.long())),
        ("digit_masks", {"ignore_index": 0}, lambda o, t: functional.cross_entropy(o, t.long(), ignore_index=0)),
        ("digits", {"label_smoothing": 0.2}, lambda o, t: functional.cross_entropy(o, t, label_smoothing=0.2)),
        ("digits", {"class_weights": "balanced"}, lambda o, t: functional.cross_entropy(o, t, weight=WEIGHTS)),
    ],
)
def test_training_is_that_of_a_loop_in_plain_torch(data, train, loss):
    ours = experiment(data, lr=0.1, **train)
    list(ours.rounds())
    dataset = load(data, train_samples=60)
    torch.manual_seed(torch_seed(0, "initial weights"))
    model = MODELS[MODEL_OF[data]](dataset.sample_shape, len(dataset.answers))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in (1, 2):
        for batch in ours.method.data.batches(0, number):
            i = torch.from_numpy(batch.numbers)
            x = dataset.x_train[i]
            if dataset.mean is not None:
                x = (x / 255 - dataset.mean[:, None, None]) / dataset.std[:, None, None]
            targets = dataset.y_train if dataset.targets_train is None else dataset.targets_train
            optimiser.zero_grad()
            loss(model(x), targets[i]).backward()
            optimiser.step()
    found = torch.cat([view.flatten() for part in ours.method.model() for _, view in part.weights.named_tensors()])
    assert torch.allclose(found, parameters_to_vector(model.parameters()), atol=1e-5)


WEIGHTS = balanced(load("digits", train_samples=60).y_train.numpy())


@pytest.mark.parametrize(
    ("data", "train", "problem"),
    [
        ("diabetes", {"loss": "cross_entropy"}, "train.loss: does not predict numbers, .*allowed: mse, l1, huber"),
        ("digits", {"loss": "mse"}, "train.loss: does not predict one label"),
        ("digits", {"loss": "hinge"}, "train.loss: is not a package.module:name"),
        ("digits", {"ignore_index": 3}, "train.ignore_index: is for tokens and pixels"),
        ("diabetes", {"label_smoothing": 0.1}, "train.label_smoothing: is for cross_entropy, and train.loss is mse"),
        ("diabetes", {"class_weights": "balanced"}, "train.class_weights: are for cross_entropy and bce"),
        ("digits", {"class_weights": [1.0, 2.0]}, "train.class_weights: needs one weight for each of 10 labels"),
        ("diabetes", {"loss": f"{__name__}:fails"}, "train.loss: fails with ValueError: no loss today"),
        (
            "diabetes",
            {"loss": f"{__name__}:returns_no_scalar"},
            r"train.loss: must give the mean .*found 'Tensor \(2, 1\)'",
        ),
        ("diabetes", {"loss": f"{__name__}:CPU"}, "train.loss: is no function"),
    ],
)
def test_a_loss_that_does_not_fit_is_one_line(data, train, problem):
    with pytest.raises(ScenarioError, match=problem):
        experiment(data, **train)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_predicts_numbers_or_says_why_not(name):
    kind = METHODS[name]
    more = {"optimizer": "nag", "momentum": 0.5} if name == "fednag" else {}
    if kind.needs_labels:
        with pytest.raises(ScenarioError, match=f"method.name: cannot predict numbers: {kind.needs_labels}"):
            experiment("diabetes", name, clients=4)
        return
    ours = experiment("diabetes", name, clients=4, lr=0.05, **more)
    rows = [round.row for round in ours.rounds()]
    assert all(np.isfinite(row["loss"]) and row["accuracy"] is None for row in rows)
    assert {"r2", "mae", "rmse"} <= rows[-1].keys()


@pytest.mark.parametrize("data", ["digits", "digit_pairs", "digit_masks"])
def test_weights_have_the_type_of_the_network(data):
    ours = experiment(data, class_weights="balanced", precision="float64")
    assert all(np.isfinite(round.row["loss"]) for round in ours.rounds())


@pytest.mark.parametrize("report", [{"snapshots": {"rounds": [1]}}, {"leakage": {"samples": 10}}])
def test_what_asks_for_labels_says_so(report):
    with pytest.raises(ScenarioError, match=r"needs one label for each sample .*found 'numbers'"):
        experiment(report=report)


def test_timing_does_not_depend_on_the_loss_but_on_the_bytes_of_targets():
    ends = {}
    for data in ("digit_pairs", "digit_masks"):
        ours = experiment(data, device=None)
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
    with pytest.raises(ScenarioError, match=r"a score for each label at every pixel of the masks .*\(11, 8, 16\)"):
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
    assert "Time to 10 % R²" in next(tmp_path.rglob("report.html")).read_text()
