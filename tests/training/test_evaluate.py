"""Answers of global models: counted by label; of several front ends or heads, the most confident one answers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_world import images, task
from torch.nn.functional import cross_entropy, one_hot

from sfl_sim.metrics.scores import confusion_table
from sfl_sim.models import losses
from sfl_sim.training.alternatives import Alternatives, replicas_by_name
from sfl_sim.training.defences import Noisy
from sfl_sim.training.evaluate import evaluate, logits


@pytest.fixture
def halves():
    """Part-1s and part-2s of three different initialisations, in float64."""
    work = task()
    return zip(*(replace(work, seed=seed).split(1) for seed in range(3)), strict=True)


def prepare(x):
    return x.double() / 255


def answered_by_hand(x, fronts, backs):
    """Sample by sample: the logits of whoever has the largest one."""
    found = []
    for sample in prepare(x):
        answers = [back.weights(front.weights(sample[None], False), False)[0] for front in fronts for back in backs]
        found.append(max(answers, key=torch.max))
    return torch.stack(found)


@pytest.mark.parametrize("where", ["front", "head"])
def test_the_most_confident_alternative_answers(where, halves):
    (fronts, backs), data = halves, images(200)
    x, y = data.x_train, data.y_train
    one_of = dict(zip("abc", fronts if where == "front" else backs, strict=True))
    several = Alternatives(one_of)
    model = [several, backs[0]] if where == "front" else [fronts[0], several]
    found = evaluate(model, x, y, 3, prepare)
    expected = answered_by_hand(x, fronts if where == "front" else fronts[:1], backs if where == "head" else backs[:1])
    assert found.hits.tolist() == (expected.argmax(1) == y).tolist()
    assert found.loss == pytest.approx(float(cross_entropy(expected, y)), rel=1e-12)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_alternative_that_has_diverged_is_never_the_most_confident(place):
    answers = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]])]
    answers.insert(place, torch.full((1, 2), torch.nan))
    assert Alternatives({}).most_confident(answers).tolist() == [[0.0, 5.0]]


def test_a_single_alternative_is_a_part_like_any_other(halves):
    (fronts, backs), data = halves, images(50)
    alone = evaluate([Alternatives({"only": fronts[0]}), backs[0]], data.x_train, data.y_train, 3, prepare)
    plain = evaluate([fronts[0], backs[0]], data.x_train, data.y_train, 3, prepare)
    assert alone.loss == plain.loss


def test_features_are_coded_once_even_before_a_part_without_layers():
    x, noise = prepare(images(20).x_train), Noisy(sigma=1.0)
    parts = task().split(1, 1)
    expected = parts[2].weights(noise.decode_each_alone(parts[0].weights(x, False)), False)
    assert torch.equal(logits(parts, x, (1, noise)), expected)


def test_a_copy_of_alternatives_does_not_change_with_them(halves):
    fronts, backs = halves
    model = [Alternatives({"client3": fronts[0], "client5": fronts[1]}), backs[0]]
    kept = model[0].snapshot()
    before = fronts[1].weights.flat.clone()
    fronts[1].weights.flat.zero_()
    assert torch.equal(kept.replicas["client5"].weights.flat, before)
    assert list(replicas_by_name(model)) == ["part1.client3", "part1.client5", "part2"]


def oracle(n_scores):
    """Answers what it is asked with."""
    return SimpleNamespace(
        weights=lambda x, training: 5.0 * one_hot(x.long(), n_scores),
        part=SimpleNamespace(dtype=torch.float32, loss=losses.cross_entropy),
    )


def test_an_oracle_is_confused_as_it_was_told_to_be():
    truth, answer = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 1, 0])
    found = evaluate([oracle(3)], answer, truth, 3, lambda x: x)
    assert found.confusion.tolist() == [[1, 2, 0], [0, 2, 0], [1, 0, 0]]
    assert found.correct.tolist() == [1, 2, 0]
    assert found.samples.tolist() == [3, 2, 1]
    assert found.hits.tolist() == [True, False, False, True, True, False]


def test_a_token_that_is_no_label_is_a_wrong_answer_to_the_sample_that_was_asked():
    """A language model answers with any token of its vocabulary, here of 9; the labels are the first 4."""
    truth, answer = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([8, 0, 1, 0, 7])
    found = evaluate([oracle(9)], answer, truth, 4, lambda x: x)
    assert found.samples.tolist() == [2, 1, 1, 1]
    assert found.correct.tolist() == [1, 1, 0, 0]
    assert found.accuracy == 2 / 5
    shares = confusion_table(found.confusion).pivot(index="true_label", columns="predicted_label", values="share")
    assert shares.to_numpy().tolist() == [[0.5, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
