"""Early exits: the answer that counts, the share of offloaded samples, the oracle, and Eq. (12)."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.data.samples import Samples
from sfl_sim.data.testsets import rho_ood
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics import exit_metrics
from sfl_sim.rng import stream

CLIENT = ("harmony", 0, 3)


def answers_of(*samples, client=CLIENT):
    """One client's answers from (entropy, device_correct, server_correct, seen)."""
    columns = ["entropy", "device_correct", "server_correct", "seen"]
    table = pd.DataFrame(samples, columns=columns).astype({"entropy": np.float32})
    key = dict(zip(exit_metrics.KEY, client, strict=True))
    return table.assign(**key, label=np.where(table["seen"], 0, 1), sample=range(len(table)))


SURE_AND_RIGHT, SURE_AND_WRONG = (0.01, True, True, True), (0.3, False, True, False)
UNSURE_AND_RIGHT, UNSURE_AND_WRONG = (1.0, True, False, True), (2.0, False, True, False)
FOUR = answers_of(SURE_AND_RIGHT, SURE_AND_WRONG, UNSURE_AND_RIGHT, UNSURE_AND_WRONG)


def test_a_device_answers_if_its_entropy_is_below_the_threshold():
    found = exit_metrics.hybrid(FOUR, 0.3).loc[CLIENT]  # 0.3 is not below 0.3, nor float32(0.3) below 0.3

    assert found["offload_probability"] == 0.75
    assert found["accuracy"] == 0.75
    assert (found["accuracy_seen"], found["accuracy_unseen"]) == (0.5, 1)


@pytest.mark.parametrize(("threshold", "offloaded", "accuracy"), [(0.0, 1.0, 0.75), (np.inf, 0.0, 0.5)])
def test_the_extreme_thresholds_offload_all_and_nothing(threshold, offloaded, accuracy):
    found = exit_metrics.hybrid(FOUR, threshold).loc[CLIENT]
    assert (found["offload_probability"], found["accuracy"]) == (offloaded, accuracy)


@pytest.mark.parametrize("threshold", [0.0, 0.5, np.inf])
def test_without_a_head_all_is_offloaded_and_with_the_whole_model_nothing(threshold):
    headless = answers_of((np.inf, True, False, True))
    whole = answers_of((-np.inf, True, False, True), client=("local", 0, 0))
    found = exit_metrics.hybrid(pd.concat([headless, whole]), threshold)
    assert found["offload_probability"].tolist() == [1, 0]
    assert found["accuracy"].tolist() == [0, 1]


def test_clients_may_have_thresholds_of_their_own_and_count_alike():
    """Clients count alike for any number of samples."""
    one, other = FOUR, answers_of(SURE_AND_WRONG, client=("harmony", 0, 9))
    both = pd.concat([other, one], ignore_index=True)
    own = pd.Series({("harmony", 0, 9): 0.2, CLIENT: 1.2}).rename_axis(exit_metrics.KEY)

    found = exit_metrics.hybrid(both, own)

    assert found["offload_probability"].to_dict() == {("harmony", 0, 9): 1.0, CLIENT: 0.25}
    assert np.isnan(found.loc[("harmony", 0, 9), "accuracy_seen"])
    assert exit_metrics.over_clients(found)["accuracy"].to_dict() == {("harmony", 0): (1 + 0.75) / 2}
    with pytest.raises(KeyError):
        exit_metrics.hybrid(both, own.iloc[:1])


def test_the_oracle_takes_the_largest_of_its_best_thresholds():
    """Three of four are right up to 0.2, where the server answers what the device does not know, and again from 1.2."""
    assert exit_metrics.oracle(FOUR, exit_metrics.thresholds(10)).to_dict() == {CLIENT: 1.6}


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.01, 0.07, 0.3, 0.9, 2.29]), st.booleans(), st.booleans(), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_no_threshold_of_the_grid_beats_the_oracle_and_no_larger_one_equals_it(samples):
    answers = answers_of(*samples)
    best = exit_metrics.oracle(answers, exit_metrics.thresholds(10))
    reached = exit_metrics.hybrid(answers, best)["accuracy"].item()
    for (*_, threshold), accuracy in exit_metrics.sweep(answers, exit_metrics.thresholds(10))["accuracy"].items():
        assert accuracy <= reached
        assert accuracy < reached or threshold <= best.item()


def test_many_labels_have_larger_entropies():
    assert exit_metrics.thresholds(10)[-1] == 2.3
    assert exit_metrics.thresholds(100)[-3:] == (3.0, 3.8, 4.6)


def test_the_headline_is_that_of_the_oracle_and_of_either_side_alone():
    assert exit_metrics.headline(FOUR, 10) == {
        "hybrid_accuracy": 0.75,
        "device_accuracy": 0.5,
        "server_accuracy": 0.75,
        "offload_probability": 0.25,
    }


def test_with_many_labels_the_oracle_uses_larger_thresholds_for_any_test_set():
    unsure = answers_of((2.9, True, True, False))
    found = [exit_metrics.headline(unsure, n_labels)["offload_probability"] for n_labels in (10, 100)]
    assert found == [1.0, 0.0]


def test_a_side_that_cannot_answer_has_no_accuracy():
    headless, whole = (answers_of((entropy, True, True, True)) for entropy in (np.inf, -np.inf))
    assert exit_metrics.headline(headless, 10)["device_accuracy"] is None
    assert exit_metrics.headline(headless, 10)["server_accuracy"] == 1
    assert exit_metrics.headline(whole, 10)["server_accuracy"] is None
    assert exit_metrics.headline(whole, 10)["device_accuracy"] == 1


def test_a_higher_threshold_offloads_less():
    found = exit_metrics.trade_off(FOUR, (2.3, 0.05, 0.4, 1.2)).loc["harmony", 0]
    assert found["offload_probability"].to_dict() == {0.05: 0.75, 0.4: 0.5, 1.2: 0.25, 2.3: 0.0}
    assert found["accuracy"].to_dict() == {0.05: 0.75, 0.4: 0.5, 1.2: 0.75, 2.3: 0.5}


# Smaller rho


def table_of(sets, samples, counts):
    """The answers of two variants to these test sets."""
    rows = [
        pd.DataFrame({"client": client, "sample": part, "label": samples.labels[part]}).assign(
            seen=lambda own, held=counts[client]: held[own["label"]] > 0
        )
        for client, part in enumerate(sets)
    ]
    return pd.concat([pd.concat(rows).assign(variant=variant, seed=0) for variant in "ab"], ignore_index=True)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5).filter(any), min_size=2, max_size=5).map(np.array),
    st.sampled_from([0.0, 0.1, 0.29, 0.4, 0.8]),
    st.integers(0, 99),
)
def test_a_smaller_rho_is_what_its_own_test_sets_would_have_been(counts, rho, seed):
    if not counts.any(axis=0).all() or (counts > 0).all():
        return  # a label that nobody has cannot be counted; without unseen labels there is nothing to test
    samples = Samples(stream(seed, "labels").permutation(np.repeat(np.arange(5), [30, 7, 50, 1, 20])), 5)

    def built(rho):
        return table_of(rho_ood(samples, counts, stream(seed, "test sets"), rho=rho), samples, counts)

    try:
        wanted, large = built(rho), built(0.8)
    except ScenarioError:
        return  # so small a rho adds no sample to any client
    pd.testing.assert_frame_equal(exit_metrics.at_rho(large, rho).reset_index(drop=True), wanted)


# Eq. (12)


def test_eq_12_as_computed_by_hand():
    """Golden value of docs/methods/README.md#golden-values."""
    latency = exit_metrics.latency_eq12(1200, 81_162, 1.0, 0.25, 128, 9_155_082)
    assert float(latency) == pytest.approx(1.24898e8, rel=5e-6)


def test_eq_12_of_everything_offloaded_grows_with_the_test_set_alone():
    fleet = {
        "device_parameters": np.array([100, 300]),
        "power": exit_metrics.power([50, 200]),
        "offload_probability": 1.0,
        "feature_size": 10,
        "server_parameters": np.array([900, 700]),
    }
    assert fleet["power"].tolist() == [0.25, 1.0]
    at_rho_0, at_rho_08 = (exit_metrics.latency_eq12(samples, **fleet) for samples in (1000, 1800))
    assert at_rho_08 == pytest.approx(1.8 * at_rho_0)
    assert at_rho_0.tolist() == [1000 * (400 + 10 + 9), 1000 * (300 + 10 + 7)]
