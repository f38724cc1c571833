"""What was understood where a user may have meant something else: said once, with its key."""

import numpy as np
import pytest
from torch import nn

from sfl_sim.report.about import warnings
from sfl_sim.report.frames import merge
from sfl_sim.report.load import load
from sfl_sim.runs.news import Warned
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.studies.train import check, run_study

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 6)).astype("float32"), np.arange(120) % 3
IMAGES = RNG.integers(0, 256, (120, 1, 2, 3))
FLAGS = RNG.integers(0, 2, (120, 3))


def mlp(*ends, n=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, n), *ends)


def noted(x=X, y=Y, model=None, x_test=None, **sections):
    """Return the keys of the notes on own data, of which the last 40 samples are for tests."""
    data = x[:80], y[:80], x[80:] if x_test is None else x_test, y[80:]
    own = {"data": {"factory": data}, "model": {"factory": model or mlp()}, "train": {"rounds": 1, "batch_size": 8}}
    sections = {name: own.get(name, {}) | section for name, section in sections.items()}
    study = parse({"clients": {"count": 4}} | own | sections)
    return [line.split(": ")[0] for line in check(study)]


@pytest.mark.parametrize(
    ("y", "model", "keys"),
    [
        (Y, None, []),
        (Y + 1, None, []),
        (Y * 7, None, []),
        (Y == 0, mlp(n=2), []),
        (Y.astype(float), mlp(n=1), ["data.factory"]),
        (1.0 + Y, mlp(n=1), ["data.factory"]),
        (np.sign(Y - 0.5), mlp(n=1), ["data.factory"]),
        (17.0 + np.arange(120) % 40, mlp(n=1), []),
        (np.eye(3)[Y], None, ["data.factory"]),
        (np.eye(3, dtype=int)[Y], None, ["data.factory"]),
        (FLAGS, None, []),
        (RNG.dirichlet(np.ones(3), 120), None, ["data.factory"]),
        (RNG.dirichlet(np.ones(3), 120).round(3), None, ["data.factory"]),
        (RNG.normal(size=(120, 3)), None, []),
    ],
)
def test_labels_that_are_learned_as_something_else_are_noted(y, model, keys):
    assert noted(y=y, model=model) == keys


@pytest.mark.parametrize(
    ("y", "end", "keys"),
    [
        (Y, nn.Softmax(1), ["model.factory"]),
        (Y, nn.LogSoftmax(1), []),
        (Y, nn.Sigmoid(), ["model.factory"]),
        (Y, nn.ReLU(), []),
        (FLAGS, nn.Sigmoid(), ["model.factory"]),
        (FLAGS, nn.Softplus(), []),
        (FLAGS, nn.Tanh(), []),
    ],
)
def test_a_network_whose_scores_are_squashed_before_the_loss_is_noted(y, end, keys):
    assert noted(y=y, model=mlp(end)) == keys


def by_probability(outputs, targets):
    return -outputs.gather(1, targets[:, None]).log().mean()


def test_a_loss_of_a_users_own_may_want_probabilities():
    assert noted(model=mlp(nn.Softmax(1)), train={"loss": by_probability}) == []


def test_scores_that_begin_at_zero_are_no_sigmoid():
    model = mlp()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    assert noted(y=FLAGS, model=model) == []


def test_samples_that_are_not_what_they_seem_are_noted():
    assert noted(x=IMAGES) == noted(x=(IMAGES / 255).astype("float32")) == []
    assert noted(x=IMAGES.astype("float32")) == ["data.factory"]
    assert noted(x_test=X[:40]) == ["data.factory"]
    assert noted(x_test=np.concatenate([X[:15], X[80:105]])) == []  # 15 of 40


@pytest.mark.parametrize(
    ("train", "keys"),
    [
        ({"batch_size": 20}, []),
        ({"batch_size": 21}, ["train.batch_size"]),
        ({"batch_size": 40, "local_epochs": 2, "batches": "full"}, []),
        ({"batch_size": 41, "local_epochs": 2, "batches": "full"}, ["train.batch_size"]),
    ],
)
def test_a_mini_batch_larger_than_what_any_client_holds_is_noted(train, keys):
    assert noted(train=train) == keys  # four clients with 20 samples each


@pytest.mark.parametrize(
    ("clients", "keys"),
    [
        ({"count": 4, "participation": 0.5}, []),
        ({"count": 4, "participation": 0.25}, ["clients.participation"]),
        ({"count": 1}, ["clients.count"]),
    ],
)
def test_a_single_participant_is_noted(clients, keys):
    assert noted(clients=clients) == keys


def test_notes_are_told_once_and_stand_on_the_page_with_the_variants_that_they_are_about(tmp_path):
    scenario = {
        "data": {"train_samples": 100, "test_samples": 20}, "clients": {"count": 4}, "train": {"rounds": 1},
        "repeats": 2, "grid": {"train.batch_size": [10, 50]},
    }  # fmt: skip
    told = []
    run_study(parse(scenario), tmp_path / "run", Settings(), told.append)
    (problem,) = (news.problem for news in told if isinstance(news, Warned))
    assert problem.startswith("train.batch_size: ")
    assert problem.endswith(", in batch_size=50 (seed 0), batch_size=50 (seed 1)")
    assert [text.endswith(problem) for text in warnings(merge([load(tmp_path / "run")]))] == [True]


FAST = {"uplink_bps": 1e9, "downlink_bps": 1e9}


@pytest.mark.parametrize(
    ("changes", "is_noted"),
    [
        ({}, True),  # the 9,216 MACs of conv1 for each of 8 images are 73,728, of 240,000 that a call is worth
        ({"train": {"batch_size": 32}}, False),  # 294,912
        ({"method": {"name": "fedavg"}}, False),  # 601,600 · 8 / 4 calls
        ({"clients": {"count": 4, "network": "mobiperf"}}, False),  # 1024 · 8 numbers take much longer
        ({"clients": {"count": 4, "network": FAST, "compute": {"cost": "phones"}}}, False),
        ({"clients": {"count": 4, "network": FAST, "compute": 1e9}}, False),  # a rate of one's own
        ({"clients": {"count": 4, "network": FAST, "compute": {"scale": 1e-3}}}, False),  # stands for a larger network
    ],
)
def test_devices_whose_calls_take_longer_than_what_is_priced_are_noted(changes, is_noted):
    scenario = {
        "data": {"name": "digits", "train_samples": 96}, "model": {"name": "cnn_small", "cut": 1},
        "clients": {"count": 4, "network": FAST}, "method": {"name": "splitfed_v2"}, "train": {"batch_size": 8},
    }  # fmt: skip
    told = [line for line in check(parse(scenario | changes)) if line.startswith("clients.compute.cost")]
    assert len(told) == is_noted
    for text in told:
        assert "73,728" in text
        assert "3.3 times" in text
        assert "phones" in text
