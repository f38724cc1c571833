"""Answers of clients and server: the exit's entropy and hits, one sample at a time by hand."""

import math

import numpy as np
import pytest
import torch
from small_world import images, simulate, task

from sfl_sim.training.deployed import answer, answers_of_clients, representations

ROUNDS = 2


def trained(name, options=None, **settings):
    work = task([8, 6, 5], **{"cuts": [1, 2, 2]} | settings) if name != "fedavg" else task([8, 6, 5])
    method, simulator, _ = simulate(name, work, ROUNDS, options=options or {})
    simulator.run(method.finish(), ROUNDS)
    return work, [method.deployed(c) for c in range(3)]


def run(parts, x):
    for part in parts:
        for replica in part.members:
            x = replica.weights(x, training=False)
    return x


def test_an_answer_is_the_exits_with_its_entropy_and_beside_it_the_servers():
    work, models = trained("splitgp")
    source = work.data.images
    test = images(9)
    found = answer(models[1], test.x_test, test.y_test, source.prepare)
    for i in range(9):
        features = run(models[1].front, source.prepare(test.x_test[i : i + 1]))
        shares = run([models[1].head], features).softmax(dim=1)[0].tolist()
        assert found.entropy[i] == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-6)
        label = int(test.y_test[i])
        assert found.device_correct[i] == (shares.index(max(shares)) == label)
        assert found.server_correct[i] == (int(run(models[1].back, features).argmax()) == label)


def test_who_has_no_exit_is_never_sure_and_who_has_the_whole_model_always():
    for name, entropy in (("splitfed_v1", math.inf), ("fedavg", -math.inf)):
        work, models = trained(name)
        test = images(9)
        found = answer(models[0], test.x_test, test.y_test, work.data.images.prepare)
        assert (found.entropy == entropy).all()
        assert (found.device_correct == (found.server_correct & (name == "fedavg"))).all()


def test_of_two_sure_answers_the_entropy_is_zero_and_a_broken_model_is_never_sure():
    work, models = trained("multiexit")
    test, head = images(9), models[0].head.weights
    with torch.no_grad():
        head.flat.mul_(1e6)
    assert (answer(models[0], test.x_test, test.y_test, work.data.images.prepare).entropy >= 0).all()
    with torch.no_grad():
        head.flat.fill_(math.nan)
    broken = answer(models[0], test.x_test, test.y_test, work.data.images.prepare)
    assert not (broken.entropy < math.inf).any()


@pytest.mark.parametrize("name", ["splitgp", "splitfed_v1"])
def test_each_client_answers_its_own_test_set_in_its_order(name):
    work, models = trained(name)
    test = images(9)
    sets = [np.array([3, 1, 8]), np.array([0]), np.array([8, 7, 6, 5, 3])]
    prepare = work.data.images.prepare
    expected = [
        answer(model, test.x_test[own], test.y_test[own], prepare) for model, own in zip(models, sets, strict=True)
    ]
    seen = []
    found = answers_of_clients(models, sets, test.x_test, test.y_test, lambda x: seen.append(len(x)) or prepare(x))
    for one, other in zip(found, expected, strict=True):
        assert one.entropy == pytest.approx(other.entropy)
        assert (one.device_correct == other.device_correct).all()
        assert (one.server_correct == other.server_correct).all()
    alike = {"splitgp": [3, 1, 5], "splitfed_v1": [7]}  # without exits it does not matter where the model is cut
    assert seen == alike[name]


@pytest.mark.parametrize("name", ["splitgp", "splitfed_v1", "fedavg", "hydra"])
def test_representations_are_what_the_last_layer_gets(name):
    """Hydra is without heads here: its last part has no layer."""
    work, models = trained("hydra", {"cut2": 3}, cuts=[1, 1, 1]) if name == "hydra" else trained(name)
    test, clients = images(9), np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    found = representations(models, clients, work.network, test.x_test, work.data.images.prepare)
    assert found.shape == (9, 6)
    for i, client in enumerate(clients):
        parts = [*models[client].front, *models[client].back]
        last = [replica for part in parts for replica in part.members if len(replica.part.skeleton)][-1]
        *_, weight, bias = (tensor for _, tensor in last.weights.named_tensors())
        answered = torch.from_numpy(found[i]) @ weight.T + bias
        assert torch.allclose(answered, run(parts, work.data.images.prepare(test.x_test[i : i + 1]))[0])
