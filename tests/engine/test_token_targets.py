"""Runs that predict the next token at every position: what they learn, send, and tell of each owner's text."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sfl_sim.data.dataset import Dataset
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse

CPU = torch.device("cpu")
TEXT = {"name": "synthetic", "shape": [6], "n_labels": 9, "samples": 60, "owners": 3, "partition": {"kind": "natural"}}
SMALL = {
    "data": TEXT,
    "model": {"name": "gpt_small", "cut": 2},
    "train": {"rounds": 1, "batch_size": 8},
    "method": "splitfed_v2",
}


def experiment(device=CPU, **changes):
    (variant,) = parse(SMALL | changes).variants
    return Experiment(variant.scenario, device)


def test_the_label_becomes_the_last_token_and_the_owner_the_label():
    given = experiment(data=TEXT | {"targets": "last"}).dataset
    made = experiment().dataset
    assert made.x_train.tolist() == torch.cat([given.x_train, given.y_train[:, None]], dim=1).tolist()
    assert (made.y_train.tolist(), made.y_test.tolist()) == (given.owners.tolist(), given.test_owners.tolist())
    assert (made.label_names, made.token_names) == (("0", "1", "2"), given.label_names)
    assert made.sample_shape == given.sample_shape == (6,)


def test_every_batch_pairs_each_token_with_the_next_one():
    run = experiment()
    batch = next(iter(run.method.data.batches(0, 1)))
    x, targets = batch.load()
    assert x[:, 1:].tolist() == targets[:, :-1].tolist()
    assert targets[:, -1].tolist() == run.dataset.x_train[torch.from_numpy(batch.numbers), -1].tolist()


def test_accuracy_loss_and_perplexity_are_means_over_tokens_also_of_each_owner():
    run = experiment()
    (round,) = run.rounds()
    model, data = run.method.model(), run.dataset
    x, targets = data.x_test[:, :-1].long(), data.x_test[:, 1:].long()
    out = x
    for part in model:
        out = part.weights(out, training=False)
    hits = (out.argmax(dim=2) == targets).double()
    loss = float(cross_entropy(out.transpose(1, 2), targets))
    assert round.row["loss"] == pytest.approx(loss, rel=1e-5)
    assert round.row["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert round.row["accuracy"] == pytest.approx(float(hits.mean()))
    assert run.evaluator.guessing() == targets.flatten().bincount().max() / targets.numel()
    by_owner = {row["label"]: (row["accuracy"], row["samples"]) for row in round.labels}
    for owner in range(3):
        own = hits[data.y_test == owner]
        assert by_owner[owner] == pytest.approx((float(own.mean()), own.numel()))
    accuracies = [accuracy for accuracy, _ in by_owner.values()]
    assert round.row["performance_gap"] == pytest.approx(max(accuracies) - np.mean(accuracies))


def test_a_text_with_a_rule_is_learned():
    """Every token is the one before plus one."""
    starts = torch.arange(40) % 9
    x = ((starts[:, None] + torch.arange(6)) % 9).to(torch.uint8)
    y = (starts + 6) % 9
    text = Dataset("counting", x, y, x[:9], y[:9], tuple("012345678"))
    study = parse(SMALL | {"data": {"factory": lambda: text}, "clients": {"count": 2}, "model": {"name": "gpt_small"},
                           "train": {"rounds": 25, "batch_size": 8, "optimizer": "adam", "lr": 0.003}})  # fmt: skip
    rows = [round.row for round in Experiment(study.variants[0].scenario, CPU).rounds()]
    assert rows[0]["perplexity"] > 4
    assert rows[-1]["accuracy"] > 0.95


def test_targets_travel_with_the_activations_eight_bytes_each():
    def sent_bytes(device, targets):
        ops = next(experiment(device, data=TEXT | {"targets": targets}).rounds()).ops
        return ops["bytes"][ops["kind"] == b"smashed"].sum()

    assert sent_bytes(None, "all") - sent_bytes(None, "last") == 60 * 8 * (6 - 1)
    assert sent_bytes(CPU, "all") == sent_bytes(None, "all")


@pytest.mark.parametrize("method", ["splitnn", "splitfed_v1", "splitfed_v3", "fedavg", "mergesfl", "hydra", "korea"])
def test_methods_that_need_no_exits_train_on_tokens(method):
    (round,) = experiment(method=method, clients={"participation": 0.7}).rounds()
    assert 1 < round.row["perplexity"] < 60


def test_one_client_split_learns_what_a_whole_model_learns():
    alone = {"data": TEXT | {"partition": {"kind": "iid"}}, "clients": {"count": 1}}
    weights = []
    for method, cut in [("fedavg", 1), ("splitfed_v1", 1), ("splitfed_v2", 4)]:
        run = experiment(method=method, model={"name": "gpt_small", "cut": cut}, **alone)
        list(run.rounds())
        weights.append(np.concatenate([each.ravel() for each in run.weights().values()]))
    assert np.abs(weights[0] - weights[1]).max() < 1e-6
    assert np.abs(weights[0] - weights[2]).max() < 1e-6


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model.factory", {"data": TEXT | {"targets": "all"}, "model": {"name": "char_transformer"}}),
        ("data.targets", {"data": {"targets": "all"}, "model": {"name": "cnn_small"}}),
        ("report.leakage", {"report": {"leakage": {}}}),
        ("report.snapshots", {"report": {"snapshots": {"rounds": [1]}}}),
        ("serving", {"serving": {}}),
        ("model.name", {"method": "multiexit"}),
    ],
)
def test_what_needs_one_label_is_refused(key, changes):
    with pytest.raises(ScenarioError) as refused:
        experiment(**changes)
    assert refused.value.key == key


def test_a_model_known_by_its_shapes_alone_is_not_trained():
    data = {"name": "tokens", "shape": [16], "samples": 20}
    with pytest.raises(ScenarioError, match=r"^model\.name: .*--timing-only.*gpt2"):
        experiment(data=data, model={"name": "gpt2"})
    run = experiment(None, data=data, model={"name": "gpt2", "cut": 3}, clients={"count": 2})
    (round,) = run.rounds()
    assert round.row["ended_s"] > 0
    with pytest.raises(ScenarioError, match=r"^data\.name: .* timing alone"):
        experiment(data=data)


def test_a_model_of_as_many_tokens_as_labels_is_given_no_others():
    x, y = torch.arange(24, dtype=torch.uint8).view(8, 3), torch.arange(8) % 4
    data = {"factory": lambda: (x, y, x, y), "targets": "last"}
    study = parse(SMALL | {"data": data, "clients": {"count": 2}, "model": {"name": "char_transformer"}})
    with pytest.raises(ScenarioError, match=r"^model\.name: .* 4 tokens.* 23"):
        Experiment(study.variants[0].scenario, CPU)


def test_tokens_outside_an_embedding_are_refused_before_the_first_step():
    """The largest token is 8."""

    def model(n_tokens):
        def make(input_shape, n_labels):
            return nn.Sequential(nn.Embedding(n_tokens, 3), nn.Flatten(), nn.Linear(18, n_labels))

        return {"factory": make, "cut": 1}

    data = TEXT | {"targets": "last"}
    experiment(data=data, model=model(9))
    with pytest.raises(ScenarioError, match=r"8 tokens; .* 8"):
        experiment(data=data, model=model(8))
