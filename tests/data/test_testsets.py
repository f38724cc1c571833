"""Test sets of single clients (docs/methods/partitions.md#test-sets), and the accuracy on them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from refusals import refused
from small_partitions import assert_disjoint, quick, samples_of, seeds

from sfl_sim.data.partition import label_counts
from sfl_sim.data.testsets import client_test_sets
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import Goal
from sfl_sim.rng import stream
from sfl_sim.scenario.load import parse
from sfl_sim.training.evaluate import Evaluation

CPU = torch.device("cpu")
holdings = st.integers(2, 6).flatmap(
    lambda n_labels: st.lists(
        st.lists(st.integers(0, 9), min_size=n_labels, max_size=n_labels).filter(any), min_size=2, max_size=6
    ).map(np.array)
)


def sets_of(kind, n_test, counts, seed=0, **options):
    """The clients' parts of a test set, and their label counts."""
    samples = samples_of(n_test)
    parts = client_test_sets(kind, samples, np.array(counts), stream(seed, "test sets"), **options)
    return parts, label_counts(samples.labels, parts, len(n_test))


def test_with_the_global_test_set_clients_have_none_of_their_own():
    assert client_test_sets("global", samples_of([5, 5]), np.ones((3, 2), int), stream(0, "test sets")) == []


# rho-OOD


@pytest.mark.parametrize(("n_seen", "rho", "of_each"), [(2, 0.49, 1), (3, 0.3234, 1), (2, 0.48, 0), (2, 0.98, 2)])
def test_harmony_s_rho_of_cifar_100_is_a_sample_of_each_unseen_class(n_seen, rho, of_each):
    seen = np.arange(100) < n_seen
    other = np.roll(seen, 50) | (np.arange(100) >= 2)  # somebody gets a sample of an unseen class even for rho 0.48
    _, counts = sets_of("rho_ood", [100] * 100, [seen * 250, other * 5], rho=rho)
    assert counts[0].tolist() == [100] * n_seen + [of_each] * (100 - n_seen)


def test_rho_is_not_rounded_to_binary():
    assert sets_of("rho_ood", [100, 100], np.eye(2, dtype=int), rho=0.29)[1].tolist() == [[100, 29], [29, 100]]


@quick
@given(holdings, st.lists(st.integers(1, 30), min_size=6, max_size=6), st.floats(0, 2), seeds)
@example(np.array([[0, 1], [0, 1]]), [3, 9], 0.3333333333333333, 0)  # 2.9999999999999997 samples: two
def test_a_test_set_holds_all_own_labels_and_rho_times_as_many_samples_of_others(held, n_test, rho, seed):
    n_test = np.array(n_test[: held.shape[1]])
    try:
        parts, counts = sets_of("rho_ood", n_test.tolist(), held, seed, rho=rho)
    except ScenarioError:
        assume(False)
    for own, row, seen in zip(parts, counts, held > 0, strict=True):
        assert len(np.unique(own)) == len(own)
        assert np.array_equal(row[seen], n_test[seen])
        of_others = Fraction(str(rho)) * int(n_test[seen].sum())  # as rho is written, not as its binary value
        each = of_others // max(1, (~seen).sum())
        assert row[~seen].sum() <= of_others
        assert np.array_equal(row[~seen], np.minimum(each, n_test[~seen]))


def test_a_larger_rho_adds_to_the_samples_of_a_smaller():
    held = np.eye(5, dtype=int) * 9
    small, large = (sets_of("rho_ood", [40] * 5, held, rho=rho)[0] for rho in (0.2, 0.6))
    assert all(set(a) < set(b) for a, b in zip(small, large, strict=True))


def test_rho_without_an_unseen_label_is_refused_and_one_such_client_is_not():
    with refused("data.test.rho"):
        sets_of("rho_ood", [20, 20], [[5, 5], [1, 9]], rho=0.4)
    _, counts = sets_of("rho_ood", [20, 20], [[5, 5], [0, 9]], rho=0.4)
    assert counts.tolist() == [[20, 20], [8, 20]]
    assert sets_of("rho_ood", [20, 20], [[5, 5], [1, 9]], rho=0)[1].tolist() == [[20, 20]] * 2


# Out of client


@quick
@given(holdings, st.lists(st.integers(20, 60), min_size=6, max_size=6), seeds)
def test_without_drift_the_test_set_is_dealt_in_the_proportions_of_training(held, n_test, seed):
    n_test = np.array(n_test[: held.shape[1]])
    try:
        parts, counts = sets_of("out_of_client", n_test.tolist(), held, seed, drift=False)
    except ScenarioError:
        assume(False)
    assert_disjoint(parts)
    trained = held.sum(axis=0)
    assert np.array_equal(counts.sum(axis=0), np.where(trained > 0, n_test, 0))
    assert np.abs(counts - held * n_test / np.maximum(trained, 1)).max() < 1
    assert (counts[held == 0] == 0).all()


def test_clients_too_small_for_a_test_sample_of_each_label_get_some_of_a_few():
    _, counts = sets_of("out_of_client", [20] * 10, np.ones((100, 10), int), drift=False)
    assert set(counts.sum(axis=1)) == {2}


@quick
@given(holdings, seeds)
def test_with_drift_a_client_is_tested_on_as_many_of_the_others(held, seed):
    n_test = [30] * held.shape[1]
    try:
        own, _ = sets_of("out_of_client", n_test, held, seed, drift=False)
        drifted, _ = sets_of("out_of_client", n_test, held, seed, drift=True)
    except ScenarioError:
        assume(False)
    everyone = set(np.concatenate(own).tolist())
    for mine, others in zip(own, drifted, strict=True):
        assert set(others.tolist()) <= everyone - set(mine.tolist())
        assert len(set(others.tolist())) == len(others) == min(len(mine), len(everyone) - len(mine))


def test_a_client_without_test_samples_is_named():
    with refused("data.test"):
        sets_of("out_of_client", [2], [[50], [50], [1]], drift=False)
    with pytest.raises(ScenarioError, match="client 0 of 1"):
        sets_of("out_of_client", [5, 5], [[3, 3]], drift=True)


# Accuracy on them


def test_the_accuracy_is_the_mean_over_clients_and_not_over_samples():
    found = Evaluation(Goal.LABEL, 1.0, np.array([True, True, False, False]), np.array([2, 0]), np.array([4, 0]))
    assert found.client_accuracy([np.array([0]), np.array([0, 1, 2, 3])]) == 0.75
    assert found.client_accuracy([]) is None


def first_round(test, device=CPU):
    values = {
        "data": {"train_samples": 200, "test_samples": 100, "test": test},
        "clients": {"count": 2},
        "train": {"rounds": 1, "batch_size": 20, "lr": 0.01},
    }
    return next(Experiment(parse(values).variants[0].scenario, device).rounds()).row


def test_a_round_has_the_clients_accuracy_if_they_have_test_sets_and_something_was_trained():
    everything = {"kind": "rho_ood", "rho": 0.0}  # every client has seen every label
    row, without = first_round(everything), first_round({"kind": "global"})
    assert row["client_accuracy"] == pytest.approx(row["accuracy"])
    assert without == {**row, "client_accuracy": None}
    assert first_round(everything, device=None)["client_accuracy"] is None
